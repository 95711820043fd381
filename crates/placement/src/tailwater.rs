//! Tailwater's admission: how many instances, how much cache and which servers, decided together.
//!
//! Cores and cache run out together on a server that is used well. What a server has left is worth what it can
//! still be used for, that is, the scarcer of the two: ways without cores, or cores without ways, are worth
//! nothing. Of all ways to keep an SLO the one is taken that costs the least of that worth: two small instances
//! where ways are scarce, one with much cache where they would be left over. It is packing of two-dimensional
//! items that may be chosen in several shapes; ResQ's greedy settles the shape first.

use crate::bound::price;
use crate::cluster::ServerKind;
use crate::demand::Slot;
use crate::plan::{Instance, Plan, Room};
use crate::schedule::{Request, Scheduler, Trial};

/// What the worth of what is left on a server counts, beside the prices of cores and cache.
const WORTH: f64 = 0.3;
/// What it costs to leave room in a server: of equals, the fullest is filled. A server without instances is
/// the emptiest.
const LEFT: f64 = 1e-3;

/// Tailwater's algorithm.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tailwater;

impl Scheduler for Tailwater {
    fn name(&self) -> &'static str {
        "tailwater"
    }

    fn place(&self, plan: &Plan, request: &Request) -> Option<Vec<Instance>> {
        let mut trial = Trial::new(plan, &request.slo);
        let kinds = plan.cluster().kinds();
        let mut all = plan.cheapest().clone();
        all.add(&request.cheapest);
        let part = all.part_of_cores();
        let mut best: Option<(f64, Vec<Instance>)> = None;
        for choice in &request.choices.list {
            trial.clear();
            let limit = best.as_ref().map_or(f64::INFINITY, |&(cost, _)| cost);
            if let Some(cost) = try_choice(&mut trial, choice, kinds, part, limit) {
                best = Some((cost, trial.instances()));
            }
        }
        best.map(|(_, instances)| instances)
    }
}

/// Puts the instances of a choice, the largest first, where they cost the least; `None` if there is no room, or
/// they cost `limit` or more.
fn try_choice(trial: &mut Trial<'_>, choice: &[Slot], kinds: &[ServerKind], part: f64, limit: f64) -> Option<f64> {
    let mut cost = 0.0;
    for &slot in choice {
        let kind = &kinds[slot.kind];
        let found = trial
            .fitting(slot)
            .map(|(number, room)| (number, placing(room, slot, kind, part)))
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

/// What an instance in a room costs, in servers, if this part of a server's price is that of its cores.
fn placing(room: &Room, slot: Slot, kind: &ServerKind, part: f64) -> f64 {
    let mut after = *room;
    after.take(slot.cores, slot.ways);
    let lost = worth(room, kind) - worth(&after, kind);
    let left = Slot {
        cores: after.cores,
        ways: after.ways,
        ..slot
    };
    price(kind, slot, part) + LEFT * price(kind, left, part) + WORTH * lost / f64::from(kind.nodes)
}

/// What is left of a node as a part of the whole: the scarcest of what instances take.
fn worth(room: &Room, kind: &ServerKind) -> f64 {
    let part = |left: u16, all: u16| f64::from(left) / f64::from(all);
    part(room.cores, kind.cores)
        .min(part(room.ways, kind.ways))
        .min(part(room.classes, kind.classes))
}
