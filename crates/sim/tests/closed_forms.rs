//! Queues with known latencies.

mod common;

use common::{MS, Random, US, checked, costs, static_rss};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_policy::capacity::ServiceCosts;
use tailwater_sim::{ChainModel, Jitter, Rack, Recording, Server};

/// Model with batches of one packet.
fn one_by_one(packet: f64) -> ChainModel {
    ChainModel {
        batch: 1,
        ..ChainModel::new("test", costs(packet, 0.0))
    }
}

fn one_core() -> Rack {
    Rack::of_one(1)
}

fn recording(packets: impl IntoIterator<Item = (u64, u32)>) -> Arc<Recording> {
    let packets = packets.into_iter().map(|(at, flow)| (Nanos(at), flow, 100));
    Arc::new(Recording::of_packets("test", packets, 1))
}

#[test]
fn packets_far_apart_take_what_they_cost() {
    let packets = recording((0..1000).map(|i| (i * 2000, i as u32 % 7)));
    let report = checked(&one_core(), one_by_one(1500.0), static_rss(1), &packets);
    assert_eq!(report.latency.max(), Nanos(1500));
    assert_eq!(report.latency.sum(), Nanos(1500 * 1000));
    assert_eq!(report.cores.busy, 1500.0 * 1000.0 / (999.0 * 2000.0 + 1500.0));
    assert_eq!(report.slo_met, Some(true));
}

#[test]
fn all_parts_of_a_cost_count() {
    let model = ChainModel::new(
        "test",
        ServiceCosts {
            batch: 100.0,
            packet: 40.25,
            byte: 0.5,
            new_flow: 30.0,
        },
    );
    // Four packets at once, of two flows, of 100 bytes each.
    let packets = recording([(0, 0), (0, 0), (0, 1), (0, 1)]);
    let report = checked(&one_core(), model, static_rss(1), &packets);
    let batch = 100 + 4 * 40 + 1 + 200 + 60;
    assert_eq!(report.latency.max(), Nanos(batch));
    assert_eq!(report.latency.sum(), Nanos(4 * batch));
}

#[test]
fn a_burst_is_worked_off_in_batches() {
    // 320 packets at once are ten batches of 100 + 32 * 50 ns, one after the other.
    let packets = recording((0..320).map(|i| (0, i % 9)));
    let model = ChainModel::new("test", costs(50.0, 100.0));
    let report = checked(&one_core(), model, static_rss(1), &packets);
    let batch = 100 + 32 * 50;
    assert_eq!(report.latency.max(), Nanos(10 * batch));
    let sum: u64 = (1..=10).map(|number| 32 * number * batch).sum();
    assert_eq!(report.latency.sum(), Nanos(sum));
}

#[test]
fn a_burst_beyond_the_ring_is_lost() {
    let rack = Rack {
        servers: vec![Server {
            cores: 1,
            ring: 100,
            numa_nodes: 1,
            link_bps: 0,
            ..Server::default()
        }],
        ..one_core()
    };
    // The burst arrives while the core is busy with a packet.
    let first = [(0, 0)];
    let burst = (0..250).map(|i| (10, i % 50));
    let packets = recording(first.into_iter().chain(burst));
    let report = checked(&rack, one_by_one(1000.0), static_rss(1), &packets);
    assert_eq!(report.packets.lost_by_reason["nic-ring-full"], 150);
    assert_eq!(report.late_by_cause["nic-ring-full"], 150);
    assert_eq!(report.latency.max(), Nanos(101 * 1000 - 10));
}

#[test]
fn lasting_overload_fills_the_ring_and_no_more() {
    // Five times a core's capacity: of five packets four are lost, and the others wait for the whole ring.
    let packets = recording((0..200_000).map(|i| (i * 200, i as u32 % 100)));
    let report = checked(&one_core(), one_by_one(1000.0), static_rss(1), &packets);
    let loss = report.loss_rate;
    assert!((0.79..0.80).contains(&loss), "{loss}");
    let p50 = report.latency_us.p50;
    assert!((1020.0..1035.0).contains(&p50), "{p50}");
    assert!((report.cores.busy - 1.0).abs() < 1e-3);
}

/// Pollaczek and Khinchine: in an M/D/1 queue of load ρ and service s the mean wait is ρ s / 2 (1 - ρ).
#[test]
fn an_m_d_1_queue_has_its_mean_wait() {
    for (load, tolerance) in [(0.5, 0.02), (0.8, 0.04)] {
        let (service, mut random, mut now) = (1000.0, Random(7), 0);
        let packets: Vec<(u64, u32)> = (0..600_000_u32)
            .map(|i| {
                now += random.gap(service / load);
                (now, i % 97)
            })
            .collect();
        let packets = recording(packets);
        let report = checked(&one_core(), one_by_one(service), static_rss(1), &packets);
        let wait = report.latency_us.mean * 1000.0 - service;
        let expected = load * service / (2.0 * (1.0 - load));
        let off = (wait / expected - 1.0).abs();
        assert!(off < tolerance, "load {load}: {wait} for {expected}");
    }
}

