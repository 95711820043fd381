//! Memory of flow entries and per-flow state: two regions with the same index. States of less than a cache line share
//! one with others, none of them divided.
//!
//! One of the few modules with `unsafe` code. Several workers use one memory at once, each only the partitions it holds
//! and the flows passed to it. Each function states its obligation; [`flow_table`](crate::flow_table), the only caller,
//! meets them.

use crate::region::{CACHE_LINE, Region, prefetch};
use std::io;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;
use tailwater_net::FlowKey;
use tailwater_sdk::protocol::memory::Memory;

/// Entry of one flow: a cache line in two parts with separate rights. The partition's holder writes both, but the key
/// only while no packet of the flow is in the system. Code that holds a packet of the flow may therefore read the key.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Entry {
    key: FlowKey,
    links: Links,
}

/// Metadata of a flow in the table, except its key.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Links {
    /// Bit map: bit `d` is set if slot `home + d` holds a key whose home slot this is.
    pub(crate) near: u32,
    /// Tick of the last packet.
    pub(crate) last_seen: u32,
    /// Companion flow, which is opened and ended with this one, or [`Links::NONE`].
    pub(crate) companion: u32,
    /// Neighbours in the timer wheel's list, as slots in the partition, or [`Links::NONE`]. A flow in no list is its
    /// own `previous`.
    pub(crate) next: u32,
    pub(crate) previous: u32,
    /// Slot of the timer wheel.
    pub(crate) wheel_slot: u8,
    /// Distance from the key's home slot.
    pub(crate) distance: u8,
    /// Number of the flow among those with packets in the system, plus one; 0 if it has none. Zero is the right value
    /// for fresh memory.
    pub(crate) active: u16,
}

impl Links {
    /// No slot.
    pub(crate) const NONE: u32 = u32::MAX;
}

const _: () = assert!(size_of::<Entry>() == CACHE_LINE);

/// Links of one partition's flows.
#[derive(Debug)]
pub(crate) struct PartitionLinks<'a> {
    first: *mut Entry,
    count: usize,
    memory: PhantomData<&'a mut Links>,
}

impl PartitionLinks<'_> {
    /// Links of the flow in slot `index` of the partition.
    ///
    /// # Panics
    /// If the partition has no such slot.
    #[inline]
    pub(crate) fn at(&mut self, index: u32) -> &mut Links {
        let index = index as usize;
        assert!(index < self.count, "a slot of the partition");
        // SAFETY: in bounds by the assertion, and exclusive as guaranteed by the caller of `FlowMemory::partition`;
        // from there on `&mut self` makes it the only reference. The key is not touched.
        unsafe { &mut (*self.first.add(index)).links }
    }
}

/// Entries and state of all partitions.
#[derive(Debug)]
pub(crate) struct FlowMemory {
    entries: Region,
    /// [Empty](Region::empty) if flows have no state.
    states: Region,
    slots: usize,
    /// State of a flow, and the distance between states.
    state_bytes: usize,
}

/// Distance between states of this size in memory that processes share: whole lines, as their programs expect.
pub(crate) fn shared_stride(state_bytes: usize) -> usize {
    state_bytes.next_multiple_of(CACHE_LINE)
}

/// Distance between states of this size: a power of two within a cache line, or whole lines.
pub(crate) fn state_stride(state_bytes: usize) -> usize {
    match state_bytes {
        0 => 0,
        1..CACHE_LINE => state_bytes.next_power_of_two().max(8),
        _ => state_bytes.next_multiple_of(CACHE_LINE),
    }
}

// SAFETY: the regions are plain memory; callers are obliged to respect who may access which part.
unsafe impl Sync for FlowMemory {}

impl FlowMemory {
    /// Allocates memory for `slots` flows with `state_bytes` bytes of state each.
    pub(crate) fn new(slots: usize, state_bytes: usize) -> io::Result<FlowMemory> {
        let state_bytes = state_stride(state_bytes);
        let states = match state_bytes {
            0 => Region::empty(),
            _ => Region::zeroed(slots * state_bytes)?,
        };
        Ok(FlowMemory {
            entries: Region::zeroed(slots * CACHE_LINE)?,
            states,
            slots,
            state_bytes,
        })
    }

    /// Size in bytes of the memory of [`new`](FlowMemory::new).
    pub(crate) fn own_bytes(slots: usize, state_bytes: usize) -> usize {
        slots * (CACHE_LINE + state_stride(state_bytes))
    }

    /// Size in bytes of the memory for `slots` flows, for [`shared`](FlowMemory::shared).
    pub(crate) fn file_bytes(slots: usize, state_bytes: usize) -> usize {
        slots * (CACHE_LINE + shared_stride(state_bytes))
    }

    /// Same as [`new`](FlowMemory::new), in memory of a file, so that it outlives a process. The caller's obligation
    /// covers other processes that map the file.
    pub(crate) fn shared(memory: &Arc<Memory>, slots: usize, state_bytes: usize) -> io::Result<FlowMemory> {
        let state_bytes = shared_stride(state_bytes);
        let entries = slots * CACHE_LINE;
        let states = match state_bytes {
            0 => Region::empty(),
            _ => Region::shared(memory, entries, slots * state_bytes)?,
        };
        Ok(FlowMemory {
            entries: Region::shared(memory, 0, entries)?,
            states,
            slots,
            state_bytes,
        })
    }

    /// Offset in a replica's entry of the flow's key: its words, in the byte order of this machine.
    pub(crate) fn key_offset() -> usize {
        offset_of!(Entry, key)
    }

