//! Report of a run as text, and other tables.
//!
//! No table crate: `comfy-table` and `tabled` (3 and 5 crates) lay out one grid of cells. A report is lines of words
//! between figures, and its long names extend into the next column; `Table` does that in 25 lines.

mod capacity;
pub(crate) mod comparison;
pub(crate) mod curves;
pub(crate) mod demo;
mod explanation;
mod flow_level;
mod found;

use crate::text::{fixed, one_line, percent, short, thousands};
use std::fmt::Write as _;
use tailwater_dataplane::report::{
    ArrivalTimes, DropOutcome, LatencyReport, NoVerdict, PacketEventReport, QueueReport, ReloadCounters, ReloadOutcome,
    ReloadReport, RunReport, packets_required,
};
use tailwater_net::Nanos;

pub use capacity::capacity;
pub use comparison::comparison;
pub use curves::profile;
pub use demo::demo;
pub use explanation::explanation;
pub use flow_level::flow_level;
pub use found::found;

/// Width of the name column, and of each column of figures.
const NAMES: usize = 20;
const FIGURES: usize = 16;

/// Explanation of each cause. `descheduled` is caused by the machine, the others by the chain or the traffic.
pub const CAUSES: [(&str, &str); 9] = [
    ("service", "processing took that long"),
    (
        "queued-behind-own-flow",
        "waited behind packets of their own flow (whale)",
    ),
    ("queued-behind-others", "waited behind packets of other flows (minnows)"),
    ("descheduled", "worker preempted"),
    ("waiting-for-helper", "waited for an auxiliary core to wake up"),
    ("migration", "buffered during migration of their RSS bucket"),
    ("nic-ring-full", "lost: the NIC's receive queue was full"),
    ("no-resources", "lost in the chain: drop reason names the resource"),
    ("external", "too long in an external function"),
];

/// Formats the report as text of at most 90 columns; long function names may exceed that.
pub fn report(report: &RunReport) -> String {
    let mut table = Table(String::new());
    heading(&mut table, report);
    latency(&mut table, report);
    packets(&mut table, report);
    late(&mut table, report);
    machine(&mut table, report);
    externals(&mut table, report);
    ports(&mut table, report);
    table.0
}

struct Table(String);

impl Table {
    fn line(&mut self, name: &str, value: &str) {
        let text = format!("{name:<NAMES$}{value}");
        self.0.push_str(text.trim_end());
        self.0.push('\n');
    }

    /// Adds a line with a figure in its column, then words.
    fn figure(&mut self, name: &str, figure: &str, words: &str) {
        // A long name uses the blanks in front of the figure, which stays in its column.
        let overhang = name.chars().count().saturating_sub(NAMES);
        let width = match overhang {
            0 => FIGURES,
            _ => FIGURES.saturating_sub(overhang).max(figure.len() + 1),
        };
        self.line(name, &format!("{figure:>width$}  {words}"));
    }

    fn gap(&mut self) {
        self.0.push('\n');
    }
}

/// Returns the ratio of a part to a whole; 0 if the whole is 0.
pub fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// Formats the ratio of a function's output bytes to its input bytes, by the names of its counters; `None` for other
/// counters.
pub fn of_bytes_in(events: &[PacketEventReport], event: &PacketEventReport) -> Option<String> {
    let counter = event.reason.strip_suffix("-bytes-out")?;
    let mut same = events.iter().filter(|other| other.function == event.function);
    let given = same.find(|other| other.reason.strip_suffix("-bytes-in") == Some(counter))?;
    Some(format!("{:.3} of bytes-in", share(event.count, given.count)))
}

/// Formats a number of times: `once`, `7 times`.
fn times(number: u64) -> String {
    match number {
        1 => "once".to_owned(),
        number => format!("{} times", thousands(number)),
    }
}

/// Formats a count with its noun: `1 flow`, `2 flows`.
fn count(number: u64, what: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{} {what}{s}", thousands(number))
}

