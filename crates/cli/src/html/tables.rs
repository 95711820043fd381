//! Text and tables of a page.

use super::text::{count, micros, significant};
use crate::table::{late_and_lost, of_bytes_in, share, without_verdict};
use crate::text::{fixed, one_line, percent, short, thousands};
use maud::{Markup, html};
use std::fmt::Write as _;
use tailwater_dataplane::report::{DropOutcome, LatencyReport, ReloadOutcome, RunReport};

/// Returns the heading of a page: the product, a title, and the circumstances; then more elements.
pub(super) fn header(product: &str, title: &str, about: &str, more: &Markup) -> Markup {
    html! {
        header {
            p.product { (product) }
            h1 { (one_line(title)) }
            p.about { (one_line(about)) }
            (more)
        }
    }
}

/// Returns the verdict: its CSS class, its result, and a sentence.
pub(super) fn verdict(class: &str, result: &str, sentence: &str) -> Markup {
    html! {
        div.verdict.(class) id="verdict" { strong { (result) } span { (one_line(sentence)) } }
    }
}

/// Returns the heading of a run: the verdict and the most important figures.
pub fn heading(report: &RunReport, ended: &str) -> Markup {
    let packets = &report.packets;
    let owed = packets.delivered + packets.lost;
    let in_time = share(owed.saturating_sub(late_and_lost(report)), owed);
    let (class, result) = match report.slo_met {
        Some(true) => ("met", "SLO met"),
        Some(false) => ("missed", "SLO missed"),
        None => ("none", "No verdict"),
    };
    let slo_us = report.slo.latency_us;
    let limit = micros(slo_us);
    let objective = percent(report.slo.percentile / 100.0);
    let sentence = match report.slo_met {
        None => format!("Reason: {}.", without_verdict(report)),
        Some(_) => format!("{} of packets within {limit}; objective {objective}.", percent(in_time)),
    };
    let about = format!(
        "{}: {} s at {}pps{}; {ended}",
        report.traffic,
        significant(report.duration_s, 3),
        short(packets.offered as f64 / report.duration_s.max(1e-9)),
        if report.interrupted { ", interrupted" } else { "" },
    );
    let latency = &report.latency_us;
    let latency_tile = |name, us| (name, micros(us), us > slo_us);
    let tiles = [
        latency_tile("p50", latency.p50),
        latency_tile("p99", latency.p99),
        latency_tile("p99.9", latency.p999),
        latency_tile("longest", latency.max),
        ("offered", short(packets.offered as f64), false),
        ("lost", percent(report.loss_rate), packets.lost > 0),
        ("throughput", throughput(report), false),
        ("cores", significant(report.cores.avg, 3), false),
    ];
    let more = html! {
        (verdict(class, result, &sentence))
        dl.tiles {
            @for (name, value, is_late) in tiles {
                div.tile.late[is_late] { dt { (name) } dd { (value) } }
            }
        }
        @if let Some(text) = disturbed(report) { p.hint { (text) } }
        @if let Some(text) = rejected(report) { p.hint id="reloads" { (one_line(&text)) } }
    };
    header("Tailwater run report", &report.chain, &about, &more)
}

fn throughput(report: &RunReport) -> String {
    match report.throughput_gbps {
        gbps if gbps >= 1.0 => format!("{} Gbit/s", significant(gbps, 3)),
        gbps => format!("{} Mbit/s", significant(gbps * 1e3, 3)),
    }
}

/// Returns the rejected reloads of the chain's files, if there are any, with the reason of the last one listed.
fn rejected(report: &RunReport) -> Option<String> {
    let reloads = &report.reloads;
    let number = Some(reloads.counters.rejected).filter(|number| *number > 0)?;
    let mut listed = reloads.list.iter().rev();
    let last = listed.find(|event| event.outcome == ReloadOutcome::Rejected);
    let reason = last.map_or_else(String::new, |event| {
        let line = event.lines.first().map_or("", String::as_str);
        format!(", at {:.2} s: {line}", event.at_s)
    });
    Some(format!("Rejected: {}{reason}", count(number, "reload")))
}

/// Returns the CPU interference during the run, if there was any.
fn disturbed(report: &RunReport) -> Option<String> {
    let windows = &report.windows;
    if windows.flagged == 0 {
        return None;
    }
    let of = count(windows.count, "window");
    let mut text = format!(
        "In {} of {of} there was CPU interference: a worker was preempted. ",
        thousands(windows.flagged),
    );
    let _ = match kept_windows(report) {
        Some((kept, judged)) => write!(
            text,
            "The SLO was met in {} of the {} others.",
            thousands(kept),
            thousands(judged)
        ),
        None if windows.flagged >= windows.count => write!(text, "All windows had CPU interference."),
        None => write!(text, "No packet was delivered or lost in the others."),
    };
    Some(text)
}

/// Returns the windows without CPU interference in which the SLO was met, and those with packets delivered or lost, if
/// there are any.
fn kept_windows(report: &RunReport) -> Option<(u64, u64)> {
    let judged = report.windows.unflagged_judged;
    let share = report.windows.unflagged_slo_met?;
    Some(((share * judged as f64).round() as u64, judged))
}

/// Rows of a table: a name and its figures.
pub(super) type Rows = Vec<(String, Vec<String>)>;

