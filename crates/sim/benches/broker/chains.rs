//! The papers' two chains, with objectives and traffic that differ.

use std::sync::Arc;
use tailwater_baselines::catalog::epoch;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{CapacityProfile, EpochFrontier, RateFrontier, ServiceCosts};
use tailwater_policy::server::IngressConfig;
use tailwater_sim::rack::Server;
use tailwater_sim::{
    ChainModel, ChainRun, CoreSharing, Objective, Rack, RackPolicy, Recording, RunOptions, SimReport, Workload,
    simulate,
};

use super::traffic::{Source, presets, superbursts};

/// Time until mappers have found their cores. It is not reported.
const WARM_UP: f64 = 1.5;
/// Bytes of a packet on average.
const BYTES: f64 = 900.0;
/// Share of a core's capacity that it sustains.
const SUSTAINED: f64 = 0.85;
/// Rate that a chain is admitted with, as a multiple of its mean.
const ADMITTED: f64 = 1.5;

/// Access lists, load balancer, accounting; access lists, URL filter, encryption.
const COSTS: [ServiceCosts; 2] = [
    ServiceCosts {
        batch: 320.0,
        packet: 457.3,
        byte: 0.0,
        new_flow: 235.0,
    },
    ServiceCosts {
        batch: 640.0,
        packet: 837.4,
        byte: 0.5,
        new_flow: 126.0,
    },
];
/// Objectives in µs, each taken in turn.
const OBJECTIVES: [u64; 3] = [200, 300, 500];

/// Chain with its packets.
#[derive(Clone)]
pub struct Chain {
    pub name: String,
    pub traffic: String,
    pub slo: Nanos,
    pub packets: Arc<Recording>,
    profile: CapacityProfile,
    /// Packets per second on average.
    pub rate: f64,
    /// Packets per second that it was admitted with.
    admitted: f64,
}

impl Chain {
    /// Creates chain `number`, with packets of `seed`.
    pub fn new(number: usize, seed: u64, source: Source, seconds: f64) -> Chain {
        Chain::offered(number, (seed, 1.0), source, seconds)
    }

    /// Creates it with `times` its rate, which it was not admitted with.
    pub fn offered(number: usize, (seed, times): (u64, f64), source: Source, seconds: f64) -> Chain {
        // Pairs of chains have the same costs, so that each occurs with each preset.
        let kind = number / 2 % 2;
        let slo = Nanos::from_micros(OBJECTIVES[number % OBJECTIVES.len()]);
        let seconds = WARM_UP + seconds;
        let own = seed * 1000 + number as u64;
        let packet = ChainModel::new("", COSTS[kind]).packet_nanos(BYTES);
        let (traffic, packets) = match source {
            Source::Bursts => superbursts(number, (own, times), seconds, packet),
            Source::Presets => presets(number, own, seconds),
        };
        let mut profile = CapacityProfile {
            chain: format!("chain-{}-{number}", kind + 1),
            slo,
            epoch: epoch(slo).unwrap_or_else(|error| panic!("{error}")),
            costs: Some(COSTS[kind]),
            ..CapacityProfile::default()
        };
        profile.frontier = EpochFrontier::constant((profile.epoch.0 as f64 / packet) as u32);
        profile.rates = RateFrontier::constant(SUSTAINED * 1e9 / packet);
        Chain {
            name: profile.chain.clone(),
            traffic,
            slo,
            rate: packets.packets() as f64 / seconds,
            admitted: packets.packets() as f64 / seconds / times * ADMITTED,
            packets,
            profile,
        }
    }

    /// Time of a full batch.
    pub fn batch(&self) -> Nanos {
        Nanos((self.model().packet_nanos(BYTES) * f64::from(self.model().batch)) as u64)
    }

    /// Mean load in cores, by the costs alone.
    pub fn load(&self) -> f64 {
        self.rate * self.model().packet_nanos(BYTES) / 1e9
    }

    fn model(&self) -> ChainModel {
        let model = ChainModel::from_profile(&self.profile).unwrap_or_else(|error| panic!("{error}"));
        ChainModel {
            planned_rate: self.admitted,
            ..model
        }
    }

    fn run(&self) -> ChainRun<'static> {
        let model = self.model();
        let objective = Objective {
            slo: self.slo,
            profile: &self.profile,
            packet: Nanos(model.packet_nanos(BYTES) as u64),
            ingress: IngressConfig {
                prefix_v4: 24,
                prefix_v6: 48,
                threshold: 32,
                table: 2000,
                flow_hash: true,
                rebalance: false,
                scale_in: false,
            },
        };
        let policy = RackPolicy::named("tailwater", &objective);
        ChainRun {
            model,
            slo: self.slo,
            policy: policy.unwrap_or_else(|error| panic!("{error}")),
            workload: Workload::from(Arc::clone(&self.packets)),
        }
    }
}

/// Returns a rack of servers with these cores, each with the two nodes of the papers' servers. Chains are on the server
/// that `homes` names.
pub fn rack(cores: &[u16], homes: Vec<u16>, sharing: CoreSharing) -> Rack {
    let mut rack = Rack::of_one(1);
    let server = |&cores: &u16| Server {
        cores,
        numa_nodes: 2.min(cores),
        link_bps: 0,
        ..Server::default()
    };
    rack.servers = cores.iter().map(server).collect();
    (rack.sharing, rack.homes) = (sharing, homes);
    rack
}

/// Runs chains on a rack. With `until_missed`, the run ends when an objective is missed.
pub fn run(rack: &Rack, chains: &[Chain], until_missed: bool) -> SimReport {
    let options = RunOptions {
        warm_up: Nanos::from_secs_f64(WARM_UP),
        until_missed,
        ..RunOptions::default()
    };
    let runs = chains.iter().map(Chain::run).collect();
    simulate(rack, runs, &options).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns `true` if all objectives were kept.
pub fn all_kept(report: &SimReport) -> bool {
    !report.missed && report.chains.iter().all(|chain| chain.slo_met == Some(true))
}
