//! Mappers that move flows and buckets at random, as often as possible: a harder test of offloading and migration than
//! any policy.

use super::traffic::random;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_dataplane::cores;
use tailwater_dataplane::scaling::ScalingConfig;
use tailwater_dataplane::scaling::server::ServerConfig;
use tailwater_handover::park::Mode;
use tailwater_net::Nanos;
use tailwater_policy::core::{
    CoreMapper, Destination, Flowlet, Loads, MakeMapper, Plan, Review, Split, SplitFlow, Unit, View,
};
use tailwater_policy::server::{Move, ServerMapper, ServerView};

/// Places flows at random. Every few microseconds it moves or splits those in the local queue, and relieves auxiliary
/// cores.
pub struct RandomFlows {
    state: u64,
    helpers: usize,
    /// Number of functions in the chain, if flows are split.
    functions: usize,
    unit: Unit,
    next: Nanos,
}

impl RandomFlows {
    pub fn new(seed: u64, helpers: usize) -> RandomFlows {
        RandomFlows {
            state: seed,
            helpers,
            functions: 0,
            unit: Unit::Flow,
            next: Nanos::ZERO,
        }
    }

    /// Also splits flows, before each of the chain's `functions` functions.
    pub fn splitting(self, functions: usize) -> RandomFlows {
        RandomFlows { functions, ..self }
    }

    /// Moves buckets instead of flows.
    pub fn lending(self) -> RandomFlows {
        RandomFlows {
            unit: Unit::Bucket,
            ..self
        }
    }

    fn anywhere(&mut self) -> Destination {
        match random(&mut self.state) as usize % (self.helpers + 1) {
            0 => Destination::OWN_CORE,
            helper => Destination::auxiliary(helper - 1),
        }
    }
}

impl CoreMapper for RandomFlows {
    fn unit(&self) -> Unit {
        self.unit
    }

    fn split_points(&mut self, _: usize) -> u64 {
        match self.functions {
            0 => 0,
            _ => u64::MAX,
        }
    }

    fn can_help(&self, packets: u32) -> bool {
        // Far more than a policy would accept.
        packets < 200
    }

    fn due(&self, now: Nanos, _packets: u32) -> bool {
        now >= self.next
    }

    fn decide(&mut self, view: &View<'_>, plan: &mut Plan) {
        self.next = view.now + Nanos::from_micros(3);
        for (flow, queued) in view.queued.iter().enumerate() {
            let draw = random(&mut self.state) as usize;
            match draw % 4 {
                _ if queued.bound => {}
                0 if self.functions > 1 => plan.splits.push(Split {
                    flow,
                    last_functions: 1 + draw / 64 % (self.functions - 1),
                    auxiliary: draw / 8 % self.helpers,
                }),
                _ => plan.destinations[flow] = self.anywhere(),
            }
        }
        plan.boost = random(&mut self.state).is_multiple_of(16);
        plan.relieve = random(&mut self.state) & random(&mut self.state) & ((1 << self.helpers) - 1);
        for (i, helper) in view.auxiliaries.iter().enumerate() {
            if helper.load.packets == 0 && !plan.destinations.contains(&Destination::auxiliary(i)) {
                plan.release |= 1 << i;
            }
        }
    }

    fn review(&mut self, _: &SplitFlow<'_>) -> Review {
        let draw = random(&mut self.state) as usize;
        match draw % 8 {
            0..3 => Review::Divide {
                last_functions: 1 + draw / 64 % (self.functions - 1),
                auxiliary: draw / 8 % self.helpers,
            },
            3 => Review::Join,
            _ => Review::Keep,
        }
    }

    fn place(&mut self, _flowlet: Flowlet, _loads: &Loads<'_>) -> Destination {
        self.anywhere()
    }
}

