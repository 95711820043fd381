//! Whales: flows that would be late by themselves, and the division of their chain over several cores.

use super::TailwaterMapper;
use super::cost::Costs;
use super::division::Divisions;
use super::long_queue::FULL;
use crate::capacity::CapacityProfile;
use crate::core::{AuxiliaryCore, Destination, Flowlet, Load, Notice, Plan, Review, Split, SplitFlow, Unit, View};

/// Share of a core's time, in percent, that a flow may take on the busiest of its cores after a join.
const JOINED_FILL: u64 = 60;
/// Number of intervals in a row, each of a release timeout, after which parts are joined: it takes time to divide them
/// again.
const CALM: u32 = 8;

/// Returns `true` if Tailwater's core mapper divides flows with this profile: if a cut makes the slowest part clearly
/// shorter than the whole chain.
pub fn divides(profile: &CapacityProfile) -> bool {
    let packet = Costs::new(profile.costs, Unit::Bucket).packet(false);
    Divisions::new(&profile.splits, profile.epoch.0, packet).used(1) != 0
}

impl TailwaterMapper {
    /// Returns `true` if a whale is faster with its chain split.
    pub(super) fn can_split(&self) -> bool {
        // In boost mode this core would not process the first part.
        self.splits_help && !self.boosting
    }

    /// Returns `true` if a flow stays here with its parked packets, to be split at the next decision.
    #[inline]
    pub(super) fn is_to_be_split(&self, flowlet: Flowlet) -> bool {
        flowlet.parked && self.can_split() && self.costs.flowlet(flowlet) > self.activation_limit()
    }

    /// Returns the time of a flow with `packets` packets.
    pub(super) fn cost(&self, packets: u32) -> u64 {
        self.costs.of(Load { flows: 1, packets })
    }

    /// Gives each flow that would be late by itself an idle auxiliary core, or splits it. Returns these auxiliary
    /// cores, as a bit map, and the time of the largest movable flow.
    pub(super) fn move_whales(&mut self, view: &View<'_>, plan: &mut Plan, left: &mut u64) -> (u64, u64) {
        let mut used = 0;
        let movable = view.queued.iter().filter(|flow| !flow.bound);
        let largest = self.cost(movable.map(|flow| flow.packets).max().unwrap_or(0));
        if largest <= self.activation_limit() {
            return (used, largest);
        }
        for (flow, queued) in view.queued.iter().enumerate() {
            let cost = self.cost(queued.packets);
            if queued.bound || cost <= self.activation_limit() {
                continue;
            }
            let waits = &self.waits;
            let Some(i) = idle(view.auxiliaries, |i| waits[i] < FULL) else {
                plan.notice = Some(Notice::WhaleBeyondSplit {
                    packets: queued.packets,
                });
                continue;
            };
            let free = (0..view.auxiliaries.len()).filter(|i| is_idle(&view.auxiliaries[*i]) && self.waits[*i] < FULL);
            let free = free.count();
            self.waits[i] = FULL;
            self.use_auxiliary(i, &view.auxiliaries[i], view.now);
            used |= 1 << i;
            if let Some((cut, suffices)) = self.first_cut(queued.packets, free) {
                self.whales.split_on |= 1 << i;
                plan.splits.push(Split {
                    flow,
                    last_functions: self.divisions.last_functions(cut),
                    auxiliary: i,
                });
                if !suffices {
                    plan.notice = Some(Notice::WhaleBeyondSplit {
                        packets: queued.packets,
                    });
                }
                continue;
            }
            plan.destinations[flow] = Destination::auxiliary(i);
            *left = left.saturating_sub(cost);
            if cost > self.budget {
                plan.notice = Some(Notice::WhaleBeyondSplit {
                    packets: queued.packets,
                });
            }
        }
        (used, largest)
    }

    /// Returns the cut with which to begin for a whale that has `packets` packets, with `free` auxiliary cores, and
    /// `true` if that many cores can process as many in an epoch.
    fn first_cut(&self, packets: u32, free: usize) -> Option<(usize, bool)> {
        if !self.can_split() {
            return None;
        }
        let need = self.budget / 2 * 1000 / u64::from(packets.max(1));
        let cuts = self.divisions.best(0, free, need);
        let cut = self.divisions.first(cuts)?;
        Some((cut, self.divisions.slowest(cuts) <= need))
    }

