//! Page of `tailwater demo --report`.

use super::charts::{Figure, Time, nothing};
use super::scale::Scale;
use super::svg::{ACROSS, Chart, UP};
use super::text::micros;
use super::{MOST_JSON, assemble, json, spec_text, tables};
use crate::dates::utc;
use crate::demo::document::{Document, PolicyResult};
use crate::error::CliError;
use crate::table::demo::rows as demo_rows;
use crate::text::{percent, short};
use maud::{Markup, html};
use std::fmt::Write as _;
use std::time::SystemTime;

/// Colours of the policies.
const COLOURS: [&str; 3] = ["s3", "s2", "s0"];

/// Page of a demonstration of the chain in `spec`, which ended at `ended`.
///
/// # Errors
/// If the document cannot be written as JSON.
pub fn page(document: &Document, spec: &str, ended: SystemTime) -> Result<String, CliError> {
    let titles: Vec<&str> = document.policies.iter().map(|policy| policy.title).collect();
    let main = html! {
        div.grid { (over_time(document)) (p99(document)) }
        div.grid.tables { (tables::table("policies", "Figures", &titles, &demo_rows(document))) }
        (spec_text("Chain spec", spec))
    };
    let whole = json(document)?;
    let data = match whole.len() <= MOST_JSON {
        true => (whole, true),
        false => {
            let mut short = document.clone();
            short.policies.iter_mut().for_each(|policy| policy.over_time.clear());
            (json(&short)?, false)
        }
    };
    Ok(assemble(
        &format!("{}: with and without an auxiliary core", document.chain),
        &heading(document),
        &main,
        &format!(" on {}", utc(ended)),
        "explanation/scaling.md",
        &data,
    ))
}

/// Heading with the experiment and the verdict.
fn heading(document: &Document) -> Markup {
    let kept = document.policies.last().and_then(|policy| policy.kept);
    let (class, result) = match kept {
        Some(true) => ("met", "Objective kept with Tailwater's policy"),
        Some(false) => ("missed", "Objective missed with Tailwater's policy"),
        None => ("none", "No verdict"),
    };
    let how = match &document.because {
        Some(because) => format!("simulated ({because})"),
        None => "live".to_owned(),
    };
    let about = format!(
        "{}, {how}; one core takes {}pps, {}pps offered on average, {}pps in the busiest {} ms",
        document.traffic,
        short(document.one_core_pps),
        short(document.offered_pps),
        short(document.busiest.pps),
        document.busiest.ms,
    );
    let verdict = tables::verdict(class, result, &document.verdict);
    tables::header("Tailwater demonstration", &document.chain, &about, &verdict)
}

fn policies(document: &Document) -> impl Iterator<Item = (&'static str, &PolicyResult)> {
    COLOURS.into_iter().zip(&document.policies)
}

/// Chart of the 99th percentile in each window, a line for each policy.
fn over_time(document: &Document) -> Figure {
    let slo = document.slo.latency_us;
    let step_s = document.window_ms / 1e3;
    let windows = || document.policies.iter().flat_map(|policy| &policy.over_time);
    let end_s = windows().fold(0.0, |end: f64, step| end.max(step.start_s + step_s));
    let drawn = || windows().filter(|step| step.p99_us > 0.0);
    let least = drawn().fold(slo, |least, step| least.min(step.p99_us));
    let most = drawn().fold(slo * 1.2, |most, step| most.max(step.p99_us));
    let time = Time::steps(end_s, step_s);
    let mut body = nothing("No packet was delivered.");
    if drawn().next().is_some() {
        let mut chart = time.chart(Scale::log(least * 0.9, most * 1.1, UP));
        chart.y_axis(7, micros);
        for (class, policy) in policies(document) {
            let points = policy.over_time.iter().map(|step| {
                let [from, to] = time.span(step.start_s, step.start_s + step_s);
                (step.p99_us > 0.0).then_some(((from + to) / 2.0, step.p99_us))
            });
            chart.line(&format!("{class} thin"), &points.collect::<Vec<_>>());
        }
        chart.level("slo", slo, &format!("objective {}", micros(slo)));
        for number in 0..(end_s / step_s.max(1e-9)).round() as usize {
            let from_s = number as f64 * step_s;
            let span = time.span(from_s, from_s + step_s);
            let mut text = time.words(span);
            for (_, policy) in policies(document) {
                let near = |start_s: f64| (start_s - from_s).abs() < step_s / 2.0;
                if let Some(step) = policy.over_time.iter().find(|step| near(step.start_s)) {
                    let interference = if step.interference { ", CPU interference" } else { "" };
                    let _ = write!(text, "\n{}: p99 {}{interference}", policy.title, micros(step.p99_us));
                }
            }
            chart.hover(span, &text);
        }
        body = chart.finish("99th percentile of latency over time with each policy");
    }
    Figure {
        id: "p99-over-time".to_owned(),
        heading: "99th percentile over time".to_owned(),
        caption: format!(
            "Of the packets sent in each {}. The same packets come at the same times in all three runs.",
            time.step
        ),
        legend: policies(document)
            .map(|(class, policy)| (class, policy.title.to_owned()))
            .collect(),
        tall: false,
        body,
    }
}

/// Chart of the 99th percentile of all packets, a bar for each policy.
fn p99(document: &Document) -> Figure {
    let slo = document.slo.latency_us;
    let most = document
        .policies
        .iter()
        .fold(slo, |most, policy| most.max(policy.latency_us.p99));
    let titles = |place: f64| {
        let number = (place.fract() == 0.0).then_some(place as usize);
        let policy = number.and_then(|n| document.policies.get(n.checked_sub(1)?));
        policy.map_or_else(String::new, |policy| policy.title.to_owned())
    };
    let places = document.policies.len() + 1;
    let mut chart = Chart::new(Scale::linear(places as f64, ACROSS), Scale::from_zero(most, UP));
    chart.x_axis(places, titles, "");
    chart.y_axis(5, micros);
    for (number, (class, policy)) in policies(document).enumerate() {
        let place = (number + 1) as f64;
        let across = [place - 0.3, place + 0.3];
        let latency = &policy.latency_us;
        chart.bars(class, std::iter::once((across, [0.0, latency.p99])));
        let text = format!(
            "{}\np50 {}\np99 {}\n{} of packets in time",
            policy.title,
            micros(latency.p50),
            micros(latency.p99),
            percent(policy.in_time)
        );
        chart.hover(across, &text);
    }
    chart.level("slo", slo, &format!("objective {}", micros(slo)));
    Figure {
        id: "p99".to_owned(),
        heading: "99th percentile of all packets".to_owned(),
        caption: match document.simulated {
            true => "Of the whole run.".to_owned(),
            false => "Of the whole run, windows with CPU interference among them.".to_owned(),
        },
        legend: Vec::new(),
        tall: false,
        body: chart.finish("99th percentile of latency with each policy"),
    }
}
