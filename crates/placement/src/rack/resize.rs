//! Capacity of a chain: more of it at once, less of it after a while.

use super::actions::{CreateReason, DrainReason, ResizeReason};
use super::round::{Group, Round, Slot};
use super::scaling::ChainCapacity;
use super::view::RackThroughput;
use crate::admit::{Nearest, Reason};
use std::collections::{BTreeMap, BTreeSet};
use tailwater_net::Nanos;

/// Parts of a missing rate that are tried, one after the other.
const PARTS: [f64; 6] = [1.0, 0.9, 0.75, 0.5, 0.25, 0.125];
/// Smallest part of a chain's rate for which an instance is created or enlarged, if it misses more.
const PIECE: f64 = 1.0 / 16.0;

/// Servers that may refuse a part before the next smaller one is tried.
const FEW: usize = 4;

/// State of a chain between rounds.
#[derive(Clone, Debug, Default)]
pub(super) struct ChainMemory {
    /// Since when less has sufficed, and the most that was wanted in this time.
    low: Option<(Nanos, f64)>,
    /// Instances were lost, and not all are placed anew.
    pub recovering: bool,
    /// Servers on which an instance failed, and when.
    pub failed: BTreeMap<String, Nanos>,
    /// Explanation of the last refusal: requested rate, number of the round.
    pub explained: Option<(f64, u64, Reason, Vec<Nearest>)>,
}

/// Part of a chain's capacity that no server takes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shortage {
    /// Packets per second of the refused instance. 0 if the chain has as many instances as it may have.
    pub rate: f64,
    /// Packets per second that the chain should be promised.
    pub wanted: f64,
    pub exclusive: bool,
    /// Servers on which it already is, and must not be once more.
    pub not_on: BTreeSet<usize>,
}

/// Wanted capacity of a chain.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    /// Packets per second that it is promised at least.
    rate: f64,
    /// The same with room for growth, which a change aims at.
    goal: f64,
    /// Least number of instances.
    least: usize,
    /// Most packets per second of an instance, 0 if unknown.
    whole: f64,
}

impl Wanted {
    /// Limits the rate of an instance, which has at least 1 with a promise.
    fn at_most_whole(&self, rate: f64) -> f64 {
        match self.whole > 0.0 {
            true => rate.min(self.whole.floor()).max(1.0),
            false => rate,
        }
    }

    /// Number of instances for a rate.
    fn instances(&self, rate: f64, most: usize) -> usize {
        let needed = match self.whole > 0.0 {
            true => (rate / self.whole - 1e-9).ceil() as usize,
            false => 1,
        };
        needed.max(self.least).min(most)
    }
}

impl Round<'_, '_> {
    /// Brings a chain to its capacity, as far as that is possible.
    pub fn scale(
        &mut self,
        group: &mut Group<'_>,
        capacity: &ChainCapacity,
        memory: &mut ChainMemory,
    ) -> Option<Shortage> {
        let least = group.least().max(usize::from(capacity.instances)).min(group.most());
        if capacity.exclusive {
            return self.scale_exclusive(group, capacity, least, memory);
        }
        let promise = group.chain.promise.as_ref();
        let slack = match promise.map(|promise| promise.throughput) {
            Some(RackThroughput::OnDemand) => self.options.band,
            _ => 0.0,
        };
        // A promise is a whole number, and at least 1.
        let whole = |rate: f64| if promise.is_some() { rate.ceil().max(1.0) } else { 0.0 };
        let wanted = Wanted {
            rate: whole(capacity.rate),
            goal: whole(capacity.rate * (1.0 + slack)),
            least,
            whole: self.fleet.most_rate(group.chain, None),
        };
        let is_short = group.rate() < wanted.rate || self.lacks_instances(group, least);
        if is_short {
            memory.low = None;
            return self.grow(group, wanted, memory.recovering);
        }
        memory.recovering = false;
        self.shrink(group, wanted, memory);
        None
    }

    fn lacks_instances(&self, group: &Group<'_>, least: usize) -> bool {
        let redundancy = usize::from(group.chain.redundancy).min(group.most());
        group.slots.len() < least || group.servers(None).len() < redundancy && group.slots.len() < group.most()
    }

