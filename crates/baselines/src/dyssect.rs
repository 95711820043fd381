//! Scaling as in Dyssect (Carvalho et al., INFOCOM 2022), which targets the median latency.
//!
//! NetBlaze (section 4.1) describes it so: RSS shards are spread over a worker's cores. Every 100 ms a mixed-integer
//! programme picks shards and flows to move. Each core's load, the share of its time that functions take, stays under a
//! bound derived from the target median latency. The public controller shows the programme's inputs: each shard's
//! packets times the time of a packet, the coefficients of variation of arrivals and service, and the target latency.
//! It also shows the outputs: the core of each shard, and the part of a shard's flows, heaviest first, that other cores
//! take over.
//!
//! The following is not published and was chosen here. *The bound*: Kingman's approximation of the mean wait, ρ / (1 -
//! ρ) · v · τ for load ρ, packet time τ and v the mean of the two squared coefficients of variation, must leave τ
//! within the objective. With the controller's constants (0.0966 and 0.1202, taken as squared) that allows loads beyond
//! 99 % for any objective of a dozen τ. *The programme*: solved greedily in three steps, for the fewest cores first and
//! few moves second, without a guarantee of optimality:
//!
//! 1. flows that were moved off their shard's owner return where its load stays below the bound by a margin;
//! 2. a core beyond the bound gives away shards, the smallest that suffices or else the largest, to the first core with
//!    room, else to a new one. When no shard fits anywhere, single flows move, heaviest first;
//! 3. if no core was beyond the bound, the least loaded core is emptied when all of its load fits elsewhere below the
//!    bound by the margin.
//!
//! *The delay*: decisions take 10 ms to take effect. Locks on Dyssect's data path are not part of the policy.
//!
//! On one server ([`ByBucket`](super::ByBucket)) each shard is an RSS bucket, shown as its only flow. Steps 1 and 2
//! then never move a flow without its shard: a flow that no core has room for is a shard that no core has room for.

use super::by_core::ByCore;
use tailwater_net::Nanos;
use tailwater_policy::flows::{ControlLoop, FlowMapper, FlowPlan, FlowView, Migration, NewFlow};
use tailwater_policy::server::{CoreNumber, Move};

/// Marks a flow that is on its shard's owner.
const HOME: CoreNumber = CoreNumber::MAX;

/// Parameters of [`Dyssect`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DyssectConfig {
    /// Highest load of a core, as a share of its time.
    pub bound: f64,
    /// Processing time of a packet.
    pub packet_time: Nanos,
    /// Share of the bound up to which a core takes load that could also stay where it is.
    pub margin: f64,
    /// Period and delays.
    pub control_loop: ControlLoop,
}

impl DyssectConfig {
    /// Returns the configuration with a latency objective as the target median, as NetBlaze's comparison used it. An
    /// objective that leaves no time to wait counts as one that leaves a nanosecond.
    ///
    /// # Panics
    /// If the packet time is zero.
    pub fn for_objective(slo: Nanos, packet_time: Nanos) -> DyssectConfig {
        DyssectConfig::for_median(slo.max(packet_time + Nanos(1)), packet_time)
    }

    /// Returns the configuration for a median latency of `median` and packets of `packet_time` each.
    ///
    /// # Panics
    /// If the latency is not longer than the packet time, or the packet time is zero.
    pub fn for_median(median: Nanos, packet_time: Nanos) -> DyssectConfig {
        assert!(packet_time > Nanos::ZERO, "packets take time");
        assert!(median > packet_time, "the objective leaves no time to wait");
        let variability = (0.0966 + 0.1202) / 2.0;
        let wait = (median - packet_time).0 as f64 / packet_time.0 as f64 / variability;
        DyssectConfig {
            bound: wait / (1.0 + wait),
            packet_time,
            margin: 0.9,
            control_loop: ControlLoop {
                period: Nanos::from_millis(100),
                report_delay: Nanos::ZERO,
                enforcement_delay: Nanos::from_millis(10),
            },
        }
    }
}

