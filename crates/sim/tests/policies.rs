//! Every policy on bursty traffic, with all checks enabled.

mod common;

use common::{MS, SLO, US, bursty, checked, conserved, costs, policy, profile, run, static_rss};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_sim::{
    ChainModel, ChainRun, FlowOptions, Jitter, Rack, RackPolicy, Recording, RunOptions, Server, Workload, simulate,
};
use tailwater_traffic::generate::preset;

/// Returns a rack of three servers, with delays short enough for short runs.
fn rack() -> Rack {
    let mut rack = Rack::of_one(8);
    rack.servers[0] = Server {
        cores: 8,
        numa_nodes: 2,
        reta_delay: Nanos(200 * US),
        ..Server::default()
    };
    rack.servers = vec![rack.servers[0].clone(); 3];
    rack
}

fn model() -> ChainModel {
    ChainModel::from_profile(&profile()).unwrap()
}

fn jittery() -> ChainModel {
    ChainModel {
        jitter: Jitter::log_normal(0.3),
        migrated_flow: 200.0,
        numa_packet: 20.0,
        ..model()
    }
}

#[test]
fn every_policy_keeps_the_rules() {
    let packets = bursty(1, 1500 * MS, 60, 3);
    for name in RackPolicy::names() {
        let report = checked(&rack(), model(), policy(name), &packets);
        assert!(report.packets.delivered > 0, "{name}");
        let moved = report.decisions.buckets_moved + report.decisions.flows_migrated;
        let handed = report.decisions.packets_handed;
        match name {
            "static" => assert_eq!((moved, handed), (0, 0)),
            "rss++" | "metron" | "quadrant" | "dyssect" | "netblaze-on-demand-rss" => {
                assert!(moved > 0, "{name}: {:?}", report.decisions);
            }
            _ if name.starts_with("netblaze") || name == "tailwater" => {
                let moves = name != "netblaze-no-core-mapper";
                assert_eq!(handed > 0, moves, "{name}");
            }
            _ => {}
        }
    }
}

#[test]
fn equal_runs_give_equal_bytes_and_seeds_matter() {
    let packets = bursty(2, 200 * MS, 70, 3);
    for name in RackPolicy::names() {
        let bytes = |seed| {
            let options = RunOptions {
                seed,
                ..RunOptions::default()
            };
            let report = run(&rack(), jittery(), policy(name), &packets, &options);
            let cores = format!("{:?}", report.cores.per_epoch);
            serde_json::to_string(&report).unwrap() + &cores
        };
        assert!(bytes(1) == bytes(1), "{name}");
        assert!(bytes(1) != bytes(2), "{name}");
    }
}

/// A warm-up changes the reported range, and nothing else.
#[test]
fn after_a_warm_up_windows_are_as_without_one() {
    let packets = bursty(3, 1200 * MS, 70, 2);
    for name in ["static", "metron", "quadrant", "netblaze", "tailwater"] {
        let report = |warm_up| {
            let options = RunOptions {
                warm_up: Nanos(warm_up),
                check: true,
                ..RunOptions::default()
            };
            run(&rack(), jittery(), policy(name), &packets, &options)
        };
        // Rounded up to 90 windows.
        let (all, later) = (report(0), report(895 * MS));
        assert_eq!(later.cores.per_epoch, all.cores.per_epoch[9000..], "{name}");
        let seconds = all.duration_s - later.duration_s;
        assert!((seconds - 0.9).abs() < 1e-9, "{name}: {seconds}");
        let (all, later) = (&all.chains[0], &later.chains[0]);
        assert_eq!(later.windows[1..], all.windows[91..], "{name}");
        let packets = &later.packets;
        let offered: u64 = later.windows.iter().map(|window| window.offered).sum();
        assert_eq!(packets.offered, packets.delivered + packets.lost, "{name}");
        assert_eq!(packets.offered, offered, "{name}");
        // The last window is incomplete.
        let windows = &all.windows[90..all.windows.len() - 1];
        let mean = windows.iter().map(|w| f64::from(w.dedicated)).sum::<f64>() / windows.len() as f64;
        let off = (later.cores.dedicated - mean).abs();
        assert!(off < 0.3, "{name}: {} cores, not {mean}", later.cores.dedicated);
    }
}

