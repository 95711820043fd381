//! Tailwater's admission: joint decision about number of instances, cache and servers.
//!
//! On a well-used server, cores, cache and its classes run out together. The value of a server's free resources is that
//! of the scarcest one: ways without cores, or cores without ways, are worth nothing. Of all choices to meet an SLO,
//! the algorithm takes the one that consumes the least value. These are two small instances where ways are scarce, and
//! one with much cache where ways would be left over or classes are scarce. This is packing of items with several
//! possible shapes. ResQ's greedy fixes the shape first.

use crate::bound::{Shares, Weights};
use crate::cluster::ServerKind;
use crate::demand::Slot;
use crate::plan::{Instance, Plan, Room};
use crate::schedule::{Request, Scheduler, Trial};

/// Weight of a server's remaining value, relative to the prices of cores and cache.
const WORTH: f64 = 0.3;
/// Weight of free resources on a server. Among equal servers the fullest is filled. A server without instances is the
/// emptiest.
const LEFT: f64 = 1e-3;

/// Tailwater's placement algorithm.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tailwater;

impl Scheduler for Tailwater {
    fn name(&self) -> &'static str {
        "tailwater"
    }

    fn consolidates(&self) -> bool {
        true
    }

    fn place(&self, plan: &Plan, request: &Request) -> Option<Vec<Instance>> {
        let mut trial = Trial::new(plan, &request.slo);
        let kinds = plan.cluster().kinds();
        let mut all = plan.cheapest().clone();
        all.add(&request.cheapest);
        let weights = all.weights();
        let mut best: Option<(f64, Vec<Instance>)> = None;
        for choice in &request.choices.list {
            trial.clear();
            let limit = best.as_ref().map_or(f64::INFINITY, |&(cost, _)| cost);
            if let Some(cost) = try_choice(&mut trial, choice, kinds, weights, limit) {
                best = Some((cost, trial.instances()));
            }
        }
        best.map(|(_, instances)| instances)
    }
}

/// Places the instances of a choice, largest first, where they cost the least. Returns the cost, or `None` if there is
/// no room or the cost reaches `limit`.
fn try_choice(
    trial: &mut Trial<'_>,
    choice: &[Slot],
    kinds: &[ServerKind],
    weights: Weights,
    limit: f64,
) -> Option<f64> {
    let mut cost = 0.0;
    for &slot in choice {
        let kind = &kinds[slot.kind];
        let found = trial
            .fitting(slot)
            .map(|(number, room)| (number, placing(room, slot, kind, weights)))
            .min_by(|a, b| a.1.total_cmp(&b.1));
        let (number, price) = found?;
        cost += price;
        if cost >= limit {
            return None;
        }
        trial.take(number, slot);
    }
    Some(cost)
}

/// Returns the cost of an instance in a room, in servers.
pub(crate) fn placing(room: &Room, slot: Slot, kind: &ServerKind, weights: Weights) -> f64 {
    let mut after = *room;
    after.take(slot.cores, slot.ways);
    let lost = worth(room, kind) - worth(&after, kind);
    let left = Shares::new(kind, after.cores, after.ways, after.classes);
    Shares::of(kind, slot).price(weights) + LEFT * left.price(weights) + WORTH * lost / f64::from(kind.nodes)
}

/// Returns the free share of a node's scarcest resource.
fn worth(room: &Room, kind: &ServerKind) -> f64 {
    let part = |left: u16, all: u16| f64::from(left) / f64::from(all);
    part(room.cores, kind.cores)
        .min(part(room.ways, kind.ways))
        .min(part(room.classes, kind.classes))
}