/// Dyssect's controller.
#[derive(Clone, Debug)]
pub struct Dyssect {
    config: DyssectConfig,
    owner: Vec<CoreNumber>,
    /// Core of each flow that is not on its shard's owner, otherwise [`HOME`].
    preempted: Vec<CoreNumber>,
    /// Load of each shard, without the flows that are away from its owner.
    shards: Vec<f64>,
    cores: Vec<f64>,
    active: Vec<bool>,
    used: Vec<bool>,
    by_core: ByCore,
    order: Vec<u32>,
    trial: Vec<(u32, CoreNumber)>,
}

impl Dyssect {
    /// Creates a controller without any observation.
    ///
    /// # Panics
    /// If the bound or the margin is not positive and at most 1.
    pub fn new(config: DyssectConfig) -> Dyssect {
        let share = |value: f64| 0.0 < value && value <= 1.0;
        assert!(share(config.bound) && share(config.margin), "shares of a core");
        Dyssect {
            config,
            owner: Vec::new(),
            preempted: Vec::new(),
            shards: Vec::new(),
            cores: Vec::new(),
            active: Vec::new(),
            used: Vec::new(),
            by_core: ByCore::default(),
            order: Vec::new(),
            trial: Vec::new(),
        }
    }

    fn load(&self, view: &FlowView<'_>, flow: u32) -> f64 {
        view.flows[flow as usize].rate * self.config.packet_time.as_secs_f64()
    }

    /// Copies the loads from the view.
    fn look(&mut self, view: &FlowView<'_>) {
        self.owner.clear();
        self.owner.extend_from_slice(view.shards);
        self.active.clear();
        self.active.extend(view.cores.iter().map(|core| core.active));
        for &core in view.shards {
            self.active[usize::from(core)] = true;
        }
        self.shards.clear();
        self.shards.resize(view.shards.len(), 0.0);
        self.cores.clear();
        self.cores.resize(view.cores.len(), 0.0);
        // With one flow per shard, flows come and go without allocations.
        let most = view.flows.len().max(view.shards.len());
        self.preempted.clear();
        self.preempted.reserve(most);
        self.order.clear();
        self.order.reserve(view.shards.len() + most);
        self.trial.clear();
        self.trial.reserve(view.shards.len() + most);
        for (number, flow) in view.flows.iter().enumerate() {
            let load = self.load(view, number as u32);
            self.cores[usize::from(flow.core)] += load;
            let home = self.owner[usize::from(flow.shard)] == flow.core;
            self.preempted.push(if home { HOME } else { flow.core });
            if home {
                self.shards[usize::from(flow.shard)] += load;
            }
        }
    }

    /// Returns the first active core except `not` that has room for `load` within `bound`.
    fn first_fit(&self, load: f64, not: usize, bound: f64) -> Option<usize> {
        let fits = |&core: &usize| core != not && self.active[core] && self.cores[core] + load <= bound;
        (0..self.cores.len()).find(fits)
    }

    /// Returns the first inactive core, if it has room for `load`.
    fn new_core(&self, load: f64) -> Option<usize> {
        let free = self.active.iter().position(|active| !active);
        free.filter(|_| load <= self.config.bound)
    }

    fn move_shard(&mut self, shard: usize, to: usize) {
        let from = usize::from(self.owner[shard]);
        self.cores[from] -= self.shards[shard];
        self.cores[to] += self.shards[shard];
        self.owner[shard] = to as CoreNumber;
        self.active[to] = true;
    }

    /// Runs step 1: flows return to their shard's owner.
    fn return_flows(&mut self, view: &FlowView<'_>) {
        let bound = self.config.bound * self.config.margin;
        for flow in 0..view.flows.len() {
            let (preempted, shard) = (self.preempted[flow], usize::from(view.flows[flow].shard));
            let (home, load) = (usize::from(self.owner[shard]), self.load(view, flow as u32));
            if preempted != HOME && self.cores[home] + load <= bound {
                self.preempted[flow] = HOME;
                self.cores[usize::from(preempted)] -= load;
                self.cores[home] += load;
                self.shards[shard] += load;
            }
        }
    }

