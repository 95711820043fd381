//! Split flows: the auxiliary cores on their route, and how the route changes.

use super::Backlog;
use crate::auxiliary::AuxiliaryCores;
use crate::flow::UNLISTED;
use crate::split::{Cut, MOST_SPLIT, NextHop, SplitRecord, next};
use tailwater_handover::owner::Placement;
use tailwater_handover::route::{Hop, MAX_PARTS, Route};
use tailwater_net::Nanos;
use tailwater_policy::core::{AuxiliaryCore, SplitFlow, SplitPart};

/// Counts a packet that goes to an auxiliary core.
fn count_in(auxiliaries: &mut [AuxiliaryCore], hop: Hop) {
    let load = &mut auxiliaries[usize::from(hop.auxiliary)].load;
    load.flows += u32::from(hop.is_first);
    load.packets += 1;
}

impl<F, P> Backlog<F, P> {
    /// Returns the record of a split flow.
    fn record(splits: &mut [SplitRecord], number: u16) -> &mut SplitRecord {
        let record = splits.iter_mut().find(|record| record.number == number);
        record.expect("only split flows have a route")
    }

    /// Moves a packet of a split flow, which has passed this core's segments, from the local queue to the list of its
    /// first auxiliary core. Returns that list, and how far the core runs the packet.
    ///
    /// # Panics
    /// If the flow is not split.
    #[inline]
    pub fn pass_on(&mut self, number: u16) -> NextHop {
        self.leave_queue(number);
        let record = Self::record(&mut self.splits, number);
        let hop = record.route.enter();
        record.passed += 1;
        count_in(&mut self.auxiliaries, hop);
        self.flows[usize::from(number)].sent();
        next(hop)
    }

    /// Moves a packet of a split flow that an auxiliary core has run as far as `segment`, and returned at `now`, to the
    /// list of its next auxiliary core. Returns that list, and how far the core runs the packet.
    ///
    /// # Panics
    /// If the flow's route has no part that begins there.
    #[inline]
    pub fn relay(&mut self, number: u16, auxiliary: usize, segment: usize, now: Nanos) -> NextHop {
        let record = Self::record(&mut self.splits, number);
        let (hop, was_last) = record.route.relay(auxiliary as u8, segment as u8);
        let known = &mut self.auxiliaries[auxiliary];
        known.load.flows -= u32::from(was_last);
        known.load.packets -= 1;
        known.last_done = now;
        count_in(&mut self.auxiliaries, hop);
        next(hop)
    }

    /// Counts a packet of a split flow, which was counted out of the system, out of an auxiliary core. Returns the
    /// flow's key if none of its packets is in the system any more.
    #[cold]
    pub(super) fn done_by_part(&mut self, number: u16, auxiliary: usize) -> Option<&F> {
        let was_last = Self::record(&mut self.splits, number).route.leave(auxiliary as u8);
        self.auxiliaries[auxiliary].load.flows -= u32::from(was_last);
        self.end_drain(number);
        let flow = &self.flows[usize::from(number)];
        if !flow.is_gone() {
            return None;
        }
        // It may still be listed.
        self.left += u32::from(flow.at != UNLISTED);
        Some(self.forget(number))
    }

    /// Returns `true` if a flow is split.
    #[inline]
    pub fn has_splits(&self) -> bool {
        !self.splits.is_empty()
    }

    /// Returns `true` if a flow is split, and none of its packets is on an auxiliary core.
    #[inline]
    pub fn is_split_and_back(&self, number: u16) -> bool {
        self.has_splits() && self.flow(number).in_flight() == 0 && self.flow(number).split().is_some()
    }

    /// Returns the first segment on an auxiliary core, and that core's index, if a flow is split.
    #[inline]
    pub fn split_of(&self, number: u16) -> Option<(usize, usize)> {
        match self.has_splits() {
            false => None,
            true => self.flow(number).split(),
        }
    }

    /// Splits a flow of the local queue, given its index in the mapper's list. From now on an auxiliary core runs the
    /// segments behind a cut. Another dedicated core does not: it could not end that. Returns `true` if the flow was
    /// not split so before.
    pub(crate) fn split(
        &mut self,
        at: usize,
        cut: Cut,
        to: usize,
        now: Nanos,
        cores: &mut impl AuxiliaryCores,
    ) -> bool {
        let (Some(&number), Some(queued)) = (self.listed.get(at), self.queued.get(at)) else {
            return false;
        };
        let before = self.flow(number).split();
        let is_same = before == Some((cut.from, to)) && Self::record(&mut self.splits, number).route.parts().len() == 1;
        let is_full = before.is_none() && self.splits.len() == MOST_SPLIT;
        let is_possible = !queued.bound && !is_same && !is_full && !self.auxiliaries[to].dedicated;
        if !is_possible || !self.activate(to, cores) {
            return false;
        }
        self.make_whole(number);
        let flow = &mut self.flows[usize::from(number)];
        let split = Placement::Split {
            from: cut.from as u8,
            auxiliary: to as u8,
        };
        if !flow.go_to(split) {
            return false;
        }
        flow.bind(true);
        self.bound += u32::from(flow.queued);
        self.split_with[to] += 1;
        let mut last_functions = [0; MAX_PARTS];
        last_functions[0] = cut.last_functions as u8;
        self.splits.push(SplitRecord {
            number,
            route: Route::new(cut.from as u8, to as u8),
            last_functions,
            since: now,
            passed: 0,
        });
        true
    }

