//! Scale-out over servers: loads that exceed one, from the start or after a drift, with all checks enabled.

mod common;

use common::{MS, Random, US, checked, policy, profile, run};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_sim::{ChainModel, ChainReport, Rack, Recording, RunOptions, Server};

/// Nanoseconds per packet of the chain, in full batches.
const PACKET: f64 = 4900.0;
/// Destinations, each with its own prefix.
const DESTINATIONS: u32 = 40;

/// Returns a rack of `count` servers of two cores, with delays short enough for short runs.
fn rack(count: usize) -> Rack {
    let mut rack = Rack::of_one(2);
    rack.servers[0] = Server {
        reta_delay: Nanos(200 * US),
        ..rack.servers[0].clone()
    };
    rack.servers = vec![rack.servers[0].clone(); count];
    rack
}

fn model() -> ChainModel {
    ChainModel::from_profile(&profile()).unwrap()
}

/// Returns random packets that take `cores` cores. `weight` returns the share of a destination at a time.
fn traffic(seed: u64, length: u64, cores: f64, weight: impl Fn(u32, u64) -> u64) -> Arc<Recording> {
    let mut random = Random(seed);
    let mut packets = Vec::new();
    let mut now = 0;
    while now < length {
        now += random.gap(PACKET / cores);
        let sum: u64 = (0..DESTINATIONS).map(|destination| weight(destination, now)).sum();
        let mut drawn = random.below(sum);
        let chosen = (0..DESTINATIONS).find(|destination| {
            let weight = weight(*destination, now);
            let found = drawn < weight;
            drawn = drawn.saturating_sub(weight);
            found
        });
        let flow = chosen.unwrap_or(0) + DESTINATIONS * random.below(20) as u32;
        packets.push((Nanos(now), flow, 500));
    }
    Arc::new(Recording::of_packets("random", packets, DESTINATIONS))
}

/// Destinations of unequal load.
fn unequal(destination: u32, _: u64) -> u64 {
    u64::from(120 / (1 + destination))
}

/// Returns the share of late packets of those that arrive from `from` on.
fn late_from(report: &ChainReport, from: u64) -> f64 {
    let windows = report.windows.iter();
    let windows = windows.filter(|window| window.start_s >= Nanos(from).as_secs_f64());
    let sums = windows.fold((0, 0), |(late, offered), window| {
        (late + window.late, offered + window.offered)
    });
    sums.0 as f64 / sums.1 as f64
}

#[test]
fn a_cold_start_at_full_load_settles() {
    let packets = traffic(1, 300 * MS, 4.0, unequal);
    let report = checked(&rack(4), model(), policy("tailwater"), &packets);
    let decisions = &report.decisions;
    assert!(decisions.rows_moved >= 2 && decisions.rows_moved <= 20, "{decisions:?}");
    assert!(decisions.held_for_move > 0);
    let late = late_from(&report, 150 * MS);
    assert!(late < 0.01, "{late}");
    // Nothing moves with NetBlaze's ingress, however long it takes.
    let report = checked(&rack(4), model(), policy("netblaze"), &packets);
    assert_eq!(report.decisions.rows_moved, 0);
}

#[test]
fn a_load_that_drifts_between_servers_is_followed() {
    // Every 150 ms another quarter of the destinations has most of the packets.
    let hot = |destination: u32, now: u64| match u64::from(destination / 10) == now / (150 * MS) % 4 {
        true => 20,
        false => 1,
    };
    let packets = traffic(2, 600 * MS, 2.8, hot);
    let report = checked(&rack(3), model(), policy("tailwater"), &packets);
    assert!(report.decisions.rows_moved >= 3, "{:?}", report.decisions);
    for phase in 0..4 {
        let end = (150 * (phase + 1)) as f64 / 1e3;
        let last = report.windows.iter().filter(|w| (end - 0.05..end).contains(&w.start_s));
        let (late, offered) = last.fold((0, 0), |(late, offered), w| (late + w.late, offered + w.offered));
        assert!(late * 20 <= offered, "{phase}: {late} of {offered}");
    }
}

#[test]
fn one_destination_is_divided_by_hash_if_the_switch_can() {
    let one = |destination: u32, _: u64| u64::from(destination == 7);
    let packets = traffic(3, 200 * MS, 3.0, one);
    let report = checked(&rack(3), model(), policy("tailwater"), &packets);
    assert!(report.decisions.rows_moved > 0);
    let late = late_from(&report, 120 * MS);
    assert!(late < 0.02, "{late}");
    let mut cannot = policy("tailwater");
    if let tailwater_sim::policies::Steered::Servers { ingress, .. } = &mut cannot.steered {
        ingress.flow_hash = false;
    }
    let report = checked(&rack(3), model(), cannot, &packets);
    assert_eq!(report.decisions.rows_moved, 0);
    assert!(late_from(&report, 120 * MS) > 0.2);
}

#[test]
fn what_arrives_during_a_move_waits_within_bounds() {
    let mut slow = rack(4);
    slow.timing.rpc = Nanos(5 * MS);
    slow.switch.rule_latency = Nanos(5 * MS);
    let packets = traffic(4, 150 * MS, 4.0, unequal);
    let report = checked(&slow, model(), policy("tailwater"), &packets);
    assert!(report.decisions.longest_row_move_ns >= 5 * MS);
    let held = report.decisions.held_for_move;
    assert!(held > 0);
    for server in &mut slow.servers {
        server.buffers = 64;
    }
    let tight = checked(&slow, model(), policy("tailwater"), &packets);
    assert!(tight.packets.lost_by_reason["nic-ring-full"] > report.packets.lost);
}

/// Returns `true` if the objective is met on `servers` servers, after a warm-up in which the load is found.
fn holds(name: &str, servers: usize, packets: &Arc<Recording>) -> bool {
    let options = RunOptions {
        warm_up: Nanos(150 * MS),
        ..RunOptions::default()
    };
    let report = run(&rack(servers), model(), policy(name), packets, &options);
    report.chains[0].slo_met == Some(true)
}

#[test]
fn more_servers_never_turn_a_kept_objective_into_a_missed_one() {
    for seed in [5, 6] {
        let packets = traffic(seed, 350 * MS, 4.2, unequal);
        let held: Vec<bool> = (1..=8).map(|servers| holds("tailwater", servers, &packets)).collect();
        let first = held.iter().position(|held| *held);
        assert!(
            first.is_some_and(|first| held[first..].iter().all(|held| *held)),
            "{held:?}"
        );
        let with_static = (1..=8).find(|servers| holds("static", *servers, &packets));
        assert!(
            first.map(|first| first + 1) <= with_static,
            "{held:?}, static: {with_static:?}"
        );
    }
}
