//! Tables of the lines that `measure` prints.

use super::cells::{CELLS, Cell};
use super::contenders::ROWS;
use super::runs::Outcome;
use std::collections::BTreeMap;

/// Share of late packets up to which the objective is kept.
const KEPT: f64 = 0.01;

/// Runs by row, each by seed.
type Runs = BTreeMap<String, BTreeMap<u64, Outcome>>;

/// Prints a table of all cells, and with `in_detail` one for each. A run that occurs twice counts once, the last.
pub fn print(files: &[String], in_detail: bool) {
    let mut cells: BTreeMap<String, Runs> = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}"));
        for line in text.lines().filter(|line| line.starts_with('{') && line.ends_with('}')) {
            let run: Outcome = serde_json::from_str(line).unwrap_or_else(|error| panic!("{file}: {error}: {line}"));
            let rows = cells.entry(run.cell.clone()).or_default();
            rows.entry(run.row.clone()).or_default().insert(run.seed, run);
        }
    }
    summary(&cells);
    println!();
    matrix(&cells);
    for cell in CELLS {
        if let Some(runs) = cells.get(cell.name).filter(|_| in_detail) {
            details(cell, runs);
        }
    }
}

/// Prints late packets and cores of all rows in all cells. Bold: the mean misses the objective.
fn matrix(cells: &BTreeMap<String, Runs>) {
    println!(
        "| late or lost %, lost %, cores | {} |",
        ROWS.iter().map(|row| row.name).collect::<Vec<_>>().join(" | ")
    );
    println!("|---{}|", "|---".repeat(ROWS.len()));
    for cell in CELLS {
        let Some(runs) = cells.get(cell.name) else { continue };
        let texts = ROWS.iter().map(|row| {
            let Some(row) = runs.get(row.name) else {
                return String::new();
            };
            let late = 100.0 * mean(row, |run| run.late).value;
            let lost = 100.0 * mean(row, |run| run.lost).value;
            let cores = mean(row, |run| run.cores).value;
            let bold = if late > 100.0 * KEPT { "**" } else { "" };
            let lost = if lost < 0.005 {
                "0".to_owned()
            } else {
                format!("{lost:.2}")
            };
            format!("{bold}{late:.2}{bold}, {lost}, {cores:.2}")
        });
        println!("| {} | {} |", cell.name, texts.collect::<Vec<_>>().join(" | "));
    }
}

/// Mean of values, with the half-width of its 95 % interval (Student's t).
#[derive(Clone, Copy, Debug)]
struct Mean {
    value: f64,
    half: f64,
}

impl Mean {
    fn of(values: &[f64]) -> Mean {
        let count = values.len() as f64;
        let value = values.iter().sum::<f64>() / count.max(1.0);
        if values.len() < 2 {
            return Mean { value, half: f64::NAN };
        }
        let variance = values.iter().map(|v| (v - value).powi(2)).sum::<f64>() / (count - 1.0);
        Mean {
            value,
            half: student(values.len() - 1) * (variance / count).sqrt(),
        }
    }

    fn text(self, factor: f64, digits: usize) -> String {
        let (value, half) = (self.value * factor, self.half * factor);
        match half.is_nan() {
            true => format!("{value:.digits$}"),
            false => format!("{value:.digits$} ± {half:.digits$}"),
        }
    }
}

/// Student's t for 95 % and these degrees of freedom.
fn student(freedom: usize) -> f64 {
    const T: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    match freedom {
        0 => f64::NAN,
        1..=10 => T[freedom - 1],
        11..=15 => 2.13,
        16..=20 => 2.09,
        _ => 2.0,
    }
}

fn mean(runs: &BTreeMap<u64, Outcome>, part: fn(&Outcome) -> f64) -> Mean {
    Mean::of(&runs.values().map(part).collect::<Vec<f64>>())
}

/// Ratio of two rows' cores, seed by seed.
fn ratio(runs: &Runs, row: &str, to: &str) -> Option<Mean> {
    let (row, to) = (runs.get(row)?, runs.get(to)?);
    let pairs = row
        .iter()
        .filter_map(|(seed, run)| Some(run.cores / to.get(seed)?.cores));
    let pairs: Vec<f64> = pairs.collect();
    (!pairs.is_empty()).then(|| Mean::of(&pairs))
}

fn kept(runs: &BTreeMap<u64, Outcome>) -> usize {
    runs.values().filter(|run| run.late <= KEPT).count()
}

/// Row of the shipped policy, which the others are compared with.
const OURS: &str = "tailwater as shipped";

/// Returns the best row of those that `accept` takes: the largest share of seeds kept; of the same, if all are kept the
/// fewest cores, otherwise the fewest late.
fn best(runs: &Runs, accept: impl Fn(&str) -> bool) -> Option<&str> {
    let rows = ROWS.iter().map(|row| row.name).filter(|name| accept(name));
    let ranked = rows.filter_map(|name| {
        let (key, found) = runs.get_key_value(name)?;
        let missed = 1.0 - kept(found) as f64 / found.len() as f64;
        let next = match missed > 0.0 {
            false => mean(found, |run| run.cores).value,
            true => mean(found, |run| run.late).value,
        };
        Some((missed, next, key.as_str()))
    });
    let best = ranked.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    best.map(|(.., name)| name)
}

fn summary(cells: &BTreeMap<String, Runs>) {
    println!(
        "| cell | best other | its kept, late %, cores | Tailwater's | cores, of best other | of NetBlaze's best | \
         of the oracle's |\n|---|---|---|---|---|---|---|"
    );
    for cell in CELLS {
        let Some(runs) = cells.get(cell.name) else { continue };
        let is_other = |name: &str| !name.starts_with("tailwater");
        let Some(other) = best(runs, is_other).filter(|_| runs.contains_key(OURS)) else {
            continue;
        };
        let netblaze = best(runs, |name| name.starts_with("netblaze"));
        let text = |name: &str| {
            let row = &runs[name];
            let late = mean(row, |run| run.late).text(100.0, 2);
            let cores = mean(row, |run| run.cores).text(1.0, 2);
            format!("{} of {}, {late}, {cores}", kept(row), row.len())
        };
        let of = |to: Option<&str>| {
            to.and_then(|to| ratio(runs, OURS, to))
                .map_or(String::new(), |r| r.text(1.0, 2))
        };
        println!(
            "| {} | {} | {} | {} | {} | {} | {} |",
            cell.name,
            other,
            text(other),
            text(OURS),
            of(Some(other)),
            of(netblaze),
            of(Some("oracle")),
        );
    }
}

fn details(cell: &Cell, runs: &Runs) {
    println!(
        "\n**{}**: {}, `{}`, {} µs, {} cores, load {:.1}\n",
        cell.name, cell.chain, cell.preset, cell.slo_us, cell.cores, cell.load,
    );
    println!(
        "| | kept | late, % | lost, % | cores | cores, of the oracle's | late at the start, % | cores at the start |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for name in ROWS.iter().map(|row| row.name).chain(["oracle"]) {
        let Some(row) = runs.get(name) else { continue };
        let to_oracle = ratio(runs, name, "oracle").map_or(String::new(), |r| r.text(1.0, 2));
        println!(
            "| {name} | {} of {} | {} | {} | {} | {to_oracle} | {:.1} | {:.2} |",
            kept(row),
            row.len(),
            mean(row, |run| run.late).text(100.0, 2),
            mean(row, |run| run.lost).text(100.0, 3),
            mean(row, |run| run.cores).text(1.0, 2),
            100.0 * mean(row, |run| run.cold_late).value,
            mean(row, |run| run.cold_cores).value,
        );
    }
}
