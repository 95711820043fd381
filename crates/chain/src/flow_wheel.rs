//! Idle timers of a partition's flows.
//!
//! A wheel of 256 slots, each a doubly linked list threaded through the flow entries, so that a timer costs no memory
//! of its own. It is lazy: a packet updates only the flow's age and not the wheel. When the flow's slot is due and the
//! flow was active in the meantime, the timer is set again.

use crate::flow_memory::{Links, PartitionLinks};

const SLOTS: u64 = 256;

/// Timers of one partition.
#[derive(Debug)]
pub(crate) struct Wheel {
    heads: Box<[u32; SLOTS as usize]>,
    /// Shift from ticks to grains; a grain is the span of one slot.
    grain_shift: u32,
    /// Last grain whose slot has been emptied, as have all before it.
    done: u64,
}

impl Wheel {
    /// Size of a wheel in bytes.
    pub(crate) const BYTES: usize = size_of::<Wheel>() + SLOTS as usize * size_of::<u32>();

    /// Creates a wheel whose slots are sized so that `longest`, in ticks, fits into one revolution.
    pub(crate) fn new(longest: u32) -> Wheel {
        let mut grain_shift = 0;
        while u64::from(longest) >> grain_shift > SLOTS - 6 {
            grain_shift += 1;
        }
        Wheel {
            heads: Box::new([Links::NONE; SLOTS as usize]),
            grain_shift,
            done: 0,
        }
    }

    /// Inserts the entry at `index` into the slot after tick `due`. It must not be in the wheel.
    pub(crate) fn insert(&mut self, flows: &mut PartitionLinks<'_>, index: u32, due: u64) {
        // Never the slot being emptied, which is `done + 1` again after a whole revolution. Too early is harmless: the
        // timer is checked and set again.
        let grain = ((due >> self.grain_shift) + 1).clamp(self.done + 1, self.done + SLOTS - 1);
        let slot = (grain % SLOTS) as usize;
        let head = self.heads[slot];
        let links = flows.at(index);
        (links.next, links.previous, links.wheel_slot) = (head, Links::NONE, slot as u8);
        if head != Links::NONE {
            flows.at(head).previous = index;
        }
        self.heads[slot] = index;
    }

    /// Marks the entry at `index`, which is not in the wheel, as one that never will be.
    pub(crate) fn leave_out(flows: &mut PartitionLinks<'_>, index: u32) {
        flows.at(index).previous = index;
    }

    /// Removes the entry at `index`, unless it was [left out](Wheel::leave_out).
    pub(crate) fn remove(&mut self, flows: &mut PartitionLinks<'_>, index: u32) {
        let &mut Links {
            next,
            previous,
            wheel_slot,
            ..
        } = flows.at(index);
        if previous == index {
            return;
        }
        if next != Links::NONE {
            flows.at(next).previous = previous;
        }
        match previous {
            Links::NONE => self.heads[usize::from(wheel_slot)] = next,
            _ => flows.at(previous).next = next,
        }
    }

    /// Returns an entry whose slot has passed at tick `now`. It stays in the wheel: the caller removes it, and inserts
    /// it again if its flow is still active.
    #[inline]
    pub(crate) fn next_due(&mut self, now: u64) -> Option<u32> {
        let now = now >> self.grain_shift;
        // After a long pause, one revolution visits every slot.
        self.done = self.done.max(now.saturating_sub(SLOTS));
        while self.done < now {
            let head = self.heads[((self.done + 1) % SLOTS) as usize];
            if head != Links::NONE {
                return Some(head);
            }
            self.done += 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow_memory::FlowMemory;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Compares with a map from entry to due tick: no timer fires early, none is missed, and removal does not
        /// affect others.
        #[test]
        fn wheel_fires_everything_once_and_not_early(
            longest in 1u32..100_000,
            operations in prop::collection::vec((0u8..3, 0u32..64, 0u64..100_000), 1..200),
        ) {
            let memory = FlowMemory::new(64, 0).unwrap();
            // SAFETY: the only reference to this memory.
            let flows = &mut unsafe { memory.partition(0, 64) };
            let mut wheel = Wheel::new(longest);
            let mut due: BTreeMap<u32, u64> = BTreeMap::new();
            let mut now = 0;
            for (operation, index, span) in operations {
                let span = span % (u64::from(longest) + 1);
                match operation {
                    0 if !due.contains_key(&index) => {
                        wheel.insert(flows, index, now + span);
                        due.insert(index, now + span);
                    }
                    1 if due.remove(&index).is_some() => wheel.remove(flows, index),
                    1 => {
                        Wheel::leave_out(flows, index);
                        wheel.remove(flows, index);
                    }
                    _ => now += span,
                }
                while let Some(index) = wheel.next_due(now) {
                    wheel.remove(flows, index);
                    let at = due.remove(&index);
                    prop_assert!(at.is_some(), "place {} was not in the wheel", index);
                    prop_assert!(at <= Some(now), "early: {:?} at {}", at, now);
                }
            }
            now += 2 * u64::from(longest) + 2 * SLOTS;
            while let Some(index) = wheel.next_due(now) {
                wheel.remove(flows, index);
                prop_assert!(due.remove(&index).is_some());
            }
            prop_assert!(due.is_empty());
        }
    }
}
