//! Comparison of policies as text.

use super::too_few;
use crate::simulate::document::{Bound, Document, Run};
use crate::text::{fixed, one_line, short};
use std::fmt::Write as _;
use tailwater_net::Nanos;
use tailwater_sim::policies::ORACLE;
use tailwater_sim::report::PERCENTILE;
use tailwater_sim::{ChainBound, ChainReport};

/// Width of the policy column.
const POLICY: usize = 30;

/// Formats a block per chain and objective, with a row per policy, of at most 125 columns; with several seeds, a row
/// per seed. The oracle's row is last, and contains cores only.
pub fn comparison(document: &Document) -> String {
    let mut text = format!(
        "rack {}: {} servers, {} cores\n",
        document.rack, document.servers, document.cores
    );
    let (runs, bounds) = (&document.runs, &document.bounds);
    let seeds = || (runs.iter().map(|run| run.report.seed)).chain(bounds.iter().map(|b| b.seed));
    let several = seeds().any(|seed| Some(seed) != seeds().next());
    let seed = |seed| several.then_some(seed);
    let mut of_chain = Vec::new();
    for run in runs {
        of_chain.push(run.report.chains.iter().map(|c| Row::Run(c, run)).collect());
    }
    for bound in bounds {
        let report = &bound.report;
        of_chain.push(report.chains.iter().map(|c| Row::Bound(c, bound)).collect());
    }
    let chains = of_chain.first().map_or(0, Vec::len);
    for number in 0..chains {
        let rows = || of_chain.iter().map(|rows| rows[number]);
        let mut slos: Vec<f64> = Vec::new();
        for row in rows() {
            if !slos.contains(&row.slo_us()) {
                slos.push(row.slo_us());
            }
        }
        for wanted in slos {
            let rows = || rows().filter(|row| row.slo_us() == wanted);
            for (place, row) in rows().enumerate() {
                if place == 0 {
                    row.heading(&mut text, several);
                }
                match row {
                    Row::Run(chain, run) => line(&mut text, chain, seed(run.report.seed)),
                    Row::Bound(chain, bound) => at_least(&mut text, chain, seed(bound.seed)),
                }
            }
            without_verdict(&mut text, rows().filter_map(Row::chain));
        }
    }
    if !bounds.is_empty() {
        text.push('\n');
    }
    for bound in bounds {
        rack(&mut text, bound, bounds.len() > 1);
    }
    text
}

/// A row of a chain's block.
#[derive(Clone, Copy)]
enum Row<'d> {
    Run(&'d ChainReport, &'d Run),
    Bound(&'d ChainBound, &'d Bound),
}

impl<'d> Row<'d> {
    fn slo_us(self) -> f64 {
        match self {
            Row::Run(chain, _) => chain.slo_us,
            Row::Bound(chain, _) => chain.slo_us,
        }
    }

    /// Returns the chain's report, if the row is a run.
    fn chain(self) -> Option<&'d ChainReport> {
        match self {
            Row::Run(chain, _) => Some(chain),
            Row::Bound(..) => None,
        }
    }

    /// Adds the heading above the first row.
    fn heading(self, text: &mut String, seeds: bool) {
        let slo = Nanos((self.slo_us() * 1e3).round() as u64);
        let (chain, traffic, packets, flows, duration_s, seed) = match self {
            Row::Run(chain, run) => {
                let (packets, report) = (&chain.packets, &run.report);
                let (offered, flows) = (packets.offered, packets.flows);
                (
                    &chain.chain,
                    &chain.traffic,
                    offered,
                    flows,
                    report.duration_s,
                    report.seed,
                )
            }
            Row::Bound(chain, bound) => {
                let duration_s = bound.report.epochs as f64 * 1e-4;
                let (packets, flows) = (chain.packets, chain.flows);
                (&chain.chain, &chain.traffic, packets, flows, duration_s, bound.seed)
            }
        };
        let rate = packets as f64 / duration_s.max(1e-9);
        let of_seed = match seeds {
            true => format!(" with seed {seed}"),
            false => String::new(),
        };
        let _ = writeln!(
            text,
            "\nchain {chain}: {}, {} packets in {duration_s:.2} s ({}pps), {} flows{of_seed}; SLO: 99 % within {slo}\n",
            one_line(traffic),
            short(packets as f64),
            short(rate),
            short(flows as f64),
        );
        let seed = if seeds { "    seed" } else { "" };
        let _ = writeln!(
            text,
            "{:<POLICY$}{seed}{:>10}{:>11}{:>11}{:>10}{:>8}{:>8}{:>8}  {:<6} late by",
            "policy", "p50 us", "p99 us", "p99.9 us", "loss", "cores", "queues", "aux", "SLO",
        );
    }
}

