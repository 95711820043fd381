//! Scaling as in Quadrant (Wang et al., SoCC 2022, section 5).
//!
//! The paper estimates an instance's tail latency as twice the 99th percentile of the batch time plus the network's
//! latency, since a packet may wait for the previous batch and its own. The latency objective is T, with thresholds 0 <
//! α < β < 1. New flows go to the instance with the highest packet load (rate over highest rate) among those with an
//! estimate below αT and a load of at most 90 %. If there is none, they go to a new instance from a pool of started
//! ones. From an instance whose estimate exceeds βT, flows migrate whose rates sum to Δr of equation 4 ([`shed_rate`]).
//! A core whose flows have all ended is reclaimed.
//!
//! NetBlaze (section 4.2) ran it so: a rack-wide controller decides every 50 ms, from a moving average of the worst
//! packet delay at each core. At most half of a core's flows migrate in a period, and calls to servers add
//! milliseconds. [`QuadrantConfig::new`] is the paper's form, [`QuadrantConfig::as_compared`] NetBlaze's.
//!
//! The following is not published and was chosen here:
//!
//! - α = 0.7 and β = 0.9. The network's share is a constant. Reports and enforcement take 5 ms each.
//! - The moving average has a time constant of 200 ms.
//! - The heaviest flows that fit into Δr migrate, then the lightest one left. They go where a new flow would, with
//!   their rates counted. A core's only flow stays.
//! - Without a free core, flows stay, and new ones go to the core with the lowest estimate.
//!
//! On one server the same controller decides about RSS buckets: see [`ByBucket`](super::ByBucket).

use super::by_core::ByCore;
use tailwater_net::Nanos;
use tailwater_policy::flows::{ControlLoop, FlowLoad, FlowMapper, FlowPlan, FlowView, Migration, NewFlow};
use tailwater_policy::server::CoreNumber;

/// The controller's period and delays.
pub(super) const CONTROL_LOOP: ControlLoop = ControlLoop {
    period: Nanos::from_millis(50),
    report_delay: Nanos::from_millis(5),
    enforcement_delay: Nanos::from_millis(5),
};

/// Signal that a core's latency is estimated from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LatencySignal {
    /// Twice the 99th percentile of batch times, as in the paper.
    #[default]
    TwiceBatchP99,
    /// Worst delay of a packet, as NetBlaze ran it.
    WorstDelay,
}

/// Parameters of [`Quadrant`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuadrantConfig {
    /// The latency objective T.
    pub slo: Nanos,
    /// Share of T below which an instance gets new flows.
    pub alpha: f64,
    /// Share of T above which flows migrate away.
    pub beta: f64,
    /// Highest rate of a core, in packets per second.
    pub max_rate: f64,
    /// Share of the highest rate from which on an instance gets no new flow.
    pub load_limit: f64,
    /// Latency of the network.
    pub network: Nanos,
    /// Signal that latency is estimated from.
    pub signal: LatencySignal,
    /// Time constant of the estimate's moving average. Zero disables it.
    pub smoothing: Nanos,
    /// Largest share of a core's flows that migrate in one period.
    pub most_flows: f64,
    /// Period and delays.
    pub control_loop: ControlLoop,
}

impl QuadrantConfig {
    /// Returns the parameters of Quadrant's paper, for the objective `slo` and cores of at most `max_rate` packets per
    /// second.
    pub const fn new(slo: Nanos, max_rate: f64) -> QuadrantConfig {
        QuadrantConfig {
            slo,
            alpha: 0.7,
            beta: 0.9,
            max_rate,
            load_limit: 0.9,
            network: Nanos::ZERO,
            signal: LatencySignal::TwiceBatchP99,
            smoothing: Nanos::ZERO,
            most_flows: 1.0,
            control_loop: CONTROL_LOOP,
        }
    }

    /// Returns the parameters with which NetBlaze ran it.
    pub const fn as_compared(slo: Nanos, max_rate: f64) -> QuadrantConfig {
        QuadrantConfig {
            signal: LatencySignal::WorstDelay,
            smoothing: Nanos::from_millis(200),
            most_flows: 0.5,
            ..QuadrantConfig::new(slo, max_rate)
        }
    }
}

