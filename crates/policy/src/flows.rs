//! The vocabulary between a rack and a controller that places single flows on cores.
//!
//! Such a controller is told periodically what each flow and core did, and answers which flows
//! migrate. Between two periods it places new flows, by what it knew last. All its delays are data
//! ([`ControlLoop`]), so that whoever runs it, live or simulated, applies them.
//!
//! Flows also hash to *shards*, rows of an RSS or switch table, each of which has an owner.
//! Controllers that work with them place a new flow on its shard's owner, move whole shards, and
//! migrate single flows away from the owner. Others ignore them.

use crate::server::{CoreNumber, Move};
use tailwater_net::Nanos;

/// When a controller is asked, and how long its parts take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlLoop {
    /// Time between two decisions.
    pub period: Nanos,
    /// How old the signals are when the controller sees them.
    pub report_delay: Nanos,
    /// From a decision until it holds: calls to servers, tables written.
    pub enforcement_delay: Nanos,
}

/// A flow that was active in the last period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlowLoad {
    /// The core that it is on.
    pub core: CoreNumber,
    /// The shard that it hashes to.
    pub shard: u16,
    /// Packets per second.
    pub rate: f64,
}

/// What a core did in the last period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CoreSignals {
    /// Whether it runs the chain now. One that does not has no flow, and may be taken.
    pub active: bool,
    /// Packets per second that it processed.
    pub rate: f64,
    /// Share of the period in which it processed packets, 0 to 1.
    pub busy: f64,
    /// Packets that its ring had no room for in the period.
    pub lost: u64,
    /// The 99th percentile of the time that a batch took.
    pub batch_p99: Nanos,
    /// The longest that a packet was there, waiting included.
    pub worst_delay: Nanos,
}

/// A rack's situation at a period's end.
#[derive(Clone, Copy, Debug)]
pub struct FlowView<'a> {
    /// Now.
    pub now: Nanos,
    /// All flows that were active, or are remembered by the ingress.
    pub flows: &'a [FlowLoad],
    /// Each shard's owner. Their number does not change during a run.
    pub shards: &'a [CoreNumber],
    /// All cores of the rack that may run the chain. Their number does not change during a run.
    pub cores: &'a [CoreSignals],
}

/// A flow that has just begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewFlow {
    /// The shard that it hashes to.
    pub shard: u16,
}

/// A flow that is to change its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The flow, as its place in [`FlowView::flows`].
    pub flow: u32,
    /// Where it goes. The core is active from now on.
    pub to: CoreNumber,
}

/// What is to be done. Reused: [`clear`](FlowPlan::clear) it first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowPlan {
    /// Shards that change their owner. All flows of a shard that are on its old owner go along. At
    /// most one move for a shard.
    pub moves: Vec<Move>,
    /// Flows that migrate, after the moves. At most one migration for a flow, and none to the core
    /// that it is on after the moves.
    pub migrations: Vec<Migration>,
    /// Cores to reclaim. After moves and migrations they have neither flow nor shard. One that was
    /// given a flow since the view was taken stays.
    pub reclaim: Vec<CoreNumber>,
}

impl FlowPlan {
    /// Nothing changes.
    pub fn clear(&mut self) {
        self.moves.clear();
        self.migrations.clear();
        self.reclaim.clear();
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.moves.is_empty() && self.migrations.is_empty() && self.reclaim.is_empty()
    }
}

/// Places flows on a rack's cores. Every flow is on exactly one core at any time.
pub trait FlowMapper: Send {
    /// Its rhythm and delays.
    fn control_loop(&self) -> ControlLoop;

    /// Where a new flow goes, by what was seen at the last [`decide`](FlowMapper::decide), which is
    /// called once before the first flow. The core is active from now on.
    fn place(&mut self, flow: NewFlow) -> CoreNumber;

    /// What changes at a period's end. `plan` has been [cleared](FlowPlan::clear).
    fn decide(&mut self, view: &FlowView<'_>, plan: &mut FlowPlan);
}
