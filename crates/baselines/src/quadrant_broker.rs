//! Quadrant's scaling signals as a core broker.
//!
//! An instance of a chain owns a core, so nothing is lent: more load means more instances. A chain whose worst instance
//! has an estimated latency above βT migrates flows of total rate Δr (equation 4, [`shed_rate`]). As far as its other
//! instances have room for Δr below the load limit, they take it; the rest goes to new cores. Instances without packets
//! give their cores back, except the last. A pool of started, detached instances per chain hides their start-up.
//!
//! Not published: the size of the pool. Here it is one instance per chain.

use crate::quadrant::{LatencySignal, QuadrantConfig, shed_rate};
use tailwater_net::Nanos;
use tailwater_policy::broker::{
    BrokerCore, ChainCores, ChainNumber, CoreBroker, CoreChange, CoreNumber, CorePlan, CoreUse, LendPlan, LendView,
    ResizeView,
};

/// Quadrant's thresholds, idle reclaim and pool behind the interface of brokers.
#[derive(Clone, Debug)]
pub struct QuadrantBroker {
    config: QuadrantConfig,
    pool: u16,
    /// By chain: estimated latency in nanoseconds.
    latency: Vec<f64>,
}

impl QuadrantBroker {
    /// Creates a broker with the thresholds, signal and period of `config`, and `pool` detached instances per chain.
    /// Objectives and highest rates are those of the chains.
    ///
    /// # Panics
    /// If not 0 < α < β < 1.
    pub fn new(config: QuadrantConfig, pool: u16) -> QuadrantBroker {
        assert!(
            0.0 < config.alpha && config.alpha < config.beta && config.beta < 1.0,
            "0 < alpha < beta < 1"
        );
        QuadrantBroker {
            config,
            pool,
            latency: Vec::new(),
        }
    }

    /// Updates a chain's estimated latency and returns it.
    fn estimate(&mut self, number: usize, chain: &ChainCores) -> Nanos {
        let worker = match self.config.signal {
            LatencySignal::TwiceBatchP99 => 2.0 * chain.signals.batch_p99.0 as f64,
            LatencySignal::WorstDelay => chain.signals.worst_delay.0 as f64,
        };
        let (period, smoothing) = (self.config.control_loop.period.0, self.config.smoothing.0);
        let weight = match smoothing > period {
            true => period as f64 / smoothing as f64,
            false => 1.0,
        };
        let latency = &mut self.latency[number];
        *latency += weight * (worker + self.config.network.0 as f64 - *latency);
        Nanos(*latency as u64)
    }

    /// Returns the number of cores that a chain with `cores` cores and this estimate needs in addition.
    fn missing(&self, chain: &ChainCores, cores: usize, latency: Nanos) -> usize {
        let (objective, signals) = (chain.load.objective.0 as f64, &chain.signals);
        if latency.0 as f64 <= self.config.beta * objective || signals.max_rate <= 0.0 {
            return usize::from(cores == 0);
        }
        let target = Nanos((self.config.alpha * objective) as u64);
        let shed = shed_rate(signals.rate, signals.max_rate, latency, target);
        let most = self.config.load_limit * signals.max_rate;
        // Instances other than the overloaded one, below the limit.
        let others = cores.saturating_sub(1) as f64 * most - (signals.total_rate - signals.rate);
        ((shed - others.max(0.0)).max(0.0) / most).ceil() as usize
    }
}

impl CoreBroker for QuadrantBroker {
    fn lend(&mut self, view: &LendView<'_>, plan: &mut LendPlan) {
        let leases = view.cores.iter().filter_map(|core| match core.usage {
            CoreUse::Lent(lease) => Some(lease),
            _ => None,
        });
        plan.end.extend(leases);
    }

    fn period(&self) -> Nanos {
        self.config.control_loop.period
    }

    fn resize(&mut self, view: &ResizeView<'_>, plan: &mut CorePlan) {
        self.latency.resize(view.chains.len(), 0.0);
        plan.ready.resize(view.chains.len(), self.pool);
        let mut free: Vec<usize> = (0..view.cores.len())
            .filter(|core| view.cores[*core].usage == CoreUse::Free)
            .collect();
        for (number, chain) in view.chains.iter().enumerate() {
            let latency = self.estimate(number, chain);
            let is_its = |core: &BrokerCore| core.usage == CoreUse::Dedicated(number as ChainNumber);
            let cores = view.cores.iter().filter(|core| is_its(core)).count();
            let missing = self.missing(chain, cores, latency);
            let change = |core: usize| CoreChange {
                chain: number as ChainNumber,
                core: core as CoreNumber,
            };
            for _ in 0..missing {
                let far = |at: &usize| (view.cores[free[*at]].node != chain.node, free[*at]);
                let Some(at) = (0..free.len()).min_by_key(far) else {
                    break;
                };
                plan.add.push(change(free.remove(at)));
            }
            let idle = usize::from(chain.signals.idle_cores).min(cores.saturating_sub(1));
            if missing == 0 {
                let its = (0..view.cores.len()).rev().filter(|core| is_its(&view.cores[*core]));
                plan.remove.extend(its.take(idle).map(change));
            }
        }
    }
}