fn heading(table: &mut Table, report: &RunReport) {
    let packets = &report.packets;
    let rate = packets.offered as f64 / report.duration_s.max(1e-9);
    table.line("chain", &report.chain);
    table.line("traffic", &one_line(&report.traffic));
    let stopped = if report.interrupted { ", interrupted" } else { "" };
    table.line(
        "",
        &format!("{:.2} s at {}pps{stopped}", report.duration_s, short(rate)),
    );
    let objective = percent(report.slo.percentile / 100.0);
    let limit = Nanos((report.slo.latency_us * 1e3).round() as u64);
    let owed = packets.delivered + packets.lost;
    let in_time = share(owed.saturating_sub(late_and_lost(report)), owed);
    let verdict = match report.slo_met {
        None => format!("NO VERDICT: {}", without_verdict(report)),
        Some(met) => {
            let met = if met { "MET" } else { "MISSED" };
            format!(
                "{met}: {} of packets within {limit} (objective {objective})",
                percent(in_time)
            )
        }
    };
    table.line("SLO", &verdict);
    table.gap();
}

/// Explains why a run has no verdict: no packets arrived, the chain dropped all of them, or too few remain.
pub fn without_verdict(report: &RunReport) -> String {
    let packets = &report.packets;
    let all = match packets.offered {
        1 => "the only packet".to_owned(),
        all => format!("all {} packets", thousands(all)),
    };
    match report.no_verdict {
        Some(NoVerdict::AllDropped) => format!("the chain dropped {all} ({})", largest_drops(report)),
        Some(NoVerdict::TooFewPackets) => {
            let owed = packets.delivered + packets.lost;
            let dropped = match packets.dropped_by_nf {
                0 => String::new(),
                dropped => format!(
                    "; the chain dropped {} of {} packets ({})",
                    thousands(dropped),
                    thousands(packets.offered),
                    largest_drops(report)
                ),
            };
            format!("{}{dropped}", too_few(owed, report.slo.percentile))
        }
        Some(NoVerdict::PortLoss) => "its port lost packets that may be the chain's".to_owned(),
        Some(NoVerdict::NoPackets) | None => "no packets arrived for the chain".to_owned(),
    }
}

/// Explains that so many packets are too few for a percentile.
pub fn too_few(packets: u64, percentile: f64) -> String {
    format!(
        "{} delivered or lost, at least {} required for {}",
        count(packets, "packet"),
        thousands(packets_required(percentile)),
        percent(percentile / 100.0)
    )
}

/// Lists the reasons of most drops by the chain, each with its packets.
fn largest_drops(report: &RunReport) -> String {
    /// Maximum number of reasons listed.
    const MOST: usize = 3;
    let drops = report.packets.drops.iter();
    let mut drops: Vec<_> = drops.filter(|drop| drop.outcome == DropOutcome::Dropped).collect();
    drops.sort_by_key(|drop| std::cmp::Reverse(drop.packets));
    let listed = drops.iter().take(MOST);
    let mut reasons: Vec<String> = listed
        .map(|drop| format!("{} {}", drop.name(), thousands(drop.packets)))
        .collect();
    if drops.len() > MOST {
        reasons.push("...".to_owned());
    }
    reasons.join(", ")
}

/// Returns the packets beyond the objective: late or lost, for any reason.
pub fn late_and_lost(report: &RunReport) -> u64 {
    report.late_by_cause.values().sum()
}

fn latency(table: &mut Table, report: &RunReport) {
    table.line(
        "latency, us",
        &format!("{:>FIGURES$}{:>FIGURES$}", "all packets", "median window"),
    );
    let (all, median) = (&report.latency_us, &report.windows.median_latency_us);
    let rows = |l: &LatencyReport| [l.p50, l.p90, l.p99, l.p999, l.max, l.mean];
    let names = ["p50", "p90", "p99", "p99.9", "max", "mean"];
    for ((name, all), median) in names.iter().zip(rows(all)).zip(rows(median)) {
        let figures = format!("{:>FIGURES$}{:>FIGURES$}", fixed(all), fixed(median));
        table.line(&format!("  {name}"), &figures);
    }
    table.gap();
}

