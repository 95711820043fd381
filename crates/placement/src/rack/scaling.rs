//! Scaling policies: the capacity that a chain should have.

use super::busy::BusyLimits;
use super::view::{ChainView, InstanceView, RackThroughput};
use tailwater_net::Nanos;

/// Observation of a chain for a [`ScalingPolicy`].
#[derive(Clone, Copy, Debug)]
pub struct ChainLoad<'a> {
    /// Current time.
    pub now: Nanos,
    /// The chain.
    pub chain: &'a ChainView,
    /// Its starting and ready instances, without those that another one replaces.
    pub instances: &'a [&'a InstanceView],
    /// Packets per second of an instance that has whole cores, at any latency; 0 if unknown.
    pub instance_rate: f64,
}

/// Capacity that a chain should have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChainCapacity {
    /// Packets per second that all instances together should be promised. Not used with `exclusive`.
    pub rate: f64,
    /// Least number of instances, beyond the chain's own limits.
    pub instances: u16,
    /// `true` if each instance has whole cores for itself, without a check of its latency.
    pub exclusive: bool,
    /// Names of exclusive instances that are not needed. As far as the chain's limits permit, they are drained at once.
    pub idle: Vec<String>,
}

/// Decides on the capacity of chains.
pub trait ScalingPolicy: Send {
    /// Returns the capacity that a chain should have. Called once for each chain and round.
    fn capacity(&mut self, load: &ChainLoad<'_>) -> ChainCapacity;
}

/// Tailwater's policy: as much as the chain is offered, with a margin for bursts. How much of a core that takes within
/// the objective is predicted at placement. Chains without a promise have as many instances as are busy for
/// [half of their time](BusyLimits).
///
/// By default, the only margin is the controller's [room for growth](super::RackOptions::band). In simulated quarters
/// of an hour, with which the defaults were chosen, margins on top of it took more cores and kept objectives as often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TailwaterScaling {
    /// Margin over the demand, as a share of it.
    pub margin: f64,
    /// Part of the way from the smoothed demand to the recent peak: 1 provides for a repetition of that peak.
    pub peak: f64,
    /// Load of chains without a promise.
    pub busy: BusyLimits,
}

impl Default for TailwaterScaling {
    fn default() -> Self {
        TailwaterScaling {
            margin: 0.0,
            peak: 0.0,
            busy: BusyLimits::default(),
        }
    }
}

impl ScalingPolicy for TailwaterScaling {
    fn capacity(&mut self, load: &ChainLoad<'_>) -> ChainCapacity {
        let demand = load.chain.demand;
        let rate = match load.chain.promise.as_ref().map(|promise| promise.throughput) {
            Some(RackThroughput::Reserved(rate)) => rate,
            Some(RackThroughput::OnDemand) => {
                let burst = (demand.peak - demand.smoothed).max(0.0) * self.peak;
                demand.offered.max(demand.smoothed + burst) * (1.0 + self.margin)
            }
            None => 0.0,
        };
        let instances = match load.chain.promise {
            Some(_) => 0,
            None => self.busy.instances(load.instances),
        };
        ChainCapacity {
            rate,
            instances,
            ..ChainCapacity::default()
        }
    }
}

impl<P: ScalingPolicy + ?Sized> ScalingPolicy for Box<P> {
    fn capacity(&mut self, load: &ChainLoad<'_>) -> ChainCapacity {
        (**self).capacity(load)
    }
}