    fn grow(&mut self, group: &mut Group<'_>, wanted: Wanted, recovering: bool) -> Option<Shortage> {
        let instances = wanted.instances(wanted.goal, group.most());
        while self.lacks_instances(group, wanted.least) {
            let even = if wanted.least > 1 { instances.max(1) as f64 } else { 1.0 };
            let rate = wanted.at_most_whole((wanted.goal / even).ceil());
            let reason = match group.slots.len() < group.least() {
                _ if recovering => CreateReason::Lost,
                true => CreateReason::Missing,
                false if group.slots.len() < wanted.least => CreateReason::Load,
                // Redundancy.
                false => CreateReason::Missing,
            };
            if let Err(shortage) = self.add(group, rate, wanted, reason) {
                return Some(shortage);
            }
        }
        self.grow_in_place(group, wanted);
        let reason = if recovering {
            CreateReason::Lost
        } else {
            CreateReason::Load
        };
        loop {
            let missing = wanted.goal - group.rate();
            // Part of the room for growth can be missing.
            if missing < 1.0 || group.rate() >= wanted.rate && missing < wanted.goal * PIECE {
                return None;
            }
            let is_met = group.rate() >= wanted.rate;
            if group.slots.len() >= group.most() {
                // One that found room for a part is not to stay where it cannot grow.
                if !is_met && self.move_to_grow(group, missing, wanted) {
                    continue;
                }
                return (!is_met).then(|| Shortage {
                    rate: 0.0,
                    wanted: wanted.rate,
                    exclusive: false,
                    not_on: BTreeSet::new(),
                });
            }
            // As few instances as possible: what the last one leaves of its core is more useful than a bit of each.
            let rate = wanted.at_most_whole(missing.ceil());
            if let Err(shortage) = self.add(group, rate, wanted, reason) {
                return (!is_met).then_some(shortage);
            }
        }
    }

    /// Creates an instance with as much of a rate as a server takes.
    fn add(&mut self, group: &mut Group<'_>, rate: f64, wanted: Wanted, reason: CreateReason) -> Result<(), Shortage> {
        let taken = group.servers(None);
        let redundancy = usize::from(group.chain.redundancy);
        let not_on = if taken.len() < redundancy {
            taken
        } else {
            BTreeSet::new()
        };
        let least = (wanted.goal * PIECE).min(rate);
        let mut parts: Vec<f64> = PARTS
            .iter()
            .map(|part| (rate * part).ceil())
            .filter(|part| *part >= least)
            .collect();
        // Without room for growth is better than too little.
        let bare = (wanted.rate - group.rate()).max(wanted.rate * PIECE).ceil();
        if group.rate() < wanted.rate && parts.last().is_some_and(|last| bare < *last) {
            parts.push(bare);
        }
        for (at, part) in parts.iter().enumerate() {
            // Only the smallest part is worth asking every server.
            let most = if at + 1 < parts.len() { FEW } else { usize::MAX };
            let why = (reason, None);
            if self.create(group, (*part, false), why, (most, &|server| !not_on.contains(&server))) {
                return Ok(());
            }
        }
        Err(Shortage {
            rate,
            wanted: wanted.rate,
            exclusive: false,
            not_on,
        })
    }

    /// Enlarges instances, those with the smallest promise first.
    fn grow_in_place(&mut self, group: &mut Group<'_>, wanted: Wanted) {
        let mut slots = std::mem::take(&mut group.slots);
        slots.sort_by(|one, two| one.rate.total_cmp(&two.rate).then_with(|| one.name.cmp(&two.name)));
        let mut missing = wanted.goal - slots.iter().map(|slot| slot.rate).sum::<f64>();
        for slot in slots.iter_mut().filter(|slot| slot.settled) {
            let room = self.most_on(group, slot.server) - slot.rate;
            for part in PARTS {
                let more = (missing.min(room) * part).floor();
                if more < 1.0 || more < missing.min(wanted.goal * PIECE) {
                    break;
                }
                let rate = slot.rate + more;
                if self.resize(slot, rate, ResizeReason::Load) {
                    missing -= more;
                    break;
                }
            }
        }
        group.slots = slots;
    }

    /// Replaces an instance of a chain that may have no more by a larger one on another server, the smallest first.
    /// Returns `false` if none takes enough more.
    fn move_to_grow(&mut self, group: &mut Group<'_>, missing: f64, wanted: Wanted) -> bool {
        let is_movable = |slot: &&Slot| slot.settled && slot.ready && !slot.exclusive;
        let mut slots: Vec<Slot> = group.slots.iter().filter(is_movable).cloned().collect();
        slots.sort_by(|one, two| one.rate.total_cmp(&two.rate).then_with(|| one.name.cmp(&two.name)));
        let least = missing.min(wanted.goal * PIECE);
        slots.iter().any(|slot| {
            let more = wanted.at_most_whole(slot.rate + missing) - slot.rate;
            let parts = PARTS.map(|part| (more * part).ceil());
            let mut parts = parts.into_iter().filter(|part| *part >= least);
            parts.any(|part| self.replace(group, slot, slot.rate + part, CreateReason::Load, FEW))
        })
    }

    /// Most packets per second of an instance on a server.
    fn most_on(&self, group: &Group<'_>, server: usize) -> f64 {
        let machine = &self.fleet.servers[server].view.machine;
        self.fleet.most_rate(group.chain, Some(machine))
    }

