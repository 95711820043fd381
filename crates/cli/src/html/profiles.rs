//! Page of `tailwater profile --report`.

use super::charts::{Figure, nothing};
use super::scale::Scale;
use super::svg::{ACROSS, Chart, UP};
use super::tables::{self, Rows};
use super::text::{micros, significant};
use super::{assemble, json};
use crate::curves::document::{documents, title};
use crate::dates::utc;
use crate::error::CliError;
use crate::text::{percent, short};
use maud::{Markup, html};
use std::path::Path;
use std::time::SystemTime;
use tailwater_profile::curve::Point;
use tailwater_profile::profiles::{ChainProfile, Profiles};

/// Colours of lines; further profiles reuse them.
const COLOURS: [&str; 10] = ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9"];
/// Maximum number of profiles drawn.
const MOST: usize = 40;

/// Returns a page with all curves of a file that was written at `ended`.
///
/// # Errors
/// The document cannot be written as JSON.
pub fn page(profiles: &Profiles, file: &Path, ended: SystemTime) -> Result<String, CliError> {
    let names: Vec<String> = profiles.list.iter().map(title).collect();
    let left_out = match profiles.list.len().saturating_sub(MOST) {
        0 => String::new(),
        more => format!("; the first {MOST} are drawn, {more} are not"),
    };
    let about = format!("{}{left_out}", file.display());
    let shown = || {
        let all = profiles.list.iter().zip(&names).take(MOST).enumerate();
        all.map(|(i, (profile, name))| (COLOURS[i % COLOURS.len()], profile, name.as_str()))
    };
    let main = html! {
        div.grid { (cache(shown())) (absolute(shown())) (latency(shown())) }
        (rates(shown()))
        (costs(shown()))
    };
    Ok(assemble(
        "Profiles of chains",
        &tables::header("Tailwater profiles", "Profiles of chains", &about, &Markup::default()),
        &main,
        &format!(" on {}", utc(ended)),
        "reference/commands/profile-curves.md",
        &(json(&documents(profiles, file))?, true),
    ))
}

/// A line with its colour, its name, and the hover texts of its points.
struct Line<'p> {
    colour: &'static str,
    name: &'p str,
    points: Vec<((f64, f64), String)>,
}

type Shown<'p> = (&'static str, &'p ChainProfile, &'p str);

/// Draws throughput over cache as a share of the maximum, so that chains of different speeds fit in one chart.
fn cache<'p>(shown: impl Iterator<Item = Shown<'p>>) -> Figure {
    let lines = over_cache(shown, |value, most| value / most);
    let whole = |_: f64| 1.0;
    chart(
        "cache",
        "Throughput over cache, relative",
        "Packets per second as a share of the chain's highest rate, over its cache. Points without the \
         intended share of the cache are left out.",
        "MiB of last-level cache",
        &lines,
        whole,
        |value| format!("{} %", significant(value * 100.0, 3)),
    )
}

/// Draws throughput over cache in packets per second.
fn absolute<'p>(shown: impl Iterator<Item = Shown<'p>>) -> Figure {
    let lines = over_cache(shown, |value, _| value);
    chart(
        "throughput",
        "Throughput over cache",
        "Packets per second of one saturated core.",
        "MiB of last-level cache",
        &lines,
        |most| most,
        short,
    )
}

fn over_cache<'p>(shown: impl Iterator<Item = Shown<'p>>, figure: fn(f64, f64) -> f64) -> Vec<Line<'p>> {
    let lines = shown.filter_map(|(colour, profile, name)| {
        let cache = profile.cache.as_ref()?;
        let values = cache.points.iter().map(|point| point.measured.value);
        let most = values.fold(f64::MIN_POSITIVE, f64::max);
        let points = cache.points.iter().map(|point| {
            let mebibytes = cache.bytes(point.at) as f64 / f64::from(1 << 20);
            let words = format!("{name}\n{mebibytes:.1} MiB: {}", words(point, short, "pps"));
            ((mebibytes, figure(point.measured.value, most)), words)
        });
        Some(Line {
            colour,
            name,
            points: points.collect(),
        })
    });
    lines.collect()
}

fn latency<'p>(shown: impl Iterator<Item = Shown<'p>>) -> Figure {
    let lines = shown.filter_map(|(colour, profile, name)| {
        let latency = profile.latency.as_ref()?;
        let points = latency.points.iter().map(|point| {
            let load = f64::from(point.at) / 100.0;
            let words = format!(
                "{name}\nload {load:.2}: p{} {}",
                latency.percentile,
                words(point, micros, "")
            );
            ((load * 100.0, point.measured.value), words)
        });
        Some(Line {
            colour,
            name,
            points: points.collect(),
        })
    });
    let lines: Vec<Line<'_>> = lines.collect();
    let all = || lines.iter().flat_map(|line| &line.points).map(|point| point.0.1);
    let mut body = nothing("Not measured.");
    let least = all().fold(f64::INFINITY, f64::min);
    if least.is_finite() {
        let most = all().fold(least, f64::max);
        let y = Scale::log(least.max(0.01) * 0.9, most * 1.1, UP);
        body = drawn(
            Scale::linear(100.0, ACROSS),
            y,
            "load, %",
            &lines,
            micros,
            "Latency over load",
        );
    }
    Figure {
        id: "latency".to_owned(),
        heading: "Latency over load".to_owned(),
        caption: "The objective's percentile of latency, over the load as a share of the chain's throughput; packets \
                  are evenly spaced."
            .to_owned(),
        legend: legend(&lines),
        tall: false,
        body,
    }
}

