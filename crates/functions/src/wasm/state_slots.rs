//! Slots of flow states in the area for packets: packets of the same flow share one.

use super::layout::CHUNK;

/// Entries, a power of two, of which at most half are in use.
const ENTRIES: usize = 2 * CHUNK;

/// Slots of the packets of one call, found by the addresses of their states.
#[derive(Debug)]
pub(super) struct StateSlots {
    entries: Box<[Entry; ENTRIES]>,
    /// Number of the current call: entries of others are empty.
    call: u32,
    /// For each slot, the batch index of its first packet.
    owners: Vec<u16>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    address: usize,
    call: u32,
    slot: u8,
}

impl StateSlots {
    pub(super) fn new() -> StateSlots {
        StateSlots {
            entries: Box::new([Entry::default(); ENTRIES]),
            call: 0,
            owners: Vec::with_capacity(CHUNK),
        }
    }

    /// Empties all slots.
    #[inline]
    pub(super) fn clear(&mut self) {
        self.owners.clear();
        self.call = self.call.wrapping_add(1);
        if self.call == 0 {
            self.entries.fill(Entry::default());
            self.call = 1;
        }
    }

    /// Returns the slot of a state, and `true` if it is a new one. At most [`CHUNK`] states are distinct.
    #[inline]
    pub(super) fn slot(&mut self, address: usize, packet: usize) -> (usize, bool) {
        // States are aligned to 8.
        let mut at = (address >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (usize::BITS - ENTRIES.ilog2());
        loop {
            let entry = &mut self.entries[at % ENTRIES];
            if entry.call != self.call {
                let slot = self.owners.len();
                *entry = Entry {
                    address,
                    call: self.call,
                    slot: slot as u8,
                };
                self.owners.push(packet as u16);
                return (slot, true);
            }
            if entry.address == address {
                return (usize::from(entry.slot), false);
            }
            at += 1;
        }
    }

    /// Batch index of the first packet of each slot.
    pub(super) fn owners(&self) -> &[u16] {
        &self.owners
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_addresses_share_a_slot_until_it_is_emptied() {
        let mut slots = StateSlots::new();
        slots.call = u32::MAX - 1;
        for _ in 0..3 {
            slots.clear();
            for round in 0..2 {
                for i in 0..CHUNK {
                    assert_eq!(slots.slot(4096 + 1024 * i, i), (i, round == 0));
                }
            }
            assert_eq!(slots.owners().len(), CHUNK);
        }
    }
}
