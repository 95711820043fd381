//! Several servers: loads that exceed one, from the start or after a drift, servers that fail and servers that are
//! emptied, with all checks enabled.

mod common;

use common::{MS, Random, US, checked, policy, profile, run};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_sim::policies::Steered;
use tailwater_sim::{ChainModel, ChainReport, Rack, RackPolicy, Recording, RunOptions, Server};

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
    varying(seed, length, |_| cores, weight)
}

/// The same, for a load over time.
fn varying(seed: u64, length: u64, cores: impl Fn(u64) -> f64, weight: impl Fn(u32, u64) -> u64) -> Arc<Recording> {
    let mut random = Random(seed);
    let mut packets = Vec::new();
    let mut now = 0;
    while now < length {
        now += random.gap(PACKET / cores(now));
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
    if let Steered::Servers { ingress, .. } = &mut cannot.steered {
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

/// Returns a rack of which one server fails.
fn failing(mut rack: Rack, server: usize, at: u64) -> Rack {
    rack.servers[server].fails_at = Some(Nanos(at));
    rack
}

fn lost_with_server(report: &ChainReport) -> u64 {
    report.packets.lost_by_reason.get("server-lost").copied().unwrap_or(0)
}

#[test]
fn a_lost_server_costs_the_packets_of_a_few_milliseconds() {
    let (fails, length) = (150 * MS, 300 * MS);
    let packets = traffic(7, length, 3.0, unequal);
    // The first has the default row.
    for server in [0, 1] {
        let report = checked(&failing(rack(4), server, fails), model(), policy("tailwater"), &packets);
        let context = format!("{server}: {:?} {:?}", report.packets.lost_by_reason, report.decisions);
        let reaction = report.decisions.loss_reaction_ns;
        assert!((4 * MS..9 * MS).contains(&reaction), "{context}");
        // At most all packets until then, and what was in the rings.
        let most = (reaction + MS) as f64 * 3.0 / PACKET;
        let lost = lost_with_server(&report);
        assert!(lost > 0 && lost as f64 <= most, "{context}");
        assert!(report.decisions.flows_reopened > 0, "{context}");
        // The objective is kept again.
        let late = late_from(&report, fails + 50 * MS);
        assert!(late < 0.01, "{late}, {context}");
        let after = report.windows.iter().filter(|window| window.start_s > 0.1999);
        assert_eq!(after.map(|window| window.lost).sum::<u64>(), 0, "{context}");
    }
}

/// Policies without a reaction lose the server's share, and no policy loses order, owners or counts.
#[test]
fn every_policy_runs_on_with_a_server_lost() {
    let packets = traffic(8, 60 * MS, 1.5, unequal);
    for name in RackPolicy::names() {
        for server in [0, 1] {
            let report = checked(&failing(rack(2), server, 30 * MS), model(), policy(name), &packets);
            let share = lost_with_server(&report) as f64 / report.packets.offered as f64;
            match name {
                "static" => assert!((0.2..0.3).contains(&share), "{server}: {share}"),
                "tailwater" => assert!(share < 0.15, "{server}: {share}"),
                // All after the failure, and what was in rings and buffers.
                _ => assert!(share < 0.7, "{name}, {server}: {share}"),
            }
            let reacts = report.decisions.loss_reaction_ns > 0;
            assert!(!reacts || name == "tailwater", "{name}");
        }
    }
}

#[test]
fn moves_from_and_to_a_lost_server_end() {
    let mut slow = rack(3);
    slow.timing.rpc = Nanos(4 * MS);
    slow.switch.rule_latency = Nanos(4 * MS);
    // From the cold start's first decision until its moves are complete, and after.
    let packets = traffic(9, 60 * MS, 2.2, unequal);
    for fails in [0, 3, 5, 7, 10, 13, 16, 25] {
        for server in [0, 1] {
            let report = checked(
                &failing(slow.clone(), server, fails * MS),
                model(),
                policy("tailwater"),
                &packets,
            );
            let last = report.windows.iter().rfind(|window| window.offered > 0).unwrap();
            let context = format!("{server} at {fails}: {last:?} {:?}", report.decisions);
            assert!(last.delivered * 10 > last.offered * 9, "{context}");
        }
    }
}

#[test]
fn a_failure_is_the_same_however_cores_are_interleaved() {
    let packets = traffic(10, 80 * MS, 2.5, unequal);
    let rack = failing(rack(3), 0, 40 * MS);
    for name in ["static", "netblaze", "tailwater"] {
        let report = |together| {
            let options = RunOptions {
                together,
                ..RunOptions::default()
            };
            serde_json::to_string(&run(&rack, model(), policy(name), &packets, &options)).unwrap()
        };
        assert_eq!(report(false), report(true), "{name}");
    }
}

#[test]
fn a_server_that_is_not_needed_gives_its_cores_back_until_it_is() {
    let load = |now: u64| match now / MS {
        ..60 | 2700.. => 2.6,
        _ => 0.1,
    };
    let packets = varying(11, 2740 * MS, load, unequal);
    let mut scales_in = policy("tailwater");
    if let Steered::Servers { ingress, .. } = &mut scales_in.steered {
        ingress.scale_in = true;
    }
    let with = checked(&rack(2), model(), scales_in, &packets);
    let without = checked(&rack(2), model(), policy("tailwater"), &packets);
    let late = |report: &ChainReport| {
        let before = report.windows.iter().filter(|window| window.start_s < 2.695);
        before.map(|window| window.late).sum::<u64>()
    };
    let context = format!("{:?}, {:?}", with.decisions, without.decisions);
    assert_eq!(without.decisions.servers_emptied, 0, "{context}");
    assert!(with.decisions.servers_emptied > 0, "{context}");
    let idle = |report: &ChainReport| {
        let window = report.windows.iter().rfind(|window| window.start_s < 2.68).unwrap();
        window.dedicated
    };
    assert_eq!((idle(&with), idle(&without) > 1), (1, true), "{context}");
    // Until the load returns, the same packets are in time, but for those that wait for a move.
    let most = late(&without) + with.decisions.held_for_move;
    assert!(late(&with) <= most, "{} of {most}: {context}", late(&with));
}
