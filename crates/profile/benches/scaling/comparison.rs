//! Comparison of policies on the same packets, window by window, and the summary table.
//!
//! No clock and no data plane: `tests/scaling_comparison.rs` tests this file.

use tailwater_measure::sign_test::SignTest;

/// Row of one dedicated core without auxiliary cores, with which all others are compared.
pub const STATIC: &str = "static";
/// Row of two dedicated cores, which sets the objectives that can be kept.
pub const TWO_DEDICATED: &str = "static-two-dedicated";
/// Probability below which a difference is not taken for noise.
pub const SIGNIFICANCE: f64 = 0.05;
/// Average cores with which a policy has to keep what two dedicated cores keep.
pub const MOST_CORES: f64 = 1.35;

/// One measurement window.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Number of the window in its run.
    pub index: u64,
    /// 99th percentile of latency, in microseconds.
    pub p99_us: f64,
    /// Share of packets that were late or lost.
    pub late: f64,
    /// A worker was preempted for too long.
    pub flagged: bool,
}

/// One run of a policy.
#[derive(Clone, Debug, Default)]
pub struct PolicyRun {
    /// Windows of the run.
    pub windows: Vec<Window>,
    /// Average of dedicated and activated auxiliary cores.
    pub cores: f64,
    /// Lost packets.
    pub lost: u64,
}

/// Policy with its runs, one a round. Runs of the same round have the same packets.
#[derive(Clone, Debug)]
pub struct Row {
    /// Name of the row.
    pub name: &'static str,
    /// Runs in the order of rounds.
    pub runs: Vec<PolicyRun>,
}

/// Figures of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// 99th percentile of the median window, in microseconds.
    pub p99_us: f64,
    /// Late share of the median window, lost packets included.
    pub late: f64,
    /// Share of windows that kept the objective.
    pub kept: f64,
    /// Lost packets of all runs.
    pub lost: u64,
    /// Average cores of all runs.
    pub cores: f64,
    /// All windows.
    pub windows: usize,
    /// Flagged windows. The figures exclude them unless they are more than half.
    pub flagged: usize,
}

/// Sign tests of a row's windows against those of [`STATIC`] in the same round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compared {
    /// By share of late and lost packets.
    pub late: SignTest,
    /// By 99th percentile.
    pub p99: SignTest,
    /// Most pairs had a flagged window, so that flagged ones count as well.
    pub disturbed: bool,
}

/// Result of the second criterion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keeps {
    /// The objective is kept, with few enough cores.
    Yes,
    /// The objective is missed.
    Late,
    /// The objective is kept, with this many cores.
    TooManyCores(f64),
}

/// Combination of chain, traffic, load and objective.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Name: `chain/traffic/load/objective`.
    pub name: String,
    /// Share of late and lost packets with which the objective is kept.
    pub late_limit: f64,
    /// Packets per second that one dedicated core does without pace, in millions, by round.
    pub capacity_mpps: Vec<f64>,
    /// Offered packets per second, in millions, by round.
    pub offered_mpps: Vec<f64>,
    /// Rows, [`STATIC`] among them.
    pub rows: Vec<Row>,
}

/// Returns the median, or 0 without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => (values[count / 2 - 1] + values[count / 2]) / 2.0,
    }
}

/// Returns unflagged items, or all items if more than half are flagged; `true` in the latter case.
fn undisturbed<T: Copy>(items: &[T], flagged: impl Fn(&T) -> bool) -> (Vec<T>, bool) {
    let unflagged: Vec<T> = items.iter().copied().filter(|item| !flagged(item)).collect();
    match 2 * unflagged.len() < items.len() {
        true => (items.to_vec(), true),
        false => (unflagged, false),
    }
}

impl Row {
    /// Returns the row's figures. `late_limit` is the share of late packets with which a window keeps the objective.
    pub fn summary(&self, late_limit: f64) -> Summary {
        let all: Vec<Window> = self.runs.iter().flat_map(|run| run.windows.iter().copied()).collect();
        let (counted, _) = undisturbed(&all, |window| window.flagged);
        let kept = counted.iter().filter(|window| window.late <= late_limit).count();
        Summary {
            p99_us: median(counted.iter().map(|window| window.p99_us)),
            late: median(counted.iter().map(|window| window.late)),
            kept: kept as f64 / counted.len().max(1) as f64,
            lost: self.runs.iter().map(|run| run.lost).sum(),
            cores: self.runs.iter().map(|run| run.cores).sum::<f64>() / self.runs.len().max(1) as f64,
            windows: all.len(),
            flagged: all.iter().filter(|window| window.flagged).count(),
        }
    }

    /// Compares this row's windows with those of `reference` in the same round and with the same index.
    pub fn compared(&self, reference: &Row) -> Compared {
        let mut pairs: Vec<(Window, Window)> = Vec::new();
        for (run, other) in self.runs.iter().zip(&reference.runs) {
            for window in &run.windows {
                let same = other.windows.iter().find(|other| other.index == window.index);
                pairs.extend(same.map(|other| (*window, *other)));
            }
        }
        let (counted, disturbed) = undisturbed(&pairs, |(window, other)| window.flagged || other.flagged);
        Compared {
            late: SignTest::of(counted.iter().map(|(window, other)| (window.late, other.late))),
            p99: SignTest::of(counted.iter().map(|(window, other)| (window.p99_us, other.p99_us))),
            disturbed,
        }
    }
}