/// Returns equation 4: the sum of rates, in packets per second, that migrates from an instance. The instance has rate
/// `rate`, highest rate `max_rate` and estimated latency `latency`. The target latency `target` is αT.
///
/// The last factor, r_max / r - 1, is at least 0.25 from 80 % of the highest rate on. Measured rates beyond the highest
/// would otherwise make it negative.
pub fn shed_rate(rate: f64, max_rate: f64, latency: Nanos, target: Nanos) -> f64 {
    if rate <= 0.0 || latency <= target {
        return 0.0;
    }
    let headroom = max_rate / rate - 1.0;
    let factor = if rate >= 0.8 * max_rate {
        headroom.max(0.25)
    } else {
        headroom
    };
    rate * ((latency - target).0 as f64 / latency.0 as f64) * factor
}

/// State of a core that can run an instance.
#[derive(Clone, Copy, Debug, Default)]
struct Instance {
    active: bool,
    /// Estimated latency in nanoseconds.
    latency: f64,
    rate: f64,
    flows: usize,
    /// Flows placed here since the last decision.
    placed: usize,
}

/// Quadrant's controller and ingress.
#[derive(Clone, Debug)]
pub struct Quadrant {
    config: QuadrantConfig,
    instances: Vec<Instance>,
    by_core: ByCore,
    order: Vec<u32>,
}

impl Quadrant {
    /// Creates a controller without any observation.
    ///
    /// # Panics
    /// If not 0 < α < β < 1, or the highest rate is not positive.
    pub fn new(config: QuadrantConfig) -> Quadrant {
        assert!(
            0.0 < config.alpha && config.alpha < config.beta && config.beta < 1.0,
            "0 < alpha < beta < 1"
        );
        assert!(config.max_rate > 0.0, "a core has a highest rate");
        Quadrant {
            config,
            instances: Vec::new(),
            by_core: ByCore::default(),
            order: Vec::new(),
        }
    }

    /// Returns αT.
    fn lower(&self) -> f64 {
        self.config.alpha * self.config.slo.0 as f64
    }

    /// Copies the signals from the view.
    fn look(&mut self, view: &FlowView<'_>) {
        let period = self.config.control_loop.period.0 as f64;
        let smoothing = self.config.smoothing.0 as f64;
        let weight = if smoothing > period { period / smoothing } else { 1.0 };
        self.instances.resize(view.cores.len(), Instance::default());
        // With one flow per shard, flows come and go without allocations.
        let most = view.flows.len().max(view.shards.len());
        self.order.clear();
        self.order.reserve(most);
        for (instance, core) in self.instances.iter_mut().zip(view.cores) {
            let worker = match self.config.signal {
                LatencySignal::TwiceBatchP99 => 2.0 * core.batch_p99.0 as f64,
                LatencySignal::WorstDelay => core.worst_delay.0 as f64,
            };
            let seen = worker + self.config.network.0 as f64;
            if !core.active && instance.placed == 0 {
                *instance = Instance::default();
                continue;
            }
            instance.latency += weight * (seen - instance.latency);
            instance.active = true;
            instance.rate = core.rate;
        }
        let cores = view.flows.iter().map(|flow| usize::from(flow.core));
        self.by_core.sort(view.cores.len(), most, cores);
        for (core, instance) in self.instances.iter_mut().enumerate() {
            instance.flows = self.by_core.on(core).len();
        }
    }

    /// Returns the most loaded instance, except `not`, that can take a flow of rate `rate`.
    fn fullest(&self, rate: f64, not: Option<usize>) -> Option<usize> {
        let lower = self.lower();
        let limit = self.config.load_limit * self.config.max_rate;
        let may = |&core: &usize| {
            let instance = &self.instances[core];
            let room = if rate > 0.0 {
                instance.rate + rate <= limit
            } else {
                instance.rate < limit
            };
            instance.active && Some(core) != not && instance.latency < lower && room
        };
        let fuller = |&a: &usize, &b: &usize| {
            let (x, y) = (&self.instances[a], &self.instances[b]);
            x.rate.total_cmp(&y.rate).then(b.cmp(&a))
        };
        (0..self.instances.len()).filter(may).max_by(fuller)
    }

