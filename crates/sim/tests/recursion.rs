//! Overloaded auxiliary cores that shed flows to others.
//!
//! The effect on latency and cores, for presets and for flows that grow:
//!
//! ```sh
//! cargo test --release -p tailwater-sim --test recursion -- --ignored --nocapture
//! ```

mod common;

use common::{Anything, MS, Random, US, conserved, costs};
use std::sync::Arc;
use tailwater_baselines::netblaze::{NetBlazeMapper, NetBlazeOptions};
use tailwater_net::Nanos;
use tailwater_policy::capacity::{EpochFrontier, ServiceCosts, SplitProfile};
use tailwater_policy::core::{MakeMapper, Unit};
use tailwater_policy::tailwater::{TailwaterMapper, TailwaterOptions};
use tailwater_sim::policies::Steered;
use tailwater_sim::{
    ChainModel, ChainReport, ChainRun, FlowOptions, Rack, RackPolicy, Recording, RunOptions, Workload, simulate,
};
use tailwater_traffic::generate::preset;

const SLO: Nanos = Nanos::from_micros(200);

/// Core time of a packet, in nanoseconds: a million per second. Receiving and offloading take a seventh of that. If
/// they took more, the dispatching core would be full before its auxiliary cores are.
const PACKET: u64 = 1000;

fn service() -> ServiceCosts {
    costs(PACKET as f64 - 10.0, 320.0)
}

/// Packets that a core processes in an epoch.
const CAPACITY: u32 = 75;

/// Model in which all costs between cores are those measured live.
fn model() -> ChainModel {
    ChainModel {
        receive_batch: 60.0,
        receive_packet: 35.0,
        dispatch_packet: 85.0,
        lease_packet: 15.0,
        hand_over_packet: 25.0,
        auxiliary_packet: 35.0,
        decide: 500.0,
        decide_flow: 4.0,
        move_packet: 5.0,
        ..ChainModel::new("test", service())
    }
}

/// Policy with one core that has a queue and the given mapper. All others are auxiliary cores.
fn policy(name: &str, make: MakeMapper) -> RackPolicy {
    RackPolicy {
        name: name.to_owned(),
        steered: Steered::Rack(None),
        core: Some(make),
        start_cores: Some(1),
    }
}

fn netblaze(recursion: bool) -> MakeMapper {
    let options = NetBlazeOptions {
        recursion,
        ..NetBlazeOptions::new(SLO)
    };
    let frontier = EpochFrontier::constant(CAPACITY);
    Arc::new(move || Box::new(NetBlazeMapper::new(options, &frontier, SplitProfile::new()).unwrap()))
}

fn tailwater(recursion: bool) -> MakeMapper {
    let all = TailwaterOptions::new(SLO);
    let options = TailwaterOptions {
        costs: Some(service()),
        relieve_percent: all.relieve_percent.filter(|_| recursion),
        ..all
    };
    Arc::new(move || Box::new(TailwaterMapper::new(options, SplitProfile::new()).unwrap()))
}

fn run(cores: u16, policy: RackPolicy, packets: &Arc<Recording>, check: bool) -> ChainReport {
    let chain = ChainRun {
        model: model(),
        slo: SLO,
        policy,
        workload: Workload::from(Arc::clone(packets)),
    };
    let options = RunOptions {
        check,
        ..RunOptions::default()
    };
    let mut report = simulate(&Rack::of_one(cores), vec![chain], &options).unwrap();
    let chain = report.chains.remove(0);
    conserved(&chain, packets);
    chain
}

/// Returns flows of one packet each, at `percent` of a core. Every few milliseconds, `flows` others begin at half the
/// rate of a core, and after an epoch send at that of `cores` for a millisecond.
fn swelling(seed: u64, length: u64, percent: u64, (flows, cores): (u64, u64)) -> Arc<Recording> {
    let mut random = Random(seed);
    let mut packets: Vec<(u64, u32)> = Vec::new();
    let (mut now, mut number) = (0, 0);
    while now < length {
        now += random.gap((100 * PACKET) as f64 / percent as f64).max(1);
        packets.push((now, number));
        number += 1;
    }
    let mut start = MS;
    while start + 2 * MS < length {
        for _ in 0..flows {
            let mut at = start + random.below(40 * US);
            let fast = at + 80 * US;
            while at < fast + MS {
                packets.push((at, number));
                let mean = if at < fast {
                    2 * flows * PACKET
                } else {
                    flows * PACKET / cores
                };
                at += 1 + mean / 2 + random.below(mean);
            }
            number += 1;
        }
        start += 2 * MS + random.below(4 * MS);
    }
    packets.sort_unstable();
    let packets = packets.into_iter().map(|(at, flow)| (Nanos(at), flow, 400));
    Arc::new(Recording::of_packets("swelling", packets, 1))
}

