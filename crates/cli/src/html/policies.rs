//! Charts that compare policies.

use super::chain_runs::ChainRuns;
use super::charts::{Figure, Time, bar, cause_class, nothing, tick};
use super::scale::{Scale, percent_tick};
use super::svg::{ACROSS, Chart, UP};
use super::text::{micros, significant};
use crate::simulate::document::{Bound, Document, Run};
use crate::text::{percent, short, thousands};
use maud::{Markup, html};
use std::fmt::Write as _;
use tailwater_sim::ChainReport;
use tailwater_sim::policies::ORACLE;
use tailwater_sim::report::{Cause, WindowReport};

/// CSS classes of the page's colours.
const SOLID: [&str; 10] = ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9"];

/// The same colours, dashed.
const DASHED: [&str; 10] = [
    "s0 dash", "s1 dash", "s2 dash", "s3 dash", "s4 dash", "s5 dash", "s6 dash", "s7 dash", "s8 dash", "s9 dash",
];

/// Maximum steps of cores over time.
const MOST_STEPS: usize = 240;

/// Number of pointer positions on the latency axis.
const PLACES: usize = 60;

/// Colour of each policy, the same in all charts.
pub struct Palette(Vec<(&'static str, &'static str)>);

impl Palette {
    /// Assigns colours to a document's policies. Variants, whose names extend another's, are dashed.
    pub fn of(document: &Document) -> Palette {
        let mut names: Vec<&'static str> = Vec::new();
        for run in &document.runs {
            if !names.contains(&run.policy) {
                names.push(run.policy);
            }
        }
        let of = |name: &str, other: &str| {
            let rest = name.strip_prefix(other);
            rest.is_some_and(|rest| rest.starts_with('-'))
        };
        let is_variant = |name: &&'static str| names.iter().any(|other| of(name, other));
        let (variants, own): (Vec<_>, Vec<_>) = names.iter().copied().partition(is_variant);
        let own = own.into_iter().zip(SOLID.into_iter().cycle());
        let variants = variants.into_iter().zip(DASHED.into_iter().cycle());
        let bound = document.bounds.first().map(|_| (ORACLE, "bound"));
        Palette(own.chain(variants).chain(bound).collect())
    }

    pub fn class(&self, policy: &str) -> &'static str {
        let known = self.0.iter().find(|(name, _)| *name == policy);
        known.map_or(SOLID[0], |(_, class)| class)
    }

    /// Returns the colours of these policies.
    pub fn legend<'p>(&self, policies: impl Iterator<Item = &'p str>) -> Vec<(&'static str, String)> {
        policies.map(|name| (self.class(name), name.to_owned())).collect()
    }
}

/// Cumulative latency distribution of a policy over all seeds, as a share of the offered packets.
struct Cumulative {
    offered: u64,
    points: Vec<(f64, u64)>,
}

impl Cumulative {
    fn of(chains: &[&ChainReport]) -> Cumulative {
        let mut steps: Vec<(f64, u64)> = Vec::new();
        for chain in chains {
            let mut before = 0;
            for point in &chain.latency_distribution {
                steps.push((point.latency_us, point.packets - before));
                before = point.packets;
            }
        }
        steps.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut seen = 0;
        for (_, packets) in &mut steps {
            seen += *packets;
            *packets = seen;
        }
        Cumulative {
            offered: chains.iter().map(|chain| chain.packets.offered).sum(),
            points: steps,
        }
    }

    fn share(&self, packets: u64) -> f64 {
        packets as f64 / self.offered.max(1) as f64
    }

    fn at(&self, latency_us: f64) -> f64 {
        let count = self.points.partition_point(|point| point.0 <= latency_us);
        let last = count.checked_sub(1).map(|last| self.points[last].1);
        self.share(last.unwrap_or(0))
    }
}

