//! Dedicated cores that process buckets of others which are behind, and whales beside the flows in their bucket.

mod common;

use common::{Random, bursty, checked, costs, policy, run, static_rss};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_sim::{ChainModel, ChainReport, Rack, RackPolicy, Recording, RunOptions};

const MS: u64 = common::MS;

/// Chain of 5 µs a packet, with costs of offloading in the same proportion as measured live.
fn model() -> ChainModel {
    let mut model = ChainModel::new("helping", costs(4900.0, 3200.0));
    model.receive_packet = 200.0;
    model.lease_packet = 90.0;
    model.hand_over_packet = 150.0;
    model.auxiliary_packet = 210.0;
    model
}

/// Tailwater's core mapper with all of these cores dedicated from the start, and as many buckets each as with static
/// RSS.
fn all_dedicated(cores: u16) -> RackPolicy {
    RackPolicy {
        core: policy("tailwater").core,
        ..static_rss(cores)
    }
}

fn late(report: &ChainReport) -> f64 {
    let late: u64 = report.late_by_cause.values().sum();
    late as f64 / report.packets.offered as f64
}

/// Returns the reports of static RSS and of dedicated cores that help each other, with the same packets.
fn compared(cores: u16, packets: &Arc<Recording>) -> [ChainReport; 2] {
    let rack = Rack::of_one(cores);
    [static_rss(cores), all_dedicated(cores)].map(|policy| checked(&rack, model(), policy, packets))
}

/// Trains and crowds come on top of these loads, with another fifth of them.
#[test]
fn dedicated_cores_process_buckets_of_those_that_are_behind() {
    for (load, seed) in [(50, 1), (60, 2), (70, 3)] {
        let [alone, helped] = compared(4, &bursty(seed, 400 * MS, load, 4));
        let (most, few) = (late(&alone), late(&helped));
        assert!(helped.decisions.packets_handed > 0 && most > 0.005, "{load} %: {most}");
        assert!(few < 0.8 * most, "{load} %: {few} of {most}");
        assert!(helped.packets.lost <= alone.packets.lost);
        assert_eq!((helped.cores.dedicated, helped.cores.auxiliary), (4.0, 0.0));
    }
}

/// Its help counted as an auxiliary core's from the end of the warm-up on: ten cores of eight.
#[test]
fn a_dedicated_core_that_helps_at_the_end_of_the_warm_up_counts_once() {
    let packets = bursty(1, 120 * MS, 80, 4);
    for warm_up in 50..60 {
        let options = RunOptions {
            warm_up: Nanos::from_millis(warm_up),
            window: Nanos::from_millis(1),
            ..RunOptions::default()
        };
        let report = run(&Rack::of_one(4), model(), all_dedicated(4), &packets, &options);
        let cores = report.chains[0].cores;
        assert_eq!((cores.dedicated, cores.auxiliary), (4.0, 0.0), "{warm_up} ms");
    }
}

/// With more than all cores can do, none has time for others.
#[test]
fn beyond_capacity_dedicated_cores_do_what_static_rss_does() {
    let [alone, helped] = compared(3, &bursty(4, 300 * MS, 130, 3));
    assert!(
        late(&helped) < late(&alone) + 0.01,
        "{} of {}",
        late(&helped),
        late(&alone)
    );
    assert!(helped.packets.lost as f64 <= 1.01 * alone.packets.lost as f64);
}

/// One flow of one and a half times what a core does, and small flows in its RSS bucket.
#[test]
fn flows_in_a_whales_bucket_keep_the_objective() {
    const WHALE: u32 = 5000;
    let one_each = Recording::of_packets(
        "numbers",
        (0..=WHALE).map(|flow| (Nanos(u64::from(flow)), flow, 500)),
        50,
    );
    let bucket_of: Vec<u16> = one_each.buckets().collect();
    let its = bucket_of[WHALE as usize];
    let mates: Vec<u32> = (0..WHALE).filter(|flow| bucket_of[*flow as usize] == its).collect();
    assert!(mates.len() > 3, "{mates:?}");
    let mut random = Random(5);
    let (mut now, mut packets) = (0, Vec::new());
    while now < 300 * MS {
        now += random.gap(40_000.0).max(1);
        packets.push((now, mates[random.below(mates.len() as u64) as usize]));
    }
    let small = packets.len() as u64;
    packets.extend((0..300 * MS / 3333).map(|i| (i * 3333, WHALE)));
    packets.sort();
    let all: Vec<_> = packets.into_iter().map(|(at, flow)| (Nanos(at), flow, 500)).collect();
    let packets = Arc::new(Recording::of_packets("whale", all, 50));
    for cores in [1, 2] {
        let [alone, helped] = compared(cores, &packets);
        let others = |report: &ChainReport| report.late_by_cause.get("queued-behind-others").copied().unwrap_or(0);
        assert!(
            others(&alone) > small / 2,
            "{cores} cores, static: {} of {small}",
            others(&alone)
        );
        // Until the whale is found, they wait in the ring behind it.
        assert!(
            others(&helped) < small / 20,
            "{cores} cores: {} of {small}",
            others(&helped)
        );
        let lost = |report: &ChainReport, reason: &str| report.packets.lost_by_reason.get(reason).copied().unwrap_or(0);
        let elsewhere = helped.packets.lost - lost(&helped, "flow-overload");
        assert!(
            elsewhere < small / 10,
            "{cores} cores: {:?}",
            helped.packets.lost_by_reason
        );
    }
}