/// The warm-up contributes no burst, even if it had more packets.
#[test]
fn bursts_are_of_the_time_that_is_reported() {
    let packets = bursty(7, 400 * MS, 70, 3);
    let burst = |warm_up, window| {
        let options = RunOptions {
            warm_up: Nanos(warm_up),
            window: Nanos(window),
            bursts: true,
            ..RunOptions::default()
        };
        let mut report = run(&rack(), jittery(), policy("tailwater"), &packets, &options);
        report.chains[0].burst.take().unwrap()
    };
    let whole = burst(0, 10 * MS);
    let start = (whole.start_s * 1e9) as u64;
    // A warm-up that ends after the busiest millisecond.
    let after = start + 2 * MS;
    let later = burst(after, 10 * MS);
    assert!(later.start_s > whole.start_s);
    assert!(later.steps[0].start_s * 1e9 >= after as f64);
    // A warm-up that ends before it: its surroundings are the same. Windows end between steps.
    let before = burst(start - 50 * MS, 10 * MS + 30 * US);
    assert_eq!(before.start_s, whole.start_s);
    let offered =
        |burst: &tailwater_sim::report::Burst| -> Vec<u64> { burst.steps.iter().map(|step| step.offered).collect() };
    assert_eq!(offered(&before), offered(&whole));
}

#[test]
fn a_warm_up_longer_than_the_traffic_is_an_error() {
    let packets = bursty(3, 20 * MS, 10, 2);
    let options = RunOptions {
        warm_up: Nanos::from_millis(30),
        ..RunOptions::default()
    };
    let chain = ChainRun {
        model: model(),
        slo: SLO,
        policy: policy("static"),
        workload: Workload::from(packets),
    };
    let error = simulate(&rack(), vec![chain], &options).unwrap_err();
    assert_eq!(
        error.to_string(),
        "warm_up: expected less than the time in which packets arrive"
    );
}

/// Independent and interleaved cores give the same result.
#[test]
fn both_ways_of_running_cores_give_equal_bytes() {
    let packets = bursty(3, 1200 * MS, 70, 2);
    for name in [
        "static",
        "rss++",
        "metron",
        "quadrant",
        "dyssect",
        "netblaze-no-core-mapper",
    ] {
        let bytes = |together| {
            let options = RunOptions {
                together,
                ..RunOptions::default()
            };
            let report = run(&rack(), jittery(), policy(name), &packets, &options);
            serde_json::to_string(&report).unwrap()
        };
        assert!(bytes(false) == bytes(true), "{name}");
    }
}

/// A report with bursts describes the same run, and the same burst for every policy.
#[test]
fn bursts_are_those_of_the_traffic_and_change_nothing() {
    let packets = bursty(7, 400 * MS, 70, 3);
    let mut starts = Vec::new();
    for name in RackPolicy::names() {
        let run = |bursts| {
            let options = RunOptions {
                bursts,
                ..RunOptions::default()
            };
            run(&rack(), jittery(), policy(name), &packets, &options)
        };
        let (plain, mut watched) = (run(false), run(true));
        let burst = watched.chains[0].burst.take();
        let [plain, bytes] = [&plain, &watched].map(|r| serde_json::to_string(r).unwrap());
        assert!(plain == bytes, "{name}");
        let has_core_mapper = name.starts_with("netblaze") || name == "tailwater";
        assert_eq!(burst.is_some(), has_core_mapper, "{name}");
        let Some(burst) = burst else { continue };
        starts.push(burst.start_s);
        assert!((30..=80).contains(&burst.steps.len()), "{name}");
        let steps = burst.steps.windows(2);
        for step in steps {
            let [before, after] = [step[0], step[1]];
            let due = before.waiting + after.offered - after.delivered - after.lost;
            assert_eq!(after.waiting, due, "{name}");
            assert!(after.late >= after.lost, "{name}");
        }
        let sum = |pick: fn(&tailwater_sim::report::BurstStep) -> u64| burst.steps.iter().map(pick).sum::<u64>();
        let hands_over = name != "netblaze-no-core-mapper";
        assert_eq!(sum(|step| step.packets_handed) > 0, hands_over, "{name}");
        assert_eq!(sum(|step| step.decisions) > 0, hands_over, "{name}");
        assert_eq!(sum(|step| step.auxiliaries.into()) > 0, hands_over, "{name}");
        assert!(sum(|step| step.longest_queue) > 0, "{name}");
        // No millisecond shown has more packets than the chosen one.
        let offered: Vec<u64> = burst.steps.iter().map(|step| step.offered).collect();
        let at = burst.steps.iter().position(|s| s.start_s >= burst.start_s);
        let most = offered.windows(10).map(|ms| ms.iter().sum::<u64>()).max();
        let chosen: u64 = offered[at.unwrap()..][..10].iter().sum();
        assert_eq!(Some(chosen), most, "{name}");
    }
    assert!(starts.len() > 5 && starts.iter().all(|start| *start == starts[0]));
}

