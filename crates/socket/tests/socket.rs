//! The model as a whole, on a socket an eighth of a real one's size.

use tailwater_socket::{
    Competitor, Counters, Dram, LastLevelCache, Order, PacketIo, PrivateCache, Region, SocketConfig, SocketError,
    Workload, co_run,
};

/// 2.5 MiB of last-level cache in 20 ways.
fn small() -> SocketConfig {
    SocketConfig {
        l1: PrivateCache {
            bytes: 8 << 10,
            ways: 8,
        },
        l2: PrivateCache {
            bytes: 32 << 10,
            ways: 8,
        },
        llc: LastLevelCache {
            bytes: 5 << 19,
            ways: 20,
            ddio_ways: 2,
            is_inclusive: true,
        },
        ..SocketConfig::broadwell_e5_2620_v4()
    }
}

fn run(config: &SocketConfig, workloads: &[&Workload]) -> Vec<Counters> {
    co_run(config, workloads, 7).unwrap()
}

fn competitor(kib: u64) -> Workload {
    let competitor = Competitor {
        descriptors: 64,
        reads: 20.0,
        writes: 4.0,
        bytes: kib << 10,
        packets_per_second: None,
        frame_bytes: 64,
    };
    competitor.workload()
}

/// A load that depends on the one before, in a working set.
fn chase(bytes: u64, order: Order) -> Workload {
    let name = "working set".to_owned();
    Workload {
        name: "chase".to_owned(),
        instructions: 5.0,
        base_ipc: 1.0,
        packets_per_second: None,
        io: None,
        regions: vec![Region {
            name,
            bytes,
            reads: 1.0,
            writes: 0.0,
            order,
            parallel: 1.0,
        }],
    }
}

/// Packets and nothing else.
fn packets(frame_bytes: u64, descriptors: u64) -> Workload {
    Workload {
        name: "packets".to_owned(),
        instructions: 4500.0,
        base_ipc: 2.0,
        packets_per_second: None,
        io: Some(PacketIo {
            frame_bytes,
            descriptors,
            reads: 1.0,
            writes: 1.0,
            parallel: 4.0,
        }),
        regions: Vec::new(),
    }
}

#[test]
fn equal_arguments_give_equal_counters() {
    let (a, b) = (competitor(512), packets(1518, 256));
    let all = [&a, &b, &a];
    assert_eq!(run(&small(), &all), run(&small(), &all));
}

#[test]
fn one_in_16_sets_gives_the_throughput_of_all_sets_within_a_percent() {
    let exact = SocketConfig { sample: 1, ..small() };
    let (target, competitor) = (competitor(256), competitor(1024));
    for all in [vec![&target], vec![&target, &competitor, &competitor]] {
        let [sampled, exact] = [&small(), &exact].map(|config| run(config, &all)[0].packets_per_second);
        assert!((sampled / exact - 1.0).abs() < 0.01, "{sampled} of {exact}");
    }
}

#[test]
fn working_sets_climb_from_level_to_level() {
    let config = small();
    let nanos = |kib: u64| run(&config, &[&chase(kib << 10, Order::Random)])[0].mean_ns;
    let base = 5.0 / config.clock_ghz;
    let beyond = |level: f64| base + level / config.clock_ghz;
    // A working set of the first, second and last level, and one of 64 times the last.
    for (kib, expected) in [
        (4, base),
        (20, beyond(config.l2_cycles)),
        (1024, beyond(config.llc_cycles)),
        (160 << 10, base + config.dram.idle_ns),
    ] {
        let found = nanos(kib);
        // Part of a working set is in the level above.
        assert!(
            found <= expected * 1.05 && found >= expected * 0.65,
            "{kib} KiB: {found} for {expected}"
        );
    }
    let stair: Vec<f64> = [4, 20, 64, 256, 1024, 4096, 16_384].map(nanos).to_vec();
    assert!(stair.is_sorted(), "{stair:?}");
}

#[test]
fn large_packets_leak_with_many_descriptors_and_not_with_few() {
    let mut config = small();
    config.llc.ddio_ways = 6;
    let memory = |frame_bytes, descriptors| {
        let workload = packets(frame_bytes, descriptors);
        run(&config, &[&workload; 4])[0].memory_bytes_per_packet()
    };
    // Received lines are written back and read again. Six ways hold 768 KiB, and 64 packets are in flight in addition.
    assert!(memory(1518, 2048) > 1518.0);
    assert!(memory(1518, 8) < 64.0);
    assert!(memory(64, 256) < 64.0);
}