    /// Returns a shard of `core` that can leave it, and its destination.
    fn leaving_shard(&mut self, core: usize) -> Option<(usize, usize)> {
        let excess = self.cores[core] - self.config.bound;
        let mine = |&shard: &u32| {
            let shard = shard as usize;
            usize::from(self.owner[shard]) == core && self.shards[shard] > 0.0
        };
        self.order.clear();
        self.order.extend((0..self.owner.len() as u32).filter(mine));
        let load = |shard: u32| self.shards[shard as usize];
        // Shards that suffice come first, smallest first, then the others, largest first.
        self.order.sort_unstable_by(|&a, &b| {
            let enough = |shard: u32| load(shard) >= excess;
            let by_load = if enough(a) {
                load(a).total_cmp(&load(b))
            } else {
                load(b).total_cmp(&load(a))
            };
            enough(b).cmp(&enough(a)).then(by_load).then(a.cmp(&b))
        });
        // Moving a core's only load gains nothing.
        let shared = |shard: u32| self.cores[core] > load(shard) * (1.0 + 1e-9);
        self.order.iter().filter(|&&shard| shared(shard)).find_map(|&shard| {
            let fit = self.first_fit(load(shard), core, self.config.bound);
            let to = fit.or_else(|| self.new_core(load(shard)))?;
            Some((shard as usize, to))
        })
    }

    /// Runs step 2 for one core.
    fn relieve(&mut self, core: usize, view: &FlowView<'_>) {
        for _ in 0..self.owner.len() {
            if self.cores[core] <= self.config.bound {
                return;
            }
            let Some((shard, to)) = self.leaving_shard(core) else {
                break;
            };
            self.move_shard(shard, to);
        }
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        // No core beyond its bound received load since the flows were sorted.
        let mine = self.by_core.on(core).iter().copied();
        order.extend(mine.filter(|&flow| self.place_of(view, flow) == core));
        order.sort_unstable_by(|&a, &b| {
            let (x, y) = (&view.flows[a as usize], &view.flows[b as usize]);
            y.rate.total_cmp(&x.rate).then(a.cmp(&b))
        });
        let mut stay = order.len();
        for &flow in &order {
            let load = self.load(view, flow);
            if self.cores[core] <= self.config.bound || stay == 1 || load <= 0.0 {
                break;
            }
            let to = self.first_fit(load, core, self.config.bound);
            if let Some(to) = to.or_else(|| self.new_core(load)) {
                self.migrate(view, flow, to);
                stay -= 1;
            }
        }
        self.order = order;
    }

    /// Returns the core that `flow` is on, including changes of this plan.
    fn place_of(&self, view: &FlowView<'_>, flow: u32) -> usize {
        let shard = usize::from(view.flows[flow as usize].shard);
        usize::from(match self.preempted[flow as usize] {
            HOME => self.owner[shard],
            preempted => preempted,
        })
    }

    fn migrate(&mut self, view: &FlowView<'_>, flow: u32, to: usize) {
        let load = self.load(view, flow);
        let shard = usize::from(view.flows[flow as usize].shard);
        let home = self.owner[shard];
        let from = match self.preempted[flow as usize] {
            HOME => {
                self.shards[shard] -= load;
                home
            }
            preempted => preempted,
        };
        self.cores[usize::from(from)] -= load;
        self.cores[to] += load;
        self.active[to] = true;
        self.preempted[flow as usize] = to as CoreNumber;
        if usize::from(home) == to {
            self.preempted[flow as usize] = HOME;
            self.shards[shard] += load;
        }
    }

    /// Returns the load of an item: a shard, or a flow if its number is past the shards.
    fn item_load(&self, view: &FlowView<'_>, item: u32) -> f64 {
        match item.checked_sub(self.owner.len() as u32) {
            Some(flow) => self.load(view, flow),
            None => self.shards[item as usize],
        }
    }