    /// Returns the notice of the last reviews.
    pub(super) fn notice_of_whales(&mut self) -> Option<Notice> {
        let packets = self.whales.beyond.take()?;
        Some(Notice::WhaleBeyondSplit { packets })
    }

    /// Divides the parts of a split flow that is late, and joins those of one whose load fewer cores can take.
    pub(super) fn review_whale(&mut self, split: &SplitFlow<'_>) -> Review {
        self.whales.split_on |= split.parts.iter().fold(0, |map, part| map | 1 << part.auxiliary);
        let Some(cuts) = self.divisions.cuts(split.parts.iter().map(|part| part.last_functions)) else {
            return Review::Keep;
        };
        if split.parts.iter().any(|part| split.auxiliaries[part.auxiliary].taken) {
            // It got a port queue of its own, or another use. The flow is divided anew, without it.
            return Review::Join;
        }
        let packets = [split.queued].into_iter();
        let packets = packets.chain(split.parts.iter().map(|part| part.packets));
        let times = self.divisions.parts(cuts).zip(packets.clone());
        let wait: u64 = times.map(|(picos, packets)| picos * u64::from(packets)).sum();
        let wait = self.learnt(wait / 1000);
        let changed = split.now.saturating_sub(split.since).0;
        if wait > self.activation_limit() && changed >= self.budget / 2 {
            // The packets that had gathered before the last change need not be late any more.
            if let Some(review) = self.divide(split, cuts) {
                return review;
            }
            self.whales.beyond = Some(packets.sum());
        }
        let here = self.learnt(self.divisions.parts(cuts).next().unwrap_or(0) * u64::from(split.queued) / 1000);
        if here > self.activation_limit() {
            self.whales.here += here;
        }
        match self.is_calm(split, cuts, wait) {
            true => Review::Join,
            false => Review::Keep,
        }
    }

    /// Returns a division of the parts of a flow that is late, if it is worth it and an auxiliary core is idle.
    fn divide(&mut self, split: &SplitFlow<'_>, cuts: u32) -> Option<Review> {
        let split_on = self.whales.split_on;
        let free = |i: usize| split_on >> i & 1 == 0;
        let count = (0..split.auxiliaries.len()).filter(|i| is_idle(&split.auxiliaries[*i]) && free(*i));
        let wanted = self.divisions.best(cuts, count.count(), 0);
        let cut = self.divisions.next(cuts, wanted)?;
        let i = idle(split.auxiliaries, free)?;
        self.use_auxiliary(i, &split.auxiliaries[i], split.now);
        self.whales.split_on |= 1 << i;
        Some(Review::Divide {
            last_functions: self.divisions.last_functions(cut),
            auxiliary: i,
        })
    }

    /// Returns a time by the profile at the learnt cost of packets.
    fn learnt(&self, nanos: u64) -> u64 {
        nanos * self.costs.packet(false) / self.profiled.max(1)
    }

    /// Returns `true` if one core less has taken the load of a split flow, which has to wait for `wait`, for long
    /// enough.
    fn is_calm(&mut self, split: &SplitFlow<'_>, cuts: u32, wait: u64) -> bool {
        let interval = self.release_timeout();
        let fewer = self.divisions.slowest(self.divisions.without_last(cuts));
        let fewer = self.learnt(fewer / 1000);
        let share = self.share;
        let watched = self.whales.watch(split);
        let elapsed = split.now.saturating_sub(watched.from).0;
        if elapsed < interval {
            return false;
        }
        let packets = split.passed - watched.passed;
        let is_calm = wait <= share && packets * fewer * 100 <= elapsed * JOINED_FILL;
        watched.calm = if is_calm { watched.calm + 1 } else { 0 };
        (watched.from, watched.passed) = (split.now, split.passed);
        watched.calm >= CALM
    }
}

/// Returns `true` if a core can begin with a whale.
fn is_idle(auxiliary: &AuxiliaryCore) -> bool {
    !auxiliary.taken && !auxiliary.dedicated && auxiliary.load.packets == 0
}

/// Returns an idle auxiliary core that is `free`, if possible an active one.
fn idle(auxiliaries: &[AuxiliaryCore], free: impl Fn(usize) -> bool) -> Option<usize> {
    let idle = |active: bool| {
        let mut all = auxiliaries.iter().enumerate();
        all.find(|(i, auxiliary)| auxiliary.active == active && is_idle(auxiliary) && free(*i))
    };
    let (i, _) = idle(true).or_else(|| idle(false))?;
    Some(i)
}
