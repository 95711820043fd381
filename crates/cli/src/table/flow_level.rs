//! Comparison of policies on a large rack as text: totals, and the chains that are worst off.

use super::comparison::{verdict, without_verdict};
use crate::simulate::document::{Document, Run};
use crate::text::{fixed, one_line, short};
use std::fmt::Write as _;
use tailwater_sim::ChainReport;

/// Maximum number of chains that are listed for each policy.
const LISTED: usize = 10;

/// Formats a row of totals for each run, and then the chains of each run with the most late packets.
pub fn flow_level(document: &Document) -> String {
    let mut text = format!(
        "rack {}: {} servers, {} cores; flow-level model, {} KiB of state for each chain in progress\n",
        document.rack,
        document.servers,
        document.cores,
        document.chain_state_bytes.unwrap_or(0).div_ceil(1024),
    );
    let Some(first) = document.runs.first() else {
        return text;
    };
    let packets: u64 = first.report.chains.iter().map(|chain| chain.packets.offered).sum();
    let seconds = first.report.duration_s;
    let _ = writeln!(
        text,
        "{} chains, {} packets in {seconds:.2} s ({}pps)\n",
        first.report.chains.len(),
        short(packets as f64),
        short(packets as f64 / seconds.max(1e-9)),
    );
    let _ = writeln!(
        text,
        "{:<30}{:>6}{:>12}{:>12}{:>12}{:>10}{:>10}{:>10}",
        "policy", "seed", "chains met", "late", "lost", "cores", "queues", "aux"
    );
    for run in &document.runs {
        total(&mut text, run);
    }
    for run in &document.runs {
        listed(&mut text, run);
    }
    text
}

fn late(chain: &ChainReport) -> u64 {
    chain.late_by_cause.values().sum()
}

fn percent(count: u64, of: u64) -> String {
    match count {
        0 => "0".to_owned(),
        _ => format!("{:.4} %", 100.0 * count as f64 / of.max(1) as f64),
    }
}

fn total(text: &mut String, run: &Run) {
    let chains = &run.report.chains;
    let sum = |of: fn(&ChainReport) -> u64| chains.iter().map(of).sum::<u64>();
    let cores = |of: fn(&ChainReport) -> f64| fixed(chains.iter().map(of).sum::<f64>());
    let offered = sum(|chain| chain.packets.offered);
    let met = chains.iter().filter(|chain| chain.slo_met == Some(true)).count();
    let _ = writeln!(
        text,
        "{:<30}{:>6}{:>12}{:>12}{:>12}{:>10}{:>10}{:>10}",
        run.policy,
        run.report.seed,
        format!("{met}/{}", chains.len()),
        percent(sum(late), offered),
        percent(sum(|chain| chain.packets.lost), offered),
        cores(|chain| chain.cores.total),
        cores(|chain| chain.cores.dedicated),
        cores(|chain| chain.cores.auxiliary),
    );
}

/// Adds the chains with the largest shares of late packets.
fn listed(text: &mut String, run: &Run) {
    let mut chains: Vec<&ChainReport> = run.report.chains.iter().collect();
    let share = |chain: &ChainReport| late(chain) as f64 / chain.packets.offered.max(1) as f64;
    chains.sort_by(|a, b| share(b).total_cmp(&share(a)));
    let of = match chains.len() > LISTED {
        true => format!(", the {LISTED} with most late packets of {}", chains.len()),
        false => String::new(),
    };
    let _ = writeln!(text, "\n{}, seed {}{of}:\n", run.policy, run.report.seed);
    let _ = writeln!(
        text,
        "{:<30}{:>10}{:>10}{:>12}{:>12}{:>11}{:>11}{:>8}  SLO",
        "chain", "traffic", "pps", "late", "lost", "p50 us", "p99 us", "cores"
    );
    for chain in chains.into_iter().take(LISTED) {
        let offered = chain.packets.offered;
        let _ = writeln!(
            text,
            "{:<30}{:>10}{:>10}{:>12}{:>12}{:>11}{:>11}{:>8}  {}",
            chain.chain,
            one_line(&chain.traffic),
            short(offered as f64 / run.report.duration_s.max(1e-9)),
            percent(late(chain), offered),
            percent(chain.packets.lost, offered),
            fixed(chain.latency_us.p50),
            fixed(chain.latency_us.p99),
            fixed(chain.cores.total),
            verdict(chain),
        );
    }
    without_verdict(text, run.report.chains.iter());
}
