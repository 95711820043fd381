//! Page of `tailwater simulate --report`.

use super::chain_runs::ChainRuns;
use super::policies::{self, Palette};
use super::tables::{self, Rows};
use super::text::{count, micros, significant};
use super::{MOST_JSON, assemble, burst, json, spec_text};
use crate::error::CliError;
use crate::simulate::document::{Document, Run};
use crate::table::comparison::loss;
use crate::text::{fixed, one_line};
use maud::{Markup, html};
use tailwater_dataplane::report::packets_required;
use tailwater_sim::ChainReport;
use tailwater_sim::report::PERCENTILE;

/// Returns the page of runs on the rack in `spec`. Equal arguments give equal bytes: the page contains no time.
///
/// # Errors
/// The document cannot be written as JSON.
pub fn page(document: &Document, spec: &str) -> Result<String, CliError> {
    let parts = ChainRuns::all(document);
    let palette = Palette::of(document);
    let main = html! {
        // Figures that do not belong to one chain and one objective come first.
        div.grid {
            @if let Some(part) = parts.first() { (policies::cores(part, &palette)) }
            @for parts in parts.chunk_by(|a, b| a.chain == b.chain) {
                (policies::scatter(parts, &document.bounds, &palette))
            }
        }
        @for (number, part) in parts.iter().enumerate() {
            h2.section { "Chain " (one_line(part.name)) ", SLO: 99 % within " (micros(part.slo_us)) }
            div.grid {
                (policies::distribution(part, &palette, number))
                (policies::late(part, number))
                @for figure in burst::all(part, &palette, number) { (figure) }
            }
            div.grid.tables { (results(part, number)) }
        }
        (spec_text("Rack spec", spec))
    };
    Ok(assemble(
        &format!("{}: policies compared", document.rack),
        &heading(document, &parts),
        &main,
        "",
        "how-to/simulate-a-rack.md",
        &embedded(document)?,
    ))
}

/// Returns the runs, and the policies that meet all objectives with their numbers of cores.
fn heading(document: &Document, parts: &[ChainRuns<'_>]) -> Markup {
    let chains = document.runs.first().map_or(0, |run| run.report.chains.len());
    let seeds = parts.first().map_or(0, ChainRuns::seeds);
    let interrupted = match document.interrupted {
        true => "; interrupted, some runs are missing",
        false => "",
    };
    let about = format!(
        "{} with {}, {}; {} with {}{interrupted}",
        count(document.servers as u64, "server"),
        count(document.cores as u64, "core"),
        count(chains as u64, "chain"),
        count(document.runs.len() as u64, "run"),
        count(seeds as u64, "seed"),
    );
    let verdict = match holders(document) {
        Some((policy, text)) => tables::verdict("met", &policy, &text),
        None if is_missed(document) => tables::verdict("missed", "No policy holds", "every objective with every seed."),
        None => {
            let required = packets_required(PERCENTILE);
            let text = format!("A chain has fewer than {required} packets, too few for 99 % of them.");
            tables::verdict("none", "No verdict", &text)
        }
    };
    tables::header("Tailwater simulation report", &document.rack, &about, &verdict)
}

/// Returns `true` if each policy misses an objective.
fn is_missed(document: &Document) -> bool {
    let missed = |run: &&Run| run.report.chains.iter().any(|chain| chain.slo_met == Some(false));
    let policies = document.runs.iter().map(|run| run.policy);
    let missing: Vec<&str> = document.runs.iter().filter(missed).map(|run| run.policy).collect();
    policies.into_iter().all(|policy| missing.contains(&policy))
}

/// Returns the policy that meets every objective with the fewest cores of the rack, and the others that meet them.
fn holders(document: &Document) -> Option<(String, String)> {
    let mut policies: Vec<(&str, Vec<&Run>)> = Vec::new();
    for run in &document.runs {
        match policies.iter_mut().find(|(name, _)| *name == run.policy) {
            Some((_, runs)) => runs.push(run),
            None => policies.push((run.policy, vec![run])),
        }
    }
    let held = |runs: &[&Run]| {
        let mut chains = runs.iter().flat_map(|run| &run.report.chains);
        chains.all(|chain| chain.slo_met == Some(true))
    };
    let cores = |runs: &[&Run]| {
        let cores = runs.iter().map(|run| run.report.cores.average);
        cores.sum::<f64>() / runs.len().max(1) as f64
    };
    let held = policies.iter().filter(|(_, runs)| held(runs));
    let mut held: Vec<(f64, &str)> = held.map(|(name, runs)| (cores(runs), *name)).collect();
    held.sort_by(|a, b| a.0.total_cmp(&b.0));
    let ((least, first), others) = held.split_first()?;
    let others: Vec<String> = others
        .iter()
        .map(|(cores, name)| format!("{name} ({})", significant(*cores, 3)))
        .collect();
    let also = match others.is_empty() {
        true => "No other policy does.".to_owned(),
        false => format!("So do {}.", others.join(", ")),
    };
    let text = format!(
        "holds every objective with the fewest cores of the rack, {} on average. {also}",
        significant(*least, 3)
    );
    Some(((*first).to_owned(), text))
}

/// Returns the table of figures.
fn results(part: &ChainRuns<'_>, number: usize) -> Markup {
    let seeds = part.seeds() > 1;
    let row = |run: &&Run| {
        let chain = &run.report.chains[part.chain];
        let name = match seeds {
            true => format!("{}, seed {}", run.policy, run.report.seed),
            false => run.policy.to_owned(),
        };
        let (latency, cores) = (&chain.latency_us, &chain.cores);
        let verdict = match chain.slo_met {
            Some(true) => "met",
            Some(false) => "missed",
            None => "no verdict",
        };
        let figures = vec![
            fixed(latency.p50),
            fixed(latency.p99),
            fixed(latency.p999),
            loss(chain.packets.lost, chain.loss_rate),
            fixed(cores.total),
            fixed(cores.dedicated),
            fixed(cores.auxiliary),
            verdict.to_owned(),
        ];
        (name, figures)
    };
    let rows: Rows = part.runs.iter().map(row).collect();
    let columns = [
        "p50, µs",
        "p99, µs",
        "p99.9, µs",
        "loss",
        "cores",
        "queues",
        "auxiliary",
        "SLO",
    ];
    tables::table(&format!("results-{number}"), "Figures", &columns, &rows)
}

/// Returns the document as JSON, and `true` if it is complete. Its longest lists are omitted if the page would become
/// too large.
fn embedded(document: &Document) -> Result<(String, bool), CliError> {
    let whole = json(document)?;
    if whole.len() <= MOST_JSON {
        return Ok((whole, true));
    }
    let mut short = document.clone();
    let chains = |document: &mut Document, change: fn(&mut ChainReport)| {
        let chains = document.runs.iter_mut().flat_map(|run| &mut run.report.chains);
        chains.for_each(change);
    };
    chains(&mut short, |chain| chain.windows.clear());
    let text = json(&short)?;
    if text.len() <= MOST_JSON {
        return Ok((text, false));
    }
    chains(&mut short, |chain| {
        chain.latency_distribution.clear();
        chain.burst = None;
    });
    Ok((json(&short)?, false))
}

#[cfg(test)]
mod tests;
