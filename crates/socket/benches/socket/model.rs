//! Figures of the model.

use crate::print;
use std::time::Instant;
use tailwater_socket::{
    Competitor, Counters, Order, PacketIo, Region, Scenario, SocketConfig, Workload, co_run, recorded, recorded_names,
};

/// Working sets of `sweep`.
pub const SWEEP_KIB: [u64; 13] = [
    16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 65_536, 262_144,
];
const SEED: u64 = 1;

fn run(config: &SocketConfig, workloads: &[&Workload]) -> Vec<Counters> {
    co_run(config, workloads, SEED).unwrap_or_else(|error| panic!("{error}"))
}

/// A function beside `count` competitors: packets per second over those alone.
fn share(config: &SocketConfig, target: &Workload, competitor: &Workload, count: usize) -> f64 {
    let mut all = vec![target];
    all.extend(std::iter::repeat_n(competitor, count));
    run(config, &all)[0].packets_per_second / run(config, &[target])[0].packets_per_second
}

/// Program without packets that touches one region, once a round.
fn touching(bytes: u64, order: Order, [reads, writes]: [f64; 2], parallel: f64) -> Workload {
    Workload {
        name: "touching".to_owned(),
        instructions: 4.0 * (reads + writes),
        base_ipc: 4.0,
        packets_per_second: None,
        io: None,
        regions: vec![Region {
            name: "region".to_owned(),
            bytes,
            reads,
            writes,
            order,
            parallel,
        }],
    }
}

fn competitor(mib: u64) -> Workload {
    let competitor = Competitor {
        descriptors: 256,
        reads: 20.0,
        writes: 4.0,
        bytes: mib << 20,
        packets_per_second: None,
        frame_bytes: 64,
    };
    competitor.workload()
}

/// A recorded function in a scenario.
fn function(name: &str, scenario: Scenario) -> Workload {
    let pattern = recorded(name).unwrap_or_else(|| panic!("{name} is not recorded"));
    pattern.workload(&scenario)
}

pub fn speed() {
    let config = SocketConfig::broadwell_e5_2620_v4();
    let target = function("accounting", Scenario::default());
    for (name, count, mib) in [
        ("1-core", 0, 4),
        ("5-cores", 4, 8),
        ("10-cores", 9, 4),
        ("10-cores-20MiB", 9, 20),
    ] {
        let competitor = competitor(mib);
        let mut all = vec![&target];
        all.extend(std::iter::repeat_n(&competitor, count));
        let time = |_| {
            let begin = Instant::now();
            run(&config, &all);
            begin.elapsed().as_secs_f64() * 1e3
        };
        let best = (0..5).map(time).fold(f64::MAX, f64::min);
        print(&format!("speed/{name}"), best, "ms", None);
    }
}

pub fn sampling() {
    let config = SocketConfig::broadwell_e5_2620_v4();
    let all_sets = SocketConfig {
        sample: 1,
        ..config.clone()
    };
    for (name, target) in [
        ("accounting", function("accounting", Scenario::default())),
        ("synthetic-2MiB", competitor(2)),
    ] {
        for (count, mib) in [(0, 4), (4, 4), (9, 4)] {
            let competitor = competitor(mib);
            let mut all = vec![&target];
            all.extend(std::iter::repeat_n(&competitor, count));
            let [exact, sampled] = [&all_sets, &config].map(|config| run(config, &all)[0].packets_per_second);
            print(
                &format!("sampling/{name}/beside-{count}"),
                sampled / exact,
                "ratio",
                None,
            );
        }
    }
}

pub fn sweep() {
    let config = SocketConfig::reference_machine();
    for kib in SWEEP_KIB {
        let mut chase = touching(kib << 10, Order::Random, [1.0, 0.0], 1.0);
        // A load that hits the first level takes five cycles.
        (chase.instructions, chase.base_ipc) = (5.0, 1.0);
        print(
            &format!("sweep/{kib}KiB"),
            run(&config, &[&chase])[0].mean_ns,
            "ns",
            None,
        );
    }
}