fn packets(table: &mut Table, report: &RunReport) {
    let packets = &report.packets;
    let mut row = |name: &str, count: u64, whole: Option<u64>| {
        let words = whole.map_or_else(String::new, |whole| format!("{:>9}", percent(share(count, whole))));
        table.figure(name, &thousands(count), &words);
    };
    row("packets offered", packets.offered, None);
    row("  delivered", packets.delivered, Some(packets.offered));
    row("  dropped by chain", packets.dropped_by_nf, Some(packets.offered));
    row("  lost", packets.lost, Some(packets.offered));
    if packets.not_matched > 0 {
        row("not matched", packets.not_matched, None);
    }
    if !packets.drops.is_empty() {
        table.line("drops", "");
    }
    for drop in &packets.drops {
        let words = match drop.outcome {
            DropOutcome::Dropped => "",
            DropOutcome::Lost => "lost",
        };
        table.figure(&format!("  {}", drop.name()), &thousands(drop.packets), words);
    }
    if !packets.packet_events.is_empty() {
        table.line("packet events", "");
    }
    for event in &packets.packet_events {
        let words = of_bytes_in(&packets.packet_events, event).unwrap_or_default();
        table.figure(&format!("  {}", event.name()), &thousands(event.count), &words);
    }
    table.gap();
}

fn late(table: &mut Table, report: &RunReport) {
    let total = late_and_lost(report);
    if total == 0 {
        return;
    }
    table.figure("late or lost", &thousands(total), "");
    for (cause, meaning) in CAUSES {
        let count = report.late_by_cause.get(cause).copied().unwrap_or(0);
        if count > 0 {
            table.figure(&format!("  {cause}"), &thousands(count), meaning);
        }
    }
    let descheduled = report.late_by_cause.get("descheduled").copied().unwrap_or(0);
    if descheduled > 0 {
        let part = percent(share(descheduled, total));
        let text = format!("{part} of them are put down to CPU interference");
        table.line("", &text);
    }
    table.gap();
}

fn isolated(table: &mut Table, report: &RunReport) {
    let Some(isolation) = &report.isolation else {
        return;
    };
    let mut text = format!("each in its own {}", isolation.mode);
    if isolation.switches_us > 0.0 {
        let _ = write!(
            text,
            ", batches of {}, {} us per switch",
            isolation.batch,
            fixed(isolation.switches_us)
        );
    }
    table.line("functions", &text);
    match &isolation.without[..] {
        [] => table.line("", "all defences active"),
        ["all"] => table.line("", "not confined: each has the privileges of this program"),
        some => table.line("", &format!("confined without {}", some.join(", "))),
    }
    if !isolation.real_time {
        table.line(
            "",
            "no real-time priority (requires root): slower, and functions can change packets after their turn",
        );
    }
    for function in &isolation.functions {
        let restarts = &function.restarts;
        let causes = [
            (restarts.ended, "ended"),
            (restarts.overdue, "did not yield in time"),
            (restarts.lied, "broke the protocol"),
            (restarts.over_budget, "exceeded their budget"),
            (restarts.not_attached, "could not be started"),
        ];
        let causes = causes.iter().filter(|(count, _)| *count > 0);
        let causes: Vec<String> = causes
            .map(|(count, what)| format!("{} {what}", thousands(*count)))
            .collect();
        if restarts.total() > 0 {
            let text = format!("{} restarted: {}", function.name, causes.join(", "));
            table.line("", &text);
        }
        for end in &function.ends {
            table.line("", &one_line(&format!("{}: {end}", function.name)));
        }
    }
    for failure in &isolation.failures {
        table.line("", &one_line(failure));
    }
}