    /// Runs step 3: empties the least loaded core.
    fn consolidate(&mut self, view: &FlowView<'_>) {
        let less = |&a: &usize, &b: &usize| self.cores[a].total_cmp(&self.cores[b]).then(b.cmp(&a));
        let Some(core) = (0..self.cores.len()).filter(|&core| self.active[core]).min_by(less) else {
            return;
        };
        let bound = self.config.bound * self.config.margin;
        let shards = self.owner.len() as u32;
        // Shards, then flows that are on this core without their shard, heaviest first.
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend((0..shards).filter(|&shard| usize::from(self.owner[shard as usize]) == core));
        let guests = (0..view.flows.len() as u32).filter(|&f| usize::from(self.preempted[f as usize]) == core);
        order.extend(guests.map(|flow| shards + flow));
        let load = |item: u32| self.item_load(view, item);
        order.sort_unstable_by(|&a, &b| load(b).total_cmp(&load(a)).then(a.cmp(&b)));
        let loads: f64 = order.iter().map(|&item| load(item)).sum();
        // Skip the search if the sum alone does not fit.
        let others = (0..self.cores.len()).filter(|&other| other != core && self.active[other]);
        let room: f64 = others.map(|other| (bound - self.cores[other]).max(0.0)).sum();
        self.trial.clear();
        if loads <= room {
            for &item in &order {
                let load = self.item_load(view, item);
                let Some(to) = self.first_fit(load, core, bound) else {
                    break;
                };
                self.cores[to] += load;
                self.trial.push((item, to as CoreNumber));
            }
            for &(item, to) in &self.trial {
                let load = self.item_load(view, item);
                self.cores[usize::from(to)] -= load;
            }
        }
        if self.trial.len() == order.len() {
            for i in 0..self.trial.len() {
                let (item, to) = self.trial[i];
                match item.checked_sub(shards) {
                    Some(flow) => self.migrate(view, flow, usize::from(to)),
                    None => self.move_shard(item as usize, usize::from(to)),
                }
            }
        }
        self.order = order;
    }
}

impl FlowMapper for Dyssect {
    fn control_loop(&self) -> ControlLoop {
        self.config.control_loop
    }

    fn place(&mut self, flow: NewFlow) -> CoreNumber {
        self.owner[usize::from(flow.shard)]
    }

    fn decide(&mut self, view: &FlowView<'_>, plan: &mut FlowPlan) {
        self.look(view);
        self.return_flows(view);
        let mut by_core = std::mem::take(&mut self.by_core);
        let places = (0..view.flows.len() as u32).map(|flow| self.place_of(view, flow));
        by_core.sort(self.cores.len(), view.flows.len().max(view.shards.len()), places);
        self.by_core = by_core;
        let mut beyond = false;
        for core in 0..self.cores.len() {
            if self.cores[core] > self.config.bound {
                beyond = true;
                self.relieve(core, view);
            }
        }
        if !beyond {
            self.consolidate(view);
        }
        // Each core's final load.
        self.used.clear();
        self.used.resize(self.cores.len(), false);
        let used = &mut self.used;
        for (shard, (&to, &from)) in self.owner.iter().zip(view.shards).enumerate() {
            used[usize::from(to)] = true;
            if to != from {
                plan.moves.push(Move {
                    bucket: shard as u16,
                    to,
                });
            }
        }
        for (number, (flow, &preempted)) in view.flows.iter().zip(&self.preempted).enumerate() {
            let shard = usize::from(flow.shard);
            let (old, new) = (view.shards[shard], self.owner[shard]);
            let along = if flow.core == old { new } else { flow.core };
            let to = if preempted == HOME { new } else { preempted };
            used[usize::from(to)] = true;
            if to != along {
                plan.migrations.push(Migration {
                    flow: number as u32,
                    to,
                });
            }
        }
        let idle = |&core: &usize| self.active[core] && !used[core];
        plan.reclaim
            .extend((0..used.len()).filter(idle).map(|core| core as CoreNumber));
    }
}