/// Draws the latency distributions of all policies.
pub fn distribution(part: &ChainRuns<'_>, palette: &Palette, number: usize) -> Figure {
    let policies = part.policies();
    let lines = policies.iter().map(|(name, chains)| (*name, Cumulative::of(chains)));
    let lines: Vec<(&str, Cumulative)> = lines.collect();
    let latencies = || {
        let points = lines.iter().flat_map(|(_, line)| &line.points);
        points.map(|point| point.0)
    };
    let least = latencies().fold(part.slo_us * 0.8, f64::min);
    let most = latencies().fold(part.slo_us * 1.5, f64::max);
    let offered = lines.iter().map(|(_, line)| line.offered).max();
    let slo = micros(part.slo_us);
    let mut body = nothing("No packet arrived.");
    if let Some(offered) = offered.filter(|offered| *offered > 0) {
        let x = Scale::log(least, most, ACROSS);
        let mut chart = Chart::new(x, Scale::nines(offered, UP));
        chart.shade("beyond", [part.slo_us, f64::MAX]);
        chart.x_axis(8, micros, "latency");
        chart.y_axis(8, percent_tick);
        chart.mark("slo", part.slo_us, &format!("SLO {slo}"), false);
        chart.level("slo", 0.99, "objective 99 %");
        for (name, line) in &lines {
            let first = line.points.first().map(|point| (point.0, 0.0));
            let points = line.points.iter().map(|point| (point.0, line.share(point.1)));
            let points: Vec<_> = first.into_iter().chain(points).map(Some).collect();
            chart.line(&format!("{} thin", palette.class(name)), &points);
        }
        let factor = (most / least.max(1e-3)).powf(1.0 / PLACES as f64);
        for place in 0..PLACES {
            let from = least.max(1e-3) * factor.powi(place as i32);
            let to = from * factor;
            let mut text = format!("up to {}", micros(to));
            for (name, line) in &lines {
                let _ = write!(text, "\n{name}: {}", percent(line.at(to)));
            }
            chart.hover([from, to], &text);
        }
        body = chart.finish(&format!("Latency of {} with each policy", part.name));
    }
    Figure {
        id: format!("latency-cdf-{number}"),
        heading: "Latency distributions".to_owned(),
        caption: format!(
            "The share of all packets that were delivered and took no longer; what is lost never arrives. \
             Upwards, each grid line leaves a tenth as many packets above it. The objective is met if the \
             curve crosses the dashed horizontal line left of {slo}."
        ),
        legend: palette.legend(policies.iter().map(|(name, _)| *name)),
        tall: false,
        body,
    }
}

/// Returns the median; of an even number of figures, the upper one.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

/// Medians over the seeds of a policy with one objective.
struct Point {
    slo_us: f64,
    cores: f64,
    p99_us: f64,
    met: bool,
}

/// Returns the lower bound on the cores for a chain's objective: medians over the seeds.
fn bound(part: &ChainRuns<'_>, bounds: &[Bound]) -> Option<Point> {
    let chains = bounds.iter().filter_map(|b| b.report.chains.get(part.chain));
    let chains: Vec<_> = chains.filter(|c| c.slo_us == part.slo_us).collect();
    (!chains.is_empty()).then(|| Point {
        slo_us: part.slo_us,
        cores: median(chains.iter().map(|chain| chain.cores).collect()),
        p99_us: part.slo_us,
        met: chains.iter().all(|chain| chain.attainable),
    })
}

