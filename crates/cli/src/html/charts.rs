//! Charts of a run.

use super::explain;
use super::scale::{Scale, percent_tick, time_unit};
use super::svg::{ACROSS, Chart, UP};
use super::text::{count, micros, shortened, significant};
use crate::table::CAUSES;
use crate::text::{one_line, percent, short, thousands};
use maud::{Markup, Render, html};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use tailwater_dataplane::report::{LatencyReport, RunReport, StepReport};

/// A chart with heading, caption and legend.
pub struct Figure {
    /// Its id within the page, for links.
    pub id: String,
    pub heading: String,
    pub caption: String,
    /// Colours and their names.
    pub legend: Vec<(&'static str, String)>,
    /// `true` if it is about as tall as two others.
    pub tall: bool,
    /// The picture, or a sentence in its place.
    pub body: Markup,
}

impl Render for Figure {
    fn render(&self) -> Markup {
        html! {
            section.card.tall[self.tall] id=(self.id) {
                h2 { (one_line(&self.heading)) }
                p.caption { (one_line(&self.caption)) }
                @if !self.legend.is_empty() {
                    ul.legend {
                        @for (class, name) in &self.legend { li { i class=(class) {} (one_line(name)) } }
                    }
                }
                (self.body)
                @if let Some(line) = explain::line(&self.id) { (line) }
            }
        }
    }
}

/// Returns all charts, in order.
pub fn all(report: &RunReport) -> Vec<Figure> {
    let time = Time::of(report);
    vec![
        distribution(report),
        latency(report, &time),
        arrivals(report, &time),
        drops(report, &time),
        late(report, &time),
        cores(report, &time),
    ]
}

/// Time axis shared by charts.
pub(super) struct Time {
    end_s: f64,
    unit: (&'static str, f64),
    step_s: f64,
    pub step: String,
}

impl Time {
    fn of(report: &RunReport) -> Time {
        let step_s = report.timeline.step_ms / 1e3;
        let arrivals = &report.arrivals;
        let ends = [
            report.timeline.list.last().map_or(0.0, |step| step.start_s),
            arrivals.packets.len().saturating_sub(1) as f64 * arrivals.step_ms / 1e3,
        ];
        // The last step is truncated at the run's end, but always visible.
        Time::steps(ends.into_iter().fold(report.duration_s, f64::max), step_s)
    }

    /// Creates an axis up to a time, in steps of `step_s` seconds.
    pub fn steps(end_s: f64, step_s: f64) -> Time {
        let end_s = end_s.max(1e-6);
        Time {
            end_s,
            unit: time_unit(end_s),
            step_s,
            step: micros(step_s * 1e6),
        }
    }

    pub fn chart(&self, y: Scale) -> Chart {
        let (name, seconds) = self.unit;
        let mut chart = Chart::new(Scale::linear(self.end_s / seconds, ACROSS), y);
        chart.x_axis(7, |value| significant(value, 6), &format!("{name} since the start"));
        chart
    }

    /// Converts a range of seconds to the axis.
    pub fn span(&self, from_s: f64, to_s: f64) -> [f64; 2] {
        [from_s, to_s.min(self.end_s)].map(|s| s / self.unit.1)
    }

    fn step(&self, step: &StepReport) -> [f64; 2] {
        self.span(step.start_s, step.start_s + self.step_s)
    }

    fn text(&self, step: &StepReport) -> String {
        self.words(self.step(step))
    }

