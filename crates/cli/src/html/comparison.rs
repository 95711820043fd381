//! Page of `tailwater simulate --report`.

use super::chain_runs::ChainRuns;
use super::charts::Figure;
use super::policies::{self, Palette};
use super::tables::{self, Rows};
use super::text::{count, escape, micros, significant};
use super::{MOST_JSON, begin, burst, draw, end, json, show_spec};
use crate::error::CliError;
use crate::simulate::{Document, Run};
use crate::table::loss;
use crate::text::fixed;
use std::fmt::Write as _;
use tailwater_sim::ChainReport;

/// Returns the page of runs on the rack in `spec`. Equal arguments give equal bytes: the page contains no time.
///
/// # Errors
/// The document cannot be written as JSON.
pub fn page(document: &Document, spec: &str) -> Result<String, CliError> {
    let parts = ChainRuns::all(document);
    let palette = Palette::of(document);
    let rack = escape(&document.rack);
    let mut page = begin(&format!("{rack}: policies compared"));
    heading(&mut page, document, &parts);
    page.push_str("<main>\n");
    // Figures that do not belong to one chain and one objective come first.
    let mut figures = Vec::new();
    figures.extend(parts.first().map(|part| policies::cores(part, &palette)));
    let chains = parts.chunk_by(|a, b| a.chain == b.chain);
    figures.extend(chains.map(|parts| policies::scatter(parts, &document.bounds, &palette)));
    grid(&mut page, &figures);
    for (number, part) in parts.iter().enumerate() {
        let slo = escape(&micros(part.slo_us));
        let name = escape(part.name);
        let _ = writeln!(page, "<h2 class=\"section\">Chain {name}, SLO: 99 % within {slo}</h2>");
        let mut figures = vec![
            policies::distribution(part, &palette, number),
            policies::late(part, number),
        ];
        figures.extend(burst::all(part, &palette, number));
        grid(&mut page, &figures);
        results(&mut page, part, number);
    }
    show_spec(&mut page, "Rack spec", spec);
    let (json, whole) = embedded(document)?;
    end(&mut page, "", "how-to/simulate-a-rack.md", (&json, whole));
    Ok(page)
}

fn grid(page: &mut String, figures: &[Figure]) {
    page.push_str("<div class=\"grid\">\n");
    figures.iter().for_each(|figure| draw(page, figure));
    page.push_str("</div>\n");
}

/// Adds the runs, and the policies that meet all objectives with their numbers of cores.
fn heading(page: &mut String, document: &Document, parts: &[ChainRuns<'_>]) {
    let chains = document.runs.first().map_or(0, |run| run.report.chains.len());
    let seeds = parts.first().map_or(0, ChainRuns::seeds);
    let interrupted = match document.interrupted {
        true => "; interrupted, some runs are missing",
        false => "",
    };
    let _ = write!(
        page,
        "<header>\n<p class=\"product\">Tailwater simulation report</p>\n<h1>{}</h1>\n\
         <p class=\"about\">{} with {}, {}; {} with {}{interrupted}</p>\n",
        escape(&document.rack),
        count(document.servers as u64, "server"),
        count(document.cores as u64, "core"),
        count(chains as u64, "chain"),
        count(document.runs.len() as u64, "run"),
        count(seeds as u64, "seed"),
    );
    let verdict = holders(document);
    let class = if verdict.is_some() { "met" } else { "missed" };
    let (strong, text) = verdict.unwrap_or((
        "No policy holds".to_owned(),
        "every objective with every seed.".to_owned(),
    ));
    let _ = write!(
        page,
        "<div class=\"verdict {class}\" id=\"verdict\"><strong>{}</strong><span>{}</span></div>\n</header>\n",
        escape(&strong),
        escape(&text)
    );
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
        chains.all(|chain| chain.slo_met)
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

/// Adds the table of figures.
fn results(page: &mut String, part: &ChainRuns<'_>, number: usize) {
    let seeds = part.seeds() > 1;
    let row = |run: &&Run| {
        let chain = &run.report.chains[part.chain];
        let name = match seeds {
            true => format!("{}, seed {}", run.policy, run.report.seed),
            false => run.policy.to_owned(),
        };
        let (latency, cores) = (&chain.latency_us, &chain.cores);
        let verdict = if chain.slo_met { "met" } else { "missed" };
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
    page.push_str("<div class=\"tables\">\n");
    let id = format!("results-{number}");
    tables::table(page, &id, "Figures", &columns, &rows);
    page.push_str("</div>\n");
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