/// A written report can be read and written again.
#[test]
fn reports_are_read_back_as_they_were() {
    let packets = bursty(8, 100 * MS, 70, 3);
    let options = RunOptions {
        bursts: true,
        ..RunOptions::default()
    };
    let report = run(&rack(), jittery(), policy("tailwater"), &packets, &options);
    let text = serde_json::to_string(&report).unwrap();
    let again: tailwater_sim::SimReport = serde_json::from_str(&text).unwrap();
    assert_eq!(serde_json::to_string(&again).unwrap(), text);
    let points = &again.chains[0].latency_distribution;
    let last = points.last().unwrap();
    assert_eq!(last.packets, again.chains[0].packets.delivered);
    assert_eq!(last.latency_us, again.chains[0].latency_us.max);
}

/// A run that may end early agrees with the whole one: it misses its objective, or it is the same.
#[test]
fn a_run_ends_early_only_if_the_whole_one_misses_its_objective() {
    let rack = Rack::of_one(4);
    let (mut ended, mut whole) = (0, 0);
    for (load, warm_up) in [(15, 0), (15, 30), (40, 0), (500, 0), (500, 30)] {
        let packets = bursty(6, 80 * MS, load, 4);
        let options = RunOptions {
            warm_up: Nanos::from_millis(warm_up),
            ..RunOptions::default()
        };
        let until_missed = RunOptions {
            until_missed: true,
            ..options
        };
        for name in ["static", "rss++", "quadrant", "netblaze", "tailwater"] {
            let [all, early] =
                [options, until_missed].map(|options| run(&rack, model(), policy(name), &packets, &options));
            let [counted, seen] = [&all, &early].map(|report| &report.chains[0].packets);
            if early.missed {
                ended += 1;
                assert_eq!(all.chains[0].slo_met, Some(false), "{name} at {load} %");
                assert!(seen.offered < counted.offered, "{name} at {load} %");
                assert_eq!(early.chains[0].slo_met, Some(false), "{name} at {load} %");
                assert_eq!(seen.offered, seen.delivered + seen.lost, "{name}");
            } else {
                whole += 1;
                let [all, early] = [&all, &early].map(|r| serde_json::to_string(r).unwrap());
                assert!(all == early, "{name} at {load} %");
            }
        }
    }
    assert!(ended >= 10 && whole >= 5, "{ended} of {}", ended + whole);
}

#[test]
fn one_flow_and_only_new_ones_are_traffic_too() {
    let one = (0..5_000).map(|i| (Nanos(i * 7000), 5, 200));
    let one = Arc::new(Recording::of_packets("one flow", one, 1));
    let many = (0..20_000_u32).map(|i| (Nanos(u64::from(i) * 3000), i, 200));
    let many = Arc::new(Recording::of_packets("only new flows", many, 200));
    for name in RackPolicy::names() {
        let report = checked(&rack(), model(), policy(name), &one);
        assert_eq!(report.packets.flows, 1, "{name}");
        assert_eq!(report.packets.lost, 0, "{name}");
        let report = checked(&rack(), model(), policy(name), &many);
        assert_eq!(report.packets.flows, 20_000, "{name}");
    }
}