    /// Activates a core of the pool and returns it.
    fn start(&mut self) -> Option<usize> {
        let core = self.instances.iter().position(|instance| !instance.active)?;
        self.instances[core] = Instance {
            active: true,
            ..Instance::default()
        };
        Some(core)
    }

    /// Migrates flows away from `core`.
    fn shed(&mut self, core: usize, view: &FlowView<'_>, plan: &mut FlowPlan) {
        let Instance {
            rate, latency, flows, ..
        } = self.instances[core];
        let target = Nanos(self.lower() as u64);
        let mut left = shed_rate(rate, self.config.max_rate, Nanos(latency as u64), target);
        let share = (flows as f64 * self.config.most_flows) as usize;
        let mut quota = share.min(flows.saturating_sub(1));
        let rate = |flow: u32| view.flows[flow as usize].rate;
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        let mine = self.by_core.on(core).iter().copied();
        order.extend(mine.filter(|&flow| rate(flow) > 0.0));
        order.sort_unstable_by(|&a, &b| rate(b).total_cmp(&rate(a)).then(a.cmp(&b)));
        let mut migrate = |flow: u32, left: &mut f64| {
            let wanted = quota > 0 && *left > 0.0;
            let to = wanted.then(|| self.fullest(rate(flow), Some(core)).or_else(|| self.start()));
            let Some(to) = to.flatten() else { return false };
            plan.migrations.push(Migration {
                flow,
                to: to as CoreNumber,
            });
            self.instances[core].flows -= 1;
            self.instances[core].rate -= rate(flow);
            self.instances[to].flows += 1;
            self.instances[to].rate += rate(flow);
            *left -= rate(flow);
            quota -= 1;
            true
        };
        // The heaviest flows that fit. Each of the others is larger than the remaining rate.
        order.retain(|&flow| rate(flow) > left || !migrate(flow, &mut left));
        if let Some(&flow) = order.last() {
            migrate(flow, &mut left);
        }
        self.order = order;
    }

    /// Returns the core of a flow that takes over the load of an earlier one: as for any new flow, if there is room for
    /// the load, else the earlier flow's core.
    fn place_successor(&mut self, before: FlowLoad) -> usize {
        let from = usize::from(before.core);
        self.instances[from].rate -= before.rate;
        self.instances[from].flows = self.instances[from].flows.saturating_sub(1);
        let mut core = self.fullest(before.rate, None);
        // A new core for the only flow of another gains nothing.
        if core.is_none() && self.instances[from].flows > 0 {
            core = self.start();
        }
        let core = core.unwrap_or(from);
        self.instances[core].rate += before.rate;
        self.instances[core].flows += 1;
        core
    }
}

impl FlowMapper for Quadrant {
    fn control_loop(&self) -> ControlLoop {
        self.config.control_loop
    }

    fn place(&mut self, flow: NewFlow) -> CoreNumber {
        if let Some(before) = flow.predecessor {
            return self.place_successor(before) as CoreNumber;
        }
        let instances = &self.instances;
        let fastest = |&a: &usize, &b: &usize| {
            let (x, y) = (&instances[a], &instances[b]);
            x.latency.total_cmp(&y.latency).then(a.cmp(&b))
        };
        let fastest = (0..instances.len()).min_by(fastest).unwrap_or(0);
        let core = self.fullest(0.0, None).or_else(|| self.start()).unwrap_or(fastest);
        self.instances[core].placed += 1;
        core as CoreNumber
    }

    fn decide(&mut self, view: &FlowView<'_>, plan: &mut FlowPlan) {
        self.look(view);
        let upper = self.config.beta * self.config.slo.0 as f64;
        for core in 0..self.instances.len() {
            if self.instances[core].active && self.instances[core].latency > upper {
                self.shed(core, view, plan);
            }
        }
        for (core, instance) in self.instances.iter_mut().enumerate() {
            let idle = instance.active && instance.flows + instance.placed == 0;
            if idle {
                plan.reclaim.push(core as CoreNumber);
                *instance = Instance::default();
            }
            instance.placed = 0;
        }
    }
}
