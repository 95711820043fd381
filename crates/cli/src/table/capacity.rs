//! Capacity profile as text.

use super::Table;
use crate::text::{one_line, short, thousands};
use std::path::Path;
use tailwater_net::Nanos;
use tailwater_policy::capacity::CapacityProfile;

/// Maximum number of rows of a frontier.
const ROWS: usize = 12;

/// Formats the profile as text of at most 90 columns.
pub fn capacity(profile: &CapacityProfile, file: &Path) -> String {
    let mut table = Table(String::new());
    table.line("chain", &profile.chain);
    table.line("machine", &one_line(&profile.machine));
    table.line("objective", &format!("latency within {}", profile.slo));
    table.line("profile", &one_line(&file.display().to_string()));
    table.gap();
    frontier(&mut table, profile);
    rates(&mut table, profile);
    splits(&mut table, profile);
    costs(&mut table, profile);
    details(&mut table, profile);
    table.0
}

fn frontier(table: &mut Table, profile: &CapacityProfile) {
    let title = format!("one core in {}", profile.epoch);
    table.figure(&title, "packets", "from at most this many flows");
    let corners = profile.frontier.corners();
    // The first, the last, and some between.
    let shown = corners.len().min(ROWS);
    for row in 0..shown {
        let corner = corners[row * (corners.len() - 1) / (shown - 1).max(1)];
        table.figure(
            "",
            &thousands(u64::from(corner.packets)),
            &thousands(u64::from(corner.flows)),
        );
    }
    if shown < corners.len() {
        let text = format!("({} of {} steps)", shown, corners.len());
        table.figure("", "", &text);
    }
    table.gap();
}

fn rates(table: &mut Table, profile: &CapacityProfile) {
    let corners = profile.rates.corners();
    if corners.is_empty() {
        let text = "none: the objective was missed at a fifth of the core's capacity";
        table.line("rates in time", text);
        table.gap();
        return;
    }
    table.figure("rates in time", "packets/s", "from at most this many flows");
    for &(flows, rate) in corners {
        table.figure("", &short(rate), &thousands(u64::from(flows)));
    }
    table.gap();
}

fn splits(table: &mut Table, profile: &CapacityProfile) {
    let points = profile.splits.points();
    if points.is_empty() {
        return;
    }
    table.figure(
        "one flow, two cores",
        "packets",
        &format!("in {}, by split point", profile.epoch),
    );
    for point in points {
        let words = format!(
            "last {} on the second core: first core {}, second {}",
            point.last_functions,
            thousands(u64::from(point.first)),
            thousands(u64::from(point.last))
        );
        table.figure("", &thousands(u64::from(point.capacity())), &words);
    }
    table.gap();
}

fn costs(table: &mut Table, profile: &CapacityProfile) {
    let Some(costs) = profile.costs else {
        return;
    };
    table.figure("costs", "ns", "");
    for (name, cost, words) in [
        ("  batch", costs.batch, "independent of its packets"),
        ("  packet", costs.packet, ""),
        ("  byte", costs.byte, ""),
        ("  new flow", costs.new_flow, "in addition to the packet"),
    ] {
        table.figure(name, &nanos(cost), words);
    }
}

/// Formats nanoseconds with the significant digits only.
fn nanos(cost: f64) -> String {
    match cost {
        cost if cost < 10.0 => format!("{cost:.2}"),
        cost => format!("{cost:.0}"),
    }
}

/// Adds the costs that only simulations use.
fn details(table: &mut Table, profile: &CapacityProfile) {
    let Some(details) = &profile.details else {
        return;
    };
    let cold = format!(
        "after {} packets of other flows",
        thousands(u64::from(details.cold_after))
    );
    table.gap();
    table.figure("costs in detail", "ns", "");
    for (name, cost, words) in [
        ("  cold packet", details.cold_packet, &*cold),
        ("  batch with a cold packet", details.cold_batch, ""),
        ("  batch with a new flow", details.new_batch, ""),
        ("  packet with a backlog", details.ring_packet, ""),
        ("  receiving", details.receive_packet, "of a packet's costs"),
        ("  own queue", details.queue_packet, "each packet that waits"),
        ("  offloading", details.hand_over_packet, "each packet, in addition"),
        (
            "  receiving offloaded",
            details.take_over_packet,
            "each packet, auxiliary core",
        ),
        ("  finding a packet", details.poll, "a polling core"),
    ] {
        table.figure(name, &nanos(cost), words);
    }
    if !details.wakes.is_empty() {
        table.gap();
        table.figure("wake-up, median", "ns", "99th percentile; time asleep before");
    }
    for wake in &details.wakes {
        let words = format!("{}; {}", thousands(wake.p99), Nanos(wake.asleep));
        table.figure("", &thousands(wake.p50), &words);
    }
    if !details.pauses.is_empty() {
        let per_second: f64 = details.pauses.iter().map(|pause| pause.per_second).sum();
        let pauses = details.pauses.iter();
        let time: f64 = pauses.map(|pause| pause.per_second * pause.nanos as f64).sum();
        let words = format!("per second, {:.2} % of the time", time / 1e7);
        table.gap();
        table.figure("pauses", &thousands(per_second as u64), &words);
    }
}
