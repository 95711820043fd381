//! Setting of the papers, as far as published: rack, chains, traffic.

use super::profiles::Published;
use std::sync::Arc;
use tailwater_baselines::catalog::epoch;
use tailwater_net::{FlowKey, Nanos};
use tailwater_policy::capacity::{CapacityProfile, DetailedCosts, EpochFrontier, RateFrontier, ServiceCosts};
use tailwater_policy::server::IngressConfig;
use tailwater_sim::policies::Steered;
use tailwater_sim::{ChainModel, FlowOptions, Objective, Rack, RackPolicy, Recording, Server};
use tailwater_traffic::bursts::{Arrival, Arrivals};
use tailwater_traffic::generate::{Preset, preset};
use tailwater_traffic::{Notice, TrafficError};

/// Seed of the packets of all presets.
pub const SEED: u64 = 1;
/// Average bytes per packet (section 4.1).
const BYTES: f64 = 988.0;
/// Time for which presets send before the first counted packet. Generating packets takes most of the run time.
const BEFORE: Nanos = Nanos::from_secs(2);
/// Initial cores of controllers of whole racks, fewer than any of them ends with. Metron doubles its cores once per
/// second, and from one core it would take three seconds more.
const START: u16 = 8;
/// Memory limit for a case's packets.
const MEMORY: u64 = 8 << 30;

/// A chain and a trace, with the results of `calibrate`.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Name of its table.
    pub table: &'static str,
    pub chain: &'static NetBlazeChain,
    pub trace: &'static str,
    /// Factor on the preset's flows. `calibrate` prints the value for which the Metron-like policy uses the published
    /// average cores.
    pub flows_scale: f64,
    pub rows: &'static [super::published::Rows],
}