    /// Offsets in a replica's entry of the two halves of the flow's generation, high half first.
    pub(crate) fn generation_offsets() -> [usize; 2] {
        let links = offset_of!(Entry, links);
        [links + offset_of!(Links, next), links + offset_of!(Links, previous)]
    }

    /// Size of the regions in bytes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.entries.len() + self.states.len()
    }

    pub(crate) fn state_bytes(&self) -> usize {
        self.state_bytes
    }

    #[inline]
    pub(crate) fn prefetch_entry(&self, index: usize) {
        prefetch(self.entries.base().wrapping_add(index * CACHE_LINE));
    }

    /// Prefetches these bytes of a flow's state.
    #[inline]
    pub(crate) fn prefetch_state(&self, index: usize, bytes: &Range<usize>) {
        if !bytes.is_empty() {
            let start = index.wrapping_mul(self.state_bytes) + bytes.start;
            let start = self.states.base().wrapping_add(start);
            prefetch(start);
            // Most chains have one line of state. Lines beyond two are fetched on access.
            if bytes.len() > CACHE_LINE {
                prefetch(start.wrapping_add(CACHE_LINE));
            }
        }
    }

    /// Links of one partition with `count` slots.
    ///
    /// # Safety
    /// The caller holds the partition, and no other reference to its links exists.
    #[inline]
    pub(crate) unsafe fn partition(&self, partition: usize, count: usize) -> PartitionLinks<'_> {
        assert!((partition + 1) * count <= self.slots);
        PartitionLinks {
            first: self.first().wrapping_add(partition * count),
            count,
            memory: PhantomData,
        }
    }

    #[inline]
    fn first(&self) -> *mut Entry {
        // Aligned, since regions are page-aligned. Every bit pattern is a valid `Entry`; memory is zero at first.
        self.entries.base().cast::<Entry>()
    }

    /// Key of one flow.
    ///
    /// # Safety
    /// `index` is below the number of slots, and nothing writes the key while the reference exists: the caller holds
    /// the partition, or a packet of the flow.
    #[inline]
    pub(crate) unsafe fn key(&self, index: usize) -> &FlowKey {
        debug_assert!(index < self.slots);
        // SAFETY: in bounds and shared, as guaranteed by the caller.
        unsafe { &(*self.first().add(index)).key }
    }

    /// Writes the key of one flow.
    ///
    /// # Safety
    /// `index` is below the number of slots, the caller holds its partition, and no packet of the flow is in the
    /// system.
    #[inline]
    pub(crate) unsafe fn set_key(&self, index: usize, key: &FlowKey) {
        debug_assert!(index < self.slots);
        // SAFETY: in bounds and exclusive, as guaranteed by the caller.
        unsafe { (*self.first().add(index)).key = *key };
    }

    /// Links of one flow.
    ///
    /// # Safety
    /// `index` is below the number of slots, the caller holds its partition, and nothing writes the links while the
    /// reference exists.
    #[inline]
    pub(crate) unsafe fn links(&self, index: usize) -> &Links {
        debug_assert!(index < self.slots);
        // SAFETY: in bounds and shared, as guaranteed by the caller.
        unsafe { &(*self.first().add(index)).links }
    }

    /// Mutable links of one flow.
    ///
    /// # Safety
    /// `index` is below the number of slots, the caller holds its partition, and no other reference to the links
    /// exists.
    #[inline]
    #[expect(clippy::mut_from_ref)]
    pub(crate) unsafe fn links_mut(&self, index: usize) -> &mut Links {
        debug_assert!(index < self.slots);
        // SAFETY: in bounds and exclusive, as guaranteed by the caller.
        unsafe { &mut (*self.first().add(index)).links }
    }

    /// Address of these bytes of one flow's state. Access requires the same as [`state`](Self::state).
    ///
    /// # Panics
    /// If the slot or the bytes are out of range.
    #[inline]
    pub(crate) fn state_address(&self, index: usize, bytes: &Range<usize>) -> *mut u8 {
        let inside = bytes.start <= bytes.end && bytes.end <= self.state_bytes;
        assert!(index < self.slots && inside, "bytes of a flow's state");
        let start = index * self.state_bytes + bytes.start;
        match self.state_bytes {
            0 => std::ptr::null_mut(),
            _ => self.states.base().wrapping_add(start),
        }
    }

    /// These bytes of one flow's state. A state of less than a cache line is in one line, and a larger one begins with
    /// a line.
    ///
    /// # Safety
    /// - `index` is below the number of slots.
    /// - The caller owns these bytes of the flow. It is the core that received the flow's packets, or it holds the
    ///   partition and no other core that accesses these bytes has a packet of the flow.
    /// - No other reference to the bytes exists.
    ///
    /// # Panics
    /// If the bytes exceed the state.
    #[inline]
    #[expect(clippy::mut_from_ref)]
    pub(crate) unsafe fn state(&self, index: usize, bytes: &Range<usize>) -> &mut [u8] {
        debug_assert!(index < self.slots);
        let inside = bytes.start <= bytes.end && bytes.end <= self.state_bytes;
        assert!(inside, "bytes of the flow's state");
        // SAFETY: the region has `slots * state_bytes` bytes, and the range lies within the slot's by the assertion; an
        // empty region has an address for empty slices. The bytes are initialised, and exclusive as guaranteed by the
        // caller.
        unsafe {
            let start = self.states.base().add(index * self.state_bytes + bytes.start);
            std::slice::from_raw_parts_mut(start, bytes.end - bytes.start)
        }
    }
}