    fn shrink(&mut self, group: &mut Group<'_>, wanted: Wanted, memory: &mut ChainMemory) {
        let (rate, band) = (group.rate(), self.options.band);
        let has_promise = group.chain.promise.is_some();
        let surplus = |goal: f64| has_promise && goal < rate * (1.0 - band);
        // Too many without a surplus of rate: the least number was lowered, or there was no promise before.
        let needed = if has_promise {
            wanted.instances(wanted.goal, group.most())
        } else {
            wanted.least
        };
        let too_many = group.slots.len() > needed.min(group.most());
        if !surplus(wanted.goal) && !too_many {
            memory.low = None;
            return;
        }
        let (since, goal) = memory.low.unwrap_or((self.now, wanted.goal));
        let goal = goal.max(wanted.goal);
        memory.low = Some((since, goal));
        let is_settled = group.slots.iter().all(|slot| slot.settled && slot.ready);
        if self.now.saturating_sub(since) < self.options.hold || !is_settled {
            return;
        }
        self.drop_instances(group, Wanted { goal, ..wanted });
        // The smallest first, so that the others fill their cores.
        let mut left = group.rate() - goal;
        for slot in group.slots.iter_mut().filter(|_| has_promise) {
            let rate = (slot.rate - left).max(goal * PIECE).ceil().max(1.0);
            let less = slot.rate - rate;
            if less >= 1.0 && self.resize(slot, rate, ResizeReason::Idle) {
                left -= less;
            }
        }
        memory.low = None;
    }

    /// Drains instances that are not needed, the smallest first. Where the others have room, they take its part over.
    fn drop_instances(&mut self, group: &mut Group<'_>, wanted: Wanted) {
        let least = wanted.instances(wanted.goal, group.most());
        group
            .slots
            .sort_by(|one, two| one.rate.total_cmp(&two.rate).then_with(|| one.name.cmp(&two.name)));
        while group.slots.len() > least {
            let Some(at) = group.slots.iter().position(|slot| group.can_lose(&slot.name)) else {
                return;
            };
            let dropped = group.slots.remove(at);
            if group.rate() < wanted.goal && !self.take_over(group, wanted) {
                group.slots.insert(at, dropped);
                return;
            }
            self.drain(&dropped.name, DrainReason::Idle);
        }
    }

    /// Enlarges the remaining instances to the goal. Otherwise, nothing changes.
    fn take_over(&mut self, group: &mut Group<'_>, wanted: Wanted) -> bool {
        let before: Vec<_> = group
            .servers(None)
            .into_iter()
            .map(|at| (at, self.fleet.occupants(at)))
            .collect();
        let (slots, actions) = (group.slots.clone(), self.actions.len());
        for at in (0..group.slots.len()).rev() {
            let missing = (wanted.goal - group.rate()).ceil();
            if missing < 1.0 {
                break;
            }
            let room = (self.most_on(group, group.slots[at].server) - group.slots[at].rate).floor();
            let more = missing.min(room);
            if more >= 1.0 {
                let rate = group.slots[at].rate + more;
                self.resize(&mut group.slots[at], rate, ResizeReason::Load);
            }
        }
        if group.rate() >= wanted.goal {
            return true;
        }
        before
            .into_iter()
            .for_each(|(at, occupants)| self.fleet.restore(at, occupants));
        self.actions.truncate(actions);
        group.slots = slots;
        false
    }

    fn scale_exclusive(
        &mut self,
        group: &mut Group<'_>,
        capacity: &ChainCapacity,
        least: usize,
        memory: &mut ChainMemory,
    ) -> Option<Shortage> {
        let rate = self.fleet.whole_rate(group.chain).floor();
        while self.lacks_instances(group, least) {
            let taken = group.servers(None);
            let is_apart = taken.len() < usize::from(group.chain.redundancy);
            let not_on = if is_apart { taken } else { BTreeSet::new() };
            let reason = match (memory.recovering, group.slots.len() < group.least()) {
                (true, _) => CreateReason::Lost,
                (false, true) => CreateReason::Missing,
                (false, false) => CreateReason::Load,
            };
            let anywhere = (
                usize::MAX,
                &(|server| !not_on.contains(&server)) as &dyn Fn(usize) -> bool,
            );
            if !self.create(group, (rate, true), (reason, None), anywhere) {
                return Some(Shortage {
                    rate,
                    wanted: rate * least as f64,
                    exclusive: true,
                    not_on,
                });
            }
        }
        memory.recovering = false;
        for name in &capacity.idle {
            let is_idle = |slot: &Slot| slot.name == *name && slot.settled && slot.ready;
            let Some(at) = group.slots.iter().position(is_idle) else {
                continue;
            };
            if group.slots.len() > least && group.can_lose(name) {
                group.slots.remove(at);
                self.drain(name, DrainReason::Idle);
            }
        }
        None
    }
}
