//! Decisions of a rack's controller: how many instances each chain has, on which servers, with how much of their
//! cores.
//!
//! A [`RackController`] turns a [`RackView`], the observed state, into a [`RackPlan`]: actions with their reasons, and
//! a verdict on each chain. It does no I/O and reads no clock. Equal sequences of views give equal plans.
//!
//! - Servers admit instances by [`core_shares`](crate::core_shares). The controller makes the same prediction of each
//!   server, so that a server accepts its plan.
//! - A chain gets more at once: first by larger promises in place, then by new instances. It gets less only after less
//!   has sufficed for a while.
//! - A ready instance is drained only when the others suffice or its replacement is ready. Instances of lost servers
//!   are replaced first, in the order of their promises.
//! - An instance is placed on a server of its chain's pool only, that of a chain without one on a server in no pool.
//! - Moves, from servers that are being drained and to a [better plan](Rearrangement), are few at a time.
//!
//! How much capacity a chain should have is decided by a [`ScalingPolicy`]: [`TailwaterScaling`] is Tailwater's,
//! Quadrant's is in `tailwater-baselines`.

mod actions;
mod busy;
mod controller;
mod fleet;
mod moves;
mod options;
mod rearrange;
mod refusal;
mod resize;
mod round;
mod scaling;
#[cfg(feature = "milp")]
mod solved;
mod view;

pub use actions::{
    CreateReason, DeleteReason, DrainReason, NewInstance, RackAction, RackPlan, RackWork, ResizeReason, Risk, Verdict,
};
pub use busy::{BusyLimits, busy_shares};
pub use controller::RackController;
pub use options::RackOptions;
pub use rearrange::{Rearranged, Rearrangement, consolidated};
pub use scaling::{ChainCapacity, ChainLoad, ScalingPolicy, TailwaterScaling};
#[cfg(feature = "milp")]
pub use solved::solved;
pub use view::{
    ChainDemand, ChainView, InstanceLoad, InstancePhase, InstanceView, RackPromise, RackThroughput, RackView,
    ServerState, ServerView,
};
