//! Scaling as in Dyssect (Carvalho et al., INFOCOM 2022), which aims at the median latency.
//!
//! What NetBlaze (section 4.1) says of it: RSS shards are spread over a worker's cores; every 100
//! ms a mixed-integer programme picks shards and flows to move, so that each core's load, the share
//! of its time that functions take, stays under a bound that follows from the median latency
//! wanted. Its public controller shows the programme's inputs: each shard's packets times the time
//! of a packet, coefficients of variation of arrivals and service, and the latency wanted; and its
//! outputs: shards to cores, and the part of a shard's flows, heaviest first, that other cores take
//! off it.
//!
//! Not published there, and chosen here. *The bound*: Kingman's approximation of the mean wait, ρ /
//! (1 - ρ) · v · τ for load ρ, packet time τ and v the mean of the two squared coefficients of
//! variation, must leave τ within the objective; with the controller's constants (0.0966 and
//! 0.1202, taken as squared) that allows loads beyond 99 % for any objective of a dozen τ. *The programme*: solved by a greedy in three steps, for the fewest cores
//! first and few moves second, without a promise to be optimal:
//!
//! 1. flows that were taken off their shard's owner return where its load stays below the bound by
//!    a margin;
//! 2. a core beyond the bound gives away shards, the smallest that suffices or else the largest, to
//!    the first core with room, else a new one; when no shard finds a place, single flows, heaviest
//!    first;
//! 3. if no core was beyond it, the least loaded core is emptied when all it has fits elsewhere
//!    below the bound by the margin.
//!
//! *The delay*: decisions take 10 ms to hold. Locks on its data path are not part of the policy.

use super::by_core::ByCore;
use tailwater_net::Nanos;
use tailwater_policy::flows::{ControlLoop, FlowMapper, FlowPlan, FlowView, Migration, NewFlow};
use tailwater_policy::server::{CoreNumber, Move};

/// A flow that is on its shard's owner.
const HOME: CoreNumber = CoreNumber::MAX;

/// How Dyssect scales.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DyssectConfig {
    /// The highest load of a core, as a share of its time.
    pub bound: f64,
    /// Processing time of a packet.
    pub packet_time: Nanos,
    /// Share of the bound up to which a core takes what could stay where it is.
    pub margin: f64,
    /// Rhythm and delays.
    pub control_loop: ControlLoop,
}

impl DyssectConfig {
    /// For a median latency of `median`, with packets of `packet_time` each.
    ///
    /// # Panics
    /// If the latency is not longer than a packet takes, or a packet takes none.
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
    /// Where each flow is that is not [`HOME`].
    away: Vec<CoreNumber>,
    /// Load of each shard's flows that are on its owner, and of each core.
    shards: Vec<f64>,
    cores: Vec<f64>,
    active: Vec<bool>,
    used: Vec<bool>,
    by_core: ByCore,
    order: Vec<u32>,
    trial: Vec<(u32, CoreNumber)>,
}

