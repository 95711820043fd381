//! Reasons why an SLO may not share a node with others, for people.

use super::predictor::{Band, Binding, CoRunPredictor};
use super::rates::{Occupancy, meets};
use crate::plan::Plan;
use crate::schedule::Request;
use crate::slo::{Slo, Target};
use std::collections::HashSet;
use std::sync::Arc;
use tailwater_net::Nanos;

/// Reason of a conflict.
#[derive(Clone, Debug, PartialEq)]
pub enum Cause {
    /// The lower end of the predicted rate is below the objective.
    Rate {
        /// Packets per second that the SLO requires of these instances; 0 for an on-demand SLO, which requires any
        /// rate.
        objective: f64,
        /// Predicted packets per second within the latency objective.
        predicted: Band,
        /// Latency objective.
        latency: Nanos,
        /// Resource that causes most of it.
        binding: Option<Binding>,
    },
    /// There is no prediction.
    Unpredicted(Arc<str>),
}

/// SLO that would not be met if another one had an instance on a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Conflict {
    /// SLO that the instance would be of.
    pub slo: String,
    /// Index of the server.
    pub server: usize,
    /// NUMA node.
    pub node: u16,
    /// SLO that would not be met: the same, or one that is there.
    pub unmet: String,
    /// SLOs that the unmet one would be beside, sorted.
    pub beside: Vec<String>,
    /// Reason.
    pub cause: Cause,
}

/// Returns conflicts on nodes that have room for an instance of an SLO, at most `most`, in the order of servers. Nodes
/// with the same SLOs count once. An SLO of the plan is tried with its first instance moved there; another one with one
/// more instance of its cheapest choice, which must keep its part of the SLO's rate.
pub fn conflicts(plan: &Plan, slo: &Slo, predictor: &dyn CoRunPredictor, most: usize) -> Vec<Conflict> {
    let placed = plan.get(&slo.name).filter(|placed| placed.slo == *slo);
    let slo = placed.map_or(slo, |placed| &placed.slo);
    // Instances of another kind of servers have other sizes.
    let slots: Vec<(usize, u16, u16, f64)> = match placed {
        Some(placed) => {
            let first = placed.instances.first().map(|first| {
                let kind = plan.cluster().servers()[first.server].kind;
                let objective = match slo.target {
                    Target::Reserved { throughput } => throughput,
                    Target::OnDemand { .. } => 0.0,
                };
                (kind, plan.cores(slo, first.server).unwrap_or(1), first.ways, objective)
            });
            first.into_iter().collect()
        }
        None => {
            let request = Request::new(slo.clone(), plan.cluster()).ok();
            let choice = request.as_ref().and_then(|request| request.choices.list.first());
            let slots = choice.into_iter().flatten().map(|slot| {
                let part = match slo.target {
                    Target::Reserved { throughput } => throughput / choice.map_or(1, Vec::len) as f64,
                    Target::OnDemand { .. } => 0.0,
                };
                (slot.kind, slot.cores, slot.ways, part)
            });
            let mut slots: Vec<_> = slots.collect();
            slots.dedup_by_key(|slot| slot.0);
            slots
        }
    };
    let mut occupancy = Occupancy::new(plan, predictor);
    let tenant = occupancy.tenant(slo);
    let held: Vec<(usize, u16)> = occupancy.get(tenant).instances.clone();
    let mut seen: HashSet<Vec<usize>> = HashSet::new();
    let mut found = Vec::new();
    for (number, room) in plan.rooms().iter().enumerate() {
        let Some(&(_, cores, ways, objective)) = slots.iter().find(|slot| slot.0 == usize::from(room.kind)) else {
            continue;
        };
        let there = occupancy.in_room(number);
        let is_own = there.contains(&tenant);
        if there.is_empty() || is_own || !room.holds(cores, ways) || !seen.insert(there.clone()) {
            continue;
        }
        let moved = held.first().copied();
        if let Some((from, ways)) = moved {
            occupancy.remove(tenant, from, ways);
        }
        occupancy.add(tenant, number, ways);
        let cause = |of: usize| {
            let target = occupancy.get(of).slo.target;
            let (rate, objective) = match (of == tenant, placed, target) {
                (true, None, _) => (occupancy.rate(of, number, ways), objective),
                (_, _, Target::Reserved { throughput }) => (occupancy.total(of), throughput),
                (_, _, Target::OnDemand { .. }) => (occupancy.total(of), 0.0),
            };
            match rate {
                Err(unpredicted) => Some(Cause::Unpredicted(unpredicted.why)),
                Ok(rate) if objective > 0.0 && meets(&Target::Reserved { throughput: objective }, rate.low) => None,
                Ok(rate) if objective <= 0.0 && rate.low > 0.0 => None,
                Ok(predicted) => Some(Cause::Rate {
                    objective,
                    predicted,
                    latency: occupancy.get(of).slo.latency,
                    binding: occupancy
                        .members(of, number)
                        .ok()
                        .and_then(|(own, others)| predictor.binding(own?, &others)),
                }),
            }
        };
        let name = |of: usize| occupancy.get(of).slo.name.clone();
        let first = there.iter().chain([&tenant]).find_map(|&of| Some((of, cause(of)?)));
        if let Some((of, cause)) = first {
            let mut beside: Vec<String> = there
                .iter()
                .chain([&tenant])
                .filter(|other| **other != of)
                .map(|of| name(*of))
                .collect();
            beside.sort_unstable();
            found.push(Conflict {
                slo: slo.name.clone(),
                server: room.server as usize,
                node: room.node,
                unmet: name(of),
                beside,
                cause,
            });
        }
        occupancy.remove(tenant, number, ways);
        if let Some((from, ways)) = moved {
            occupancy.add(tenant, from, ways);
        }
        if found.len() >= most {
            break;
        }
    }
    found
}