    /// Describes a range of the axis in words.
    pub fn words(&self, span: [f64; 2]) -> String {
        let [from, to] = span.map(|value| significant(value, 5));
        format!("{from} to {to} {}", self.unit.0)
    }
}

/// Formats an axis value: `500`, `2k`, `1.5M`.
pub(super) fn tick(value: f64) -> String {
    let text = short(value);
    let digits = text.trim_end_matches(|c: char| c.is_alphabetic());
    let prefix = &text[digits.len()..];
    match digits.contains('.') {
        true => format!("{}{prefix}", digits.trim_end_matches('0').trim_end_matches('.')),
        false => text,
    }
}

fn legend<const N: usize>(names: [(&'static str, &str); N]) -> Vec<(&'static str, String)> {
    names.map(|(class, name)| (class, name.to_owned())).into()
}

/// Returns a sentence in place of an empty chart.
pub(super) fn nothing(sentence: &str) -> Markup {
    html! { p.nothing { (sentence) } }
}

fn distribution(report: &RunReport) -> Figure {
    let slo = report.slo;
    let limit = micros(slo.latency_us);
    let points = &report.latency_distribution;
    let delivered = report.packets.delivered;
    let body = match (points.first(), points.last()) {
        (Some(first), Some(last)) if delivered > 0 => {
            let least = first.latency_us.min(slo.latency_us * 0.8);
            let most = last.latency_us.max(slo.latency_us * 1.5);
            let x = Scale::log(least, most, ACROSS);
            let mut chart = Chart::new(x, Scale::nines(delivered, UP));
            chart.shade("beyond", [slo.latency_us, f64::MAX]);
            chart.x_axis(8, micros, "latency");
            chart.y_axis(8, percent_tick);
            // Avoids the label of the maximum latency.
            let apart = (x.at(report.latency_us.max) - x.at(slo.latency_us)).abs();
            let top = apart > 170.0;
            chart.mark("slo", slo.latency_us, &format!("SLO {limit}"), top);
            let objective = format!("objective {}", percent(slo.percentile / 100.0));
            chart.level("slo", slo.percentile / 100.0, &objective);
            let share = |packets: u64| packets as f64 / delivered as f64;
            let line = points
                .iter()
                .map(|point| Some((point.latency_us, share(point.packets))));
            let line: Vec<_> = std::iter::once(Some((first.latency_us, 0.0))).chain(line).collect();
            chart.line("s0", &line);
            let latency = &report.latency_us;
            for (name, at, us) in [
                ("p50", 0.5, latency.p50),
                ("p90", 0.9, latency.p90),
                ("p99", 0.99, latency.p99),
                ("p99.9", 0.999, latency.p999),
                ("max", 1.0, latency.max),
            ] {
                // With few packets, several percentiles coincide in one packet.
                if name == "max" || at <= 1.0 - 1.0 / delivered as f64 {
                    chart.label("s0", (us, at), &format!("{name} {}", micros(us)));
                }
            }
            for (i, point) in points.iter().enumerate() {
                let before = i.checked_sub(1).and_then(|i| points.get(i));
                let from = before.map_or(0.0, |before| before.latency_us);
                let text = format!(
                    "up to {}\n{} of packets\n{} took longer",
                    micros(point.latency_us),
                    percent(share(point.packets)),
                    thousands(delivered.saturating_sub(point.packets)),
                );
                chart.hover([from, point.latency_us], &text);
            }
            chart.finish(&format!(
                "Latency of {}: median {}, 99th percentile {}, longest {}",
                count(delivered, "packet"),
                micros(latency.p50),
                micros(latency.p99),
                micros(latency.max)
            ))
        }
        _ => nothing("No packet was delivered."),
    };
    Figure {
        id: "latency-cdf".to_owned(),
        heading: "Latency distribution".to_owned(),
        caption: format!(
            "The share of the delivered packets that took no longer. Upwards, each grid line leaves a tenth as \
             many packets above it; what lies right of {limit} is late."
        ),
        legend: Vec::new(),
        tall: false,
        body,
    }
}

fn latency(report: &RunReport, time: &Time) -> Figure {
    let steps = &report.timeline.list;
    let delivered = || steps.iter().filter(|step| step.delivered > 0);
    let slo = report.slo.latency_us;
    let least = delivered().fold(slo, |least, step| least.min(step.latency_us.p50));
    let most = delivered().fold(slo * 1.2, |most, step| most.max(step.latency_us.max));
    let mut body = nothing("No packet was delivered.");
    if delivered().next().is_some() {
        let mut chart = time.chart(Scale::log(least * 0.9, most, UP));
        for step in steps.iter().filter(|step| step.flagged > 0) {
            chart.shade("flagged", time.step(step));
        }
        chart.y_axis(7, micros);
        type Pick = fn(&LatencyReport) -> f64;
        let lines: [(&str, Pick); 3] = [("s3", |l| l.max), ("s2", |l| l.p99), ("s0", |l| l.p50)];
        for (class, pick) in lines {
            let points: Vec<_> = steps
                .iter()
                .map(|step| {
                    let [from, to] = time.step(step);
                    (step.delivered > 0).then(|| ((from + to) / 2.0, pick(&step.latency_us)))
                })
                .collect();
            chart.line(class, &points);
            // A small number of steps is drawn with visible points.
            if steps.len() <= 40 {
                points.iter().flatten().for_each(|&point| chart.dot(class, point));
            }
        }
        chart.level("slo", slo, &format!("SLO {}", micros(slo)));
        for step in steps.iter().filter(|step| step.windows > 0) {
            let l = &step.latency_us;
            let mut text = time.text(step);
            if step.delivered > 0 {
                let [p50, p99, max] = [l.p50, l.p99, l.max].map(micros);
                let _ = write!(text, "\np50 {p50}\np99 {p99}\nmax {max}");
            }
            let delivered = count(step.delivered, "packet");
            let _ = write!(text, "\n{delivered} delivered");
            if step.flagged > 0 {
                let windows = match step.windows {
                    1 => String::new(),
                    all => format!(" in {} of {all} windows", step.flagged),
                };
                let _ = write!(text, "\nCPU interference{windows}: worker preempted");
            }
            chart.hover(time.step(step), &text);
        }
        body = chart.finish("Median, 99th percentile and longest latency over time");
    }
    let mut names = legend([("s0", "p50"), ("s2", "p99"), ("s3", "max")]);
    if report.windows.flagged > 0 {
        names.push(("flagged", "CPU interference: worker preempted".to_owned()));
    }
    Figure {
        id: "latency-over-time".to_owned(),
        heading: "Latency over time".to_owned(),
        caption: format!("Of the packets sent in each {}.", time.step),
        legend: names,
        tall: false,
        body,
    }
}

fn arrivals(report: &RunReport, time: &Time) -> Figure {
    let arrivals = &report.arrivals;
    let (bin_s, step_s) = (arrivals.bin_ms / 1e3, arrivals.step_ms / 1e3);
    let (bin, step) = (micros(bin_s * 1e6), micros(step_s * 1e6));
    let fine = step_s <= bin_s;
    // All bins are whole except the last, in which the run ends.
    let bins = |place: usize| {
        let left = (report.duration_s - place as f64 * step_s) / bin_s;
        left.ceil().clamp(1.0, (step_s / bin_s).max(1.0))
    };
    let steps: Vec<(f64, f64, f64)> = arrivals
        .packets
        .iter()
        .zip(&arrivals.busiest_bin)
        .enumerate()
        .map(|(place, (&packets, &busiest))| {
            let mean = packets as f64 / (bins(place) * bin_s);
            (place as f64 * step_s, mean, busiest as f64 / bin_s)
        })
        .collect();
    let most = steps.iter().fold(0.0, |most, step| step.2.max(step.1).max(most));
    let mut body = nothing("No packet arrived.");
    if most > 0.0 {
        let mut chart = time.chart(Scale::from_zero(most, UP));
        chart.y_axis(5, tick);
        let middle = |from: f64| {
            let [from, to] = time.span(from, from + step_s);
            (from + to) / 2.0
        };
        let mean: Vec<_> = steps.iter().map(|s| (middle(s.0), s.1)).collect();
        let busiest: Vec<_> = steps.iter().map(|s| Some((middle(s.0), s.2))).collect();
        chart.area("s0", &mean);
        if !fine {
            chart.line("s2 thin", &busiest);
        }
        let mean: Vec<_> = mean.into_iter().map(Some).collect();
        chart.line("s0 thin", &mean);
        for &(from, mean, busiest) in &steps {
            let span = time.span(from, from + step_s);
            let [start, end] = span.map(|value| significant(value, 5));
            let mut text = format!("{start} to {end} {}\n{}pps", time.unit.0, short(mean));
            if !fine {
                let _ = write!(text, "\nbusiest {bin}: {}pps", short(busiest));
            }
            chart.hover(span, &text);
        }
        body = chart.finish(&format!("Arrivals over time: at most {}pps within {bin}", short(most)));
    }
    let offered = report.packets.offered;
    let mean = offered as f64 / report.duration_s.max(1e-9);
    let mut caption = format!("{} packets at {}pps on average", thousands(offered), short(mean));
    if mean > 0.0 && most > 1.1 * mean {
        let _ = write!(
            caption,
            "; the busiest {bin} had {}pps, {} times that",
            short(most),
            significant(most / mean, 2)
        );
    }
    Figure {
        id: "arrivals".to_owned(),
        heading: "Arrivals and bursts".to_owned(),
        caption: caption + ".",
        tall: false,
        legend: if fine {
            vec![("s0", format!("packets/s in each {step}"))]
        } else {
            vec![
                ("s0", format!("packets/s in each {step}")),
                ("s2", format!("in its busiest {bin}")),
            ]
        },
        body,
    }
}

/// One colour of stacked bars.
struct Layer {
    class: &'static str,
    name: String,
    /// Packets in each step.
    counts: Vec<u64>,
}

/// Draws stacked bars over time.
fn stack(report: &RunReport, time: &Time, layers: &[Layer], summary: &str) -> Markup {
    let steps = &report.timeline.list;
    let totals = |place: usize| layers.iter().map(move |layer| layer.counts[place]);
    let most = (0..steps.len()).map(|place| totals(place).sum::<u64>()).max();
    let mut chart = time.chart(Scale::from_zero(most.unwrap_or(0) as f64, UP));
    chart.y_axis(5, |packets| match packets {
        p if p.fract() > 1e-9 => significant(p, 3),
        p => tick(p),
    });
    for (i, layer) in layers.iter().enumerate() {
        let bars = steps.iter().enumerate().filter_map(|(place, step)| {
            let below: u64 = totals(place).take(i).sum();
            let up = [below, below + layer.counts[place]].map(|packets| packets as f64);
            (layer.counts[place] > 0).then(|| (time.step(step), up))
        });
        chart.bars(layer.class, bars);
    }
    for (place, step) in steps.iter().enumerate().filter(|(_, step)| step.windows > 0) {
        let mut text = time.text(step);
        let total: u64 = totals(place).sum();
        let share = percent(total as f64 / step.offered.max(1) as f64);
        let of = format!("\n{} ({share} of offered)", count(total, "packet"));
        text.push_str(&of);
        for (layer, packets) in layers.iter().zip(totals(place)).filter(|(_, n)| *n > 0) {
            let _ = write!(text, "\n{} {}", thousands(packets), layer.name);
        }
        chart.hover(time.step(step), &text);
    }
    chart.finish(summary)
}

fn named(layers: &[Layer]) -> Vec<(&'static str, String)> {
    let names = layers.iter().map(|layer| (layer.class, layer.name.clone()));
    names.collect()
}

/// Maximum number of reasons with their own colour; the others share one.
const REASONS: usize = 6;

fn drops(report: &RunReport, time: &Time) -> Figure {
    let steps = &report.timeline.list;
    let mut layers = Vec::new();
    type Pick = fn(&StepReport) -> &BTreeMap<String, u64>;
    let kinds: [(&str, Pick, [&'static str; REASONS]); 2] = [
        ("lost", |s| &s.lost_by_reason, ["s3", "s5", "s7", "s3", "s5", "s7"]),
        (
            "dropped",
            |s| &s.dropped_by_reason,
            ["s0", "s1", "s4", "s2", "s8", "s9"],
        ),
    ];
    for (fate, pick, classes) in kinds {
        let mut totals: BTreeMap<&str, u64> = BTreeMap::new();
        for (reason, packets) in steps.iter().flat_map(pick) {
            *totals.entry(reason).or_insert(0) += packets;
        }
        let mut reasons: Vec<_> = totals.into_iter().collect();
        // The most frequent one at the bottom.
        reasons.sort_by_key(|(_, packets)| std::cmp::Reverse(*packets));
        let most = if fate == "lost" { REASONS / 2 } else { REASONS };
        let others = reasons.split_off(reasons.len().min(most));
        for ((reason, _), class) in reasons.into_iter().zip(classes) {
            layers.push(Layer {
                class,
                name: format!("{} ({fate})", shortened(reason, 60)),
                counts: steps
                    .iter()
                    .map(|step| pick(step).get(reason).copied().unwrap_or(0))
                    .collect(),
            });
        }
        if !others.is_empty() {
            layers.push(Layer {
                class: "s6",
                name: format!("{} other reasons ({fate})", others.len()),
                counts: steps
                    .iter()
                    .map(|step| {
                        let of = |(reason, _): &(&str, u64)| pick(step).get(*reason).copied();
                        others.iter().filter_map(of).sum()
                    })
                    .collect(),
            });
        }
    }
    let packets = &report.packets;
    let body = match layers.is_empty() {
        true => nothing("Every packet that arrived was delivered."),
        false => stack(report, time, &layers, "Dropped and lost packets over time"),
    };
    Figure {
        id: "drops".to_owned(),
        heading: "Drops and losses".to_owned(),
        caption: format!(
            "{} dropped by the chain, {} lost for lack of resources or time; in each {}.",
            count(packets.dropped_by_nf, "packet"),
            thousands(packets.lost),
            time.step
        ),
        legend: named(&layers),
        tall: false,
        body,
    }
}

/// Returns the colour of a cause.
pub(super) fn cause_class(cause: &str) -> &'static str {
    match cause {
        "service" => "s0",
        "queued-behind-own-flow" => "s4",
        "queued-behind-others" => "s2",
        "descheduled" => "s6",
        "waiting-for-helper" => "s7",
        "migration" => "s1",
        "nic-ring-full" => "s3",
        "network" => "s9",
        _ => "s5",
    }
}

/// Returns a bar for packets with this cause; a share of 1 is the whole width.
pub(super) fn bar(cause: &str, share: f64) -> Markup {
    html! { span class=(cause_class(cause)) style=(format!("width:{:.2}%", share * 100.0)) {} }
}

fn late(report: &RunReport, time: &Time) -> Figure {
    let causes = &report.late_by_cause;
    let total: u64 = causes.values().sum();
    let owed = report.packets.delivered + report.packets.lost;
    let most = causes.values().max().copied().unwrap_or(1).max(1);
    let late = |cause: &str| causes.get(cause).copied().unwrap_or(0);
    let with_packets = CAUSES.into_iter().filter(|(cause, _)| late(cause) > 0);
    let layers = with_packets.map(|(cause, _)| Layer {
        class: cause_class(cause),
        name: cause.to_owned(),
        counts: (report.timeline.list.iter())
            .map(|step| step.late_by_cause.get(cause).copied().unwrap_or(0))
            .collect(),
    });
    let layers: Vec<Layer> = layers.collect();
    let body = match total {
        0 => nothing("No packet was late."),
        _ => html! {
            table.bars {
                @for (cause, meaning) in CAUSES {
                    tr class=[(late(cause) == 0).then_some("none")] {
                        th scope="row" {
                            // Only causes that occurred have advice on the page.
                            @match explain::advice_id(cause).filter(|_| late(cause) > 0) {
                                Some(id) => { a href=(format!("#{id}")) { (cause) } }
                                None => { (cause) }
                            }
                            small { (meaning) }
                        }
                        td.track { (bar(cause, late(cause) as f64 / most as f64)) }
                        td.n { (thousands(late(cause))) }
                    }
                }
            }
            (stack(report, time, &layers, "Late and lost packets over time by cause"))
        },
    };
    Figure {
        id: "late".to_owned(),
        heading: "Late packets by cause".to_owned(),
        caption: format!(
            "{} of {} later than {} or lost: {}.",
            thousands(total),
            count(owed, "packet"),
            micros(report.slo.latency_us),
            percent(total as f64 / owed.max(1) as f64),
        ),
        legend: named(&layers),
        tall: total > 0,
        body,
    }
}

fn cores(report: &RunReport, time: &Time) -> Figure {
    let steps = &report.timeline.list;
    let mut body = nothing("No packet arrived.");
    if steps.iter().any(|step| step.windows > 0) {
        let mut chart = time.chart(Scale::linear(1.0, UP));
        chart.y_axis(5, percent_tick);
        let bars = steps.iter().map(|step| (time.step(step), [0.0, step.busy]));
        chart.bars("s1", bars);
        for step in steps {
            let busy = percent(step.busy);
            let text = format!("{}\n{busy} of the time on packets", time.text(step));
            chart.hover(time.step(step), &text);
        }
        body = chart.finish("The share of the cores' time spent on packets");
    }
    let cores = &report.cores;
    let mut caption = count(cores.dedicated, "dedicated core");
    if let Some(server) = &report.server {
        let in_use = significant(cores.dedicated_avg, 3);
        let moved = count(server.buckets_moved, "RSS bucket");
        let _ = write!(caption, ", {in_use} of them in use on average ({moved} moved)");
    }
    if cores.auxiliary_avg > 0.0 {
        let auxiliary = significant(cores.auxiliary_avg, 3);
        let _ = write!(caption, " and {auxiliary} auxiliary cores on average");
    }
    Figure {
        id: "cores".to_owned(),
        heading: "Cores".to_owned(),
        caption: format!(
            "{}: share of the time spent on packets in each {}. The rest is headroom.",
            caption, time.step
        ),
        legend: Vec::new(),
        tall: false,
        body,
    }
}
