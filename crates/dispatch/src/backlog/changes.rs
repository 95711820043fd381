//! Changes of the backlog by a decision: flows of the local queue move or are split, auxiliary cores are released.

use super::Backlog;
use crate::auxiliary::{AuxiliaryCores, Availability};
use tailwater_handover::owner::Placement;
use tailwater_policy::core::Destination;

impl<F, P> Backlog<F, P> {
    /// Updates which auxiliary cores can be used.
    #[inline]
    pub(crate) fn update_available(&mut self, availability: impl Fn(usize) -> Availability) {
        let (mut withdrawn, mut usable, mut dedicated) = (0, 0, 0);
        for (auxiliary, known) in self.auxiliaries.iter_mut().enumerate() {
            let availability = availability(auxiliary);
            known.taken = match known.active {
                true => availability == Availability::Withdrawn,
                false => !matches!(availability, Availability::Free | Availability::Helpful),
            };
            known.dedicated = match availability {
                Availability::Helpful => true,
                Availability::Withdrawn => known.dedicated,
                Availability::Free | Availability::Taken => false,
            };
            dedicated |= u64::from(known.active && known.dedicated) << auxiliary;
            withdrawn |= u64::from(known.active && known.taken) << auxiliary;
            usable |= u64::from(!known.taken) << auxiliary;
        }
        self.relieved = self.relieved & !self.withdrawn | withdrawn;
        (self.withdrawn, self.usable, self.helping) = (withdrawn, usable, dedicated);
    }

    /// Releases withdrawn auxiliary cores, and dedicated ones, that are done.
    #[inline]
    pub fn release_withdrawn(&mut self, cores: &mut impl AuxiliaryCores) {
        if self.withdrawn | self.helping > 0 {
            self.release(self.withdrawn | self.helping, cores);
        }
    }

    /// Activates an auxiliary core, unless it is already. Returns `true` if it works for this dispatcher now, and is
    /// not withdrawn. One that was taken at the last update is not activated, even if it is free by now: only an update
    /// tells if it is a dedicated core.
    #[inline]
    pub(crate) fn activate(&mut self, auxiliary: usize, cores: &mut impl AuxiliaryCores) -> bool {
        let known = &mut self.auxiliaries[auxiliary];
        if !known.active && !known.taken {
            known.active = cores.activate(auxiliary);
            known.taken = !known.active;
            self.helping |= u64::from(known.active && known.dedicated) << auxiliary;
            if known.taken {
                self.usable &= !(1 << auxiliary);
            }
        }
        !known.taken
    }

    /// Releases those of the auxiliary cores of a bit map that have no packets and no split flows.
    pub(crate) fn release(&mut self, auxiliaries: u64, cores: &mut impl AuxiliaryCores) {
        for (auxiliary, known) in self.auxiliaries.iter_mut().enumerate() {
            let is_idle = known.load.packets == 0 && self.split_with[auxiliary] == 0;
            if auxiliaries >> auxiliary & 1 != 0 && known.active && is_idle {
                known.active = false;
                self.helping &= !(1 << auxiliary);
                if self.withdrawn >> auxiliary & 1 != 0 {
                    self.withdrawn &= !(1 << auxiliary);
                    self.relieved &= !(1 << auxiliary);
                }
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

    /// Updates which flows of the local queue only this core can process. No flow may be split.
    pub fn rebind(&mut self, is_bound: impl Fn(&F) -> bool) {
        for (number, queued) in self.listed.iter().zip(&mut self.queued) {
            let flow = &mut self.flows[usize::from(*number)];
            if flow.queued == 0 {
                continue;
            }
            let was_bound = flow.is_bound();
            let is_bound = is_bound(flow.key());
            if is_bound == was_bound {
                continue;
            }
            flow.bind(is_bound);
            queued.bound = is_bound;
            match is_bound {
                true => self.bound += u32::from(flow.queued),
                false => self.bound -= u32::from(flow.queued),
            }
        }
    }

    /// Moves flows of the local queue, in the order of the mapper's list, to their destinations. The caller moves their
    /// packets, in order. Returns the number of flows moved, and the auxiliary cores that got some, as a bit map.
    pub(crate) fn move_flows(&mut self, destinations: &[Destination], cores: &mut impl AuxiliaryCores) -> (u32, u64) {
        let (mut moved, mut moved_to) = (0, 0);
        for (at, destination) in destinations.iter().enumerate().take(self.listed.len()) {
            let Some(to) = destination.as_auxiliary() else {
                continue;
            };
            if self.queued[at].bound || !self.activate(to, cores) {
                continue;
            }
            let number = self.listed[at];
            if self.has_splits() {
                self.make_whole(number);
            }
            self.leave_all(number);
            let (flow, queued) = (&mut self.flows[usize::from(number)], &mut self.queued[at]);
            let is_there = flow.go_to(Placement::Auxiliary(to as u8));
            assert!(is_there, "a flow moves that has packets in flight");
            flow.sent_many(flow.queued);
            let load = &mut self.auxiliaries[to].load;
            load.flows += 1;
            load.packets += u32::from(flow.queued);
            (flow.queued, queued.packets) = (0, 0);
            moved += 1;
            moved_to |= 1 << to;
        }
        self.left += moved;
        (moved, moved_to)
    }

    /// Returns the keys of the flows that the last [decision](crate::Dispatcher::decide) moved. Call it before any
    /// packet is counted in or out.
    pub fn moved(&self) -> impl Iterator<Item = &F> {
        // All flows in the list had packets in the local queue before.
        let moved = self
            .listed
            .iter()
            .zip(&self.queued)
            .filter(|(_, queued)| queued.packets == 0);
        moved.map(|(&number, _)| self.flow(number).key())
    }
}