    /// Makes a flow whole if it is split. None of its packets may be in flight.
    pub(super) fn make_whole(&mut self, number: u16) {
        let flow = &mut self.flows[usize::from(number)];
        if flow.split().is_none() {
            return;
        }
        let is_home = flow.go_to(Placement::Home);
        assert!(is_home, "packets of a split flow are on an auxiliary core");
        flow.bind(false);
        self.bound -= u32::from(flow.queued);
        let at = self.splits.iter().position(|record| record.number == number);
        let record = self.splits.swap_remove(at.expect("a split flow has a route"));
        for part in record.route.parts() {
            self.split_with[usize::from(part.auxiliary)] -= 1;
        }
    }

    /// Returns the number of split flows.
    #[inline]
    pub(crate) fn split_flows(&self) -> usize {
        self.splits.len()
    }

    /// Calls `review` for the split flow at this index, unless its parts are about to be joined.
    pub(crate) fn review<R>(&self, at: usize, now: Nanos, review: impl FnOnce(&SplitFlow<'_>) -> R) -> Option<R> {
        let record = &self.splits[at];
        let flow = self.flow(record.number);
        if flow.is_joining() {
            return None;
        }
        let mut parts = [SplitPart::default(); MAX_PARTS];
        let route = record.route.parts();
        for ((to, part), last_functions) in parts.iter_mut().zip(route).zip(record.last_functions) {
            *to = SplitPart {
                last_functions: last_functions.into(),
                auxiliary: part.auxiliary.into(),
                packets: part.packets,
            };
        }
        Some(review(&SplitFlow {
            now,
            number: record.number,
            queued: flow.queued.into(),
            parts: &parts[..route.len()],
            since: record.since,
            passed: record.passed,
            auxiliaries: &self.auxiliaries,
        }))
    }

    /// Divides the part of the split flow at this index that has a cut: another auxiliary core runs the segments behind
    /// it, of later packets. Returns `true` if that can be done: the core is not on the flow's route, and no other
    /// dedicated core.
    pub(crate) fn divide(
        &mut self,
        at: usize,
        cut: Cut,
        to: usize,
        now: Nanos,
        cores: &mut impl AuxiliaryCores,
    ) -> bool {
        let SplitRecord { number, mut route, .. } = self.splits[at];
        let is_possible = !self.flow(number).is_joining()
            && !self.auxiliaries[to].dedicated
            && route.divide(cut.from as u8, to as u8);
        if !is_possible || !self.activate(to, cores) {
            return false;
        }
        let record = &mut self.splits[at];
        record.route = route;
        let parts = record.route.parts();
        let new = parts.iter().position(|part| usize::from(part.from) == cut.from);
        let new = new.unwrap_or(0);
        record.last_functions.copy_within(new..parts.len() - 1, new + 1);
        record.last_functions[new] = cut.last_functions as u8;
        record.since = now;
        if new == 0 {
            self.flows[usize::from(number)].divide(cut.from as u8, to as u8);
        }
        self.split_with[to] += 1;
        true
    }

    /// Joins the last part of the split flow at this index, once none of its packets is queued or in flight. Later
    /// packets are parked until then.
    pub(crate) fn join(&mut self, at: usize) {
        let number = self.splits[at].number;
        self.flows[usize::from(number)].set_joining();
    }

    /// Lets a flow go whose parts are to be joined, if no packet of it is queued or in flight and some are parked.
    pub(super) fn end_drain(&mut self, number: u16) {
        let flow = self.flow(number);
        if flow.is_joining() && flow.queued == 0 && flow.in_flight() == 0 && flow.parked > 0 {
            self.free_to_go.push(number);
        }
    }

    /// Joins the last part of a flow that waited for it. Returns `true` if the flow is still split. Its parked packets
    /// belong into the local queue then.
    pub(crate) fn end_join(&mut self, number: u16, now: Nanos) -> bool {
        let flow = &mut self.flows[usize::from(number)];
        if !flow.is_joining() {
            return false;
        }
        let record = Self::record(&mut self.splits, number);
        let Some(last) = record.route.join() else {
            self.make_whole(number);
            // If it goes to an auxiliary core, it is listed no longer than until the list is compacted.
            self.left += u32::from(self.flow(number).at != UNLISTED);
            return false;
        };
        record.since = now;
        flow.bind(true);
        self.split_with[usize::from(last.auxiliary)] -= 1;
        true
    }
}
