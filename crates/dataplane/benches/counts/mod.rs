//! Counts of events per packet, compared with a file in the tree.
//!
//! The file has a line for each row: its name and its counts, in the order of its first line. Lines that begin with `#`
//! are comments. Each accepted change for the worse is a comment with its reason, at the end.

use crate::cases::events::EVENTS;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/counts.txt");

/// Number of counts of a row: events, then allocations.
pub const COUNTS: usize = EVENTS.len() + 1;

/// Tolerances of the counts: a share, and a number per packet. A new compiler or C library may exceed them.
const TOLERANCES: [(f64, f64); COUNTS] = [
    (0.01, 0.5),
    (0.01, 0.5),
    (0.05, 0.05),
    (0.05, 0.05),
    (0.05, 0.05),
    (0.0, 0.001),
];

/// Counts per packet.
pub type Counts = [f64; COUNTS];

/// Chain and its traffic.
pub type Row<'a> = (&'static str, &'a str);

/// Names of the counts.
fn names() -> impl Iterator<Item = &'static str> {
    EVENTS.into_iter().chain(["allocations"])
}

/// Contents of the file.
#[derive(Default)]
struct Table {
    rows: BTreeMap<String, Counts>,
    /// Comments after the rows.
    reasons: Vec<String>,
}

impl Table {
    fn parse(text: &str) -> Option<Table> {
        let mut table = Table::default();
        for line in text.lines() {
            match line.strip_prefix("# accepted: ") {
                Some(reason) => table.reasons.push(reason.to_owned()),
                None if line.starts_with('#') || line.is_empty() => {}
                None => {
                    let mut words = line.split_whitespace();
                    let name = words.next()?.to_owned();
                    let counts: Vec<f64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
                    table.rows.insert(name, counts.try_into().ok()?);
                }
            }
        }
        Some(table)
    }

    fn text(&self) -> String {
        let mut text = String::from(
            "# Events and allocations per packet at 1,000 flows. `make bench-counts` compares them;\n\
             # `make bench-counts COUNTS=\"--accept 'why'\"` writes them.\n",
        );
        let mut line = |name: &str, values: Vec<String>| {
            let values: String = values.iter().map(|value| format!(" {value:>14}")).collect();
            let _ = writeln!(text, "{name:<44}{values}");
        };
        line("# row", names().map(str::to_owned).collect());
        for (name, counts) in &self.rows {
            line(name, counts.map(|count| format!("{count:.2}")).to_vec());
        }
        for reason in &self.reasons {
            let _ = writeln!(text, "# accepted: {reason}");
        }
        text
    }
}

/// Differences of a row beyond the tolerances, as text: those for the worse, and the others.
fn differences(name: &str, before: &Counts, now: &Counts) -> [Vec<String>; 2] {
    let mut found = [Vec::new(), Vec::new()];
    for (i, what) in names().enumerate() {
        let (before, now, (share, each)) = (before[i], now[i], TOLERANCES[i]);
        if (now - before).abs() > before * share + each {
            let text = format!("{name} {what} {before:.2} -> {now:.2}");
            found[usize::from(now < before)].push(text);
        }
    }
    found
}

/// Counts all rows by `count`, as many at a time as there are cores.
fn count_all(rows: &[Row<'_>], count: impl Fn(Row<'_>) -> Option<Counts> + Sync) -> Vec<Option<Counts>> {
    let next = AtomicUsize::new(0);
    let counts = Mutex::new(vec![None; rows.len()]);
    let lock = || counts.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || {
        while let i = next.fetch_add(1, Ordering::Relaxed)
            && let Some(row) = rows.get(i)
        {
            let counted = count(*row);
            eprintln!("{}/{}", row.0, row.1);
            lock()[i] = counted;
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    std::mem::take(&mut *lock())
}

/// Counts the rows by `count`, which returns `None` without valgrind, and compares them with the file. With `accept`, the
/// reason, writes them there. Fails if a count got worse or a row is not in the file.
pub fn check(rows: &[Row<'_>], accept: Option<&str>, count: impl Fn(Row<'_>) -> Option<Counts> + Sync) -> ExitCode {
    let file = Path::new(FILE);
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut table = Table::parse(&text).unwrap_or_else(|| panic!("{FILE}: a line is wrong"));
    let (mut new, mut worse, mut better) = (Vec::new(), Vec::new(), Vec::new());
    for ((chain, size), counts) in rows.iter().zip(count_all(rows, count)) {
        let Some(counts) = counts else {
            eprintln!("skipped: valgrind is not installed or failed");
            return ExitCode::SUCCESS;
        };
        let name = format!("{chain}/{size}");
        match table.rows.insert(name.clone(), counts) {
            Some(before) => {
                let [more, less] = differences(&name, &before, &counts);
                worse.extend(more);
                better.extend(less);
            }
            None => new.push(name),
        }
    }
    new.iter().for_each(|name| println!("new: {name}"));
    better.iter().for_each(|line| println!("better: {line}"));
    worse.iter().for_each(|line| println!("worse: {line}"));
    let Some(reason) = accept else {
        println!(
            "{} rows, {} counts worse, {} better",
            rows.len(),
            worse.len(),
            better.len()
        );
        if worse.is_empty() {
            return ExitCode::SUCCESS;
        }
        println!("to accept: make bench-counts COUNTS=\"--accept 'why'\"");
        return ExitCode::FAILURE;
    };
    assert!(!reason.trim().is_empty(), "--accept takes a reason");
    table
        .reasons
        .extend(worse.iter().map(|line| format!("{line}: {reason}")));
    std::fs::write(file, table.text()).unwrap_or_else(|error| panic!("{FILE}: {error}"));
    ExitCode::SUCCESS
}