/// One of NetBlaze's chains.
#[derive(Debug)]
pub struct NetBlazeChain {
    pub name: &'static str,
    /// Its folder within the published profiles.
    folder: &'static str,
    /// Service costs. In full batches of packets of average length they give the published rate of a core
    /// (`long_200_p50.pro`, 500 flows). The cost of a new flow comes from the published steps of `short_200.pro`.
    pub costs: ServiceCosts,
    /// Loose objective of Table 7, and the profiles published for it.
    pub loose: (Nanos, &'static str),
}

/// ACL, load balancer, accounting: 2.14 Mpps. An epoch of 100 us has 352 packets of one flow, or 96 of 312 flows: 235
/// ns per flow.
pub const CHAIN_1: NetBlazeChain = NetBlazeChain {
    name: "chain-1",
    folder: "chain4",
    costs: ServiceCosts {
        batch: 320.0,
        packet: 457.3,
        byte: 0.0,
        new_flow: 235.0,
    },
    loose: (Nanos::from_micros(2500), "2000"),
};

/// ACL, URL filter, encryption: 0.74 Mpps, with half a nanosecond per byte. An epoch of 100 us has 96 packets of one
/// flow, or 64 of 266 flows: 126 ns per flow.
pub const CHAIN_2: NetBlazeChain = NetBlazeChain {
    name: "chain-2",
    folder: "chain2",
    costs: ServiceCosts {
        batch: 640.0,
        packet: 837.4,
        byte: 0.5,
        new_flow: 126.0,
    },
    loose: (Nanos::from_micros(5000), "5000"),
};

impl NetBlazeChain {
    /// Returns the profile that policies use for an objective, from the published profiles with the name `named`.
    pub fn profile(&self, published: &Published, slo: Nanos, named: &str) -> CapacityProfile {
        let folder = self.folder;
        let file = |name: String| (published.file(&name), name);
        let (short, name) = file(format!("{folder}/short_{named}.pro"));
        let frontier = EpochFrontier::from_published(short, &name);
        let (long, name) = file(format!("{folder}/long_{named}_p50.pro"));
        let rates = RateFrontier::from_published(long, &name);
        CapacityProfile {
            chain: self.name.to_owned(),
            machine: "published".to_owned(),
            slo,
            epoch: epoch(slo).unwrap_or_else(|error| panic!("{error}")),
            frontier: frontier.unwrap_or_else(|error| panic!("{error}")),
            rates: rates.unwrap_or_else(|error| panic!("{error}")),
            costs: Some(self.costs),
            details: Some(between_cores()),
            ..CapacityProfile::default()
        }
    }
}

/// Four servers of 64 cores. The queues of 4,096 packets follow from the tables, not the text: emptying one takes 5.5
/// ms at 0.74 Mpps, which is the 99th percentile of every system that overruns its queues on chain 2. Links are
/// unlimited: the packets that keep the published cores busy exceed the link of 100 Gbit/s through which all of them
/// came.
pub fn rack() -> Rack {
    let mut rack = Rack::of_one(64);
    let server = Server {
        cores: 64,
        numa_nodes: 2,
        ring: 4096,
        link_bps: 0,
        ..Server::default()
    };
    rack.servers = vec![server; 4];
    rack
}

/// Returns a policy for an objective.
pub fn policy(name: &str, profile: &CapacityProfile) -> RackPolicy {
    let model = model(profile);
    let objective = Objective {
        slo: profile.slo,
        profile,
        packet: Nanos(model.packet_nanos(BYTES).round() as u64),
        ingress: IngressConfig {
            prefix_v4: 24,
            prefix_v6: 48,
            // Half of a server's cores are reserved for bursts.
            threshold: 32,
            table: 2000,
            flow_hash: true,
            rebalance: false,
            scale_in: false,
        },
    };
    let mut policy = RackPolicy::named(name, &objective).unwrap_or_else(|error| panic!("{name}: {error}"));
    if matches!(policy.steered, Steered::Rack(Some(_)) | Steered::Flows(_)) {
        policy.start_cores = Some(START);
    }
    policy
}

/// Returns the costs between cores: slightly more than in the authors' program, which takes 72 cycles per batch in and
/// out of a queue, and 12 cycles per remapped packet.
fn between_cores() -> DetailedCosts {
    DetailedCosts {
        receive_packet: 35.0,
        queue_packet: 10.0,
        hand_over_packet: 17.0,
        take_over_packet: 10.0,
        ..DetailedCosts::default()
    }
}

/// Returns the cost model of a profile.
pub fn model(profile: &CapacityProfile) -> ChainModel {
    let model = ChainModel::from_profile(profile).unwrap_or_else(|error| panic!("{error}"));
    ChainModel {
        hand_over_batch: 60.0,
        hand_over_packet: 12.0,
        receipt_packet: 5.0,
        ..model
    }
}

/// Records `seconds` seconds of a preset, with its flows scaled by `flows_scale`.
pub fn record(trace: &str, flows_scale: f64, seconds: f64) -> Arc<Recording> {
    load(open(trace, flows_scale, seconds))
}

/// Records ten seconds of a preset, with its flows scaled by `flows_scale`. The speed grows from half to one and a half
/// times the original.
pub fn record_growing(trace: &str, flows_scale: f64) -> Arc<Recording> {
    load(Box::new(Growing(open(trace, flows_scale, 10.0))))
}

fn open(trace: &str, flows_scale: f64, seconds: f64) -> Box<dyn Arrivals> {
    let preset = preset(trace).unwrap_or_else(|error| panic!("{error}"));
    let mut preset = preset.scaled(flows_scale).with(SEED, Nanos::from_secs_f64(seconds));
    if let Preset::Aggregate { config, .. } = &mut preset {
        config.warm_up = BEFORE;
    }
    preset.arrivals().unwrap_or_else(|error| panic!("{error}"))
}

fn load(source: Box<dyn Arrivals>) -> Arc<Recording> {
    let recording = Recording::load(source, FlowOptions::default(), MEMORY);
    Arc::new(recording.unwrap_or_else(|error| panic!("{error}")))
}

/// Arrivals at a speed that grows by a tenth per second, from a half.
struct Growing(Box<dyn Arrivals>);

impl Arrivals for Growing {
    fn next_arrival(&mut self) -> Result<Option<Arrival>, TrafficError> {
        let arrival = self.0.next_arrival()?;
        Ok(arrival.map(|arrival| {
            // After t seconds, t / 2 + t^2 / 20 have been played.
            let played = arrival.time.as_secs_f64();
            let time = 10.0 * ((0.25 + 0.2 * played).sqrt() - 0.5);
            Arrival {
                time: Nanos::from_secs_f64(time),
                ..arrival
            }
        }))
    }

    fn flow_key(&self) -> FlowKey {
        self.0.flow_key()
    }

    fn notices(&self) -> Vec<Notice> {
        self.0.notices()
    }

    fn name(&self) -> &str {
        self.0.name()
    }
}
