//! Self-contained HTML reports: `tailwater run --report`, `tailwater simulate --report` and `tailwater profile
//! --report`.
//!
//! All charts are drawn here; the page's script only shows figures under the pointer. Elements are closed as in XML, so
//! that a test can parse the page.

mod burst;
mod chain_runs;
mod charts;
mod comparison;
mod demo;
mod policies;
mod profiles;
mod scale;
mod svg;
mod tables;
mod text;

use crate::error::CliError;
use crate::output::not_json;
use charts::Figure;
pub use comparison::page as comparison;
pub use demo::page as demo;
pub use profiles::page as profiles;
use serde::Serialize;
use std::fmt::Write as _;
use std::time::SystemTime;
use tailwater_dataplane::report::RunReport;
use text::{escape, utc};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Maximum size of the JSON report in a page, bytes.
const MOST_JSON: usize = 1_000_000;

/// Maximum size of the chain spec in a page, as HTML, bytes.
const MOST_SPEC: usize = 100_000;

/// Returns the page of a run of the chain in `spec` that ended at `ended`.
///
/// # Errors
/// The report cannot be written as JSON.
pub fn page(report: &RunReport, spec: &str, ended: SystemTime) -> Result<String, CliError> {
    let chain = escape(&report.chain);
    let verdict = match report.slo_met {
        Some(true) => "SLO met",
        Some(false) => "SLO missed",
        None => "no verdict",
    };
    let mut page = begin(&format!("{chain}: {verdict}"));
    tables::heading(&mut page, report, &utc(ended));
    page.push_str("<main>\n<div class=\"grid\">\n");
    let figures = charts::all(report);
    figures.iter().for_each(|figure| draw(&mut page, figure));
    // There is room for one more figure beside a tall one.
    let beside = figures.iter().any(|figure| figure.tall);
    if beside {
        tables::flows(&mut page, report);
    }
    page.push_str("</div>\n<div class=\"grid tables\">\n");
    tables::packets(&mut page, report);
    tables::latency(&mut page, report);
    tables::windows(&mut page, report);
    if !beside {
        tables::flows(&mut page, report);
    }
    page.push_str("</div>\n");
    show_spec(&mut page, "Chain spec", spec);
    let (json, whole) = embedded(report)?;
    let when = format!(" on {}", utc(ended));
    end(&mut page, &when, "how-to/read-a-report.md", (&json, whole));
    Ok(page)
}

/// Returns a page up to its body. The title is escaped already.
fn begin(title: &str) -> String {
    let mut page = String::with_capacity(1 << 18);
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'unsafe-inline'; script-src 'unsafe-inline'\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n",
    );
    page
}

/// Adds the end of a page: its time, a link to its documentation, and its data.
fn end(page: &mut String, when: &str, docs: &str, (json, whole): (&str, bool)) {
    let whole = match whole {
        true => "",
        false => ", without its longest lists",
    };
    let _ = write!(
        page,
        "</main>\n<footer><p>Written by Tailwater {}{when}. The report as JSON is in this file, in the \
         element <code>report</code>{whole}. What each chart means: docs/{docs}.</p></footer>\n\
         <script type=\"application/json\" id=\"report\">{json}</script>\n\
         <script>\n{SCRIPT}</script>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION"),
    );
}

fn draw(page: &mut String, figure: &Figure) {
    let Figure {
        id,
        heading,
        caption,
        legend,
        tall,
        body,
    } = figure;
    let class = if *tall { "card tall" } else { "card" };
    let _ = write!(
        page,
        "<section class=\"{class}\" id=\"{id}\">\n<h2>{heading}</h2>\n<p class=\"caption\">{caption}</p>\n"
    );
    if !legend.is_empty() {
        page.push_str("<ul class=\"legend\">");
        for (class, name) in legend {
            let _ = write!(page, "<li><i class=\"{class}\"></i>{}</li>", escape(name));
        }
        page.push_str("</ul>\n");
    }
    page.push_str(body);
    page.push_str("</section>\n");
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

fn show_spec(page: &mut String, heading: &str, spec: &str) {
    let spec = &without_keys(spec);
    let _ = write!(page, "<section class=\"card\" id=\"spec\">\n<h2>{heading}</h2>\n<pre>");
    let start = page.len();
    for line in spec.lines() {
        let line = escape(&line.replace('\t', "  "));
        if page.len() - start + line.len() > MOST_SPEC {
            page.push_str("… (the rest is left out)\n");
            break;
        }
        page.push_str(&line);
        page.push('\n');
    }
    page.push_str("</pre>\n</section>\n");
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
