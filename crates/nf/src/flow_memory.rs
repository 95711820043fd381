//! Where flow entries and per-flow state lie: two regions, indexed alike.
//!
//! One of the few modules with `unsafe` code. Several workers use one memory at once, each only
//! the partitions it holds; the obligation is written at each function, and met in
//! [`flow_table`](crate::flow_table), the only caller.

use crate::region::{CACHE_LINE, Region, prefetch};
use std::io;
use tailwater_net::FlowKey;

/// One flow: a cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Entry {
    pub(crate) key: FlowKey,
    /// Bit `d`: the place `d` further on holds a key at home here.
    pub(crate) near: u32,
    /// Tick of the last packet.
    pub(crate) last_seen: u32,
    /// The flow that lives and ends with this one, or [`Entry::NONE`].
    pub(crate) companion: u32,
    /// Neighbours in the timer wheel's list: places in the partition, or [`Entry::NONE`]. A flow that
    /// is in no list is its own `previous`.
    pub(crate) next: u32,
    pub(crate) previous: u32,
    /// The wheel's slot.
    pub(crate) wheel_slot: u8,
    /// How far from home the flow lies.
    pub(crate) distance: u8,
}

impl Entry {
    /// No place.
    pub(crate) const NONE: u32 = u32::MAX;
}

const _: () = assert!(size_of::<Entry>() == CACHE_LINE);

/// Entries and state of all partitions.
#[derive(Debug)]
pub(crate) struct FlowMemory {
    entries: Region,
    states: Option<Region>,
    places: usize,
    state_bytes: usize,
}

// SAFETY: the regions are plain memory; who may touch which part is the callers' obligation.
unsafe impl Sync for FlowMemory {}

impl FlowMemory {
    /// Memory for `places` flows with `state_lines` cache lines of state each.
    pub(crate) fn new(places: usize, state_lines: usize) -> io::Result<FlowMemory> {
        let state_bytes = state_lines * CACHE_LINE;
        let states = match state_bytes {
            0 => None,
            _ => Some(Region::zeroed(places * state_bytes)?),
        };
        Ok(FlowMemory {
            entries: Region::zeroed(places * CACHE_LINE)?,
            states,
            places,
            state_bytes,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.len() + self.states.as_ref().map_or(0, Region::len)
    }

    pub(crate) fn state_bytes(&self) -> usize {
        self.state_bytes
    }

    #[inline]
    pub(crate) fn prefetch_entry(&self, place: usize) {
        prefetch(self.entries.base().wrapping_add(place * CACHE_LINE));
    }

    #[inline]
    pub(crate) fn prefetch_state(&self, place: usize) {
        if let Some(states) = &self.states {
            prefetch(states.base().wrapping_add(place * self.state_bytes));
        }
    }

    /// The entries of one partition of `count` places.
    ///
    /// # Safety
    /// The caller holds the partition, and no other reference to its entries lives.
    #[inline]
    #[expect(clippy::mut_from_ref)]
    pub(crate) unsafe fn entries(&self, partition: usize, count: usize) -> &mut [Entry] {
        assert!((partition + 1) * count <= self.places);
        // SAFETY: in bounds by the assertion; aligned since regions are page-aligned; every bit
        // pattern, zero at first, is a valid `Entry`; exclusive by the caller's word.
        unsafe {
            let first = self.entries.base().cast::<Entry>().add(partition * count);
            std::slice::from_raw_parts_mut(first, count)
        }
    }

    /// One entry.
    ///
    /// # Safety
    /// `place` is below the number of places; the caller holds its partition, and nobody writes the
    /// entry while the reference lives.
    #[inline]
    pub(crate) unsafe fn entry(&self, place: usize) -> &Entry {
        debug_assert!(place < self.places);
        // SAFETY: as in `entries`, in bounds by the caller's word; shared by the caller's word.
        unsafe { &*self.entries.base().cast::<Entry>().add(place) }
    }

    /// One entry, to write.
    ///
    /// # Safety
    /// `place` is below the number of places; the caller holds its partition, and no other
    /// reference to the entry lives.
    #[inline]
    #[expect(clippy::mut_from_ref)]
    pub(crate) unsafe fn entry_mut(&self, place: usize) -> &mut Entry {
        debug_assert!(place < self.places);
        // SAFETY: as in `entries`, in bounds by the caller's word.
        unsafe { &mut *self.entries.base().cast::<Entry>().add(place) }
    }

    /// The state of one flow, as bytes aligned to a cache line.
    ///
    /// # Safety
    /// As for [`FlowMemory::entry`], about the state.
    #[inline]
    #[expect(clippy::mut_from_ref)]
    pub(crate) unsafe fn state(&self, place: usize) -> &mut [u8] {
        debug_assert!(place < self.places);
        match &self.states {
            // SAFETY: the region has `places * state_bytes` bytes; initialised; exclusive by the
            // caller's word.
            Some(states) => unsafe {
                let start = states.base().add(place * self.state_bytes);
                std::slice::from_raw_parts_mut(start, self.state_bytes)
            },
            None => &mut [],
        }
    }
}
