//! Tests of whole runs at flow level.

use super::*;
use crate::policies::Steered;
use crate::{ChainModel, Objective, Rack, RackPolicy, RunOptions, SimReport};
use tailwater_net::Nanos;
use tailwater_policy::capacity::{CapacityProfile, EpochFrontier, RateFrontier, ServiceCosts};
use tailwater_policy::server::IngressConfig;
use tailwater_traffic::generate::{TrafficStatistics, preset};

const PACKET: f64 = 840.0;

fn profile() -> CapacityProfile {
    CapacityProfile {
        chain: "chain".to_owned(),
        epoch: Nanos::from_micros(100),
        frontier: EpochFrontier::constant((100e3 / PACKET) as u32),
        rates: RateFrontier::constant(1e9 / PACKET),
        costs: Some(ServiceCosts {
            batch: 320.0,
            packet: PACKET - 10.0,
            byte: 0.0,
            new_flow: 0.0,
        }),
        ..CapacityProfile::default()
    }
}

/// Returns a chain whose traffic needs this many cores.
fn chain(policy: &str, traffic: &str, cores: f64, seed: u64) -> FlowLevelChain {
    let profile = profile();
    let slo = Nanos::from_micros(200);
    let made = preset(traffic).unwrap();
    let statistics = TrafficStatistics::of(&made);
    let factor = cores * 1e9 / PACKET / statistics.packets;
    let ingress = IngressConfig {
        prefix_v4: 24,
        prefix_v6: 48,
        threshold: 4,
        table: 2000,
        flow_hash: false,
        rebalance: false,
        scale_in: false,
    };
    let objective = Objective {
        slo,
        profile: &profile,
        packet: Nanos(PACKET as u64),
        ingress,
    };
    FlowLevelChain {
        name: format!("chain-{seed}"),
        model: ChainModel::from_profile(&profile).unwrap(),
        slo,
        policy: RackPolicy::named(policy, &objective).unwrap(),
        traffic: (traffic.to_owned(), TrafficStatistics::of(&made.scaled(factor))),
        profile: profile.clone(),
        seed,
        servers: None,
    }
}

fn rack(servers: usize, cores: u16) -> Rack {
    let mut rack = Rack::of_one(cores);
    rack.servers = vec![rack.servers[0].clone(); servers];
    rack
}

fn run(rack: &Rack, chains: Vec<FlowLevelChain>, seconds: u64, threads: usize) -> SimReport {
    let options = RunOptions {
        warm_up: Nanos::from_millis(500),
        window: Nanos::from_millis(100),
        ..RunOptions::default()
    };
    let times = (Nanos::from_secs(seconds), threads);
    let found = simulate_flows(rack, chains, times, &options, |_| true);
    found.unwrap().unwrap().report
}

#[test]
fn equal_inputs_give_equal_reports_on_any_number_of_threads() {
    let chains = || {
        let policies = ["static", "tailwater", "netblaze", "rss++", "metron"];
        let numbered = policies.iter().zip(0..);
        numbered
            .map(|(policy, seed)| chain(policy, "backbone", 1.0, seed))
            .collect()
    };
    let json = |threads| serde_json::to_string(&run(&rack(2, 32), chains(), 2, threads)).unwrap();
    let one = json(1);
    assert_eq!(one, json(3));
    let mut others: Vec<FlowLevelChain> = chains();
    others.iter_mut().for_each(|chain| chain.seed += 100);
    let other = serde_json::to_string(&run(&rack(2, 32), others, 2, 1)).unwrap();
    assert_ne!(one, other);
}

#[test]
fn beyond_capacity_the_excess_is_lost_and_below_it_nothing() {
    let report = run(&rack(1, 4), vec![chain("static", "smooth", 5.0, 1)], 3, 1);
    let packets = &report.chains[0].packets;
    assert_eq!(packets.offered, packets.delivered + packets.lost);
    assert!(
        (report.chains[0].loss_rate - 0.2).abs() < 0.03,
        "{}",
        report.chains[0].loss_rate
    );
    assert_eq!(report.chains[0].slo_met, Some(false));
    let report = run(&rack(1, 4), vec![chain("static", "smooth", 2.0, 1)], 3, 1);
    let chain = &report.chains[0];
    assert_eq!(chain.packets.lost, 0);
    assert!(
        chain.slo_met == Some(true) && chain.latency_us.p99 < 50.0,
        "{:?}",
        chain.latency_us
    );
    let expected = 2.0 * 2.5 * 1e9 / PACKET;
    assert!(
        (chain.packets.offered as f64 / expected - 1.0).abs() < 0.1,
        "{}",
        chain.packets.offered
    );
    assert_eq!(chain.cores.total, 4.0);
    assert_eq!(chain.windows.len(), 25);
    let windows: u64 = chain.windows.iter().map(|window| window.offered).sum();
    assert!(windows.abs_diff(chain.packets.offered) <= 25);
}

