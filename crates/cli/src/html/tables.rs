//! Text and tables of a page.

use super::text::{count, escape, micros, significant};
use crate::table::{late_and_lost, of_bytes_in, share, without_verdict};
use crate::text::{fixed, percent, short, thousands};
use std::fmt::Write as _;
use tailwater_dataplane::report::{DropOutcome, LatencyReport, RunReport};

/// Adds the heading: the verdict and the most important figures.
pub fn heading(page: &mut String, report: &RunReport, ended: &str) {
    let packets = &report.packets;
    let owed = packets.delivered + packets.lost;
    let in_time = share(owed.saturating_sub(late_and_lost(report)), owed);
    let rate = packets.offered as f64 / report.duration_s.max(1e-9);
    let (class, verdict) = match report.slo_met {
        Some(true) => ("met", "SLO met"),
        Some(false) => ("missed", "SLO missed"),
        None => ("none", "No verdict"),
    };
    let limit = micros(report.slo.latency_us);
    let objective = percent(report.slo.percentile / 100.0);
    let sentence = match report.slo_met {
        None => format!("Reason: {}.", without_verdict(report)),
        Some(_) => format!("{} of packets within {limit}; objective {objective}.", percent(in_time)),
    };
    let interrupted = if report.interrupted { ", interrupted" } else { "" };
    let _ = write!(
        page,
        "<header>\n<p class=\"product\">Tailwater run report</p>\n\
         <h1>{}</h1>\n<p class=\"about\">{}: {} s at {}pps{interrupted}; {ended}</p>\n\
         <div class=\"verdict {class}\" id=\"verdict\"><strong>{verdict}</strong><span>{}</span></div>\n",
        escape(&report.chain),
        escape(&report.traffic),
        significant(report.duration_s, 3),
        short(rate),
        escape(&sentence),
    );
    let latency = &report.latency_us;
    let late = |us: f64| {
        if us > report.slo.latency_us { "late" } else { "" }
    };
    let lost = if packets.lost > 0 { "late" } else { "" };
    let tiles = [
        ("p50", micros(latency.p50), late(latency.p50)),
        ("p99", micros(latency.p99), late(latency.p99)),
        ("p99.9", micros(latency.p999), late(latency.p999)),
        ("longest", micros(latency.max), late(latency.max)),
        ("offered", short(packets.offered as f64), ""),
        ("lost", percent(report.loss_rate), lost),
        ("throughput", throughput(report), ""),
        ("cores", significant(report.cores.avg, 3), ""),
    ];
    page.push_str("<dl class=\"tiles\">");
    for (name, value, class) in tiles {
        let class = if class.is_empty() { "tile" } else { "tile late" };
        let _ = write!(
            page,
            "<div class=\"{class}\"><dt>{name}</dt><dd>{}</dd></div>",
            escape(&value)
        );
    }
    page.push_str("</dl>\n");
    if let Some(text) = disturbed(report) {
        let _ = writeln!(page, "<p class=\"hint\">{}</p>", escape(&text));
    }
    page.push_str("</header>\n");
}

fn throughput(report: &RunReport) -> String {
    match report.throughput_gbps {
        gbps if gbps >= 1.0 => format!("{} Gbit/s", significant(gbps, 3)),
        gbps => format!("{} Mbit/s", significant(gbps * 1e3, 3)),
    }
}

/// Returns the CPU interference during the run, if there was any.
fn disturbed(report: &RunReport) -> Option<String> {
    let windows = &report.windows;
    if windows.flagged == 0 {
        return None;
    }
    let good = windows.count.saturating_sub(windows.flagged);
    let kept = (windows.unflagged_slo_met * good as f64).round() as u64;
    let of = count(windows.count, "window");
    let mut text = format!(
        "In {} of {of} there was CPU interference: a worker was preempted. ",
        thousands(windows.flagged),
    );
    let _ = match good {
        0 => write!(text, "All windows had CPU interference."),
        _ => write!(
            text,
            "The SLO was met in {} of the {} others.",
            thousands(kept),
            thousands(good)
        ),
    };
    Some(text)
}