/// Adds the row with the lower bound for all policies.
fn at_least(text: &mut String, chain: &ChainBound, seed: Option<u64>) {
    let seed = seed.map_or_else(String::new, |seed| format!("{seed:>8}"));
    let verdict = match chain.attainable {
        true => "",
        false => "no policy meets it",
    };
    // Up to the column of cores, and across the next two.
    let cores = format!("at least {}", fixed(chain.cores));
    let line = format!("{ORACLE:<POLICY$}{seed}{cores:>50}{:16}  {verdict}", "");
    text.push_str(line.trim_end());
    text.push('\n');
}

/// Adds the lower bound for all chains together.
fn rack(text: &mut String, bound: &Bound, several: bool) {
    let (report, slo_us) = (&bound.report, bound.report.chains.first().map(|c| c.slo_us));
    let of = match (several, slo_us) {
        (true, Some(slo_us)) => {
            let slo = Nanos((slo_us * 1e3).round() as u64);
            format!(" for {slo} and seed {}", bound.seed)
        }
        _ => String::new(),
    };
    let _ = writeln!(
        text,
        "{ORACLE}{of}: at least {} cores active per 100us on average, {} at the peak; {} and {} with no packet late",
        fixed(report.cores.average),
        report.cores.most,
        fixed(report.cores_none_late.average),
        report.cores_none_late.most,
    );
}

fn line(text: &mut String, chain: &ChainReport, seed: Option<u64>) {
    let latency = &chain.latency_us;
    let verdict = verdict(chain);
    let seed = seed.map_or_else(String::new, |seed| format!("{seed:>8}"));
    let line = format!(
        "{:<POLICY$}{seed}{:>10}{:>11}{:>11}{:>10}{:>8}{:>8}{:>8}  {verdict:<6} {}",
        chain.policy,
        fixed(latency.p50),
        fixed(latency.p99),
        fixed(latency.p999),
        loss(chain.packets.lost, chain.loss_rate),
        fixed(chain.cores.total),
        fixed(chain.cores.dedicated),
        fixed(chain.cores.auxiliary),
        largest_cause(chain),
    );
    text.push_str(line.trim_end());
    text.push('\n');
}

/// Formats the verdict on a chain's objective.
pub fn verdict(chain: &ChainReport) -> &'static str {
    match chain.slo_met {
        Some(true) => "met",
        Some(false) => "MISSED",
        None => "none",
    }
}

/// Adds a line if a chain has too few packets for a verdict.
pub fn without_verdict<'r>(text: &mut String, chains: impl Iterator<Item = &'r ChainReport>) {
    let without = chains.filter(|chain| chain.slo_met.is_none());
    if let Some(fewest) = without.map(|chain| chain.packets.offered).min() {
        let packets = match fewest {
            0 => "no packets arrived".to_owned(),
            packets => too_few(packets, PERCENTILE),
        };
        let _ = writeln!(text, "NO VERDICT where SLO is none: {packets}");
    }
}

/// Formats the loss ratio in percent; a loss never reads as 0.
pub fn loss(lost: u64, rate: f64) -> String {
    match (lost, rate * 100.0) {
        (0, _) => "0".to_owned(),
        (_, percent) if percent < 0.001 => "<0.001 %".to_owned(),
        (_, percent) => format!("{percent:.3} %"),
    }
}

/// Returns the cause of most late packets, and its share of them.
fn largest_cause(chain: &ChainReport) -> String {
    let late: u64 = chain.late_by_cause.values().sum();
    // Of equal ones, the first by name.
    let causes = chain.late_by_cause.iter().rev();
    match causes.max_by_key(|(_, count)| **count) {
        Some((cause, count)) if *count > 0 => {
            let percent = (*count as f64 / late as f64 * 100.0).round();
            format!("{cause} {percent} %")
        }
        _ => String::new(),
    }
}
