//! Stream memory, supplied by the caller.

use crate::connection::Lease;
use crate::stream::Side;
use tailwater_net::Nanos;

/// Returns the bytes a connection's two streams need, with windows of this size.
pub const fn slot_bytes(window: usize) -> usize {
    2 * (size_of::<Side>() + window)
}

/// Pool of slots of [`slot_bytes`] each. A connection holds a slot while its streams are followed. One slot is open at
/// a time.
pub trait Slots {
    /// Opens a connection's slot; returns `false` if it was reclaimed.
    fn open(&mut self, lease: Lease) -> bool;
    /// Takes and opens a free slot, if there is one, while none is open.
    fn take(&mut self, now: Nanos) -> Option<Lease>;
    /// Returns the bytes of the open slot, aligned to 8.
    fn bytes(&mut self) -> Option<&mut [u8]>;
    /// Closes the open slot, if any; its connection keeps it.
    fn close(&mut self, now: Nanos);
    /// Releases the open slot.
    fn release(&mut self);
}

/// Splits the open slot into the two streams and their windows.
pub(crate) fn split(bytes: &mut [u8]) -> (&mut [Side; 2], [&mut [u8]; 2]) {
    let (sides, windows) = bytes.split_at_mut(2 * size_of::<Side>());
    let (one, other) = windows.split_at_mut(windows.len() / 2);
    (bytemuck::from_bytes_mut(sides), [one, other])
}

/// Slots for a single thread.
#[derive(Debug)]
pub struct OwnSlots {
    /// Generation and bytes of each slot, as words for alignment.
    slots: Vec<(u32, Box<[u64]>)>,
    free: Vec<u32>,
    open: u32,
}

impl OwnSlots {
    /// Allocates `count` slots for windows of this many bytes.
    pub fn new(count: u32, window: usize) -> OwnSlots {
        let words = slot_bytes(window).div_ceil(8);
        OwnSlots {
            slots: (0..count).map(|_| (0, vec![0; words].into())).collect(),
            free: (1..=count).rev().collect(),
            open: 0,
        }
    }

    /// Returns the number of free slots.
    pub fn free(&self) -> usize {
        self.free.len()
    }
}

impl Slots for OwnSlots {
    fn open(&mut self, lease: Lease) -> bool {
        let slot = self.slots.get(lease.slot as usize - 1);
        let there = slot.is_some_and(|(generation, _)| *generation == lease.generation);
        self.open = if there { lease.slot } else { 0 };
        there
    }

    fn take(&mut self, _now: Nanos) -> Option<Lease> {
        let place = self.free.pop()?;
        let (generation, _) = &mut self.slots[place as usize - 1];
        *generation += 1;
        self.open = place;
        Some(Lease {
            slot: place,
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

    fn release(&mut self) {
        if self.open != 0 {
            self.slots[self.open as usize - 1].0 += 1;
            self.free.push(std::mem::take(&mut self.open));
        }
    }
}
