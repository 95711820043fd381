//! Traffic, racks and chains for tests.

#![allow(dead_code, reason = "each test uses some of it")]

use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_policy::capacity::{
    CapacityProfile, EpochFrontier, RateFrontier, ServiceCosts, SplitPoint, SplitProfile,
};
use tailwater_policy::core::{CoreMapper, Destination, Flowlet, Loads, Plan, Review, Split, SplitFlow, Unit, View};
use tailwater_policy::server::IngressConfig;
use tailwater_sim::policies::Steered;
use tailwater_sim::{
    ChainModel, ChainReport, ChainRun, Objective, Rack, RackPolicy, Recording, RunOptions, SimReport, Workload,
    simulate,
};

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;

/// Pseudo-random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns an exponentially distributed gap with this mean.
    pub fn gap(&mut self, mean: f64) -> u64 {
        let unit = ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        (-mean * unit.ln()).round() as u64
    }
}

/// Returns costs per packet and per batch.
pub fn costs(packet: f64, batch: f64) -> ServiceCosts {
    ServiceCosts {
        batch,
        packet,
        ..ServiceCosts::default()
    }
}

/// Objective of the chains here. Their packets take long, so that tests need few of them.
pub const SLO: Nanos = Nanos::from_millis(2);

/// Returns the profile of a chain of 5 us per packet, for any policy.
pub fn profile() -> CapacityProfile {
    let mut splits = SplitProfile::new();
    splits.insert(SplitPoint {
        last_functions: 1,
        first: 250,
        last: 280,
    });
    CapacityProfile {
        chain: "test".to_owned(),
        slo: SLO,
        epoch: Nanos(980 * US),
        frontier: EpochFrontier::constant(160),
        rates: RateFrontier::constant(1.6e5),
        splits,
        costs: Some(costs(4800.0, 3200.0)),
        ..CapacityProfile::default()
    }
}

/// Returns a policy by name, for [`profile`].
pub fn policy(name: &str) -> RackPolicy {
    let profile = profile();
    let objective = Objective {
        slo: SLO,
        profile: &profile,
        packet: Nanos(5000),
        ingress: IngressConfig {
            prefix_v4: 24,
            prefix_v6: 32,
            threshold: 2,
            table: 60,
            flow_hash: true,
            rebalance: false,
            scale_in: false,
        },
    };
    RackPolicy::named(name, &objective).unwrap()
}

/// Returns static RSS over `cores` cores.
pub fn static_rss(cores: u16) -> RackPolicy {
    RackPolicy {
        name: "static".to_owned(),
        steered: Steered::Rack(None),
        core: None,
        start_cores: Some(cores),
    }
}

pub fn run(
    rack: &Rack,
    model: ChainModel,
    policy: RackPolicy,
    packets: &Arc<Recording>,
    options: &RunOptions,
) -> SimReport {
    let chain = ChainRun {
        model,
        slo: SLO,
        policy,
        workload: Workload::from(Arc::clone(packets)),
    };
    simulate(rack, vec![chain], options).unwrap()
}

/// Runs one chain with all checks and returns its report.
pub fn checked(rack: &Rack, model: ChainModel, policy: RackPolicy, packets: &Arc<Recording>) -> ChainReport {
    let options = RunOptions {
        check: true,
        ..RunOptions::default()
    };
    let mut report = run(rack, model, policy, packets, &options);
    let chain = report.chains.remove(0);
    conserved(&chain, packets);
    chain
}

