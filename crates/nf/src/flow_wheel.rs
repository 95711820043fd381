//! A partition's timers: when to look whether a flow has become idle.
//!
//! A wheel of 256 slots, each a doubly linked list threaded through the flow entries, so that a
//! timer costs no memory of its own. It is lazy: a packet does not touch the wheel, only the flow's
//! age; when the flow's slot comes round and the flow was active meanwhile, it is set again.

use crate::flow_memory::Entry;

const SLOTS: u64 = 256;

/// The timers of one partition.
#[derive(Debug)]
pub(crate) struct Wheel {
    heads: Box<[u32; SLOTS as usize]>,
    /// A tick count shifted right by this is a grain, the span of a slot.
    grain_shift: u32,
    /// Every slot up to this grain has been emptied.
    done: u64,
}

impl Wheel {
    /// A wheel whose slots are fine enough that `longest`, in ticks, goes round in one turn.
    pub(crate) fn new(longest: u32) -> Wheel {
        let mut grain_shift = 0;
        while u64::from(longest) >> grain_shift > SLOTS - 6 {
            grain_shift += 1;
        }
        Wheel {
            heads: Box::new([Entry::NONE; SLOTS as usize]),
            grain_shift,
            done: 0,
        }
    }

    /// Puts the entry at `place` in the slot after tick `due`. It must not be in the wheel.
    pub(crate) fn insert(&mut self, entries: &mut [Entry], place: u32, due: u64) {
        // Never the slot being emptied, which is `done + 1` again after a whole turn. Too early is
        // harmless: the timer is looked at and set again.
        let grain = ((due >> self.grain_shift) + 1).clamp(self.done + 1, self.done + SLOTS - 1);
        let slot = (grain % SLOTS) as usize;
        let head = self.heads[slot];
        let entry = &mut entries[place as usize];
        (entry.next, entry.previous, entry.wheel_slot) = (head, Entry::NONE, slot as u8);
        if head != Entry::NONE {
            entries[head as usize].previous = place;
        }
        self.heads[slot] = place;
    }

    /// Marks the entry at `place`, which is not in the wheel, as one that never will be.
    pub(crate) fn leave_out(entries: &mut [Entry], place: u32) {
        entries[place as usize].previous = place;
    }

    /// Takes the entry at `place` out, if it was not [left out](Wheel::leave_out).
    pub(crate) fn remove(&mut self, entries: &mut [Entry], place: u32) {
        let Entry {
            next,
            previous,
            wheel_slot,
            ..
        } = entries[place as usize];
        if previous == place {
            return;
        }
        if next != Entry::NONE {
            entries[next as usize].previous = previous;
        }
        match previous {
            Entry::NONE => self.heads[usize::from(wheel_slot)] = next,
            _ => entries[previous as usize].next = next,
        }
    }

    /// The place of an entry whose slot is over at tick `now`. It stays in the wheel: the caller
    /// removes it, and inserts it again if its flow is still active.
    #[inline]
    pub(crate) fn next_due(&mut self, now: u64) -> Option<u32> {
        let now = now >> self.grain_shift;
        // After a long pause one turn sees every slot.
        self.done = self.done.max(now.saturating_sub(SLOTS));
        while self.done < now {
            let head = self.heads[((self.done + 1) % SLOTS) as usize];
            if head != Entry::NONE {
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
        /// Against a map from place to due tick: nothing comes before its time, nothing is
        /// forgotten, and removal leaves the others alone.
        #[test]
        fn wheel_fires_everything_once_and_not_early(
            longest in 1u32..100_000,
            operations in prop::collection::vec((0u8..3, 0u32..64, 0u64..100_000), 1..200),
        ) {
            let memory = FlowMemory::new(64, 0).unwrap();
            // SAFETY: the only reference to this memory.
            let entries = unsafe { memory.entries(0, 64) };
            let mut wheel = Wheel::new(longest);
            let mut due: BTreeMap<u32, u64> = BTreeMap::new();
            let mut now = 0;
            for (operation, place, span) in operations {
                let span = span % (u64::from(longest) + 1);
                match operation {
                    0 if !due.contains_key(&place) => {
                        wheel.insert(entries, place, now + span);
                        due.insert(place, now + span);
                    }
                    1 if due.remove(&place).is_some() => wheel.remove(entries, place),
                    1 => {
                        Wheel::leave_out(entries, place);
                        wheel.remove(entries, place);
                    }
                    _ => now += span,
                }
                while let Some(place) = wheel.next_due(now) {
                    wheel.remove(entries, place);
                    let at = due.remove(&place);
                    prop_assert!(at.is_some(), "place {} was not in the wheel", place);
                    prop_assert!(at <= Some(now), "early: {:?} at {}", at, now);
                }
            }
            now += 2 * u64::from(longest) + 2 * SLOTS;
            while let Some(place) = wheel.next_due(now) {
                wheel.remove(entries, place);
                prop_assert!(due.remove(&place).is_some());
            }
            prop_assert!(due.is_empty());
        }
    }
}