pub fn writer() {
    // The host on which this was measured left 6.5 MiB to this machine.
    let mut config = SocketConfig::reference_machine();
    (config.llc.bytes, config.llc.ways) = (13 << 19, 13);
    let reads = touching(64 << 20, Order::Random, [16.0, 0.0], 10.0);
    let streaming = touching(256 << 20, Order::Sequential, [0.0, 16.0], 16.0);
    let others = touching(64 << 20, Order::Random, [16.0, 0.0], 10.0);
    let slower = |other| (1.0 / share(&config, &reads, other, 1) - 1.0) * 100.0;
    print(
        "writer/random-reads-64MiB",
        slower(&streaming),
        "percent slower",
        Some("4-18"),
    );
    print(
        "writer/beside-random-reads",
        slower(&others),
        "percent slower",
        Some("within noise"),
    );
    let alone = run(&config, &[&streaming])[0];
    let rate = (alone.memory_read_bytes + alone.memory_write_bytes) / 1e9;
    print("writer/bandwidth-of-writer", rate, "GB/s", None);
}

/// Throughput of the recorded functions at 10k and 1M flows, in Mpps: `docs/lab/performance.md`.
const MEASURED_MPPS: [(&str, f64, f64); 10] = [
    ("forward", 89.2, 93.4),
    ("accounting", 31.8, 21.1),
    ("acl", 33.8, 23.4),
    ("nat", 30.1, 20.6),
    ("load-balancer", 26.1, 18.8),
    ("flow-stats", 32.5, 20.6),
    ("url-filter", 30.9, 20.6),
    ("policer-flows", 29.2, 20.6),
    ("firewall", 27.1, 20.7),
    ("dns-guard", 11.9, 4.7),
];

pub fn flows() {
    let config = SocketConfig::reference_machine();
    for (name, few, many) in MEASURED_MPPS {
        let nanos = |flows| {
            let scenario = Scenario {
                flows,
                descriptors: 512,
                ..Scenario::default()
            };
            run(&config, &[&function(name, scenario)])[0].mean_ns
        };
        let [few_ns, many_ns] = [10_000, 1_000_000].map(nanos);
        print(
            &format!("flows/{name}/10k"),
            few_ns,
            "ns",
            Some(&format!("{:.1}", 1e3 / few)),
        );
        let more = format!("{:.1}", 1e3 / many - 1e3 / few);
        print(
            &format!("flows/{name}/1M-over-10k"),
            many_ns - few_ns,
            "ns",
            Some(&more),
        );
    }
}

/// ResQ's Figure 6: percent of the throughput with 15 ways of 2.25 MiB, for 1, 2, 3, 4, 6 and 8 ways.
const STATS: [&str; 6] = ["Stats 54", "Stats 66", "Stats 78", "Stats 90", "Stats 100", "Stats 100"];
const FIREWALL: [&str; 6] = ["Firewall 100"; 6];

pub fn cache() {
    let ways = [1, 2, 3, 4, 6, 8];
    let at = |workload: &Workload, count: usize| {
        let mut config = SocketConfig::broadwell_e5_2695_v4();
        config.masks = vec![SocketConfig::ways(0, count)];
        run(&config, &[workload])[0].packets_per_second
    };
    for (name, published) in [("accounting", STATS), ("forward", FIREWALL)] {
        let workload = function(
            name,
            Scenario {
                descriptors: 256,
                ..Scenario::default()
            },
        );
        let most = at(&workload, 15);
        for (count, published) in ways.into_iter().zip(published) {
            let share = at(&workload, count) / most * 100.0;
            print(&format!("cache/{name}/{count}-ways"), share, "percent", Some(published));
        }
    }
}

/// A light function on packets of a size.
fn light(frame_bytes: u64, descriptors: u64) -> Workload {
    let io = PacketIo {
        frame_bytes,
        descriptors,
        reads: 1.0,
        writes: 1.0,
        parallel: 4.0,
    };
    let state = Region {
        name: "state".to_owned(),
        bytes: 1 << 20,
        reads: 2.0,
        writes: 1.0,
        order: Order::Random,
        parallel: 2.0,
    };
    Workload {
        name: "light".to_owned(),
        // Saturated cores receive about 130 Gbit/s of large packets together; ResQ's less than 150.
        instructions: 4500.0,
        base_ipc: 2.0,
        packets_per_second: Some(0.8e6),
        io: Some(io),
        regions: vec![state],
    }
}

