//! Page of `tailwater predict --report`.

use super::charts::{Figure, nothing, tick};
use super::scale::Scale;
use super::svg::{ACROSS, Chart, UP};
use super::tables;
use super::text::micros;
use super::{assemble, json};
use crate::dates::utc;
use crate::error::CliError;
use crate::predict::document::{Document, Interval, Step};
use crate::text::{percent, short};
use maud::{Markup, html};
use std::time::SystemTime;

/// Maximum number of bars.
const MOST_BARS: usize = 8;

/// Returns the page of a prediction, which was made at `ended`.
///
/// # Errors
/// The document cannot be written as JSON.
pub fn page(document: &Document, ended: SystemTime) -> Result<String, CliError> {
    let lines = document.lines().into_iter();
    let rows: tables::Rows = lines.map(|(name, text)| (name.to_owned(), vec![text])).collect();
    let throughput = joining(
        document,
        "throughput",
        "Throughput as competitors join",
        &|step| step.throughput_pps,
        tick,
        &|value| format!("{}pps", short(value)),
    );
    let delay = joining(
        document,
        "p99",
        "p99 as competitors join",
        &|step| step.p99_us,
        micros,
        &micros,
    );
    let main = html! {
        div.grid {
            (throughput)
            @if document.p99_us.is_some() { (delay) }
            (losses(document))
            (remedies(document))
        }
        div.tables { (tables::table("figures", "Figures", &[], &rows)) }
    };
    let about = format!(
        "beside {} competitors on {}",
        document.competitors.len(),
        document.machine
    );
    Ok(assemble(
        &format!("{}: predicted contention", document.target),
        &tables::header("Tailwater prediction", &document.target, &about, &Markup::default()),
        &main,
        &format!(" on {}", utc(ended)),
        "reference/commands/predict.md",
        &(json(document)?, true),
    ))
}

/// Chart of a value with its interval beside the first none, one, two ... competitors.
fn joining(
    document: &Document,
    id: &str,
    heading: &str,
    of: &dyn Fn(&Step) -> Option<Interval>,
    axis: impl Fn(f64) -> String,
    words: &dyn Fn(f64) -> String,
) -> Figure {
    let steps = &document.as_competitors_join;
    let most = steps.iter().filter_map(of).fold(0.0, |most: f64, of| most.max(of.high));
    let body = if steps.len() < 2 || most <= 0.0 {
        nothing("There are no competitors.")
    } else {
        let last = (steps.len() - 1) as f64;
        let mut chart = Chart::new(Scale::linear(last, ACROSS), Scale::from_zero(most, UP));
        let whole = |place: f64| match place.fract() == 0.0 {
            true => format!("{place}"),
            false => String::new(),
        };
        chart.x_axis(steps.len().min(9), whole, "competitors, in the order of --with");
        chart.y_axis(5, axis);
        let line = |part: fn(Interval) -> f64| {
            let points = steps
                .iter()
                .map(|step| Some((step.competitors as f64, part(of(step)?))));
            points.collect::<Vec<_>>()
        };
        chart.line("s0", &line(|of| of.value));
        chart.line("s2 thin", &line(|of| of.low));
        chart.line("s2 thin", &line(|of| of.high));
        for step in steps {
            let place = step.competitors as f64;
            let joined = step
                .competitors
                .checked_sub(1)
                .and_then(|at| document.competitors.get(at));
            let joined = joined.map_or("alone".to_owned(), |name| format!("{name} joins"));
            let text = match (of(step), &step.reason) {
                (Some(Interval { value, low, high, .. }), _) => {
                    format!("{joined}\n{} ({} to {})", words(value), words(low), words(high))
                }
                (None, Some(reason)) => format!("{joined}\n{reason}"),
                (None, None) => joined,
            };
            chart.hover([(place - 0.5).max(0.0), (place + 0.5).min(last)], &text);
        }
        chart.finish(heading)
    };
    let confidence = percent(document.throughput_pps.confidence);
    Figure {
        id: id.to_owned(),
        heading: heading.to_owned(),
        caption: format!("Predicted beside the first competitors. The thin lines are the interval with {confidence}."),
        legend: vec![("s0", "predicted".to_owned()), ("s2", "interval".to_owned())],
        tall: false,
        body,
    }
}

/// Chart of the loss by resource.
fn losses(document: &Document) -> Figure {
    let parts = document.attributions.iter();
    let parts = parts.map(|part| {
        let text = format!(
            "{} ({}): {} of the throughput alone",
            part.resource,
            part.metric,
            percent(part.loss)
        );
        (part.resource.clone(), part.loss.max(0.0), text)
    });
    Figure {
        id: "losses".to_owned(),
        heading: "Loss by resource".to_owned(),
        caption: "Share of the throughput alone that contention for each resource costs. The first one binds."
            .to_owned(),
        legend: Vec::new(),
        tall: false,
        body: bars(
            &parts.collect::<Vec<_>>(),
            "s3",
            percent,
            "Loss by resource",
            "There is no loss.",
        ),
    }
}

/// Chart of the throughput after each change that would help.
fn remedies(document: &Document) -> Figure {
    let now = document.throughput_pps.value;
    let all = document.remedies.iter().map(|remedy| {
        let after = remedy.throughput_pps;
        let text = format!(
            "{}\n{}pps ({} to {}), {} more",
            remedy.change,
            short(after.value),
            short(after.low),
            short(after.high),
            percent(remedy.gain)
        );
        (remedy.change.clone(), after.value, text)
    });
    let present = ("as it is".to_owned(), now, format!("as it is\n{}pps", short(now)));
    let all: Vec<_> = std::iter::once(present).chain(all).collect();
    let body = match document.remedies.is_empty() {
        true => nothing("Nothing known would help."),
        false => bars(&all, "s2", tick, "Throughput after each change", ""),
    };
    Figure {
        id: "remedies".to_owned(),
        heading: "What would help".to_owned(),
        caption: "Predicted throughput after each change. For a resource it is the most that a separation can bring."
            .to_owned(),
        legend: Vec::new(),
        tall: false,
        body,
    }
}

/// Draws bars with numbers below, whose names are the hover texts.
fn bars(
    all: &[(String, f64, String)],
    class: &str,
    axis: impl Fn(f64) -> String,
    summary: &str,
    empty: &str,
) -> Markup {
    let all = &all[..all.len().min(MOST_BARS)];
    let most = all.iter().fold(0.0, |most: f64, (_, value, _)| most.max(*value));
    if most <= 0.0 {
        return nothing(empty);
    }
    let places = all.len() + 1;
    let number = |place: f64| match place.fract() == 0.0 && place > 0.0 && (place as usize) < places {
        true => format!("{place}"),
        false => String::new(),
    };
    let mut chart = Chart::new(Scale::linear(places as f64, ACROSS), Scale::from_zero(most, UP));
    chart.x_axis(places, number, "");
    chart.y_axis(5, axis);
    for (at, (_, value, text)) in all.iter().enumerate() {
        let place = (at + 1) as f64;
        let across = [place - 0.3, place + 0.3];
        chart.bars(class, std::iter::once((across, [0.0, *value])));
        chart.hover(across, text);
    }
    html! {
        (chart.finish(summary))
        ol { @for (name, ..) in all { li { (name) } } }
    }
}
