//! Table of the demonstration: a row for each figure, a column for each policy.

use super::share;
use crate::demo::document::{Document, PolicyResult};
use crate::text::{fixed, one_line, percent, short, thousands};
use std::fmt::Write as _;
use tailwater_net::Nanos;

/// Widths of the column of names and of each policy's column.
const NAMES: usize = 36;
const POLICY: usize = 25;

/// Rows, each with its name and a figure of each policy.
pub type Rows = Vec<(String, Vec<String>)>;

/// Rows of the table on the terminal and in the page.
pub fn rows(document: &Document) -> Rows {
    let limit = Nanos((document.slo.latency_us * 1e3).round() as u64);
    let simulated = document.simulated;
    let row = |name: &str, figure: &dyn Fn(&PolicyResult) -> String| {
        (name.to_owned(), document.policies.iter().map(figure).collect())
    };
    let packets = |number: u64, whole: u64| match number {
        0 => "0".to_owned(),
        number => format!("{} ({})", thousands(number), percent(share(number, whole))),
    };
    let mut rows = vec![
        row("latency p50, us", &|p| fixed(p.latency_us.p50)),
        row("latency p99, us", &|p| fixed(p.latency_us.p99)),
        row(&format!("in time (within {limit})"), &|p| percent(p.in_time)),
        row("objective", &|p| {
            let verdict = match p.kept {
                Some(true) => "kept",
                Some(false) => "missed",
                None => "no verdict",
            };
            verdict.to_owned()
        }),
        row("objective kept in", &|p| {
            format!(
                "{} of {} windows",
                thousands(p.windows_kept),
                thousands(p.windows_judged)
            )
        }),
        row("late", &|p| packets(p.late, p.offered)),
        row("lost", &|p| packets(p.lost, p.offered)),
        row("dedicated core time", &|p| format!("{:.2} s", p.dedicated_core_s)),
        row("auxiliary core time", &|p| match p.auxiliary_core_s {
            0.0 => "0 s".to_owned(),
            seconds => format!("{seconds:.2} s"),
        }),
    ];
    if !simulated {
        rows.push(row("windows with CPU interference", &|p| {
            format!("{} of {}", thousands(p.windows_with_interference), thousands(p.windows))
        }));
    }
    rows
}

/// Text of the demonstration: experiment, table, verdict.
pub fn demo(document: &Document) -> String {
    let mut text = String::new();
    let how = match document.simulated {
        true => "simulated",
        false => "live on this machine",
    };
    // Writing into a string cannot fail.
    let _ = writeln!(
        text,
        "chain {}, traffic {}, {how}, {} s for each policy",
        document.chain,
        one_line(&document.traffic),
        document.seconds
    );
    let _ = writeln!(
        text,
        "one core takes {}pps; offered {}pps on average ({:.0} %), {}pps in the busiest {} ms ({:.0} %)\n",
        short(document.one_core_pps),
        short(document.offered_pps),
        100.0 * document.offered_pps / document.one_core_pps.max(1.0),
        short(document.busiest.pps),
        document.busiest.ms,
        100.0 * document.busiest.pps / document.one_core_pps.max(1.0),
    );
    let mut line = |name: &str, figures: &[&str]| {
        let figures: String = figures.iter().map(|figure| format!("{figure:>POLICY$}")).collect();
        text.push_str(format!("{name:<NAMES$}{figures}").trim_end());
        text.push('\n');
    };
    let first = if document.simulated { "(simulated)" } else { "" };
    let titles: Vec<&str> = document.policies.iter().map(|policy| policy.title).collect();
    line(first, &titles);
    for (name, figures) in rows(document) {
        let figures: Vec<&str> = figures.iter().map(String::as_str).collect();
        line(&name, &figures);
    }
    let _ = writeln!(text, "\n{}", document.verdict);
    text
}