pub fn leaky() {
    let config = SocketConfig::broadwell_e5_2695_v4();
    for frame_bytes in [64, 1518] {
        for descriptors in [2048, 256, 96] {
            // Queues of cores that keep up are short; those of saturated ones are full.
            for (load, rate) in [("paced", light(frame_bytes, 1).packets_per_second), ("saturated", None)] {
                let workload = Workload {
                    packets_per_second: rate,
                    ..light(frame_bytes, descriptors)
                };
                let all = run(&config, &[&workload; 12]);
                let mean = |each: fn(&Counters) -> f64| all.iter().map(each).sum::<f64>() / all.len() as f64;
                let name = format!("leaky/{frame_bytes}B/{descriptors}-descriptors/{load}");
                let published = |small, large| match (frame_bytes, descriptors, load) {
                    (64, 2048, "saturated") => Some(small),
                    (1518, 2048, "saturated") => Some(large),
                    _ => None,
                };
                let memory = mean(Counters::memory_bytes_per_packet);
                print(&format!("{name}/memory"), memory, "bytes/packet", None);
                let misses = mean(|counters| 100.0 * (1.0 - counters.dma_write_hit_share));
                print(
                    &format!("{name}/receive-misses"),
                    misses,
                    "percent",
                    published("nearly 0", "90"),
                );
                let misses = mean(|counters| 100.0 * (1.0 - counters.dma_read_hit_share));
                print(
                    &format!("{name}/transmit-misses"),
                    misses,
                    "percent",
                    published("nearly 0", "60"),
                );
                print(
                    &format!("{name}/memory-latency"),
                    mean(|counters| counters.llc_miss_ns),
                    "ns",
                    None,
                );
            }
        }
    }
}

pub fn partitions() {
    let shared = SocketConfig::broadwell_e5_2695_v4();
    let mut apart = shared.clone();
    apart.masks = vec![SocketConfig::ways(0, 6)];
    apart.masks.extend(vec![SocketConfig::ways(6, 12); 11]);
    let mut alone = shared.clone();
    alone.masks = vec![SocketConfig::ways(0, 6)];
    let target = function(
        "accounting",
        Scenario {
            descriptors: 256,
            ..Scenario::default()
        },
    );
    let all = [&target; 12];
    let rate = |config: &SocketConfig, all: &[&Workload]| run(config, all)[0].packets_per_second;
    let drop = |with: f64, without: f64| 100.0 * (1.0 - with / without);
    let without = drop(rate(&shared, &all), rate(&shared, &all[..1]));
    print("partitions/accounting/64B/shared", without, "percent slower", None);
    let with = drop(rate(&apart, &all), rate(&alone, &all[..1]));
    print(
        "partitions/accounting/64B/apart",
        with,
        "percent slower",
        Some("below 3"),
    );
}

pub fn bandwidth() {
    let mut config = SocketConfig::broadwell_e5_2620_v4();
    config.masks = vec![SocketConfig::ways(0, 2)];
    config.masks.extend(vec![SocketConfig::ways(2, 18); 10]);
    let target = function(
        "accounting",
        Scenario {
            descriptors: 256,
            ..Scenario::default()
        },
    );
    // Reads more lines than a function does, and stalls less.
    let aggressive = touching(256 << 20, Order::Random, [24.0, 8.0], 10.0);
    for count in [1, 2, 4, 7] {
        let drop = 100.0 * (1.0 - share(&config, &target, &aggressive, count));
        let published = (count == 7).then_some("IP router up to 18");
        print(
            &format!("bandwidth/accounting/beside-{count}"),
            drop,
            "percent slower",
            published,
        );
    }
}

pub fn contention() {
    let config = SocketConfig::broadwell_e5_2620_v4();
    for name in recorded_names() {
        let target = function(
            name,
            Scenario {
                flows: 400_000,
                descriptors: 256,
                ..Scenario::default()
            },
        );
        let alone = run(&config, &[&target])[0];
        print(
            &format!("contention/{name}/alone"),
            alone.packets_per_second / 1e6,
            "Mpps",
            None,
        );
        for (count, mib) in [(1, 4), (4, 4), (4, 20), (7, 20)] {
            let drop = 100.0 * (1.0 - share(&config, &target, &competitor(mib), count));
            print(
                &format!("contention/{name}/beside-{count}x{mib}MiB"),
                drop,
                "percent slower",
                None,
            );
        }
    }
}
