//! No policy that meets its objectives has fewer cores than the oracle's bound.

mod common;

use common::{Random, US, costs, static_rss};
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{CapacityProfile, EpochFrontier, RateFrontier, ServiceCosts};
use tailwater_policy::server::IngressConfig;
use tailwater_sim::{
    BoundedChain, ChainModel, ChainReport, ChainRun, Jitter, Objective, OracleReport, Rack, RackPolicy, Recording,
    RunOptions, SimReport, SplitCost, Workload, oracle, simulate,
};

/// Chain with its traffic, for any policy.
struct Chain {
    model: ChainModel,
    slo: Nanos,
    profile: CapacityProfile,
    packets: Arc<Recording>,
}

/// Returns a chain with random costs and objective, and traffic with occasional bursts.
fn chain(random: &mut Random, cores: u64) -> Chain {
    let costs = ServiceCosts {
        new_flow: random.below(2) as f64 * 900.0,
        byte: random.below(2) as f64 * 0.7,
        ..costs(100.0 + random.below(1_500) as f64, random.below(3_000) as f64)
    };
    let slo = Nanos([100, 150, 200, 300, 500][random.below(5) as usize] * US);
    let profile = CapacityProfile {
        chain: "any".to_owned(),
        slo,
        epoch: Nanos(slo.0 / 2),
        costs: Some(costs),
        ..CapacityProfile::default()
    };
    let cut = SplitCost {
        last_functions: 1,
        first: 0.6,
        last: 0.3 + random.below(40) as f64 / 100.0,
    };
    let model = ChainModel {
        splits: vec![cut],
        jitter: (random.below(4) == 0).then(|| Jitter::log_normal(0.2)).flatten(),
        ..ChainModel::from_profile(&profile).unwrap()
    };
    let packet = model.packet_nanos(500.0);
    let profile = CapacityProfile {
        frontier: EpochFrontier::constant((slo.0 as f64 / 2.0 / packet) as u32),
        rates: RateFrontier::constant(0.85e9 / packet),
        ..profile
    };
    let load = (2 + random.below(60)) as f64 / 100.0 * cores as f64;
    let mut packets = Vec::new();
    let mut now = 0;
    let mut next_flow = 40;
    while packets.len() < 3_000 {
        now += random.gap(packet / load).max(1);
        packets.push((now, random.below(40) as u32));
        match random.below(400) {
            0 => {
                // A train of one flow.
                let gap = (packet / 3.0) as u64;
                packets.extend((0..30).map(|i| (now + i * gap, 7)));
            }
            1 => {
                // A crowd of new flows.
                for _ in 0..60 {
                    packets.push((now + random.below(20 * US), next_flow));
                    next_flow += 1;
                }
            }
            // Silence for a while.
            2 => now += random.below(2_000 * US),
            _ => {}
        }
    }
    packets.sort_unstable();
    let packets = packets.into_iter().map(|(at, flow)| (Nanos(at), flow, 500));
    Chain {
        model,
        slo,
        profile,
        packets: Arc::new(Recording::of_packets("any", packets, 4)),
    }
}

/// Runs a policy, or static RSS over `cores` cores.
fn run(rack: &Rack, chains: &[Chain], policy: &str, cores: Option<u16>, options: &RunOptions) -> SimReport {
    let chains = chains.iter().map(|chain| {
        let objective = Objective {
            slo: chain.slo,
            profile: &chain.profile,
            packet: Nanos(chain.model.packet_nanos(500.0) as u64),
            ingress: IngressConfig {
                prefix_v4: 24,
                prefix_v6: 48,
                threshold: 2,
                table: 60,
                flow_hash: true,
                rebalance: false,
                scale_in: false,
            },
        };
        ChainRun {
            model: chain.model.clone(),
            slo: chain.slo,
            policy: match cores {
                Some(cores) => static_rss(cores),
                None => RackPolicy::named(policy, &objective).unwrap(),
            },
            workload: Workload::from(Arc::clone(&chain.packets)),
        }
    });
    simulate(rack, chains.collect(), options).unwrap()
}

fn bound(chains: &[Chain], options: &RunOptions) -> OracleReport {
    let chains = chains.iter().map(|chain| BoundedChain {
        model: chain.model.clone(),
        slo: chain.slo,
        workload: Workload::from(Arc::clone(&chain.packets)),
    });
    oracle(chains.collect(), options).unwrap()
}

#[test]
fn no_policy_that_keeps_its_objectives_has_fewer_cores() {
    let mut random = Random(5);
    let (mut kept, mut none_late) = (0, 0);
    for _ in 0..30 {
        let cores = 4 + random.below(5);
        let count = 1 + random.below(2);
        let chains: Vec<Chain> = (0..count).map(|_| chain(&mut random, cores)).collect();
        let servers = 1 + random.below(2) as usize;
        let mut rack = Rack::of_one(cores as u16);
        rack.servers = vec![rack.servers[0].clone(); servers];
        rack.switch.rule_latency = Nanos(5 * US);
        let warm_up = Nanos(random.below(2) * 300 * US);
        let mut options = RunOptions::default();
        if warm_up > Nanos::ZERO {
            (options.warm_up, options.window) = (warm_up, warm_up);
        }
        let bound = bound(&chains, &options);
        let last = chains.iter().map(|chain| chain.packets.duration()).max();
        let longest = chains.iter().map(|chain| chain.slo).max();
        let bounded_s = (last.unwrap() + longest.unwrap() - warm_up).as_secs_f64();
        let names = RackPolicy::names().map(|name| (name, None));
        let fewer = (1..cores as u16).map(|cores| ("static", Some(cores)));
        for (policy, cores) in names.chain(fewer) {
            let report = run(&rack, &chains, policy, cores, &options);
            let late = |chain: &ChainReport| chain.late_by_cause.values().sum::<u64>();
            let core_epochs = |report: &SimReport| -> u64 {
                let epochs = report.cores.per_epoch.iter();
                epochs.map(|cores| u64::from(*cores)).sum()
            };
            for (chain, bound) in report.chains.iter().zip(&bound.chains) {
                let late = late(chain);
                if warm_up == Nanos::ZERO {
                    assert_eq!(chain.packets.offered, bound.packets);
                    let met = chain.slo_met.unwrap_or(late <= bound.late_allowed);
                    assert_eq!(met, late <= bound.late_allowed);
                }
                assert_eq!(chain.packets.flows, bound.flows);
                assert!(late >= bound.late_unavoidable, "{policy}");
                if late <= bound.late_allowed {
                    assert!(bound.attainable, "{policy}");
                    // The averages cover different times.
                    let time = chain.cores.total * report.duration_s;
                    let least = bound.cores * bounded_s;
                    assert!(time > least - 1e-8, "{policy}: {time} s < {least} s");
                }
            }
            let both = || report.chains.iter().zip(&bound.chains);
            if both().all(|(chain, bound)| late(chain) <= bound.late_allowed) {
                kept += 1;
                let found = core_epochs(&report);
                assert!(found >= bound.cores.core_epochs, "{policy}: {found} < {bound:?}");
                assert!(report.cores.most >= bound.cores.most, "{policy}: {bound:?}");
            }
            if report.chains.iter().all(|chain| late(chain) == 0) {
                none_late += 1;
                let bound = &bound.cores_none_late;
                assert!(core_epochs(&report) >= bound.core_epochs, "{policy}: {bound:?}");
                assert!(report.cores.most >= bound.most, "{policy}: {bound:?}");
            }
        }
    }
    assert!(
        kept > 100 && none_late > 50,
        "{kept} kept, {none_late} without late packets"
    );
}