#[test]
fn auxiliary_cores_keep_an_objective_that_one_core_misses() {
    let mut rack = Rack::of_one(6);
    rack.servers[0].ring = 4096;
    let packets = bursty(5, 300 * MS, 60, 1);
    let alone = checked(&rack, model(), static_rss(1), &packets);
    assert_eq!(alone.slo_met, Some(false), "{:?}", alone.latency_us);
    for name in ["netblaze", "tailwater"] {
        let report = checked(&rack, model(), policy(name), &packets);
        let late = |report: &tailwater_sim::ChainReport| report.late_by_cause.values().sum::<u64>();
        let (late, alone) = (late(&report), late(&alone));
        assert!(late * 10 < alone * 7, "{name}: {late}, alone {alone}");
        let cores = report.cores;
        assert!(cores.auxiliary > 0.0 && cores.total < 4.0, "{name}: {cores:?}");
    }
}

#[test]
fn chains_share_a_rack_and_its_auxiliary_cores() {
    let mut chains = Vec::new();
    let traffic = [bursty(6, 100 * MS, 60, 1), bursty(7, 100 * MS, 80, 1)];
    for (packets, name) in traffic.iter().zip(["netblaze", "tailwater"]) {
        chains.push(ChainRun {
            model: model(),
            slo: SLO,
            policy: policy(name),
            workload: Workload::from(Arc::clone(packets)),
        });
    }
    let options = RunOptions {
        check: true,
        ..RunOptions::default()
    };
    let report = simulate(&rack(), chains, &options).unwrap();
    for (chain, packets) in report.chains.iter().zip(&traffic) {
        conserved(chain, packets);
        assert!(chain.decisions.packets_handed > 0, "{}", chain.policy);
    }
    let used: f64 = report.chains.iter().map(|chain| chain.cores.total).sum();
    // A core that is active for a part of an epoch counts for all of it.
    assert!(report.cores.average >= used * 0.99, "{used}");
}

#[test]
fn a_split_whale_passes_two_cores() {
    // One flow that needs more than a core, and a chain whose two halves take equally long.
    let packets = (0..30_000).map(|i| (Nanos(i * 4400), 1, 200));
    let packets = Arc::new(Recording::of_packets("whale", packets, 1));
    let rack = Rack::of_one(3);
    let split = checked(&rack, model(), policy("netblaze"), &packets);
    assert!(split.decisions.splits > 0, "{:?}", split.decisions);
    assert_eq!(split.packets.lost, 0);
    let whole = checked(&rack, model(), static_rss(1), &packets);
    assert!(whole.packets.lost > 0);
}

#[test]
fn prefixes_wait_for_their_rows_and_a_full_table_has_a_default() {
    let packets = bursty(8, 100 * MS, 60, 2);
    let mut slow = rack();
    slow.servers.iter_mut().for_each(|server| server.link_bps = 0);
    slow.switch.rule_latency = Nanos(3 * MS);
    let report = checked(&slow, model(), policy("netblaze"), &packets);
    assert_eq!(report.decisions.rules, 50);
    assert!(report.decisions.waited_for_rule > 50);
    assert!(report.late_by_cause["network"] > 0);
    let mut small = slow.clone();
    small.switch.max_buffered = 3;
    let report = checked(&small, model(), policy("netblaze"), &packets);
    assert!(report.packets.lost_by_reason["switch-table"] > 0);
    small.switch.rule_latency = Nanos::ZERO;
    let report = checked(&small, model(), policy("netblaze"), &packets);
    assert_eq!(report.decisions.waited_for_rule, 0);
    assert_eq!(report.late_by_cause["network"], 0);
}

#[test]
fn with_a_default_row_no_packet_waits_for_a_row() {
    let packets = bursty(8, 100 * MS, 60, 2);
    let mut slow = rack();
    slow.switch.rule_latency = Nanos(3 * MS);
    slow.switch.max_buffered = 0;
    let report = checked(&slow, model(), policy("tailwater"), &packets);
    assert_eq!(report.decisions.waited_for_rule, 0);
    assert!(!report.packets.lost_by_reason.contains_key("switch-table"));
}

