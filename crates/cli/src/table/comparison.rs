//! Policies side by side.

use crate::simulate::{Document, Run};
use crate::text::{fixed, one_line, short};
use std::fmt::Write as _;
use tailwater_net::Nanos;
use tailwater_sim::ChainReport;

/// Width of the column of policies.
const POLICY: usize = 30;

/// A block for each chain and objective, a row for each policy, of at most 125 columns; with several seeds,
/// a row for each of them.
pub fn comparison(document: &Document) -> String {
    let mut text = format!(
        "rack {}: {} servers, {} cores\n",
        document.rack, document.servers, document.cores
    );
    let runs = &document.runs;
    let chains = runs.first().map_or(0, |run| run.report.chains.len());
    let mut seeds = runs.iter().map(|run| run.report.seed);
    let first = seeds.next();
    let seeds = seeds.any(|seed| Some(seed) != first);
    for number in 0..chains {
        let slo = |run: &Run| run.report.chains[number].slo_us;
        let mut slos: Vec<f64> = Vec::new();
        for run in runs {
            if !slos.contains(&slo(run)) {
                slos.push(slo(run));
            }
        }
        for wanted in slos {
            let rows = runs.iter().filter(|run| slo(run) == wanted);
            for (row, run) in rows.enumerate() {
                let chain = &run.report.chains[number];
                if row == 0 {
                    heading(&mut text, chain, run, seeds);
                }
                line(&mut text, chain, seeds.then_some(run.report.seed));
            }
        }
    }
    text
}

fn heading(text: &mut String, chain: &ChainReport, run: &Run, seeds: bool) {
    let slo = Nanos((chain.slo_us * 1e3).round() as u64);
    let duration_s = run.report.duration_s;
    let rate = chain.packets.offered as f64 / duration_s.max(1e-9);
    let of_seed = match seeds {
        true => format!(" with seed {}", run.report.seed),
        false => String::new(),
    };
    let _ = writeln!(
        text,
        "\nchain {}: {}, {} packets in {duration_s:.2} s ({}pps), {} flows{of_seed}; SLO: 99 % within {slo}\n",
        chain.chain,
        one_line(&chain.traffic),
        short(chain.packets.offered as f64),
        short(rate),
        short(chain.packets.flows as f64),
    );
    let seed = if seeds { "    seed" } else { "" };
    let _ = writeln!(
        text,
        "{:<POLICY$}{seed}{:>10}{:>11}{:>11}{:>10}{:>8}{:>8}{:>8}  {:<6} late by",
        "policy", "p50 us", "p99 us", "p99.9 us", "loss", "cores", "queues", "helpers", "SLO",
    );
}

fn line(text: &mut String, chain: &ChainReport, seed: Option<u64>) {
    let latency = &chain.latency_us;
    let verdict = if chain.slo_met { "met" } else { "MISSED" };
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

/// Lost packets in percent: what is lost never reads as 0.
fn loss(lost: u64, rate: f64) -> String {
    match (lost, rate * 100.0) {
        (0, _) => "0".to_owned(),
        (_, percent) if percent < 0.001 => "<0.001 %".to_owned(),
        (_, percent) => format!("{percent:.3} %"),
    }
}

/// The cause that made most packets late, and its share of them.
fn largest_cause(chain: &ChainReport) -> String {
    let late: u64 = chain.late_by_cause.values().sum();
    // Of equal ones the first by name.
    let causes = chain.late_by_cause.iter().rev();
    match causes.max_by_key(|(_, count)| **count) {
        Some((cause, count)) if *count > 0 => {
            let percent = (*count as f64 / late as f64 * 100.0).round();
            format!("{cause} {percent} %")
        }
        _ => String::new(),
    }
}