fn of_preset(name: &str, seed: u64, length: u64, rate: f64) -> Arc<Recording> {
    let preset = preset(name).unwrap();
    let scaled = rate / preset.mean_rate_pps();
    let source = preset.scaled(scaled).with(seed, Nanos(length));
    let recording = Recording::load(source.arrivals().unwrap(), FlowOptions::default(), 1 << 31);
    Arc::new(recording.unwrap())
}

/// Flows that grow beyond one auxiliary core move to others, and packets are no longer late.
#[test]
fn an_auxiliary_core_whose_flows_swell_sheds_them_to_others() {
    let packets = swelling(1, 60 * MS, 40, (16, 3));
    for (name, make) in [
        ("netblaze", netblaze as fn(bool) -> MakeMapper),
        ("tailwater", tailwater),
    ] {
        let [without, with] = [false, true].map(|recursion| run(8, policy(name, make(recursion)), &packets, true));
        // A few are parked where the dispatcher measures itself alone.
        let alone = without.decisions;
        assert!(alone.relieved == 0 && alone.packets_parked < 100, "{alone:?}");
        let decisions = with.decisions;
        assert!(
            decisions.relieved > 0 && decisions.packets_parked > 100,
            "{decisions:?}"
        );
        assert!(decisions.activated > 1 && with.cores.auxiliary > without.cores.auxiliary);
        let late = |report: &ChainReport| report.late_by_cause.values().sum::<u64>();
        assert!(
            4 * late(&with) < late(&without),
            "{name}: {} late of {}, and {} without",
            late(&with),
            with.packets.offered,
            late(&without)
        );
        let slo = SLO.as_micros_f64();
        assert!(with.latency_us.p99 < slo && slo < without.latency_us.p99, "{name}");
    }
}

/// For any decisions, checks of order, owners and counts hold, also on cores that share auxiliary cores.
#[test]
fn whatever_is_relieved_the_rules_hold() {
    let mut held = 0;
    for seed in 0..12 {
        let packets = swelling(100 + seed, 6 * MS, 50, (1 + seed * 3, 2));
        let make: MakeMapper = Arc::new(move || {
            Box::new(Anything {
                random: Random(seed),
                split: seed % 3 == 0,
                unit: Unit::Flow,
            })
        });
        let dedicated = 1 + seed as u16 % 2;
        let mut policy = policy("anything", make);
        policy.start_cores = Some(dedicated);
        let report = run(dedicated + 2 + seed as u16 % 3, policy, &packets, true);
        assert_eq!(report.packets.delivered, report.packets.offered);
        held += report.decisions.packets_parked;
    }
    assert!(held > 1000, "{held}");
}

#[test]
#[ignore = "a comparison, for the documentation"]
fn recursion_compared() {
    let mappers = [
        ("netblaze, without", netblaze(false)),
        ("netblaze", netblaze(true)),
        ("tailwater, without", tailwater(false)),
        ("tailwater", tailwater(true)),
    ];
    let mut traffic: Vec<(String, Arc<Recording>)> = Vec::new();
    for seed in 1..=3 {
        for (flows, cores) in [(16, 2), (8, 3), (16, 3), (64, 3), (64, 5)] {
            let name = format!("{flows} flows to {cores} cores, seed {seed}");
            traffic.push((name, swelling(seed, 200 * MS, 60, (flows, cores))));
        }
        for name in ["backbone", "as"] {
            for percent in [90, 150, 250] {
                let packets = of_preset(name, seed, 400 * MS, percent as f64 * 1e4);
                traffic.push((format!("{name}-{percent}, seed {seed}"), packets));
            }
        }
    }
    println!("| traffic | policy | p50 | p99 | p99.9 | late % | lost | cores | relieved | held |");
    for (traffic, packets) in &traffic {
        for (name, make) in &mappers {
            let policy = policy(name, Arc::clone(make));
            let report = run(8, policy, packets, false);
            let late: u64 = report.late_by_cause.values().sum();
            println!(
                "| {traffic} | {name} | {:.1} | {:.1} | {:.1} | {:.3} | {} | {:.2} | {} | {} |",
                report.latency_us.p50,
                report.latency_us.p99,
                report.latency_us.p999,
                late as f64 * 100.0 / report.packets.offered as f64,
                report.packets.lost,
                report.cores.total,
                report.decisions.relieved,
                report.decisions.packets_parked,
            );
        }
    }
}