impl Cell {
    /// Returns the row with this name.
    pub fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Compares a row with [`STATIC`], or returns `None` for that row itself.
    pub fn compared(&self, row: &Row) -> Option<Compared> {
        let reference = self.row(STATIC).filter(|reference| reference.name != row.name)?;
        Some(row.compared(reference))
    }

    /// Returns the result of the second criterion: keeps the objective with at most [`MOST_CORES`]. `None` where two
    /// dedicated cores miss it or were not measured.
    pub fn keeps(&self, row: &Row) -> Option<Keeps> {
        let two = self.row(TWO_DEDICATED)?.summary(self.late_limit);
        if two.late > self.late_limit {
            return None;
        }
        let own = row.summary(self.late_limit);
        Some(match own {
            _ if own.late > self.late_limit => Keeps::Late,
            _ if own.cores > MOST_CORES => Keeps::TooManyCores(own.cores),
            _ => Keeps::Yes,
        })
    }
}

/// Heading of the table.
pub const HEADING: &str = "\
| chain/traffic/load/SLO µs | Mpps of capacity | policy | p99 µs | late | kept | lost | cores \
| windows better, worse, equal (p) | not worse | keeps what two cores keep |
|---|---|---|---|---|---|---|---|---|---|---|";

/// Returns the lines of a cell's rows. The criteria are given for the rows in `judged`.
pub fn table_lines(cell: &Cell, judged: &[&str]) -> Vec<String> {
    let rates = format!(
        "{:.2} of {:.2}",
        median(cell.offered_mpps.iter().copied()),
        median(cell.capacity_mpps.iter().copied())
    );
    let line = |(i, row): (usize, &Row)| {
        let summary = row.summary(cell.late_limit);
        let (name, rates) = match i {
            0 => (cell.name.as_str(), rates.as_str()),
            _ => ("", ""),
        };
        let compared = cell.compared(row);
        let signs = compared.map_or_else(
            || "–".to_owned(),
            |Compared { late, disturbed, .. }| {
                let mark = if disturbed { " †" } else { "" };
                let p = late.p_value();
                format!("{}, {}, {} ({p:.3}){mark}", late.better, late.worse, late.equal)
            },
        );
        let is_judged = judged.contains(&row.name);
        let not_worse = match compared.filter(|_| is_judged) {
            Some(compared) if compared.late.is_worse(SIGNIFICANCE) => "**NO**",
            Some(_) => "yes",
            None => "–",
        };
        let keeps = match cell.keeps(row).filter(|_| is_judged) {
            Some(Keeps::Yes) => "yes".to_owned(),
            Some(Keeps::Late) => "**NO**: late".to_owned(),
            Some(Keeps::TooManyCores(cores)) => format!("**NO**: {cores:.2} cores"),
            None => "–".to_owned(),
        };
        let kept = if summary.late <= cell.late_limit { "**" } else { "" };
        format!(
            "| {name} | {rates} | {} | {kept}{:.0}{kept} | {:.2} % | {:.0} % | {} | {:.2} | {signs} | {not_worse} \
             | {keeps} |",
            row.name,
            summary.p99_us,
            100.0 * summary.late,
            100.0 * summary.kept,
            summary.lost,
            summary.cores,
        )
    };
    cell.rows.iter().enumerate().map(line).collect()
}

/// Both criteria of one policy over all cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// Cells with the policy.
    pub cells: usize,
    /// Cells in which most paired windows had CPU interference.
    pub disturbed: usize,
    /// Cells in which it is worse than [`STATIC`] beyond noise.
    pub worse: usize,
    /// Cells in which it is better beyond noise.
    pub better: usize,
    /// Cells in which two dedicated cores keep the objective.
    pub can_keep: usize,
    /// Cells of these in which the policy keeps it with few enough cores.
    pub keeps: usize,
    /// Paired windows of all cells, by share of late and lost packets.
    pub windows: SignTest,
}

/// Returns both criteria of a policy over all cells.
pub fn total(cells: &[Cell], policy: &str) -> Total {
    let mut total = Total::default();
    for cell in cells {
        let Some(row) = cell.row(policy) else {
            continue;
        };
        total.cells += 1;
        if let Some(Compared { late, disturbed, .. }) = cell.compared(row) {
            total.disturbed += usize::from(disturbed);
            total.worse += usize::from(late.is_worse(SIGNIFICANCE));
            total.better += usize::from(late.is_better(SIGNIFICANCE));
            total.windows.merge(late);
        }
        if let Some(keeps) = cell.keeps(row) {
            total.can_keep += 1;
            total.keeps += usize::from(keeps == Keeps::Yes);
        }
    }
    total
}