pub(super) fn table(id: &str, heading: &str, columns: &[&str], rows: &Rows) -> Markup {
    html! {
        section.card id=(id) {
            h2 { (heading) }
            table.figures {
                @if !columns.is_empty() {
                    thead { tr { td {} @for column in columns { th scope="col" { (column) } } } }
                }
                tbody {
                    @for (name, figures) in rows {
                        // Parts of a whole are indented, as in the terminal's table.
                        @let part = name.strip_prefix("  ");
                        tr class=[part.map(|_| "part")] {
                            th scope="row" { (one_line(part.unwrap_or(name))) }
                            @for figure in figures { td { (figure) } }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the latency of all packets, and of the median window.
pub fn latency(report: &RunReport) -> Markup {
    let (all, median) = (&report.latency_us, &report.windows.median_latency_us);
    let rows = |l: &LatencyReport| [l.p50, l.p90, l.p99, l.p999, l.max, l.mean].map(fixed);
    let names = ["p50", "p90", "p99", "p99.9", "max", "mean"].map(str::to_owned);
    let figures = rows(all).into_iter().zip(rows(median));
    let rows = names
        .into_iter()
        .zip(figures.map(|(all, median)| vec![all, median]))
        .collect();
    let columns = ["all packets", "median window"];
    table("latency-table", "Latency, µs", &columns, &rows)
}

/// Returns the packets by result.
pub fn packets(report: &RunReport) -> Markup {
    let packets = &report.packets;
    let of = |count: u64| {
        let figures = [thousands(count), percent(share(count, packets.offered))];
        figures.to_vec()
    };
    let mut rows: Rows = vec![
        ("offered".to_owned(), vec![thousands(packets.offered), String::new()]),
        ("  delivered".to_owned(), of(packets.delivered)),
        ("  dropped by the chain".to_owned(), of(packets.dropped_by_nf)),
        ("  lost".to_owned(), of(packets.lost)),
    ];
    if packets.not_matched > 0 {
        let figures = vec![thousands(packets.not_matched), String::new()];
        rows.push(("not matched".to_owned(), figures));
    }
    /// Maximum number of drops, and of packet events, listed.
    const MOST: usize = 100;
    let title = |name: &str| (name.to_owned(), vec![String::new(); 2]);
    let mut drops: Vec<_> = packets.drops.iter().collect();
    drops.sort_by_key(|drop| std::cmp::Reverse(drop.packets));
    if !drops.is_empty() {
        rows.push(title("drops"));
    }
    for drop in drops.iter().take(MOST) {
        let lost = match drop.outcome {
            DropOutcome::Dropped => "",
            DropOutcome::Lost => " (lost)",
        };
        rows.push((format!("  {}{lost}", drop.name()), of(drop.packets)));
    }
    if drops.len() > MOST {
        let others = drops[MOST..].iter().map(|drop| drop.packets).sum();
        rows.push(("  other drops".to_owned(), of(others)));
    }
    let mut events: Vec<_> = packets.packet_events.iter().collect();
    events.sort_by_key(|event| std::cmp::Reverse(event.count));
    if !events.is_empty() {
        rows.push(title("packet events"));
    }
    for event in events.iter().take(MOST) {
        // Counters of bytes are not a share of the packets.
        let figures = match of_bytes_in(&packets.packet_events, event) {
            Some(part) => vec![thousands(event.count), part],
            None if event.reason.ends_with("-bytes-in") => vec![thousands(event.count), String::new()],
            None => of(event.count),
        };
        rows.push((format!("  {}", event.name()), figures));
    }
    if events.len() > MOST {
        let others = events[MOST..].iter().map(|event| event.count).sum();
        rows.push(("  other packet events".to_owned(), of(others)));
    }
    table("packets", "Packets", &["", "of offered"], &rows)
}

/// Returns the flow table's counters.
pub fn flows(report: &RunReport) -> Markup {
    let Some(flows) = &report.flows else {
        return html! {
            section.card id="flows" {
                h2 { "Flow table" }
                p.nothing { "The chain has no flow table." }
            }
        };
    };
    let memory = format!("{} MB", significant(flows.memory_bytes as f64 / 1e6, 3));
    let rows = [
        ("opened", thousands(flows.opened)),
        ("expired: idle", thousands(flows.expired)),
        ("evicted for new flows", thousands(flows.evicted)),
        ("refused: table full", thousands(flows.refused)),
        ("active at the end", thousands(flows.active)),
        ("memory", memory),
        ("flows that fit", thousands(flows.capacity)),
        ("memory for each, bytes", thousands(flows.bytes_per_flow.round() as u64)),
        ("content of a flow, bytes", thousands(flows.content_bytes)),
    ];
    let rows = rows.map(|(name, figure)| (name.to_owned(), vec![figure]));
    table("flows", "Flow table", &[], &rows.into())
}

/// Returns the windows, and their CPU interference.
pub fn windows(report: &RunReport) -> Markup {
    let windows = &report.windows;
    let kept = kept_windows(report).map_or_else(
        || "no packets".to_owned(),
        |(kept, judged)| format!("{} of {}", thousands(kept), thousands(judged)),
    );
    let gaps: u64 = windows.list.iter().map(|window| window.gaps).sum();
    let lost: f64 = windows.list.iter().map(|window| window.gap_us).sum();
    let longest = windows.list.iter().map(|window| window.longest_gap_us);
    let rows = [
        ("windows", thousands(windows.count)),
        ("length of each", micros(windows.length_ms * 1e3)),
        ("with CPU interference", thousands(windows.flagged)),
        ("of the others, SLO met", kept),
        ("preemptions", thousands(gaps)),
        ("time preempted", micros(lost)),
        ("longest preemption", micros(longest.fold(0.0, f64::max))),
    ];
    let rows = rows.map(|(name, figure)| (name.to_owned(), vec![figure]));
    let heading = match windows.omitted {
        0 => "Windows and gaps".to_owned(),
        _ => format!(
            "Windows and gaps (of the first {})",
            thousands(windows.list.len() as u64)
        ),
    };
    table("windows", &heading, &[], &rows.into())
}