fn machine(table: &mut Table, report: &RunReport) {
    let throughput = format!(
        "{:.3} Mpps, {:.3} Gbit/s",
        report.throughput_mpps, report.throughput_gbps
    );
    table.line("throughput", &throughput);
    let cores = &report.cores;
    let mut text = format!("{} dedicated", cores.dedicated);
    if report.server.is_some() || cores.dedicated_avg < cores.dedicated as f64 {
        let _ = write!(text, ", {:.2} of them in use", cores.dedicated_avg);
    }
    // Without auxiliary cores, the dedicated ones may still help each other.
    let is_helped = report.scaling.is_some_and(|scaling| scaling.dedicated_activated > 0);
    if report.scaling.is_some() && !is_helped || cores.auxiliary_avg > 0.0 {
        let _ = write!(text, ", {:.2} auxiliary on average", cores.auxiliary_avg);
    }
    table.line("cores", &text);
    offloading(table, report);
    buckets_moved(table, report);
    isolated(table, report);
    if let Some(flows) = &report.flows {
        let mut text = format!(
            "{} seen, {} at the end",
            thousands(flows.opened),
            thousands(flows.active)
        );
        for (count, what) in [(flows.evicted, "evicted"), (flows.refused, "refused")] {
            if count > 0 {
                let _ = write!(text, ", {} {what}", thousands(count));
            }
        }
        let (memory, each) = (flows.memory_bytes as f64 / 1e6, flows.bytes_per_flow);
        let _ = write!(text, " ({memory:.0} MB, {each:.0} bytes for each that fits)");
        table.line("flows", &text);
    }
    flow_state(table, report);
    reloads(table, &report.reloads);
    let windows = &report.windows;
    let text = format!("{} of {:.0} ms", thousands(windows.count), windows.length_ms);
    table.line("windows", &text);
    if windows.flagged > 0 {
        let text = format!("{} with CPU interference: worker preempted", thousands(windows.flagged));
        table.line("", &text);
    }
    // Windows without a packet to deliver prove nothing.
    match windows.unflagged_slo_met {
        Some(share) if report.slo_met.is_some() => {
            let others = if windows.flagged > 0 { "others" } else { "windows" };
            let judged = windows.unflagged_judged;
            let kept = thousands((share * judged as f64).round() as u64);
            table.line("", &format!("SLO met in {kept} of {} {others}", thousands(judged)));
        }
        None if windows.flagged >= windows.count && windows.count > 0 => {
            table.line("", "all windows had CPU interference");
        }
        _ => {}
    }
}

/// Adds the reloads of the chain's files, and why the last rejected one was.
fn reloads(table: &mut Table, reloads: &ReloadReport) {
    let ReloadCounters {
        applied,
        rejected,
        last_rejected,
        ..
    } = reloads.counters;
    if applied + rejected == 0 {
        return;
    }
    let text = format!("{} applied, {} rejected", thousands(applied), thousands(rejected));
    table.line("reloads", &text);
    let mut listed = reloads.list.iter().rev();
    if let Some(event) = listed.find(|event| event.outcome == ReloadOutcome::Rejected) {
        let line = event.lines.first().map_or("", String::as_str);
        table.line("", &one_line(&format!("rejected at {:.2} s: {line}", event.at_s)));
    }
    if last_rejected {
        table.line("", "the run ended with an older configuration than the files have");
    }
}

/// Adds the activity of external flow state.
fn flow_state(table: &mut Table, report: &RunReport) {
    let Some(state) = &report.state else {
        return;
    };
    let text = format!(
        "{} flows requested, {} found; {} changes written to {}",
        thousands(state.reads),
        thousands(state.hits),
        thousands(state.updates),
        one_line(&state.store)
    );
    table.line("state", &text);
    let wait = &state.wait_us;
    let text = format!(
        "{} packets waited, {} at a time at most: p50 {} us, p99 {} us",
        thousands(state.held),
        thousands(state.held_most),
        fixed(wait.p50),
        fixed(wait.p99)
    );
    table.line("", &text);
    if state.failures > 0 || state.passed + state.dropped > 0 {
        let text = format!(
            "unavailable for {:.3} s; {} packets passed without state, {} lost",
            state.unavailable_s,
            thousands(state.passed),
            thousands(state.dropped)
        );
        table.line("", &text);
    }
    if let Some(failure) = &state.last_failure {
        table.line("", &format!("last failure: {}", one_line(failure)));
    }
}

/// Adds the traffic to and from external functions.
fn externals(table: &mut Table, report: &RunReport) {
    let mut name = "external";
    for external in &report.externals {
        let mut text = format!(
            "{}: {} sent, {} returned, {} not returned",
            external.function,
            thousands(external.sent),
            thousands(external.returned),
            thousands(external.not_returned)
        );
        for (count, what) in [
            (external.late, "late"),
            (external.own, "originated by it"),
            (external.refused, "refused"),
            (external.no_way_back, "without a return path"),
        ] {
            if count > 0 {
                let _ = write!(text, ", {} {what}", thousands(count));
            }
        }
        table.line(name, &text);
        name = "";
        let delay = &external.delay_us;
        let text = format!(
            "delay, us: p50 {}, p99 {}, max {}; at most {} outside at a time",
            fixed(delay.p50),
            fixed(delay.p99),
            fixed(delay.max),
            thousands(external.most_outside)
        );
        table.line(name, &text);
    }
}