#[test]
fn ways_of_its_own_keep_a_function_at_its_speed() {
    let mut apart = small();
    apart.masks = vec![SocketConfig::ways(0, 8)];
    let (target, other) = (competitor(512), competitor(4096));
    let alone = run(&apart, &[&target])[0];
    apart.masks.extend([SocketConfig::ways(8, 10); 7]);
    let mut all = vec![&target];
    all.extend([&other; 7]);
    let isolated = run(&apart, &all)[0];
    let shared = run(&small(), &all)[0];
    // Memory is shared still.
    assert!(isolated.packets_per_second > 0.97 * alone.packets_per_second);
    assert!(shared.packets_per_second < 0.8 * alone.packets_per_second);
    assert!(isolated.llc_occupancy_bytes < 1.1 * (8 << 17) as f64);
}

#[test]
fn a_streaming_writer_slows_random_reads_by_memory_bandwidth() {
    let mut config = small();
    config.dram = Dram {
        bytes_per_second: 10e9,
        ..config.dram
    };
    let reads = chase(64 << 20, Order::Random);
    let mut writer = chase(64 << 20, Order::Sequential);
    let region = &mut writer.regions[0];
    (region.reads, region.writes, region.parallel) = (0.0, 1.0, 10.0);
    let alone = run(&config, &[&reads])[0];
    let beside = run(&config, &[&reads, &writer])[0];
    assert!(beside.llc_miss_ns > 1.1 * alone.llc_miss_ns);
    assert!(beside.packets_per_second < 0.95 * alone.packets_per_second);
    // Each written line is read first and written back later.
    let writer = run(&config, &[&writer])[0];
    assert!((writer.memory_write_bytes / writer.memory_read_bytes - 1.0).abs() < 0.05);
}

#[test]
fn demand_beyond_the_bandwidth_is_held_near_it() {
    let mut config = small();
    config.dram.bytes_per_second = 5e9;
    let mut reads = chase(64 << 20, Order::Random);
    reads.regions[0].parallel = 10.0;
    let all = run(&config, &[&reads; 8]);
    let total: f64 = all.iter().map(|counters| counters.memory_read_bytes).sum();
    assert!(total < 1.5 * 5e9, "{total}");
}

#[test]
fn a_core_that_keeps_up_delivers_the_arriving_rate() {
    let mut workload = packets(64, 256);
    workload.packets_per_second = Some(100_000.0);
    let counters = run(&small(), &[&workload])[0];
    assert!((counters.packets_per_second / 100_000.0 - 1.0).abs() < 0.01);
    assert!(counters.mean_ns < 2_000.0);
}

#[test]
fn counters_are_consistent() {
    for is_inclusive in [true, false] {
        let mut config = small();
        config.llc.is_inclusive = is_inclusive;
        let (a, b) = (competitor(1024), packets(1518, 512));
        let all = run(&config, &[&a, &b, &a, &b]);
        let occupancy: f64 = all.iter().map(|counters| counters.llc_occupancy_bytes).sum();
        assert!(occupancy <= config.llc.bytes as f64);
        for counters in all {
            assert!((counters.l2_hits + counters.l2_misses - counters.l2_reads).abs() < 1.0);
            assert!((counters.l2_misses - counters.llc_accesses).abs() < 1.0);
            assert!((counters.llc_hits + counters.llc_misses - counters.llc_accesses).abs() < 1.0);
            assert!(counters.p99_ns >= counters.mean_ns * 0.9);
            assert!(counters.ipc > 0.0 && counters.ipc <= 2.5);
        }
    }
}

#[test]
fn refuses_what_it_cannot_simulate() {
    let workload = packets(64, 256);
    let no_workload = co_run(&small(), &[], 1);
    assert_eq!(no_workload, Err(SocketError::Workloads { cores: 11, found: 0 }));
    assert!(co_run(&small(), &[&workload; 12], 1).is_err());
    let mut config = small();
    config.masks = vec![1 << 20];
    let error = co_run(&config, &[&workload], 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        "masks: expected at least one way for each core, found 0"
    );
    let mut workload = packets(64, 256);
    workload.base_ipc = f64::NAN;
    let error = co_run(&small(), &[&workload], 1).unwrap_err();
    assert_eq!(error.to_string(), "base_ipc: expected a positive number, found NaN");
}
