//! Changes of the backlog by a decision: flows of the local queue move or are split, auxiliary cores are released.

use super::Backlog;
use crate::auxiliary::AuxiliaryCores;
use tailwater_handover::owner::Placement;
use tailwater_policy::core::{Destination, QueuedFlow};

impl<F, P> Backlog<F, P> {
    /// Updates which auxiliary cores others have taken. `is_free` returns `true` for those that no dispatcher has.
    #[inline]
    pub fn update_taken(&mut self, is_free: impl Fn(usize) -> bool) {
        for (auxiliary, known) in self.auxiliaries.iter_mut().enumerate() {
            known.taken = !known.active && !is_free(auxiliary);
        }
    }

    /// Activates an auxiliary core, unless it is already. Returns `true` if it works for this dispatcher now.
    #[inline]
    pub(crate) fn activate(&mut self, auxiliary: usize, cores: &mut impl AuxiliaryCores) -> bool {
        let known = &mut self.auxiliaries[auxiliary];
        if !known.active {
            known.active = cores.activate(auxiliary);
            known.taken = !known.active;
        }
        known.active
    }

    /// Releases those of the auxiliary cores of a bit map that have no packets and no split flows.
    pub(crate) fn release(&mut self, auxiliaries: u64, cores: &mut impl AuxiliaryCores) {
        for (auxiliary, known) in self.auxiliaries.iter_mut().enumerate() {
            let is_idle = known.load.packets == 0 && self.split_with[auxiliary] == 0;
            if auxiliaries >> auxiliary & 1 != 0 && known.active && is_idle {
                known.active = false;
                cores.release(auxiliary);
            }
        }
    }

    /// Releases all auxiliary cores, at the end.
    pub fn release_all(&mut self, cores: &mut impl AuxiliaryCores) {
        for (auxiliary, known) in self.auxiliaries.iter_mut().enumerate() {
            if std::mem::take(&mut known.active) {
                cores.release(auxiliary);
            }
        }
    }

    /// Moves flows of the local queue, in the order of the mapper's list, to their destinations. The caller moves their
    /// packets, in order. Returns the number of flows moved.
    pub(crate) fn move_flows(&mut self, destinations: &[Destination], cores: &mut impl AuxiliaryCores) -> u32 {
        let mut moved = 0;
        for (at, destination) in destinations.iter().enumerate().take(self.listed.len()) {
            let Some(to) = destination.as_auxiliary() else {
                continue;
            };
            if self.queued[at].bound || !self.activate(to, cores) {
                continue;
            }
            let number = self.listed[at];
            if self.split > 0 {
                self.make_whole(number);
            }
            let (flow, queued) = (&mut self.flows[usize::from(number)], &mut self.queued[at]);
            let is_there = flow.go_to(Placement::Auxiliary(to as u8));
            assert!(is_there, "a flow moves that has packets in flight");
            flow.sent_many(flow.queued);
            let load = &mut self.auxiliaries[to].load;
            load.flows += 1;
            load.packets += u32::from(flow.queued);
            self.here.flows -= 1;
            self.here.packets -= u32::from(flow.queued);
            (flow.queued, queued.packets) = (0, 0);
            moved += 1;
        }
        self.left += moved;
        moved
    }

    /// Splits a flow of the local queue, given its index in the mapper's list. From now on an auxiliary core runs the
    /// segments from `from` on. Returns `true` if the flow was not split so before.
    pub(crate) fn split(&mut self, at: usize, (from, to): (usize, usize), cores: &mut impl AuxiliaryCores) -> bool {
        let (Some(&number), Some(&QueuedFlow { bound, .. })) = (self.listed.get(at), self.queued.get(at)) else {
            return false;
        };
        let is_same = self.flow(number).split() == Some((from, to));
        if bound || is_same || !self.activate(to, cores) {
            return false;
        }
        self.make_whole(number);
        let flow = &mut self.flows[usize::from(number)];
        let split = Placement::Split {
            from: from as u8,
            auxiliary: to as u8,
        };
        if !flow.go_to(split) {
            return false;
        }
        flow.bind(true);
        self.bound += u32::from(flow.queued);
        self.split_with[to] += 1;
        self.split += 1;
        true
    }
}