impl Dyssect {
    /// With nothing known.
    ///
    /// # Panics
    /// If the bound or the margin is not positive and at most 1.
    pub fn new(config: DyssectConfig) -> Dyssect {
        let share = |value: f64| 0.0 < value && value <= 1.0;
        assert!(share(config.bound) && share(config.margin), "shares of a core");
        Dyssect {
            config,
            owner: Vec::new(),
            away: Vec::new(),
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

    /// Takes over what the view says.
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
        self.away.clear();
        for (number, flow) in view.flows.iter().enumerate() {
            let load = self.load(view, number as u32);
            self.cores[usize::from(flow.core)] += load;
            let home = self.owner[usize::from(flow.shard)] == flow.core;
            self.away.push(if home { HOME } else { flow.core });
            if home {
                self.shards[usize::from(flow.shard)] += load;
            }
        }
    }

    /// The first active core except `not` that has room for `load` within `bound`.
    fn first_fit(&self, load: f64, not: usize, bound: f64) -> Option<usize> {
        let fits = |&core: &usize| core != not && self.active[core] && self.cores[core] + load <= bound;
        (0..self.cores.len()).find(fits)
    }

    /// The first core that may be taken, if it can do `load`.
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

    /// Step 1.
    fn return_flows(&mut self, view: &FlowView<'_>) {
        let bound = self.config.bound * self.config.margin;
        for flow in 0..view.flows.len() {
            let (away, shard) = (self.away[flow], usize::from(view.flows[flow].shard));
            let (home, load) = (usize::from(self.owner[shard]), self.load(view, flow as u32));
            if away != HOME && self.cores[home] + load <= bound {
                self.away[flow] = HOME;
                self.cores[usize::from(away)] -= load;
                self.cores[home] += load;
                self.shards[shard] += load;
            }
        }
    }

    /// A shard of `core` that may leave it, and where to.
    fn leaving_shard(&mut self, core: usize) -> Option<(usize, usize)> {
        let excess = self.cores[core] - self.config.bound;
        let mine = |&shard: &u32| {
            let shard = shard as usize;
            usize::from(self.owner[shard]) == core && self.shards[shard] > 0.0
        };
        self.order.clear();
        self.order.extend((0..self.owner.len() as u32).filter(mine));
        let load = |shard: u32| self.shards[shard as usize];
        // Those that suffice, the smallest first; then the others, the largest first.
        self.order.sort_unstable_by(|&a, &b| {
            let enough = |shard: u32| load(shard) >= excess;
            let by_load = if enough(a) {
                load(a).total_cmp(&load(b))
            } else {
                load(b).total_cmp(&load(a))
            };
            enough(b).cmp(&enough(a)).then(by_load).then(a.cmp(&b))
        });
        // A core's only load gains nothing by leaving it.
        let shared = |shard: u32| self.cores[core] > load(shard) * (1.0 + 1e-9);
        self.order.iter().filter(|&&shard| shared(shard)).find_map(|&shard| {
            let fit = self.first_fit(load(shard), core, self.config.bound);
            let to = fit.or_else(|| self.new_core(load(shard)))?;
            Some((shard as usize, to))
        })
    }

    /// Step 2 for one core.
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
        // Nothing came to a core beyond its bound since they were sorted.
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

    /// The core that `flow` is on by now.
    fn place_of(&self, view: &FlowView<'_>, flow: u32) -> usize {
        let shard = usize::from(view.flows[flow as usize].shard);
        usize::from(match self.away[flow as usize] {
            HOME => self.owner[shard],
            away => away,
        })
    }

    fn migrate(&mut self, view: &FlowView<'_>, flow: u32, to: usize) {
        let load = self.load(view, flow);
        let shard = usize::from(view.flows[flow as usize].shard);
        let home = self.owner[shard];
        let from = match self.away[flow as usize] {
            HOME => {
                self.shards[shard] -= load;
                home
            }
            away => away,
        };
        self.cores[usize::from(from)] -= load;
        self.cores[to] += load;
        self.active[to] = true;
        self.away[flow as usize] = to as CoreNumber;
        if usize::from(home) == to {
            self.away[flow as usize] = HOME;
            self.shards[shard] += load;
        }
    }

    /// The load of a shard, or, counted on after the shards, of a flow.
    fn item_load(&self, view: &FlowView<'_>, item: u32) -> f64 {
        match item.checked_sub(self.owner.len() as u32) {
            Some(flow) => self.load(view, flow),
            None => self.shards[item as usize],
        }
    }

    /// Step 3.
    fn consolidate(&mut self, view: &FlowView<'_>) {
        let less = |&a: &usize, &b: &usize| self.cores[a].total_cmp(&self.cores[b]).then(b.cmp(&a));
        let Some(core) = (0..self.cores.len()).filter(|&core| self.active[core]).min_by(less) else {
            return;
        };
        let bound = self.config.bound * self.config.margin;
        let shards = self.owner.len() as u32;
        // Shards, then flows that are there without theirs, the heaviest first.
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend((0..shards).filter(|&shard| usize::from(self.owner[shard as usize]) == core));
        let guests = (0..view.flows.len() as u32).filter(|&f| usize::from(self.away[f as usize]) == core);
        order.extend(guests.map(|flow| shards + flow));
        let load = |item: u32| self.item_load(view, item);
        order.sort_unstable_by(|&a, &b| load(b).total_cmp(&load(a)).then(a.cmp(&b)));
        let loads: f64 = order.iter().map(|&item| load(item)).sum();
        // What cannot fit by its sum need not be tried.
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
        by_core.sort(self.cores.len(), places);
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
        // What each core has in the end.
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
        for (number, (flow, &away)) in view.flows.iter().zip(&self.away).enumerate() {
            let shard = usize::from(flow.shard);
            let (old, new) = (view.shards[shard], self.owner[shard]);
            let along = if flow.core == old { new } else { flow.core };
            let to = if away == HOME { new } else { away };
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