/// Dispatchers with `helpers` auxiliary cores. These may share a core with others, or with a dispatcher: slower, but
/// equally correct.
pub fn helped(mapper: MakeMapper, helpers: usize, park: Mode) -> ScalingConfig {
    let cores = cores::available();
    ScalingConfig {
        auxiliary: (0..helpers).map(|i| cores[i % cores.len()]).collect(),
        dedicated_help: false,
        mapper,
        park,
        buffers: 4096,
    }
}

pub fn random_flows(seed: u64, helpers: usize, park: Mode) -> ScalingConfig {
    random_splits(seed, helpers, park, 0)
}

/// Like [`random_flows`], and also splits flows before each of the chain's `functions` functions.
pub fn random_splits(seed: u64, helpers: usize, park: Mode, functions: usize) -> ScalingConfig {
    let mapper = move || -> Box<dyn CoreMapper> { Box::new(RandomFlows::new(seed, helpers).splitting(functions)) };
    helped(Arc::new(mapper), helpers, park)
}

/// Like [`random_splits`], with leases of RSS buckets.
pub fn random_leases(seed: u64, helpers: usize, park: Mode, functions: usize) -> ScalingConfig {
    let random = move || RandomFlows::new(seed, helpers).splitting(functions).lending();
    let mapper = move || -> Box<dyn CoreMapper> { Box::new(random()) };
    helped(Arc::new(mapper), helpers, park)
}

/// Like [`random_leases`], for this many dedicated and auxiliary cores. The dedicated ones also lend to each other.
pub fn random_help(seed: u64, [dedicated, helpers]: [usize; 2], park: Mode, functions: usize) -> ScalingConfig {
    let all = helpers + dedicated - 1;
    let random = move || RandomFlows::new(seed, all).splitting(functions).lending();
    let mapper = move || -> Box<dyn CoreMapper> { Box::new(random()) };
    ScalingConfig {
        dedicated_help: true,
        ..helped(Arc::new(mapper), helpers, park)
    }
}

/// Inputs of a server mapper, for the test.
#[derive(Debug, Default)]
pub struct Seen {
    /// Maximum packets per second, and active flows, summed over all buckets.
    pub rate: AtomicU64,
    pub flows: AtomicU64,
    /// Load of the busiest core, in millionths.
    pub busy: AtomicU64,
}

/// Moves some of the buckets at random.
struct RandomBuckets {
    state: u64,
    period: Nanos,
    seen: Arc<Seen>,
}

impl ServerMapper for RandomBuckets {
    fn period(&self) -> Nanos {
        self.period
    }

    fn remap(&mut self, view: &ServerView<'_>, moves: &mut Vec<Move>) {
        assert!(moves.is_empty());
        let rate: f64 = view.buckets.iter().map(|bucket| bucket.rate).sum();
        let flows: f64 = view.buckets.iter().map(|bucket| bucket.flows).sum();
        let busy = view.cores.iter().map(|core| core.busy).fold(0.0, f64::max);
        self.seen.rate.fetch_max(rate as u64, Ordering::Relaxed);
        self.seen.flows.fetch_max(flows as u64, Ordering::Relaxed);
        self.seen.busy.fetch_max((busy * 1e6) as u64, Ordering::Relaxed);
        // From a few buckets to most of them.
        let share = 1 + random(&mut self.state) % 16;
        for (bucket, load) in view.buckets.iter().enumerate() {
            let to = (random(&mut self.state) % view.cores.len() as u64) as u16;
            if random(&mut self.state) % 16 < share && to != load.core {
                moves.push(Move {
                    bucket: bucket as u16,
                    to,
                });
            }
        }
    }
}

pub fn random_buckets(state: u64, period: Nanos) -> (ServerConfig, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let mapper = {
        let seen = Arc::clone(&seen);
        move || -> Box<dyn ServerMapper> {
            Box::new(RandomBuckets {
                state,
                period,
                seen: Arc::clone(&seen),
            })
        }
    };
    let mapper = Arc::new(mapper);
    (ServerConfig { mapper }, seen)
}
