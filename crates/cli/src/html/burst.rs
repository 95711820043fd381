//! Reaction of the mappers to a burst: the busiest millisecond of a chain's traffic, under every policy with a core
//! mapper.

use super::chain_runs::ChainRuns;
use super::charts::{Figure, Time, tick};
use super::policies::{Palette, tick_small};
use super::scale::Scale;
use super::svg::{Chart, UP};
use super::text::{micros, significant};
use crate::text::{short, thousands};
use maud::Markup;
use std::fmt::Write as _;
use tailwater_sim::report::{Burst, BurstStep};

/// Length of a step, seconds.
const STEP_S: f64 = 1e-4;

/// Steps of a policy.
type Line<'p> = (&'static str, &'p Burst);

/// A quantity of a step to draw and describe.
struct Pick {
    id: &'static str,
    heading: &'static str,
    caption: &'static str,
    figure: fn(&BurstStep) -> f64,
    text: fn(&BurstStep) -> String,
}

const PICKS: [Pick; 3] = [
    Pick {
        id: "waiting",
        heading: "Burst: packets in the system",
        caption: "Packets in the chain's queues and cores at the end of each 100 µs; under the pointer, also the \
                  longest queue of one core.",
        figure: |step| step.waiting as f64,
        text: |step| {
            format!(
                "{}, longest queue {}",
                thousands(step.waiting),
                thousands(step.longest_queue)
            )
        },
    },
    Pick {
        id: "cores",
        heading: "Burst: active cores",
        caption: "The chain's dedicated and auxiliary cores at the end of each 100 µs.",
        figure: |step| f64::from(step.dedicated + step.auxiliaries),
        text: |step| format!("{} + {}", step.dedicated, step.auxiliaries),
    },
    Pick {
        id: "decisions",
        heading: "Burst: decisions",
        caption: "Decisions of the core mappers in each 100 µs; under the pointer, the flows that they moved and \
                  the packets offloaded to auxiliary cores.",
        figure: |step| step.decisions as f64,
        text: |step| {
            format!(
                "{} decisions, {} flows moved, {} packets offloaded",
                thousands(step.decisions),
                thousands(step.flows_moved),
                thousands(step.packets_handed)
            )
        },
    },
];

/// Returns the charts of a chain with one objective and the first seed; none without a policy that has a core mapper.
pub fn all(part: &ChainRuns<'_>, palette: &Palette, number: usize) -> Vec<Figure> {
    let (seed, chains) = part.of_one_seed();
    let lines = chains
        .into_iter()
        .filter_map(|(name, chain)| Some((name, chain.burst.as_ref()?)));
    let lines: Vec<Line<'_>> = lines.collect();
    let Some(longest) = lines.iter().map(|line| line.1).max_by_key(|b| b.steps.len()) else {
        return Vec::new();
    };
    let start_s = longest.steps.first().map_or(0.0, |step| step.start_s);
    let mut figures = vec![arrivals(longest, start_s, (number, seed))];
    for pick in &PICKS {
        let body = compared(pick, &lines, longest, palette);
        figures.push(Figure {
            id: format!("burst-{}-{number}", pick.id),
            heading: pick.heading.to_owned(),
            caption: pick.caption.to_owned(),
            legend: palette.legend(lines.iter().map(|line| line.0)),
            tall: false,
            body,
        });
    }
    figures
}

/// Returns an empty chart with the time axis from the first step on, and the busiest millisecond shaded.
fn chart(longest: &Burst, y: Scale) -> (Chart, Time) {
    let time = Time::steps(longest.steps.len() as f64 * STEP_S, STEP_S);
    let mut chart = time.chart(y);
    let first = longest.steps.first().map_or(0.0, |step| step.start_s);
    let from = longest.start_s - first;
    chart.shade("flagged", time.span(from, from + 1e-3));
    (chart, time)
}

/// Draws the arrivals, which are the same under all policies.
fn arrivals(longest: &Burst, start_s: f64, (number, seed): (usize, u64)) -> Figure {
    let steps = &longest.steps;
    let most = steps.iter().map(|step| step.offered).max().unwrap_or(0);
    let (mut chart, time) = chart(longest, Scale::from_zero(most as f64, UP));
    chart.y_axis(5, tick_small);
    let span = |step: usize| time.span(step as f64 * STEP_S, (step + 1) as f64 * STEP_S);
    let bars = steps
        .iter()
        .enumerate()
        .filter(|(_, step)| step.offered > 0)
        .map(|(number, step)| (span(number), [0.0, step.offered as f64]));
    chart.bars("s0", bars);
    for (number, step) in steps.iter().enumerate() {
        let rate = short(step.offered as f64 / STEP_S);
        let offered = thousands(step.offered);
        let text = format!("{}\n{offered} packets, {rate}pps", time.words(span(number)));
        chart.hover(span(number), &text);
    }
    Figure {
        id: format!("burst-arrivals-{number}"),
        heading: "Burst: arrivals".to_owned(),
        caption: format!(
            "Packets that arrived in each 100 µs around the busiest millisecond of seed {seed}, which is shaded. \
             Zero is {} after the first packet.",
            micros(start_s * 1e6),
        ),
        legend: Vec::new(),
        tall: false,
        body: chart.finish("Arrivals around the busiest millisecond"),
    }
}

/// Draws a line for each policy.
fn compared(pick: &Pick, lines: &[Line<'_>], longest: &Burst, palette: &Palette) -> Markup {
    let figures = lines.iter().flat_map(|line| &line.1.steps).map(pick.figure);
    let most = figures.fold(0.0, f64::max);
    let (mut chart, time) = chart(longest, Scale::from_zero(most, UP));
    chart.y_axis(5, |value| match value < 1000.0 {
        true => significant(value, 3),
        false => tick(value),
    });
    let span = |step: usize| time.span(step as f64 * STEP_S, (step + 1) as f64 * STEP_S);
    for (name, burst) in lines {
        let points = burst.steps.iter().enumerate().map(|(number, step)| {
            let [from, to] = span(number);
            Some(((from + to) / 2.0, (pick.figure)(step)))
        });
        let points: Vec<_> = points.collect();
        chart.line(&format!("{} thin", palette.class(name)), &points);
    }
    for number in 0..longest.steps.len() {
        let mut text = time.words(span(number));
        for (name, burst) in lines {
            if let Some(step) = burst.steps.get(number) {
                let _ = write!(text, "\n{name}: {}", (pick.text)(step));
            }
        }
        chart.hover(span(number), &text);
    }
    chart.finish(pick.heading)
}