fn words(point: &Point, figure: impl Fn(f64) -> String, unit: &str) -> String {
    let measured = &point.measured;
    let disturbed = match measured.disturbed {
        0 => String::new(),
        runs => format!(", {runs} of them disturbed"),
    };
    format!(
        "{}{unit} ± {} ({} runs{disturbed})",
        figure(measured.value),
        // `percent` formats shares of a whole, and a noise may exceed its value.
        format_args!("{} %", significant(measured.relative_noise() * 100.0, 3)),
        measured.runs
    )
}

fn chart(
    id: &str,
    heading: &str,
    caption: &str,
    across: &str,
    lines: &[Line<'_>],
    top: impl Fn(f64) -> f64,
    tick: impl Fn(f64) -> String,
) -> Figure {
    let all = || lines.iter().flat_map(|line| &line.points).map(|point| point.0);
    let mut body = nothing("Not measured.");
    let most = all().map(|point| point.1).fold(0.0, f64::max);
    if most > 0.0 {
        let widest = all().map(|point| point.0).fold(0.0, f64::max);
        let (x, y) = (Scale::from_zero(widest, ACROSS), Scale::from_zero(top(most), UP));
        body = drawn(x, y, across, lines, tick, heading);
    }
    Figure {
        id: id.to_owned(),
        heading: heading.to_owned(),
        caption: caption.to_owned(),
        legend: legend(lines),
        tall: false,
        body,
    }
}

fn drawn(x: Scale, y: Scale, across: &str, lines: &[Line<'_>], tick: impl Fn(f64) -> String, summary: &str) -> Markup {
    let mut chart = Chart::new(x, y);
    chart.x_axis(7, |value| significant(value, 4), across);
    chart.y_axis(6, tick);
    for line in lines {
        let points: Vec<_> = line.points.iter().map(|(point, _)| Some(*point)).collect();
        chart.line(line.colour, &points);
        for (point, words) in &line.points {
            chart.dot(line.colour, *point);
            chart.hover_dot(*point, words);
        }
    }
    chart.finish(summary)
}

fn legend(lines: &[Line<'_>]) -> Vec<(&'static str, String)> {
    lines.iter().map(|line| (line.colour, line.name.to_owned())).collect()
}

/// Returns the highest rates that meet objectives.
fn rates<'p>(shown: impl Iterator<Item = Shown<'p>>) -> Markup {
    let rows = shown.filter_map(|(_, profile, name)| {
        let latency = profile.latency.as_ref()?;
        let rates = [latency.objective_rate, latency.ndr, latency.pdr].into_iter();
        let rates = rates.map(|rate| match rate {
            None => "none".to_owned(),
            Some(rate) if latency.is_at_least(rate) => format!("at least {}", short(rate)),
            Some(rate) => short(rate),
        });
        let figures = std::iter::once(short(latency.throughput.value)).chain(rates);
        Some((name.to_owned(), figures.collect()))
    });
    let columns = ["throughput", "objective kept", "no loss (NDR)", "0.5 % lost (PDR)"];
    table("rates", "Rates, packets per second", &columns, &rows.collect())
}

/// Returns the cost per packet by function.
fn costs<'p>(shown: impl Iterator<Item = Shown<'p>>) -> Markup {
    let mut rows = Rows::new();
    for (_, profile, name) in shown {
        let Some(costs) = &profile.costs else {
            continue;
        };
        let mut row = |chain: &str, function: &str, nanoseconds: f64, share: String| {
            let cycles = profile.key.machine.cycles(nanoseconds);
            let cycles = cycles.map_or("–".to_owned(), |cycles| significant(cycles, 4));
            let figures = vec![function.to_owned(), significant(nanoseconds, 4), cycles, share];
            rows.push((chain.to_owned(), figures));
        };
        row(name, "all", costs.whole.value, String::new());
        for of in &costs.functions {
            row("", &of.function, of.cost.value, percent(of.share));
        }
        row("", "framework overhead", costs.rest(), String::new());
    }
    let columns = ["function", "ns", "cycles", "share of packets"];
    table("costs", "Costs of a packet", &columns, &rows)
}

/// Returns a table, or nothing if it has no rows.
fn table(id: &str, heading: &str, columns: &[&str], rows: &Rows) -> Markup {
    match rows.is_empty() {
        true => Markup::default(),
        false => tables::table(id, heading, columns, rows),
    }
}