/// Rows of a table: a name and its figures.
pub(super) type Rows = Vec<(String, Vec<String>)>;

pub(super) fn table(page: &mut String, id: &str, heading: &str, columns: &[&str], rows: &Rows) {
    let _ = write!(
        page,
        "<section class=\"card\" id=\"{id}\">\n<h2>{heading}</h2>\n<table class=\"figures\">\n"
    );
    if !columns.is_empty() {
        page.push_str("<thead><tr><td></td>");
        for column in columns {
            let _ = write!(page, "<th scope=\"col\">{}</th>", escape(column));
        }
        page.push_str("</tr></thead>\n");
    }
    page.push_str("<tbody>\n");
    for (name, figures) in rows {
        // Parts of a whole are indented, as in the terminal's table.
        let (class, name) = match name.strip_prefix("  ") {
            Some(name) => (" class=\"part\"", name),
            None => ("", name.as_str()),
        };
        let _ = write!(page, "<tr{class}><th scope=\"row\">{}</th>", escape(name));
        for figure in figures {
            let _ = write!(page, "<td>{}</td>", escape(figure));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody>\n</table>\n</section>\n");
}

/// Adds the latency of all packets, and of the median window.
pub fn latency(page: &mut String, report: &RunReport) {
    let (all, median) = (&report.latency_us, &report.windows.median_latency_us);
    let rows = |l: &LatencyReport| [l.p50, l.p90, l.p99, l.p999, l.max, l.mean].map(fixed);
    let names = ["p50", "p90", "p99", "p99.9", "max", "mean"].map(str::to_owned);
    let figures = rows(all).into_iter().zip(rows(median));
    let rows = names
        .into_iter()
        .zip(figures.map(|(all, median)| vec![all, median]))
        .collect();
    let columns = ["all packets", "median window"];
    table(page, "latency-table", "Latency, µs", &columns, &rows);
}

/// Adds the packets by result.
pub fn packets(page: &mut String, report: &RunReport) {
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
    table(page, "packets", "Packets", &["", "of offered"], &rows);
}

/// Adds the flow table's counters.
pub fn flows(page: &mut String, report: &RunReport) {
    let Some(flows) = &report.flows else {
        page.push_str(
            "<section class=\"card\" id=\"flows\">\n<h2>Flow table</h2>\n\
             <p class=\"nothing\">The chain has no flow table.</p>\n</section>\n",
        );
        return;
    };
    let memory = format!("{} MB", significant(flows.memory_bytes as f64 / 1e6, 3));
    let rows = [
        ("opened", thousands(flows.opened)),
        ("expired: idle", thousands(flows.expired)),
        ("evicted for new flows", thousands(flows.evicted)),
        ("refused: table full", thousands(flows.refused)),
        ("active at the end", thousands(flows.active)),
        ("memory", memory),
    ];
    let rows = rows.map(|(name, figure)| (name.to_owned(), vec![figure]));
    table(page, "flows", "Flow table", &[], &rows.into());
}

/// Adds the windows, and their CPU interference.
pub fn windows(page: &mut String, report: &RunReport) {
    let windows = &report.windows;
    let good = windows.count.saturating_sub(windows.flagged);
    let kept = (windows.unflagged_slo_met * good as f64).round() as u64;
    let gaps: u64 = windows.list.iter().map(|window| window.gaps).sum();
    let lost: f64 = windows.list.iter().map(|window| window.gap_us).sum();
    let longest = windows.list.iter().map(|window| window.longest_gap_us);
    let rows = [
        ("windows", thousands(windows.count)),
        ("length of each", micros(windows.length_ms * 1e3)),
        ("with CPU interference", thousands(windows.flagged)),
        (
            "of the others, SLO met",
            format!("{} of {}", thousands(kept), thousands(good)),
        ),
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
    table(page, "windows", &heading, &[], &rows.into());
}
