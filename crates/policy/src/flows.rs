//! Interface between a rack and a controller that places single flows on cores.
//!
//! Such a controller periodically receives the load of each flow and core, and returns the flows to migrate. Between
//! two periods it places new flows from the last known state. All its delays are data ([`ControlLoop`]), applied by the
//! live runtime or the simulator.
//!
//! Flows also hash to *shards*, rows of an RSS or switch table, each of which has an owner. Controllers that use them
//! place a new flow on its shard's owner, move whole shards, and migrate single flows away from the owner. Others
//! ignore them.

use crate::server::{CoreNumber, Move};
use tailwater_net::Nanos;

/// Period and delays of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlLoop {
    /// Time between two decisions.
    pub period: Nanos,
    /// Age of the signals when the controller receives them.
    pub report_delay: Nanos,
    /// Time from a decision until it takes effect: calls to servers, writing of tables.
    pub enforcement_delay: Nanos,
}

/// Flow that was active in the last period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlowLoad {
    /// Core that it is on.
    pub core: CoreNumber,
    /// Shard that it hashes to.
    pub shard: u16,
    /// Packets per second.
    pub rate: f64,
}

/// Signals of a core over the last period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CoreSignals {
    /// `true` if the core runs the chain now. An inactive core has no flow, and can be activated.
    pub active: bool,
    /// Packets per second that it processed.
    pub rate: f64,
    /// Share of the period in which it processed packets, 0 to 1.
    pub busy: f64,
    /// Packets lost in the period because its ring was full.
    pub lost: u64,
    /// 99th percentile of the batch time.
    pub batch_p99: Nanos,
    /// Longest delay of a packet, waiting included.
    pub worst_delay: Nanos,
}

/// State of a rack at a period's end.
#[derive(Clone, Copy, Debug)]
pub struct FlowView<'a> {
    /// Current time.
    pub now: Nanos,
    /// All flows that were active, or that the ingress still stores.
    pub flows: &'a [FlowLoad],
    /// Owner of each shard. Their number does not change during a run.
    pub shards: &'a [CoreNumber],
    /// All cores of the rack that can run the chain. Their number does not change during a run.
    pub cores: &'a [CoreSignals],
}

/// Flow that has just begun.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NewFlow {
    /// Shard that it hashes to.
    pub shard: u16,
    /// Load that it takes over, counted at a core already: that of flows which have ended. `None` if it brings none that
    /// is known.
    pub predecessor: Option<FlowLoad>,
}

impl NewFlow {
    /// Returns a flow without a predecessor.
    pub const fn in_shard(shard: u16) -> NewFlow {
        NewFlow {
            shard,
            predecessor: None,
        }
    }
}

/// Change of a flow's core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// Flow, as its index in [`FlowView::flows`].
    pub flow: u32,
    /// Destination. The core is active from now on.
    pub to: CoreNumber,
}

/// Decisions of a flow mapper. A plan is reused: [`clear`](FlowPlan::clear) it first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowPlan {
    /// Shards that change their owner. All flows of a shard that are on its old owner move with it. At most one move
    /// per shard.
    pub moves: Vec<Move>,
    /// Flows that migrate, after the moves. At most one migration per flow, and none to the core that it is on after
    /// the moves.
    pub migrations: Vec<Migration>,
    /// Cores to reclaim. After moves and migrations they have neither flow nor shard. A core that got a flow since the
    /// view was taken stays.
    pub reclaim: Vec<CoreNumber>,
}

impl FlowPlan {
    /// Resets the plan to one that changes nothing.
    pub fn clear(&mut self) {
        self.moves.clear();
        self.migrations.clear();
        self.reclaim.clear();
    }

    /// Returns `true` if the plan changes nothing.
    pub fn is_empty(&self) -> bool {
        self.moves.is_empty() && self.migrations.is_empty() && self.reclaim.is_empty()
    }
}

/// Places flows on a rack's cores. Every flow is on exactly one core at any time.
pub trait FlowMapper: Send {
    /// Returns the controller's period and delays.
    fn control_loop(&self) -> ControlLoop;

    /// Returns the core of a new flow, from the state at the last [`decide`](FlowMapper::decide), which is called once
    /// before the first flow. The core is active from now on.
    fn place(&mut self, flow: NewFlow) -> CoreNumber;

    /// Decides at a period's end. `plan` has been [cleared](FlowPlan::clear).
    fn decide(&mut self, view: &FlowView<'_>, plan: &mut FlowPlan);
}
