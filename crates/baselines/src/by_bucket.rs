//! Controllers of flows on one server, where the NIC's RSS table stands in for the switch's table of flows.
//!
//! Such a controller ([`FlowMapper`]) decides about single flows, and places each new one. One server's NIC has no
//! table of flows, only one of buckets. [`ByBucket`] runs the same controller on it:
//!
//! | the controller's | is |
//! |---|---|
//! | flow | an RSS bucket with packets in the last period, with all of its flows |
//! | shard | an RSS bucket |
//! | migration of a flow | a move of its bucket, with its part of the flow table |
//! | new flow | a bucket without packets in the last period, and in turn each bucket once per [`LIFETIME`] |
//!
//! A packet of a new flow goes to its bucket's core, as no controller is in its path. But flows in a bucket end, and
//! new ones begin. The controller therefore places each bucket anew at intervals, as if its flows had ended and others
//! with the same rate had begun. So a core that it gives no new flows loses its load over time, and is reclaimed when it
//! has none. Controllers that place a new flow on its shard's owner are not affected.
//!
//! The delays of a [`ControlLoop`](tailwater_policy::flows::ControlLoop) are those of a rack's controller. Here the
//! signals are current, and only the NIC's own delay applies.

use tailwater_net::Nanos;
use tailwater_policy::flows::{CoreSignals, FlowLoad, FlowMapper, FlowPlan, FlowView, NewFlow};
use tailwater_policy::server::{CoreNumber, Move, ServerMapper, ServerView};

/// Time after which the flows of a bucket count as replaced by new ones. Chosen here: the mean flow of the `backbone`
/// preset has 20 packets, in trains 20 ms apart, and heavy flows live for seconds.
pub const LIFETIME: Nanos = Nanos::from_secs(1);

/// Server mapper that runs a controller of flows on RSS buckets.
#[derive(Clone, Debug)]
pub struct ByBucket<M> {
    controller: M,
    /// Bucket of each flow in the view.
    buckets: Vec<u16>,
    flows: Vec<FlowLoad>,
    cores: Vec<CoreSignals>,
    /// Owner of each bucket before the plan, and after it.
    before: Vec<CoreNumber>,
    owner: Vec<CoreNumber>,
    plan: FlowPlan,
    /// First bucket whose flows are replaced next.
    next: usize,
}

impl<M: FlowMapper> ByBucket<M> {
    /// Runs `controller`, which has no observation yet.
    pub fn new(controller: M) -> ByBucket<M> {
        ByBucket {
            controller,
            buckets: Vec::new(),
            flows: Vec::new(),
            cores: Vec::new(),
            before: Vec::new(),
            owner: Vec::new(),
            plan: FlowPlan::default(),
            next: 0,
        }
    }

    /// Copies the view, and clears the plan.
    fn observe(&mut self, view: &ServerView<'_>) {
        // As many as there can be, so that later plans do not allocate.
        let most = view.buckets.len();
        self.flows.clear();
        self.flows.reserve(most);
        self.buckets.clear();
        self.buckets.reserve(most);
        self.plan.clear();
        self.plan.moves.reserve(most);
        self.plan.migrations.reserve(most);
        self.plan.reclaim.reserve(view.cores.len());
        self.before.clear();
        self.before.extend(view.buckets.iter().map(|bucket| bucket.core));
        self.cores.clear();
        self.cores.extend(view.cores.iter().map(|core| CoreSignals {
            active: core.dedicated,
            rate: 0.0,
            busy: core.busy,
            lost: core.lost,
            batch_p99: core.batch_p99,
            worst_delay: core.worst_delay,
        }));
        for (number, bucket) in view.buckets.iter().enumerate().filter(|(_, b)| b.rate > 0.0) {
            self.cores[usize::from(bucket.core)].rate += bucket.rate;
            self.buckets.push(number as u16);
            self.flows.push(FlowLoad {
                core: bucket.core,
                shard: number as u16,
                rate: bucket.rate,
            });
        }
    }

    /// Returns `true` for each bucket whose flows are replaced in this period, once per [`LIFETIME`].
    fn replaced(&mut self) -> impl Fn(usize) -> bool + use<M> {
        let buckets = self.owner.len();
        let period = self.controller.control_loop().period;
        let share = period.0 as f64 / LIFETIME.0 as f64;
        let count = ((buckets as f64 * share).ceil() as usize).min(buckets);
        let first = self.next;
        self.next = (first + count) % buckets.max(1);
        move |bucket| (bucket + buckets - first) % buckets < count
    }
}

impl<M: FlowMapper> ServerMapper for ByBucket<M> {
    fn period(&self) -> Nanos {
        self.controller.control_loop().period
    }

    fn remap(&mut self, view: &ServerView<'_>, moves: &mut Vec<Move>) {
        self.observe(view);
        let flows = FlowView {
            now: view.now,
            flows: &self.flows,
            shards: &self.before,
            cores: &self.cores,
        };
        self.controller.decide(&flows, &mut self.plan);
        self.owner.clone_from(&self.before);
        for &Move { bucket, to } in &self.plan.moves {
            self.owner[usize::from(bucket)] = to;
        }
        for migration in &self.plan.migrations {
            let bucket = self.buckets[migration.flow as usize];
            self.owner[usize::from(bucket)] = migration.to;
        }
        let replaced = self.replaced();
        for (bucket, load) in view.buckets.iter().enumerate() {
            let stays = self.owner[bucket] == load.core;
            let is_empty = load.rate <= 0.0;
            if stays && (is_empty || replaced(bucket)) {
                let shard = bucket as u16;
                let before = FlowLoad {
                    core: load.core,
                    shard,
                    rate: load.rate,
                };
                self.owner[bucket] = self.controller.place(NewFlow {
                    shard,
                    predecessor: (!is_empty).then_some(before),
                });
            }
        }
        for (bucket, (&from, &to)) in self.before.iter().zip(&self.owner).enumerate() {
            if from != to {
                let bucket = bucket as u16;
                moves.push(Move { bucket, to });
            }
        }
    }
}