/// In an M/G/1 queue the mean wait grows with the service times' squared coefficient of variation c²: ρ s (1 + c²) / 2
/// (1 - ρ).
#[test]
fn jitter_makes_it_an_m_g_1_queue() {
    let (service, load, sigma) = (1000.0, 0.7, 0.8_f64);
    let (mut random, mut now) = (Random(9), 0);
    let packets: Vec<(u64, u32)> = (0..600_000_u32)
        .map(|i| {
            now += random.gap(service / load);
            (now, i % 97)
        })
        .collect();
    let model = ChainModel {
        jitter: Jitter::log_normal(sigma),
        ..one_by_one(service)
    };
    let report = checked(&one_core(), model, static_rss(1), &recording(packets));
    let mean = report.cores.busy * 1e9 / (1e9 / service * load);
    let wait = report.latency_us.mean * 1000.0 - service;
    // The table cuts the distribution's tail: its own variation, by the middles of its steps.
    let squared = 0.84;
    let expected = load * service * (1.0 + squared) / (2.0 * (1.0 - load));
    assert!((wait / expected - 1.0).abs() < 0.06, "{wait} for {expected}");
    assert!((mean / service - 1.0).abs() < 0.01, "{mean}");
}

/// With many cores, RSS gives each one an independent queue.
#[test]
fn cores_do_not_disturb_each_other() {
    let mut random = Random(3);
    let mut now = 0;
    let packets: Vec<(u64, u32)> = (0..400_000_u32)
        .map(|_| {
            now += random.gap(1000.0 / 0.6 / 8.0);
            (now, random.below(5000) as u32)
        })
        .collect();
    let packets = recording(packets);
    let report = checked(&Rack::of_one(8), one_by_one(1000.0), static_rss(8), &packets);
    // Each core alone, with the packets that RSS assigns to it.
    let buckets: Vec<u16> = packets.buckets().collect();
    let mut sum = 0;
    for core in 0..8 {
        let mut free = 0;
        for ((at, ..), bucket) in packets.iter().zip(&buckets) {
            if bucket % 8 == core {
                free = free.max(at.0) + 1000;
                sum += free - at.0;
            }
        }
    }
    assert_eq!(report.latency.sum(), Nanos(sum));
    assert_eq!(report.packets.lost, 0);
    assert_eq!(report.cores.dedicated, 8.0);
}

#[test]
fn links_are_as_fast_as_they_say() {
    // 1 Gbit/s: 124 bytes on the wire take 992 ns.
    let mut rack = one_core();
    rack.servers[0].link_bps = 1_000_000_000;
    rack.switch.buffer_bytes = 1240;
    let packets = recording((0..100).map(|i| (i * 10_000, 0)));
    let report = checked(&rack, one_by_one(100.0), static_rss(1), &packets);
    assert_eq!(report.latency.max(), Nanos(1092));
    // Of 30 at once, ten fit.
    let packets = recording((0..30).map(|i| (0, i)));
    let report = checked(&rack, one_by_one(100.0), static_rss(1), &packets);
    assert_eq!(report.packets.lost_by_reason["switch-buffer-full"], 20);
    assert_eq!(report.latency.max(), Nanos(10 * 992 + 100));
}

#[test]
fn windows_say_when_things_happened() {
    // Ten packets in the first window of 10 ms, none in the second, twenty in the third.
    let first = (0..10).map(|i| (i * 100 * US, 0));
    let third = (0..20).map(|i| (20 * MS + i * 100 * US, 1));
    let packets = recording(first.chain(third));
    let report = checked(&one_core(), one_by_one(1000.0), static_rss(1), &packets);
    let offered: Vec<u64> = report.windows.iter().map(|w| w.offered).collect();
    assert_eq!(offered, [10, 0, 20]);
    let flows: Vec<u64> = report.windows.iter().map(|w| w.new_flows).collect();
    assert_eq!(flows, [1, 0, 1]);
    assert_eq!(report.windows[2].start_s, 0.02);
    assert_eq!(report.windows[2].cores, 1.0);
    assert_eq!(report.windows[2].max_us, 1.0);
}

#[test]
fn nothing_is_an_answer_to_nothing() {
    let report = checked(&one_core(), one_by_one(1000.0), static_rss(1), &recording([]));
    assert_eq!(report.packets.offered, 0);
    assert_eq!(report.loss_rate, 0.0);
    assert_eq!(report.slo_met, None);
}