/// Checks that every packet has left or is lost, and is counted once.
pub fn conserved(report: &ChainReport, packets: &Recording) {
    let counted = &report.packets;
    assert_eq!(counted.offered, packets.packets());
    assert_eq!(counted.offered, counted.delivered + counted.lost);
    assert_eq!(counted.lost, counted.lost_by_reason.values().sum::<u64>());
    assert_eq!(report.latency.total(), counted.delivered);
    let windows = &report.windows;
    assert_eq!(windows.iter().map(|w| w.offered).sum::<u64>(), counted.offered);
    assert_eq!(windows.iter().map(|w| w.delivered).sum::<u64>(), counted.delivered);
    assert_eq!(windows.iter().map(|w| w.lost).sum::<u64>(), counted.lost);
    let late: u64 = report.late_by_cause.values().sum();
    assert!(late >= counted.lost);
    let (shares, report_loss) = (counted.lost as f64 / counted.offered.max(1) as f64, report.loss_rate);
    assert!((shares - report_loss).abs() < 1e-12);
}

/// Mapper that places and moves flows and relieves auxiliary cores at random, in every call.
pub struct Anything {
    pub random: Random,
    pub split: bool,
    pub unit: Unit,
}

impl Anything {
    fn anywhere(&mut self, auxiliaries: usize) -> Destination {
        match self.random.below(auxiliaries as u64 + 1) as usize {
            0 => Destination::OWN_CORE,
            auxiliary => Destination::auxiliary(auxiliary - 1),
        }
    }
}

impl CoreMapper for Anything {
    fn unit(&self) -> Unit {
        self.unit
    }

    fn due(&self, _: Nanos, _: u32) -> bool {
        true
    }

    fn decide(&mut self, view: &View<'_>, plan: &mut Plan) {
        let auxiliaries = view.auxiliaries.len();
        for (flow, queued) in view.queued.iter().enumerate() {
            match self.random.below(8) {
                _ if queued.bound => {}
                0 if self.split => plan.splits.push(Split {
                    flow,
                    last_functions: 1 + self.random.below(3) as usize,
                    auxiliary: self.random.below(auxiliaries as u64) as usize,
                }),
                1 | 2 => plan.destinations[flow] = self.anywhere(auxiliaries),
                _ => {}
            }
        }
        plan.relieve = self.random.next() & self.random.next() & ((1 << auxiliaries) - 1);
        plan.release = self.random.next() & ((1 << auxiliaries) - 1);
        plan.boost = self.random.below(8) == 0;
    }

    fn review(&mut self, split: &SplitFlow<'_>) -> Review {
        let auxiliaries = split.auxiliaries.len() as u64;
        match self.random.below(8) {
            0..2 => Review::Divide {
                last_functions: 1 + self.random.below(3) as usize,
                auxiliary: self.random.below(auxiliaries) as usize,
            },
            2 => Review::Join,
            _ => Review::Keep,
        }
    }

    fn place(&mut self, _: Flowlet, loads: &Loads<'_>) -> Destination {
        self.anywhere(loads.auxiliaries.len())
    }
}

/// Returns bursty traffic: background flows, trains of one flow, and crowds of new flows.
pub fn bursty(seed: u64, length: u64, load_percent: u64, cores: u64) -> Arc<Recording> {
    let mut random = Random(seed);
    let mut packets: Vec<(u64, u32)> = Vec::new();
    let mean = 5000.0 * 100.0 / (load_percent * cores) as f64;
    let (mut now, mut next_flow) = (0, 2000_u32);
    let mut slots: Vec<u32> = (0..1000).collect();
    while now < length {
        now += random.gap(mean).max(1);
        let slot = random.below(1000) as usize;
        if random.below(50) == 0 {
            slots[slot] = next_flow;
            next_flow += 1;
        }
        packets.push((now, slots[slot]));
        match random.below(4000) {
            0 => {
                let train = 100 + random.below(900);
                packets.extend((0..train).map(|i| (now + i * 1200, slots[slot])));
            }
            1 => {
                let crowd = 100 + random.below(600);
                for _ in 0..crowd {
                    packets.push((now + random.below(1_000_000), next_flow));
                    next_flow += 1;
                }
            }
            _ => {}
        }
    }
    packets.sort();
    let packets = packets.into_iter().map(|(at, flow)| (Nanos(at), flow, 500));
    Arc::new(Recording::of_packets("bursty", packets, 50))
}
