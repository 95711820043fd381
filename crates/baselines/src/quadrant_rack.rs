//! Quadrant's scaling across the servers of a rack.
//!
//! An instance of a chain owns its cores. Its latency is estimated as twice the 99th percentile of its batch time, plus
//! the network's. New flows go to the instance with the highest load among those below αT and the load limit; if there
//! is none, to a new one. From an instance above βT, flows of total rate Δr migrate (equation 4, [`shed_rate`]): as far
//! as the others have no room for it, to new instances. Instances without flows are reclaimed, except the last.
//!
//! [`QuadrantScaling`] decides on instances, [`QuadrantFlows`] is the ingress beside it, with rates in place of flows.
//!
//! Not published: flows that leave an instance go where new ones go.

use crate::quadrant::{QuadrantConfig, shed_rate};
use tailwater_net::Nanos;
use tailwater_placement::rack::{ChainCapacity, ChainLoad, InstancePhase, InstanceView, ScalingPolicy};

/// Part of an instance's highest rate below which it has no flows.
const IDLE: f64 = 1e-6;

/// Quadrant's thresholds, equation 4 and idle reclaim as a scaling policy. Objectives and highest rates are those of
/// the chains.
#[derive(Clone, Copy, Debug)]
pub struct QuadrantScaling {
    config: QuadrantConfig,
}

impl QuadrantScaling {
    /// Creates a policy with the thresholds and the network's latency of `config`.
    ///
    /// # Panics
    /// If not 0 < α < β < 1.
    pub fn new(config: QuadrantConfig) -> Self {
        assert!(
            0.0 < config.alpha && config.alpha < config.beta && config.beta < 1.0,
            "0 < alpha < beta < 1"
        );
        QuadrantScaling { config }
    }

    fn latency(&self, instance: &InstanceView) -> f64 {
        2.0 * instance.load.batch_p99.0 as f64 + self.config.network.0 as f64
    }

    /// Number of instances that must be added for new flows, and for those that leave overloaded instances.
    fn missing(&self, load: &ChainLoad<'_>, objective: f64) -> usize {
        let most = self.config.load_limit * load.instance_rate;
        let (lower, upper) = (self.config.alpha * objective, self.config.beta * objective);
        let (mut shed, mut room, mut takes) = (0.0, 0.0, false);
        for instance in load.instances {
            let latency = self.latency(instance);
            let offered = instance.load.offered;
            if instance.phase == InstancePhase::Starting {
                (room, takes) = (room + most, true);
            } else if latency > upper {
                shed += shed_rate(offered, load.instance_rate, Nanos(latency as u64), Nanos(lower as u64));
            } else if latency < lower && offered < most {
                (room, takes) = (room + most - offered, true);
            }
        }
        let for_flows = usize::from(!takes);
        (((shed - room).max(0.0) / most).ceil() as usize).max(for_flows)
    }
}

impl ScalingPolicy for QuadrantScaling {
    fn capacity(&mut self, load: &ChainLoad<'_>) -> ChainCapacity {
        let objective = load.chain.promise.as_ref().map(|promise| promise.latency.0 as f64);
        let Some(objective) = objective.filter(|_| load.instance_rate > 0.0) else {
            return ChainCapacity::default();
        };
        let missing = self.missing(load, objective);
        let is_idle =
            |one: &&&InstanceView| one.phase == InstancePhase::Ready && one.load.offered <= IDLE * load.instance_rate;
        let idle: Vec<String> = match missing {
            0 => load
                .instances
                .iter()
                .filter(is_idle)
                .map(|one| one.name.clone())
                .collect(),
            _ => Vec::new(),
        };
        ChainCapacity {
            rate: 0.0,
            instances: (load.instances.len() + missing - idle.len()).max(1) as u16,
            exclusive: true,
            idle,
        }
    }
}

/// Rates of the flows on the instances of a chain, as Quadrant's ingress assigns them.
#[derive(Clone, Debug, PartialEq)]
pub struct QuadrantFlows {
    /// Share of flows that end in a step.
    pub ending: f64,
    /// Rate up to which an instance gets new flows: below the load limit, with an estimate below αT.
    pub limit: f64,
}

impl QuadrantFlows {
    /// Moves `rates`, in packets per second by instance, on by a step in which `total` is offered and `shed` leaves
    /// each instance. Flows for which no instance has room are spread evenly.
    ///
    /// # Panics
    /// If there is no instance, or `shed` has another length.
    pub fn step(&self, rates: &mut [f64], shed: &[f64], total: f64) {
        assert!(
            !rates.is_empty() && rates.len() == shed.len(),
            "as many rates as instances"
        );
        for (rate, shed) in rates.iter_mut().zip(shed) {
            *rate *= 1.0 - self.ending;
            *rate -= shed.clamp(0.0, *rate);
        }
        let staying: f64 = rates.iter().sum();
        let mut new = total - staying;
        if new < 0.0 {
            // The remaining flows send less.
            let less = total / staying;
            rates.iter_mut().for_each(|rate| *rate *= less);
            return;
        }
        // An instance that sheds flows gets no new ones.
        let mut order: Vec<usize> = (0..rates.len()).filter(|&at| shed[at] <= 0.0).collect();
        order.sort_by(|&a, &b| rates[b].total_cmp(&rates[a]).then(a.cmp(&b)));
        for at in order {
            let some = (self.limit - rates[at]).clamp(0.0, new);
            rates[at] += some;
            new -= some;
        }
        let even = new / rates.len() as f64;
        rates.iter_mut().for_each(|rate| *rate += even);
    }
}
