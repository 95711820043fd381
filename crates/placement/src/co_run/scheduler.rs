//! Scheduler that admits by predicted contention.

use super::predictor::CoRunPredictor;
use super::rates::{Occupancy, meets};
use crate::bound::{Shares, Weights};
use crate::choices::choices;
use crate::demand::{Demand, Slot};
use crate::plan::{Instance, Plan};
use crate::schedule::{MAX_INSTANCES, Request, Scheduler, Trial};
use crate::slo::{ISOLATED, Target};
use crate::tailwater::{Tailwater, placing};
use std::collections::BTreeSet;

/// Shares of the throughput alone that instances are sized for, one after the other: a smaller share takes more or
/// larger instances, which may then stand beside more others.
const RETAINED: [f64; 9] = [ISOLATED, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2];
/// Maximum number of choices tried for each share, cheapest first.
const MOST_CHOICES: usize = 32;

/// Places instances where all SLOs of the node are met beside each other, by the lower ends of predicted rates: on as
/// few servers as possible, then by Tailwater's prices. An instance without a model has its node for itself.
#[derive(Clone, Copy)]
pub struct CoRunScheduler<'p> {
    predictor: &'p dyn CoRunPredictor,
}

impl<'p> CoRunScheduler<'p> {
    /// Creates a scheduler that uses a predictor.
    pub fn new(predictor: &'p dyn CoRunPredictor) -> Self {
        CoRunScheduler { predictor }
    }
}

impl Scheduler for CoRunScheduler<'_> {
    fn name(&self) -> &'static str {
        self.predictor.name()
    }

    fn place(&self, plan: &Plan, request: &Request) -> Option<Vec<Instance>> {
        let mut all = plan.cheapest().clone();
        all.add(&request.cheapest);
        let weights = all.weights();
        let most = match request.slo.target {
            Target::Reserved { .. } => MAX_INSTANCES,
            Target::OnDemand { .. } => 1,
        };
        let mut attempt = Attempt {
            plan,
            request,
            trial: Trial::new(plan, &request.slo),
            occupancy: Occupancy::new(plan, self.predictor),
            unmet: BTreeSet::new(),
            weights,
        };
        attempt.unmet = attempt.occupancy.unmet().collect();
        let tenant = attempt.occupancy.tenant(&request.slo);
        let mut best: Option<((usize, f64), Vec<Instance>)> = None;
        for retained in RETAINED {
            let scaled = scaled(&request.demand, retained / ISOLATED);
            let mut list = choices(&scaled, most).list;
            let kinds = plan.cluster().kinds();
            let price = |choice: &Vec<Slot>| {
                let slots = choice
                    .iter()
                    .map(|&slot| Shares::of(&kinds[slot.kind], slot).price(weights));
                slots.sum::<f64>()
            };
            list.sort_by(|a, b| price(a).total_cmp(&price(b)));
            for choice in list.iter().take(MOST_CHOICES) {
                if let Some((cost, instances)) = attempt.choice(tenant, choice, &scaled)
                    && best.as_ref().is_none_or(|(least, _)| cost < *least)
                {
                    best = Some((cost, instances));
                }
            }
            // An on-demand SLO has no rate to be sized for.
            if matches!(request.slo.target, Target::OnDemand { .. }) {
                break;
            }
        }
        best.map(|(_, instances)| instances)
    }

    fn is_met(&self, plan: &Plan, slo: &str) -> bool {
        let mut occupancy = Occupancy::new(plan, self.predictor);
        let Some(tenant) = occupancy.by_name(slo) else {
            return true;
        };
        let held = occupancy.get(tenant).instances.clone();
        let all = held.iter().flat_map(|(room, _)| occupancy.in_room(*room));
        let unmet: BTreeSet<usize> = all.filter(|of| !occupancy.is_met(*of)).collect();
        // Those that are not met without it either have lost instances, and are repaired later.
        for (room, ways) in held {
            occupancy.remove(tenant, room, ways);
        }
        !unmet.contains(&tenant) && unmet.into_iter().all(|of| !occupancy.is_met(of))
    }

    fn unmet(&self, plan: &Plan) -> Vec<String> {
        let occupancy = Occupancy::new(plan, self.predictor);
        let mut names: Vec<String> = occupancy.unmet().map(|of| occupancy.get(of).slo.name.clone()).collect();
        names.sort_unstable();
        names
    }

    fn without_contention(&self) -> Option<&dyn Scheduler> {
        Some(&Tailwater)
    }
}