#[test]
fn a_stream_comes_to_what_a_recording_comes_to() {
    let source = || {
        preset("backbone")
            .unwrap()
            .with(5, Nanos::from_millis(150))
            .arrivals()
            .unwrap()
    };
    let options = FlowOptions::default();
    let recording = Recording::load(source(), options, 1 << 30).unwrap();
    for name in ["static", "netblaze", "quadrant", "tailwater"] {
        let report = |workload| {
            let chain = ChainRun {
                model: model(),
                slo: SLO,
                policy: policy(name),
                workload,
            };
            let report = simulate(&rack(), vec![chain], &RunOptions::default()).unwrap();
            serde_json::to_string(&report).unwrap()
        };
        let recorded = report(Workload::from(Arc::new(recording.clone())));
        assert!(recorded == report(Workload::stream(source(), options)), "{name}");
    }
}

/// Removed flows free their indices for others, and nothing else changes: the run stores no more flows than are active,
/// and all invariants hold.
#[test]
fn forgotten_flows_leave_their_places() {
    // A hundred flows per millisecond, each with two packets 3 ms apart.
    let packets = (0..400_000_u64).map(|i| {
        let at = i / 2 * 10 * US / 2 + if i % 2 == 1 { 3 * MS } else { 0 };
        (at, (i / 2) as u32)
    });
    let mut packets: Vec<(u64, u32)> = packets.collect();
    packets.sort_unstable();
    let list = packets.iter().map(|(at, flow)| (Nanos(*at), *flow, 100));
    let recording = Recording::of_packets("short flows", list, 9);
    for name in ["static", "netblaze", "quadrant"] {
        let source = Again(recording.iter(), tailwater_net::FlowKey::default());
        let flows = FlowOptions {
            idle_timeout: Nanos(5 * MS),
            most: 40_000,
        };
        let chain = ChainRun {
            model: model(),
            slo: SLO,
            policy: policy(name),
            workload: Workload::stream(Box::new(source), flows),
        };
        let options = RunOptions {
            check: true,
            ..RunOptions::default()
        };
        let report = simulate(&rack(), vec![chain], &options).unwrap();
        let packets = &report.chains[0].packets;
        assert_eq!((packets.offered, packets.flows), (400_000, 200_000), "{name}");
        assert_eq!(packets.lost_by_reason.get("no-resources"), None, "{name}");
    }
}

/// Source that replays a recording's packets.
struct Again<I>(I, tailwater_net::FlowKey);

impl<I: Iterator<Item = (Nanos, u32, u16)>> tailwater_traffic::bursts::Arrivals for Again<I> {
    fn next_arrival(&mut self) -> Result<Option<tailwater_traffic::bursts::Arrival>, tailwater_traffic::TrafficError> {
        Ok(self.0.next().map(|(time, flow, bytes)| {
            let address = |top: u32| (top << 24 | flow).into();
            self.1 = tailwater_net::FlowKey::v4(address(10), address(11), 17, 1, 2);
            tailwater_traffic::bursts::Arrival {
                time,
                flow: Some(flow.into()),
                bytes: bytes.into(),
            }
        }))
    }

    fn flow_key(&self) -> tailwater_net::FlowKey {
        self.1
    }

    fn notices(&self) -> Vec<tailwater_traffic::Notice> {
        Vec::new()
    }

    fn name(&self) -> &str {
        "again"
    }
}

#[test]
fn what_cannot_run_says_why() {
    let packets = Arc::new(Recording::of_packets("nothing", [], 1));
    let error = |rack: &Rack, model: ChainModel, window| {
        let chain = ChainRun {
            model,
            slo: SLO,
            policy: static_rss(1),
            workload: Workload::from(Arc::clone(&packets)),
        };
        let options = RunOptions {
            window,
            ..RunOptions::default()
        };
        let error = simulate(rack, vec![chain], &options).unwrap_err();
        error.to_string()
    };
    let mut broken = rack();
    broken.servers[1].cores = 0;
    let ten = Nanos::from_millis(10);
    assert_eq!(
        error(&broken, model(), ten),
        "servers[1].cores: expected a number from 1 to 512, found 0"
    );
    let bad = ChainModel::new("x", costs(f64::NAN, 0.0));
    assert_eq!(
        error(&rack(), bad, ten),
        "chain \"x\": costs.packet: expected nanoseconds from 0 to 1e9, found NaN"
    );
    assert_eq!(error(&rack(), model(), Nanos(1)), "window: expected at least 100us");
    let none = simulate(&rack(), Vec::new(), &RunOptions::default());
    assert!(none.unwrap_err().to_string().contains("found 0 chains"));
}
