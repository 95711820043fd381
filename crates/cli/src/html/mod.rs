//! Self-contained HTML reports: `tailwater run --report`, `tailwater simulate --report` and `tailwater profile
//! --report`, among others.
//!
//! Templates of `maud` write all elements, and escape every text in them. The page's script only shows figures under
//! the pointer. Elements are closed as in XML, so that a test can parse the page.

mod burst;
mod chain_runs;
mod charts;
mod comparison;
mod contention;
mod demo;
mod explain;
mod policies;
mod prediction;
mod profiles;
mod scale;
mod svg;
mod tables;
mod text;

use crate::dates::utc;
use crate::error::CliError;
use crate::output::not_json;
use crate::text::one_line;
pub use comparison::page as comparison;
pub use contention::page as contention;
pub use demo::page as demo;
use maud::{DOCTYPE, Markup, PreEscaped, Render, html};
pub use prediction::page as prediction;
pub use profiles::page as profiles;
use serde::Serialize;
use std::time::SystemTime;
use tailwater_dataplane::report::RunReport;
use text::visible;

const STYLE: PreEscaped<&str> = PreEscaped(include_str!("page.css"));
const SCRIPT: PreEscaped<&str> = PreEscaped(include_str!("page.js"));

/// Elements of every page's head. Templates cannot close elements without content.
const META: PreEscaped<&str> = PreEscaped(
    "<meta charset=\"utf-8\"/>\n\
     <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
     <meta name=\"color-scheme\" content=\"light dark\"/>\n\
     <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
     style-src 'unsafe-inline'; script-src 'unsafe-inline'\"/>\n",
);

/// Maximum size of the JSON report in a page, bytes.
const MOST_JSON: usize = 1_000_000;

/// Maximum size of the chain spec in a page, as HTML, bytes.
const MOST_SPEC: usize = 100_000;

/// Returns the page of a run of the chain in `spec` that ended at `ended`.
///
/// # Errors
/// The report cannot be written as JSON.
pub fn page(report: &RunReport, spec: &str, ended: SystemTime) -> Result<String, CliError> {
    let ended = utc(ended);
    let verdict = match report.slo_met {
        Some(true) => "SLO met",
        Some(false) => "SLO missed",
        None => "no verdict",
    };
    let figures = charts::all(report);
    // There is room for one more figure beside a tall one.
    let beside = figures.iter().any(|figure| figure.tall);
    let main = html! {
        div.grid {
            @for figure in figures { (figure) }
            @if beside { (tables::flows(report)) }
        }
        div.grid.tables {
            (tables::packets(report))
            (tables::latency(report))
            (tables::windows(report))
            @if !beside { (tables::flows(report)) }
        }
        (explain::what_to_do(causes(report)))
        (spec_text("Chain spec", spec))
    };
    Ok(assemble(
        &format!("{}: {verdict}", report.chain),
        &tables::heading(report, &ended),
        &main,
        &format!(" on {ended}"),
        "how-to/read-a-report.md",
        &embedded(report)?,
    ))
}

/// Causes of the run's late packets, the most frequent first.
fn causes(report: &RunReport) -> impl Iterator<Item = &'static str> {
    let mut causes: Vec<(&'static str, u64)> = report
        .late_by_cause
        .iter()
        .map(|(cause, late)| (*cause, *late))
        .collect();
    causes.retain(|(_, late)| *late > 0);
    causes.sort_by_key(|(_, late)| std::cmp::Reverse(*late));
    causes.into_iter().map(|(cause, _)| cause)
}

/// Assembles a page. `when` is its time, `docs` documents its charts, and the data are its document as JSON, with
/// `true` if that is complete.
fn assemble(
    title: &str,
    heading: &Markup,
    main: &Markup,
    when: &str,
    docs: &str,
    (json, is_complete): &(String, bool),
) -> String {
    let content = html! { (heading) main { (main) } };
    let page = html! {
        (DOCTYPE) "\n"
        html lang="en" {
            head {
                (META)
                title { (visible(&one_line(title))) }
                style { (STYLE) }
            }
            body {
                (PreEscaped(visible(&content.0)))
                footer {
                    p {
                        "Written by Tailwater " (env!("CARGO_PKG_VERSION")) (when) ". The report as JSON is in this "
                        "file, in the element " code { "report" }
                        @if !is_complete { ", without its longest lists" }
                        ". What each chart means: docs/" (docs) ", in the sources and in /usr/share/doc/tailwater."
                    }
                }
                script type="application/json" id="report" { (PreEscaped(json)) }
                script { (SCRIPT) }
            }
        }
        "\n"
    };
    page.into_string()
}

/// Replaces every run of 32 or more hexadecimal digits, the form of keys, since reports are shared.
fn without_keys(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_hexdigit()) {
        let (before, run) = rest.split_at(start);
        let end = run.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(run.len());
        let (digits, after) = run.split_at(end);
        shown.push_str(before);
        shown.push_str(if digits.len() >= 32 { "(withheld)" } else { digits });
        rest = after;
    }
    shown + rest
}

fn spec_text(heading: &str, spec: &str) -> Markup {
    let mut text = String::new();
    for line in without_keys(spec).lines() {
        let line = one_line(&line.replace('\t', "  ")).render();
        if text.len() + line.0.len() > MOST_SPEC {
            text.push_str("… (the rest is left out)\n");
            break;
        }
        text.push_str(&line.0);
        text.push('\n');
    }
    html! {
        section.card id="spec" {
            h2 { (heading) }
            pre { (PreEscaped(text)) }
        }
    }
}

/// Returns a document as JSON that can be embedded in a page.
fn json(document: &impl Serialize) -> Result<String, CliError> {
    let json = serde_json::to_string(document).map_err(not_json)?;
    // These characters occur in strings only, where the escapes are equivalent.
    Ok(json
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026"))
}

/// Returns the report as JSON, and `true` if it is complete. Its longest lists are omitted if the page would become too
/// large.
fn embedded(report: &RunReport) -> Result<(String, bool), CliError> {
    let whole = json(report)?;
    if whole.len() <= MOST_JSON {
        return Ok((whole, true));
    }
    let mut short = report.clone();
    short.windows.list.clear();
    let text = json(&short)?;
    if text.len() <= MOST_JSON {
        return Ok((text, false));
    }
    short.timeline.list.clear();
    Ok((json(&short)?, false))
}

#[cfg(test)]
mod tests;
