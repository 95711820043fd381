//! Example tables and property tests of the baselines.

mod buckets;
mod by_bucket;
mod dyssect;
mod quadrant;
mod quadrant_broker;
mod quadrant_rack;

use tailwater_net::Nanos;
use tailwater_policy::flows::{CoreSignals, FlowLoad, FlowMapper, FlowPlan, FlowView};
use tailwater_policy::server::{BucketLoad, CoreLoad, CoreNumber, Move, ServerMapper, ServerView};

/// Server that applies every plan at once.
#[derive(Clone)]
struct Server {
    now: Nanos,
    buckets: Vec<BucketLoad>,
    cores: Vec<CoreLoad>,
}

impl Server {
    /// Creates a server with `cores` cores and buckets of (core, packets/s).
    fn new(cores: usize, buckets: &[(CoreNumber, f64)]) -> Server {
        let load = |&(core, rate)| BucketLoad { flows: 1.0, rate, core };
        let mut server = Server {
            now: Nanos::ZERO,
            buckets: buckets.iter().map(load).collect(),
            cores: vec![CoreLoad::default(); cores],
        };
        server.settle();
        server
    }

    /// Recomputes the cores' state: a core that owns a bucket is dedicated, and 1 packet/s is 1 % busy.
    fn settle(&mut self) {
        for (number, core) in self.cores.iter_mut().enumerate() {
            let mine = |b: &&BucketLoad| usize::from(b.core) == number;
            core.dedicated = self.buckets.iter().any(|b| mine(&b));
            let rate: f64 = self.buckets.iter().filter(mine).map(|b| b.rate).sum();
            core.busy = (rate / 100.0).min(1.0);
        }
    }

    /// Runs one period: checks the plan and applies it.
    fn period(&mut self, mapper: &mut dyn ServerMapper) -> Vec<Move> {
        self.now += mapper.period();
        let mut moves = Vec::new();
        let (now, buckets, cores) = (self.now, &self.buckets[..], &self.cores[..]);
        mapper.remap(
            &ServerView {
                now,
                buckets,
                cores,
                late: 0.0,
            },
            &mut moves,
        );
        let mut seen = vec![false; buckets.len()];
        for Move { bucket, to } in &moves {
            let bucket = usize::from(*bucket);
            assert!(!std::mem::replace(&mut seen[bucket], true), "moved twice");
            assert!(usize::from(*to) < self.cores.len());
            assert_ne!(self.buckets[bucket].core, *to, "a move changes something");
            self.buckets[bucket].core = *to;
        }
        self.settle();
        moves
    }

    fn owners(&self) -> Vec<CoreNumber> {
        self.buckets.iter().map(|bucket| bucket.core).collect()
    }

    fn dedicated(&self) -> usize {
        self.cores.iter().filter(|core| core.dedicated).count()
    }
}

/// Rack that applies every plan at once.
#[derive(Clone)]
struct Rack {
    now: Nanos,
    flows: Vec<FlowLoad>,
    shards: Vec<CoreNumber>,
    cores: Vec<CoreSignals>,
}

impl Rack {
    /// Creates a rack with flows of (core, shard, packets/s).
    fn new(cores: usize, shards: &[CoreNumber], flows: &[(CoreNumber, u16, f64)]) -> Rack {
        let load = |&(core, shard, rate)| FlowLoad { core, shard, rate };
        let mut rack = Rack {
            now: Nanos::ZERO,
            flows: flows.iter().map(load).collect(),
            shards: shards.to_vec(),
            cores: vec![CoreSignals::default(); cores],
        };
        for flow in &rack.flows {
            rack.cores[usize::from(flow.core)].active = true;
        }
        for &owner in shards {
            rack.cores[usize::from(owner)].active = true;
        }
        rack.settle();
        rack
    }

    fn settle(&mut self) {
        for (number, core) in self.cores.iter_mut().enumerate() {
            let mine = self.flows.iter().filter(|f| usize::from(f.core) == number);
            core.rate = mine.map(|flow| flow.rate).sum();
        }
    }

    /// Runs one period: checks the plan and applies it.
    fn period(&mut self, mapper: &mut dyn FlowMapper) -> FlowPlan {
        self.now += mapper.control_loop().period;
        let mut plan = FlowPlan::default();
        let view = FlowView {
            now: self.now,
            flows: &self.flows,
            shards: &self.shards,
            cores: &self.cores,
        };
        mapper.decide(&view, &mut plan);
        let mut seen = vec![false; self.shards.len()];
        for Move { bucket, to } in &plan.moves {
            let shard = usize::from(*bucket);
            assert!(!std::mem::replace(&mut seen[shard], true), "moved twice");
            let old = std::mem::replace(&mut self.shards[shard], *to);
            assert_ne!(old, *to, "a move changes something");
            for flow in &mut self.flows {
                if usize::from(flow.shard) == shard && flow.core == old {
                    flow.core = *to;
                }
            }
            self.cores[usize::from(*to)].active = true;
        }
        let mut seen = vec![false; self.flows.len()];
        for migration in &plan.migrations {
            let flow = migration.flow as usize;
            assert!(!std::mem::replace(&mut seen[flow], true), "migrates twice");
            assert_ne!(self.flows[flow].core, migration.to);
            self.flows[flow].core = migration.to;
            self.cores[usize::from(migration.to)].active = true;
        }
        for &core in &plan.reclaim {
            assert!(self.cores[usize::from(core)].active);
            assert!(self.flows.iter().all(|flow| flow.core != core));
            self.cores[usize::from(core)].active = false;
        }
        let owned = plan.reclaim.iter().any(|core| self.shards.contains(core));
        assert!(!owned, "a reclaimed core owns a shard");
        self.settle();
        plan
    }

    fn active(&self) -> usize {
        self.cores.iter().filter(|core| core.active).count()
    }
}
