//! Memory of streams, which the caller has.

use crate::connection::Lease;
use crate::stream::Side;
use tailwater_net::Nanos;

/// Bytes that a connection's two streams take, with windows of so many bytes each.
pub const fn slot_bytes(window: usize) -> usize {
    2 * (size_of::<Side>() + window)
}

/// Slots of memory of [`slot_bytes`] each. A connection keeps one while its streams are followed, and one slot is open at
/// a time.
pub trait Slots {
    /// Opens a connection's slot. `false` if it has lost it.
    fn open(&mut self, lease: Lease) -> bool;
    /// Opens a free slot, none being open, if there is one.
    fn take(&mut self, now: Nanos) -> Option<Lease>;
    /// The slot that is open: bytes at an address that is a multiple of 8.
    fn bytes(&mut self) -> Option<&mut [u8]>;
    /// Closes the slot that is open, if one is; its connection keeps it.
    fn close(&mut self, now: Nanos);
    /// Gives the slot back that is open.
    fn give(&mut self);
}

/// The two streams of the slot that is open, each with its window.
pub(crate) fn split(bytes: &mut [u8]) -> (&mut [Side; 2], [&mut [u8]; 2]) {
    let (sides, windows) = bytes.split_at_mut(2 * size_of::<Side>());
    let (one, other) = windows.split_at_mut(windows.len() / 2);
    (bytemuck::from_bytes_mut(sides), [one, other])
}

/// Slots that one thread has to itself.
#[derive(Debug)]
pub struct OwnSlots {
    /// As words, so that they are aligned.
    slots: Vec<(u32, Box<[u64]>)>,
    free: Vec<u32>,
    open: u32,
}

impl OwnSlots {
    /// So many slots for windows of so many bytes.
    pub fn new(count: u32, window: usize) -> OwnSlots {
        let words = slot_bytes(window).div_ceil(8);
        OwnSlots {
            slots: (0..count).map(|_| (0, vec![0; words].into())).collect(),
            free: (1..=count).rev().collect(),
            open: 0,
        }
    }

    /// How many are free.
    pub fn free(&self) -> usize {
        self.free.len()
    }
}

impl Slots for OwnSlots {
    fn open(&mut self, lease: Lease) -> bool {
        let slot = self.slots.get(lease.place as usize - 1);
        let there = slot.is_some_and(|(generation, _)| *generation == lease.generation);
        self.open = if there { lease.place } else { 0 };
        there
    }

    fn take(&mut self, _now: Nanos) -> Option<Lease> {
        let place = self.free.pop()?;
        let (generation, _) = &mut self.slots[place as usize - 1];
        *generation += 1;
        self.open = place;
        Some(Lease {
            place,
            generation: *generation,
        })
    }

    fn bytes(&mut self) -> Option<&mut [u8]> {
        let (_, words) = self.slots.get_mut((self.open as usize).checked_sub(1)?)?;
        Some(bytemuck::cast_slice_mut(words))
    }

    fn close(&mut self, _now: Nanos) {
        self.open = 0;
    }

    fn give(&mut self) {
        if self.open != 0 {
            self.slots[self.open as usize - 1].0 += 1;
            self.free.push(std::mem::take(&mut self.open));
        }
    }
}
