//! Chains that share a server's cores under a core broker.

mod common;

use common::{MS, Random, SLO, conserved, policy, profile};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_sim::{ChainModel, ChainRun, CoreSharing, Rack, Recording, RunOptions, SimReport, Workload, simulate};

/// Steady packets of 0.3 cores of 5 us per packet, with a burst of `height` cores for 5 ms every `gap` ms from `first`
/// on.
fn bursts(seed: u64, (first, gap): (u64, u64), height: f64, length: u64) -> Arc<Recording> {
    let mut random = Random(seed);
    let mut packets = Vec::new();
    let mut add = |from: u64, to: u64, cores: f64, flow: u64| {
        let mut now = from + random.gap(5_000.0 / cores);
        while now < to {
            packets.push((now, (flow + random.below(300)) as u32));
            now += random.gap(5_000.0 / cores).max(1);
        }
    };
    add(0, length * MS, 0.3, 0);
    for (number, at) in (first..length).step_by(gap as usize).enumerate() {
        let end = (at + 5).min(length);
        add(at * MS, end * MS, height, 300 * (number as u64 + 1));
    }
    packets.sort_unstable();
    let packets = packets.into_iter().map(|(at, flow)| (Nanos(at), flow, 500));
    Arc::new(Recording::of_packets("bursts", packets, 50))
}

/// Returns a chain of 5 us per packet, admitted with this rate.
fn chain(packets: &Arc<Recording>, rate: f64) -> ChainRun<'static> {
    let model = ChainModel::from_profile(&profile()).unwrap();
    ChainRun {
        model: ChainModel {
            planned_rate: rate,
            ..model
        },
        slo: SLO,
        policy: policy("tailwater"),
        workload: Workload::from(Arc::clone(packets)),
    }
}

fn rack(cores: u16, sharing: CoreSharing) -> Rack {
    let mut rack = Rack::of_one(cores);
    rack.sharing = sharing;
    rack
}

/// Runs chains with all checks: order within a flow, one owner at a time, every packet counted.
fn run(rack: &Rack, chains: &[(&Arc<Recording>, f64)]) -> SimReport {
    let options = RunOptions {
        check: true,
        ..RunOptions::default()
    };
    let runs = chains.iter().map(|(packets, rate)| chain(packets, *rate)).collect();
    let report = simulate(rack, runs, &options).unwrap();
    for (chain, (packets, _)) in report.chains.iter().zip(chains) {
        conserved(chain, packets);
    }
    report
}

fn late(report: &SimReport) -> Vec<u64> {
    let sum = |chain: &tailwater_sim::ChainReport| chain.late_by_cause.values().sum();
    report.chains.iter().map(sum).collect()
}

#[test]
fn bursts_at_different_times_use_the_same_cores() {
    // Four chains, of which one has a burst at a time.
    let packets: Vec<_> = (0..4).map(|n| bursts(n, (20 + 12 * n, 60), 3.0, 300)).collect();
    let chains: Vec<_> = packets.iter().map(|packets| (packets, 3e5)).collect();
    let shared = run(&rack(8, CoreSharing::Broker), &chains);
    assert!(
        shared.chains.iter().all(|chain| chain.slo_met == Some(true)),
        "{:?}",
        late(&shared)
    );
    assert_eq!(shared.chains.iter().map(|chain| chain.packets.lost).sum::<u64>(), 0);
    // Two cores each are too few: a burst is of three.
    let own = run(&rack(8, CoreSharing::Own), &chains);
    assert!(
        own.chains.iter().all(|chain| chain.slo_met == Some(false)),
        "{:?}",
        late(&own)
    );
}

#[test]
fn a_chain_in_overload_takes_nothing_from_another() {
    let victim = bursts(1, (30, 40), 3.0, 600);
    let alone = run(&rack(8, CoreSharing::Broker), &[(&victim, 3e5)]);
    // Offered five times the rate that it was admitted with: 300 % of the server.
    let mut random = Random(7);
    let mut now = 0;
    let flood = std::iter::from_fn(|| {
        now += random.gap(208.0).max(1);
        (now < 600 * MS).then(|| (Nanos(now), random.below(2_000) as u32, 500))
    });
    let flood = Arc::new(Recording::of_packets("flood", flood, 50));
    let both = run(&rack(8, CoreSharing::Broker), &[(&victim, 3e5), (&flood, 9.6e5)]);
    let (before, after) = (&alone.chains[0], &both.chains[0]);
    assert!(both.chains[1].packets.lost > 0, "the neighbour is not in overload");
    assert_eq!(after.packets.lost, 0);
    let batch = 32.0 * 5.0;
    let limit = before.latency_us.p99 * 1.1 + batch;
    assert!(after.latency_us.p99 <= limit, "{} > {limit}", after.latency_us.p99);
}

#[test]
fn chains_are_on_their_servers_only() {
    let packets: Vec<_> = (0..3).map(|n| bursts(n, (20, 50), 2.0, 100)).collect();
    let chains: Vec<_> = packets.iter().map(|packets| (packets, 3e5)).collect();
    for sharing in [CoreSharing::Own, CoreSharing::Broker] {
        let mut rack = rack(6, sharing);
        rack.servers.push(rack.servers[0].clone());
        rack.homes = vec![1, 0, 1];
        let report = run(&rack, &chains);
        // Alone on its server, the second chain runs as on a rack of one.
        let mut alone = rack.clone();
        alone.servers.pop();
        alone.homes = vec![0];
        let alone = run(&alone, &chains[1..2]);
        assert_eq!(
            report.chains[1].latency.sum(),
            alone.chains[0].latency.sum(),
            "{sharing:?}"
        );
    }
    let mut none = rack(2, CoreSharing::Broker);
    let error = simulate(
        &none,
        chains.iter().map(|(p, r)| chain(p, *r)).collect(),
        &RunOptions::default(),
    );
    assert!(error.unwrap_err().to_string().contains("3 chains"));
    none.homes = vec![1];
    let error = simulate(&none, vec![chain(&packets[0], 0.0)], &RunOptions::default());
    assert!(error.unwrap_err().to_string().contains("homes"));
}
