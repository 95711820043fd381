//! Chains that discard packets which are too late (`whenOverloaded: serve-fresh`).

mod common;

use common::{Anything, MS, Random, SLO, US, bursty, checked, conserved, costs, policy, run, static_rss};
use std::sync::Arc;
use tailwater_api::WhenOverloaded;
use tailwater_net::Nanos;
use tailwater_policy::capacity::Pause;
use tailwater_policy::core::Unit;
use tailwater_sim::{ChainModel, ChainReport, Rack, RackPolicy, Recording, RunOptions, SplitCost};

/// Nanoseconds per packet, in full batches.
const PACKET: f64 = 5000.0;
const CORES: u16 = 3;

fn model(when_overloaded: WhenOverloaded) -> ChainModel {
    let mut model = ChainModel::new("fresh", costs(PACKET - 100.0, 3200.0));
    model.receive_packet = 100.0;
    model.dispatch_packet = 200.0;
    model.lease_packet = 50.0;
    model.hand_over_packet = 100.0;
    model.auxiliary_packet = 100.0;
    model.costs.new_flow = 500.0;
    model.splits = vec![SplitCost {
        last_functions: 1,
        first: 0.5,
        last: 0.6,
    }];
    model.when_overloaded = when_overloaded;
    model
}

/// Packets of 200 flows, at random times, at a load in percent of one core until a time.
fn poisson(loads: &[(u64, u64)]) -> Vec<(u64, u32)> {
    let mut random = Random(7);
    let (mut now, mut packets) = (0, Vec::new());
    for &(load, until) in loads {
        while now < until {
            now += random.gap(PACKET * 100.0 / load as f64).max(1);
            packets.push((now, random.below(200) as u32));
        }
    }
    packets
}

fn recording(packets: Vec<(u64, u32)>) -> Arc<Recording> {
    let packets = packets.into_iter().map(|(at, flow)| (Nanos(at), flow, 500));
    Arc::new(Recording::of_packets("made", packets, 50))
}

fn in_time(report: &ChainReport) -> u64 {
    report.packets.offered - report.late_by_cause.values().sum::<u64>()
}

fn too_late(report: &ChainReport) -> u64 {
    report.packets.lost_by_reason.get("too-late").copied().unwrap_or(0)
}

/// Policy that places, moves and splits at random, on all cores but one.
fn anything(seed: u64, unit: Unit) -> RackPolicy {
    let make = move || -> Box<dyn tailwater_policy::core::CoreMapper> {
        Box::new(Anything {
            random: Random(seed),
            split: true,
            unit,
        })
    };
    RackPolicy {
        core: Some(Arc::new(make)),
        ..static_rss(1)
    }
}

#[test]
fn an_overloaded_core_delivers_what_it_can_in_time() {
    let packets = recording(poisson(&[(130, 400 * MS)]));
    let compare = |when| checked(&Rack::of_one(1), model(when), static_rss(1), &packets);
    let [fresh, in_order] = [WhenOverloaded::ServeFresh, WhenOverloaded::InOrder].map(compare);
    let capacity = 400.0 * MS as f64 / PACKET;
    assert!(in_time(&fresh) as f64 > 0.93 * capacity, "{}", in_time(&fresh));
    assert!((in_time(&in_order) as f64) < 0.1 * capacity, "{}", in_time(&in_order));
    assert_eq!(fresh.packets.lost, too_late(&fresh), "the ring is never full");
    assert_eq!(too_late(&in_order), 0);
    // Their causes are those of late packets.
    assert!(fresh.late_by_cause["queued-behind-others"] > too_late(&fresh) * 9 / 10);
}

#[test]
fn nothing_is_discarded_where_all_packets_are_in_time() {
    let packets = recording(poisson(&[(80, 300 * MS), (95, 320 * MS), (20, 330 * MS)]));
    let compare = |when| checked(&Rack::of_one(1), model(when), static_rss(1), &packets);
    let [fresh, in_order] = [WhenOverloaded::ServeFresh, WhenOverloaded::InOrder].map(compare);
    assert_eq!(in_time(&in_order), in_order.packets.offered);
    assert_eq!((in_time(&fresh), fresh.packets.lost), (in_time(&in_order), 0));
    assert_eq!(fresh.latency_us, in_order.latency_us);
}

/// A core is away for longer than the objective, again and again, but less than a batch waits for it.
#[test]
fn late_packets_that_delay_nobody_are_delivered() {
    let packets: Vec<_> = (0..200).map(|packet| (packet * 700 * US, packet as u32)).collect();
    let paused = ChainModel {
        pauses: vec![Pause {
            per_second: 100.0,
            nanos: 4 * MS,
        }],
        ..model(WhenOverloaded::ServeFresh)
    };
    let report = checked(&Rack::of_one(1), paused, static_rss(1), &recording(packets));
    assert!(in_time(&report) < report.packets.offered, "some are late");
    assert_eq!(report.packets.lost, 0);
}

/// The last late packet arrives when the load falls, give or take two epochs.
#[test]
fn packets_are_in_time_as_soon_as_the_load_falls() {
    let falls = 200 * MS;
    let packets = recording(poisson(&[(150, falls), (60, 300 * MS)]));
    let options = RunOptions {
        check: true,
        // An epoch.
        window: Nanos(SLO.0 / 2),
        ..RunOptions::default()
    };
    let late_after = |when| {
        let report = run(&Rack::of_one(1), model(when), static_rss(1), &packets, &options);
        let windows = &report.chains[0].windows;
        let last = windows.iter().rev().find(|window| window.late > 0).unwrap();
        (last.start_s * 1e9) as u64 + options.window.0 - falls
    };
    let in_order = late_after(WhenOverloaded::InOrder);
    let fresh = late_after(WhenOverloaded::ServeFresh);
    assert!(fresh <= 2 * options.window.0, "{fresh} ns");
    assert!(in_order > 5 * options.window.0, "{in_order} ns");
}

/// With any policy and traffic: every packet is counted once, order and owners hold, and no fewer packets are in time.
#[test]
fn no_fewer_packets_are_in_time_with_any_policy() {
    let mut more = 0;
    for seed in 0..6 {
        let load = [60, 90, 110, 160][seed as usize % 4];
        let packets = bursty(seed, 150 * MS, load, CORES.into());
        type Make = Box<dyn Fn() -> RackPolicy>;
        let policies: [(&str, Make); 5] = [
            ("static", Box::new(|| static_rss(CORES))),
            ("tailwater", Box::new(|| policy("tailwater"))),
            ("netblaze", Box::new(|| policy("netblaze"))),
            ("any, flows", Box::new(move || anything(seed, Unit::Flow))),
            ("any, buckets", Box::new(move || anything(seed, Unit::Bucket))),
        ];
        for (name, make) in policies {
            let compare = |when| checked(&Rack::of_one(CORES), model(when), make(), &packets);
            let [fresh, in_order] = [WhenOverloaded::ServeFresh, WhenOverloaded::InOrder].map(compare);
            conserved(&fresh, &packets);
            let counts = (in_time(&fresh), in_time(&in_order), too_late(&fresh), load);
            // Policies decide otherwise when less is late.
            assert!(
                counts.0 as f64 >= 0.97 * counts.1 as f64,
                "{name}, seed {seed}: {counts:?}"
            );
            more += u64::from(counts.0 > counts.1 * 11 / 10);
        }
    }
    assert!(more >= 8, "{more} of 30");
}