/// Adds the devices' counters.
fn ports(table: &mut Table, report: &RunReport) {
    let mut name = "ports";
    for port in &report.ports {
        let state = match port.link.up {
            _ if port.gone => ": gone",
            Some(false) => ": link down",
            _ => "",
        };
        table.line(name, &format!("{}{state}", one_line(&port.port)));
        name = "";
        let mut text = format!("{} received, {} sent", thousands(port.received), thousands(port.sent));
        for (count, what) in [
            (port.missed, "missed"),
            (port.no_buffer, "lost without a free buffer"),
            (port.receive_errors, "damaged"),
            (port.send_errors, "not sent"),
        ] {
            if count > 0 {
                let _ = write!(text, ", {} {what}", thousands(count));
            }
        }
        table.line(name, &text);
        let source = match port.arrival_times {
            ArrivalTimes::Device => "arrival times from the device",
            ArrivalTimes::Software => "arrival times from software",
        };
        table.line(name, source);
        if port.link.changes > 0 {
            table.line(name, &format!("link changed {}", times(port.link.changes)));
        }
        if port.by_queue.len() > 1 {
            port.by_queue.iter().for_each(|queue| of_queue(table, queue));
        }
    }
}

/// Adds a device's counters of one queue.
fn of_queue(table: &mut Table, queue: &QueueReport) {
    let counts = [
        (queue.received, "received"),
        (queue.receive_errors.filter(|count| *count > 0), "damaged"),
        (queue.sent, "sent"),
    ];
    let counts = counts.into_iter();
    let counts: Vec<String> = counts
        .filter_map(|(count, what)| Some(format!("{} {what}", thousands(count?))))
        .collect();
    let text = format!("  queue {}: {}", queue.queue, counts.join(", "));
    table.line("", &text);
}

/// Adds the migrations of RSS buckets, and the packets buffered for them.
fn buckets_moved(table: &mut Table, report: &RunReport) {
    let Some(server) = &report.server else {
        return;
    };
    let text = format!(
        "{} RSS buckets, in {} of {} decisions",
        thousands(server.buckets_moved),
        thousands(server.moves),
        thousands(server.decisions)
    );
    table.line("moved", &text);
    if server.buckets_moved > 0 {
        let text = format!(
            "{} packets buffered during migration; longest took {} us",
            thousands(server.packets_buffered),
            fixed(server.longest_move_us)
        );
        table.line("", &text);
    }
}

/// Adds the work of auxiliary cores, and the mapper's reports.
fn offloading(table: &mut Table, report: &RunReport) {
    let Some(scaling) = &report.scaling else {
        return;
    };
    let text = format!(
        "{} packets ({}), {} flows moved out of the queue",
        thousands(scaling.packets_offloaded),
        percent(share(scaling.packets_offloaded, report.packets.offered)),
        thousands(scaling.flows_moved)
    );
    table.line("offloaded", &text);
    if scaling.dedicated_activated > 0 {
        let text = format!(
            "{} of them ({}) to dedicated cores, which helped {}",
            thousands(scaling.packets_to_dedicated),
            percent(share(scaling.packets_to_dedicated, report.packets.offered)),
            times(scaling.dedicated_activated)
        );
        table.line("", &text);
    }
    let text = format!(
        "auxiliary cores activated {}, boost mode entered {}",
        times(scaling.activated),
        times(scaling.boosts)
    );
    if scaling.activated > 0 || scaling.boosts > 0 || scaling.dedicated_activated == 0 {
        table.line("", &text);
    }
    let parked = format!(", {} packets parked", thousands(scaling.packets_parked));
    for (count, what, more) in [
        (scaling.splits, "flow split between cores", ""),
        (scaling.joins, "parts of a split flow joined", ""),
        (scaling.relieved, "auxiliary core overloaded", &*parked),
        (scaling.whales_beyond_split, "flow beyond every split of the chain", ""),
        (scaling.out_of_cores, "policy reported insufficient cores", ""),
        (scaling.no_benefit, "auxiliary cores brought no benefit", ""),
    ] {
        if count > 0 {
            table.line("", &format!("{what} {}{more}", times(count)));
        }
    }
}

#[cfg(test)]
mod tests;