/// Draws the 99th percentile over cores, for a chain with all its objectives.
pub fn scatter(parts: &[ChainRuns<'_>], bounds: &[Bound], palette: &Palette) -> Figure {
    let mut policies: Vec<(&str, Vec<Point>)> = Vec::new();
    for part in parts {
        for (name, chains) in part.policies() {
            let each = |pick: fn(&ChainReport) -> f64| chains.iter().map(|chain| pick(chain)).collect();
            let point = Point {
                slo_us: part.slo_us,
                cores: median(each(|chain| chain.cores.total)),
                p99_us: median(each(|chain| chain.latency_us.p99)),
                met: chains.iter().all(|chain| chain.slo_met == Some(true)),
            };
            match policies.iter_mut().find(|(other, _)| *other == name) {
                Some((_, points)) => points.push(point),
                None => policies.push((name, vec![point])),
            }
        }
    }
    let least: Vec<Point> = parts.iter().filter_map(|part| bound(part, bounds)).collect();
    let caption = match least.is_empty() {
        true => "",
        false => " With fewer cores than the oracle's, no policy could meet the objective.",
    };
    if !least.is_empty() {
        policies.push((ORACLE, least));
    }
    let points = || policies.iter().flat_map(|(_, points)| points);
    let slos = || parts.iter().map(|part| part.slo_us);
    // Chains without delivered packets have no latency, and are not drawn.
    let drawn = || points().filter(|point| point.p99_us > 0.0 && point.cores > 0.0);
    let mut body = nothing("No packet was delivered.");
    if drawn().next().is_some() {
        let ends = |figures: &mut dyn Iterator<Item = f64>| {
            let ends = (f64::INFINITY, 0.0);
            figures.fold(ends, |(least, most): (f64, f64), figure| {
                (least.min(figure), most.max(figure))
            })
        };
        let (least, most) = ends(&mut drawn().map(|point| point.cores));
        let x = Scale::log(least * 0.95, most * 1.05, ACROSS);
        let (least, most) = ends(&mut drawn().map(|point| point.p99_us).chain(slos()));
        let mut chart = Chart::new(x, Scale::log(least * 0.9, most * 1.1, UP));
        chart.x_axis(8, tick_small, "cores of the chain, on average");
        chart.y_axis(7, micros);
        for slo in slos() {
            chart.level("slo", slo, &format!("SLO {}", micros(slo)));
        }
        for (name, points) in &policies {
            let class = palette.class(name);
            let place = |point: &Point| (point.cores, point.p99_us);
            if points.len() > 1 {
                let line: Vec<_> = points.iter().map(|point| Some(place(point))).collect();
                chart.line(&format!("{class} thin"), &line);
            }
            for point in points.iter().filter(|point| point.p99_us > 0.0 && point.cores > 0.0) {
                let missed = if point.met { "" } else { " missed" };
                chart.dot(&format!("{class}{missed}"), place(point));
                let slo = micros(point.slo_us);
                let cores = significant(point.cores, 3);
                let text = match *name {
                    ORACLE => format!("{name}\nSLO {slo}\nat least {cores} cores"),
                    _ => format!(
                        "{name}\nSLO {slo}: {}\np99 {}\n{cores} cores",
                        if point.met { "met" } else { "missed" },
                        micros(point.p99_us),
                    ),
                };
                chart.hover_dot(place(point), &text);
            }
        }
        body = chart.finish("99th percentile of latency against cores, for each policy");
    }
    let (chain, name) = parts.first().map_or((0, ""), |part| (part.chain, part.name));
    Figure {
        id: format!("p99-cores-{chain}"),
        heading: format!("99th percentile against cores, chain {name}"),
        caption: format!(
            "A point for each policy and objective: below is faster, left is cheaper. Full points meet the \
             objective with every seed, hollow ones do not. With several seeds, points are at the medians.{caption}"
        ),
        legend: palette.legend(policies.iter().map(|(name, _)| *name)),
        tall: false,
        body,
    }
}

/// Formats an axis value that may be below one.
pub fn tick_small(value: f64) -> String {
    match value < 10.0 {
        true => significant(value, 3),
        false => tick(value),
    }
}

/// Draws the rack's cores over time, with a chain's first objective and seed.
pub fn cores(part: &ChainRuns<'_>, palette: &Palette) -> Figure {
    let (seed, _) = part.of_one_seed();
    let runs = part.runs.iter().filter(|run| run.report.seed == seed);
    let runs: Vec<&Run> = runs.copied().collect();
    let windows = |run: &'_ Run| run.report.chains[part.chain].windows.clone();
    let lines: Vec<(&str, Vec<WindowReport>)> = runs.iter().map(|run| (run.policy, windows(run))).collect();
    let longest = lines.iter().map(|(_, windows)| windows.len()).max();
    let longest = longest.unwrap_or(0);
    let each = longest.div_ceil(MOST_STEPS).max(1);
    let window_s = lines
        .iter()
        .find_map(|(_, windows)| Some(windows.get(1)?.start_s - windows.first()?.start_s))
        .unwrap_or(0.0);
    let end_s = runs.iter().map(|run| run.report.duration_s);
    let end_s = end_s.fold(0.0, f64::max);
    let step_s = if window_s > 0.0 { window_s * each as f64 } else { end_s };
    let time = Time::steps(end_s, step_s);
    let lines: Vec<(&str, Vec<f64>)> = lines
        .into_iter()
        .map(|(name, windows)| {
            let mean = |windows: &[WindowReport]| {
                windows.iter().map(|window| window.cores).sum::<f64>() / windows.len() as f64
            };
            (name, windows.chunks(each).map(mean).collect())
        })
        .collect();
    let all = || lines.iter().flat_map(|(_, steps)| steps).copied();
    let most = all().fold(0.0, f64::max);
    let mut body = nothing("No core was active.");
    if most > 0.0 {
        let least = all().filter(|cores| *cores > 0.0).fold(most, f64::min);
        let mut chart = time.chart(Scale::log(least.max(0.1) * 0.9, most * 1.1, UP));
        chart.y_axis(7, tick_small);
        let span = |step: usize| time.span(step as f64 * step_s, (step + 1) as f64 * step_s);
        for (name, steps) in &lines {
            let points = steps.iter().enumerate().map(|(step, cores)| {
                let [from, to] = span(step);
                (*cores > 0.0).then_some(((from + to) / 2.0, *cores))
            });
            let points: Vec<_> = points.collect();
            chart.line(&format!("{} thin", palette.class(name)), &points);
        }
        for step in 0..longest.div_ceil(each) {
            let mut text = time.words(span(step));
            for (name, steps) in &lines {
                if let Some(cores) = steps.get(step) {
                    let _ = write!(text, "\n{name}: {}", significant(*cores, 3));
                }
            }
            chart.hover(span(step), &text);
        }
        body = chart.finish("Active cores of the rack over time, with each policy");
    }
    Figure {
        id: "cores".to_owned(),
        heading: "Cores over time".to_owned(),
        caption: format!(
            "Active cores of the whole rack, averaged over each {}; with SLO {} of chain {}, and seed {seed}.",
            time.step,
            micros(part.slo_us),
            part.name,
        ),
        legend: palette.legend(lines.iter().map(|(name, _)| *name)),
        tall: false,
        body,
    }
}

/// Returns the late packets of a policy by cause, without the causes of none.
fn by_cause(chains: &[&ChainReport]) -> Vec<(&'static str, u64)> {
    let count = |cause: &str| -> u64 {
        let counts = chains.iter().map(|chain| chain.late_by_cause.get(cause));
        counts.flatten().sum()
    };
    let causes = Cause::ALL.map(|cause| (cause.name(), count(cause.name())));
    causes.into_iter().filter(|(_, packets)| *packets > 0).collect()
}

/// Returns the row of a policy: its late packets as one bar, and as a share of all packets.
fn late_row(name: &str, chains: &[&ChainReport]) -> Markup {
    let offered: u64 = chains.iter().map(|chain| chain.packets.offered).sum();
    let causes = by_cause(chains);
    let late: u64 = causes.iter().map(|(_, packets)| packets).sum();
    let mut text = format!("{} of {}", thousands(late), short(offered as f64));
    for (cause, packets) in &causes {
        let _ = write!(text, "; {cause} {}", percent(*packets as f64 / late as f64));
    }
    html! {
        tr title=(text) {
            th scope="row" { (name) }
            td.track {
                div.stack { @for (cause, packets) in causes { (bar(cause, packets as f64 / late as f64)) } }
            }
            td.n { (percent(late as f64 / offered.max(1) as f64)) }
        }
    }
}

/// Draws the late packets of each policy by cause.
pub fn late(part: &ChainRuns<'_>, number: usize) -> Figure {
    let policies = part.policies();
    let all: Vec<&ChainReport> = policies.iter().flat_map(|(_, chains)| chains).copied().collect();
    let causes = by_cause(&all).into_iter().map(|(cause, _)| cause);
    let body = html! {
        table.bars { @for (name, chains) in &policies { (late_row(name, chains)) } }
    };
    Figure {
        id: format!("late-{number}"),
        heading: "Late packets by cause".to_owned(),
        caption: format!(
            "Each bar is all packets of a policy that took longer than {} or were lost, by cause; beside it, \
             what share of all packets they are. An objective is met up to 1 %.",
            micros(part.slo_us)
        ),
        legend: causes.map(|cause| (cause_class(cause), cause.to_owned())).collect(),
        tall: false,
        body,
    }
}