/// Returns a demand whose instances achieve only a share of their rates.
fn scaled(demand: &Demand, share: f64) -> Demand {
    let mut scaled = demand.clone();
    let rates = scaled.offers.iter_mut().flat_map(|offer| &mut offer.rates);
    rates.for_each(|rate| *rate *= share);
    scaled
}

/// Search for the nodes of an SLO's instances.
struct Attempt<'a> {
    plan: &'a Plan,
    request: &'a Request,
    trial: Trial<'a>,
    occupancy: Occupancy<'a>,
    /// SLOs that are not met before: they have lost instances, and are repaired later.
    unmet: BTreeSet<usize>,
    weights: Weights,
}

impl Attempt<'_> {
    /// Places the instances of a choice. Returns the servers that it adds with its price, and the instances. All
    /// tentative instances are removed afterwards.
    fn choice(&mut self, tenant: usize, choice: &[Slot], scaled: &Demand) -> Option<((usize, f64), Vec<Instance>)> {
        // Each instance keeps its part of what the SLO requires.
        let rates = choice.iter().map(|slot| scaled.rate(slot.kind, slot.ways));
        let part = (scaled.need / rates.sum::<f64>()).min(1.0);
        let mut added: Vec<(usize, u16, f64)> = Vec::new();
        let mut price = 0.0;
        let found = choice.iter().all(|&slot| {
            match self.slot(tenant, slot, part * scaled.rate(slot.kind, slot.ways), &added) {
                Some((room, least, cost)) => {
                    added.push((room, slot.ways, least));
                    price += cost;
                    true
                }
                None => false,
            }
        });
        // Instances that an SLO already has, and that others slow down, count with what they keep.
        let target = self
            .plan
            .get(&self.request.slo.name)
            .map_or(&self.request.slo, |of| &of.slo);
        let total = self.occupancy.total(tenant);
        let is_met = found && total.is_ok_and(|rate| meets(&target.target, rate.low));
        let instances = self.trial.instances();
        for (room, ways, _) in added {
            self.occupancy.remove(tenant, room, ways);
        }
        self.trial.clear();
        if !is_met {
            return None;
        }
        let mut servers: Vec<usize> = instances.iter().map(|instance| instance.server).collect();
        servers.retain(|server| !self.plan.is_active(*server));
        servers.sort_unstable();
        servers.dedup();
        Some(((servers.len(), price), instances))
    }

    /// Adds an instance, which must keep the rate `part`, to the cheapest node on which every SLO is met. Returns the
    /// room's index in the plan, the rate that the instance must keep, and its price.
    fn slot(&mut self, tenant: usize, slot: Slot, part: f64, added: &[(usize, u16, f64)]) -> Option<(usize, f64, f64)> {
        let kind = &self.plan.cluster().kinds()[slot.kind];
        let least = match self.request.slo.target {
            Target::Reserved { .. } => part * (1.0 - 1e-9),
            Target::OnDemand { .. } => f64::MIN_POSITIVE,
        };
        let is_used = |server: usize| {
            let rooms = self.plan.rooms();
            self.plan.is_active(server) || added.iter().any(|(room, ..)| rooms[*room].server as usize == server)
        };
        let rooms = self.trial.fitting(slot).filter_map(|(number, room)| {
            let server = room.server as usize;
            let price = placing(room, slot, kind, self.weights);
            Some((!is_used(server), price, number, self.plan.room(server, room.node)?))
        });
        let mut rooms: Vec<(bool, f64, usize, usize)> = rooms.collect();
        rooms.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut tried_new = false;
        for (is_new, price, number, room) in rooms {
            // Servers without instances are alike, of the same kind.
            if is_new && std::mem::replace(&mut tried_new, true) {
                break;
            }
            self.occupancy.add(tenant, room, slot.ways);
            if self.is_met(tenant, room, slot.ways, least, added) {
                self.trial.take(number, slot);
                return Some((room, least, price));
            }
            self.occupancy.remove(tenant, room, slot.ways);
        }
        None
    }

    /// Returns `true` if a new instance, and all others of its node, keep their rates.
    fn is_met(&self, tenant: usize, room: usize, ways: u16, least: f64, added: &[(usize, u16, f64)]) -> bool {
        let keeps = |ways, least: f64| {
            let rate = self.occupancy.rate(tenant, room, ways);
            rate.is_ok_and(|rate| rate.low >= least)
        };
        let mut own = added.iter().filter(|(at, ..)| *at == room);
        let mut others = self.occupancy.in_room(room).into_iter().filter(|of| *of != tenant);
        keeps(ways, least)
            && own.all(|&(_, ways, least)| keeps(ways, least))
            && others.all(|other| self.unmet.contains(&other) || self.occupancy.is_met(other))
    }
}