#[test]
fn server_mappers_and_core_mappers_take_and_give_back_cores() {
    for policy in ["tailwater", "netblaze"] {
        let report = run(&rack(2, 16), vec![chain(policy, "backbone", 3.0, 4)], 8, 1);
        let chain = &report.chains[0];
        assert!(
            (2.0..9.0).contains(&chain.cores.dedicated),
            "{policy}: {:?}",
            chain.cores
        );
        let decisions = &chain.decisions;
        assert!(
            decisions.buckets_moved > 0 && decisions.remaps >= 7,
            "{policy}: {decisions:?}"
        );
        // Tailwater's ingress writes rows only for flows that leave the first server. NetBlaze's had written all of them
        // before the warm-up was over.
        if policy == "tailwater" {
            assert!(
                decisions.rules == decisions.rows_moved && decisions.rules < 50,
                "{decisions:?}"
            );
        }
        assert!(
            decisions.activated > 0 && decisions.released > 0,
            "{policy}: {decisions:?}"
        );
        assert!(chain.cores.auxiliary > 0.0, "{policy}: {:?}", chain.cores);
        let total = report.cores.average;
        assert!((total - chain.cores.total).abs() < 1e-9);
    }
}

#[test]
fn one_destination_beyond_a_server_is_divided_by_hash() {
    let of = |flow_hash: bool| {
        let mut made = chain("tailwater", "smooth", 6.0, 3);
        made.traffic.1.destinations.truncate(1);
        made.traffic.1.destinations[0].1 = 1.0;
        let Steered::Servers { ingress, .. } = &mut made.policy.steered else {
            unreachable!("it steers servers");
        };
        ingress.flow_hash = flow_hash;
        run(&rack(3, 4), vec![made], 2, 1).chains.remove(0)
    };
    let (divided, whole) = (of(true), of(false));
    assert!(
        divided.decisions.rows_moved > 0 && divided.packets.lost == 0,
        "{:?}",
        divided.decisions
    );
    assert!(divided.cores.dedicated > 6.0, "{:?}", divided.cores);
    // Without hashes all of it stays on one server.
    assert!((whole.loss_rate - 1.0 / 3.0).abs() < 0.05, "{}", whole.loss_rate);
}

#[test]
fn chains_share_servers_in_turn() {
    let mut chains: Vec<_> = (0..6).map(|seed| chain("static", "smooth", 0.5, seed)).collect();
    chains.iter_mut().for_each(|chain| chain.servers = Some(1));
    let report = run(&rack(4, 8), chains, 2, 2);
    let cores: Vec<f64> = report.chains.iter().map(|chain| chain.cores.total).collect();
    // The first two servers have two chains each.
    assert_eq!(cores, [4.0, 4.0, 8.0, 8.0, 4.0, 4.0]);
    let crowded: Vec<_> = (0..5).map(|seed| chain("static", "smooth", 0.5, seed)).collect();
    let times = (Nanos::from_secs(2), 1);
    let error = simulate_flows(&rack(1, 4), crowded, times, &RunOptions::default(), |_| true).unwrap_err();
    assert!(matches!(error, FlowLevelError::Cores { chains: 5, .. }), "{error}");
}

#[test]
fn what_the_model_lacks_is_refused() {
    let times = (Nanos::from_secs(2), 1);
    let options = RunOptions::default();
    let run = |chains, times, options: &RunOptions| {
        simulate_flows(&rack(1, 4), chains, times, options, |_| true).unwrap_err()
    };
    let error = run(vec![chain("dyssect", "smooth", 1.0, 1)], times, &options);
    assert!(error.to_string().contains("places single flows"), "{error}");
    let long = (Nanos::from_secs(3600), 1);
    let short = RunOptions {
        window: Nanos::from_millis(1),
        ..options
    };
    let error = run(vec![chain("static", "smooth", 1.0, 1)], long, &short);
    assert!(matches!(error, FlowLevelError::Windows { found: 3_600_000 }), "{error}");
    let warm_up = RunOptions {
        warm_up: Nanos::from_secs(2),
        ..options
    };
    let error = run(vec![chain("static", "smooth", 1.0, 1)], times, &warm_up);
    assert_eq!(error.to_string(), "warmUp: expected less than the duration");
    let stopped = simulate_flows(
        &rack(1, 4),
        vec![chain("static", "smooth", 1.0, 1)],
        times,
        &options,
        |_| false,
    );
    assert!(stopped.unwrap().is_none());
}
