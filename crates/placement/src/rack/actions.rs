//! Decisions about a rack: actions with their reasons, and verdicts on chains.

use crate::admit::{Nearest, Reason};
use std::collections::BTreeMap;
use tailwater_net::Nanos;

/// Decisions of a round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RackPlan {
    /// Actions, in the order in which a server can accept them.
    pub actions: Vec<RackAction>,
    /// Verdict on each chain, by its name.
    pub verdicts: BTreeMap<String, Verdict>,
    /// Work of the round.
    pub work: RackWork,
}

/// Action on an instance.
#[derive(Clone, Debug, PartialEq)]
pub enum RackAction {
    /// Creates an instance. Until the server reports it, it is [starting](super::InstancePhase::Starting).
    Create(NewInstance),
    /// Changes the promise of an instance in place. It may change its cores on its server.
    Resize {
        /// Name of the instance.
        instance: String,
        /// Packets per second that it is promised from now on.
        rate: f64,
        /// Share of each of its cores by the prediction.
        share: f64,
        /// Reason.
        reason: ResizeReason,
    },
    /// Sends no new flows to an instance, which ends with its last flow or passes its flows on.
    Drain {
        /// Name of the instance.
        instance: String,
        /// Reason.
        reason: DrainReason,
    },
    /// Removes an instance.
    Delete {
        /// Name of the instance.
        instance: String,
        /// Reason.
        reason: DeleteReason,
    },
}

/// Instance to be created.
#[derive(Clone, Debug, PartialEq)]
pub struct NewInstance {
    /// Name: that of the chain with a number.
    pub name: String,
    /// Name of its chain.
    pub chain: String,
    /// Name of its server.
    pub server: String,
    /// Number of cores.
    pub cores: u16,
    /// Packets per second that it is promised, 0 without a promise.
    pub rate: f64,
    /// Share of each of its cores by the prediction, 0 without a promise.
    pub share: f64,
    /// `true` if it has its cores for itself: it is admitted by throughput alone.
    pub exclusive: bool,
    /// Name of the instance whose place it takes.
    pub replaces: Option<String>,
    /// Reason.
    pub reason: CreateReason,
}

/// Reason why an instance is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateReason {
    /// The chain has fewer instances, or is on fewer servers, than it should.
    Missing,
    /// Instances were lost.
    Lost,
    /// The chain is promised too little for its demand.
    Load,
    /// Its predecessor's server is being drained.
    ServerDrain,
    /// Its predecessor's server is not one of the chain's pool.
    Pool,
    /// A better plan has it elsewhere.
    Plan,
}

/// Reason why a promise changes in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeReason {
    /// More demand, or the share of a lost or ending instance.
    Load,
    /// Less demand for a while.
    Idle,
}

/// Reason why an instance is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainReason {
    /// Its replacement is ready.
    Replaced,
    /// The others suffice.
    Idle,
    /// Its chain is gone.
    ChainGone,
}

/// Reason why an instance is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteReason {
    /// It has been drained.
    Drained,
    /// It failed.
    Failed,
    /// Its server is lost, or is not part of the rack any more.
    ServerLost,
    /// It was still starting when it was not needed any more.
    Cancelled,
}

/// State of a chain after a round's actions.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It has the instances that it should have, some of which may be starting.
    Placed {
        /// Instances, without draining ones.
        instances: u16,
        /// Packets per second that they are promised.
        rate: f64,
    },
    /// Too little of it has been placed.
    TooFew {
        /// Instances, without draining ones.
        instances: u16,
        /// Packets per second that they are promised.
        rate: f64,
        /// Packets per second that it should be promised.
        wanted: f64,
        /// Binding reason.
        reason: Reason,
        /// Alternatives for a further instance that would be admitted now. Empty if there are none, or if too many
        /// chains were refused in one round: the next one completes them.
        nearest: Vec<Nearest>,
    },
    /// It is placed, but its objective is at risk.
    AtRisk(Risk),
}

/// Reason why an objective is at risk.
#[derive(Clone, Debug, PartialEq)]
pub enum Risk {
    /// An instance measured a higher latency.
    Latency {
        /// Name of the instance.
        instance: String,
        /// Measured 99th percentile.
        p99: Nanos,
    },
    /// The ready instances are promised less than is offered.
    Overload {
        /// Packets per second offered.
        offered: f64,
        /// Packets per second promised to ready instances.
        promised: f64,
    },
    /// It runs on a server that is being drained or is not one of its pool, and its flows could not take their state
    /// along.
    Bound {
        /// Name of the instance.
        instance: String,
    },
    /// It runs on a server that is being drained or is not one of its pool, and no other server has room for an
    /// instance.
    CannotMove {
        /// Name of the instance.
        instance: String,
        /// Binding reason.
        reason: Reason,
    },
}

/// Work of a round, as counts that do not depend on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RackWork {
    /// Servers whose free cores were compared with a request.
    pub compared: u64,
    /// Exact predictions of a server's cores.
    pub predicted: u64,
    /// Searches for alternatives of refused chains.
    pub explained: u64,
}
