//! Memory of flows: an index of chain heads, records, and links, in one region each.
//!
//! A record holds all that a packet of a known flow touches: the functions' state, the time of the last packet and the
//! key. Small ones are one cache line. The links hold what only opening, ending and timers touch.
//!
//! One of the few modules with `unsafe` code. Several workers use one memory at once, each only the partitions it holds
//! and the flows passed to it. Each function states its obligation; [`flow_table`](crate::flow_table), the only caller,
//! meets them.

mod record;

pub(crate) use record::{FetchedLines, RecordLayout};

use crate::region::{CACHE_LINE, Region, prefetch};
use std::io;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;
use tailwater_net::FlowKey;
use tailwater_sdk::protocol::memory::Memory;

/// Metadata of a flow in the table that its packets do not touch.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Links {
    /// Companion flow, which is opened and ended with this one, or [`Links::NONE`].
    pub(crate) companion: u32,
    /// Next flow of the same home, or of the list of free slots; the index of no flow at the end.
    pub(crate) chain: u32,
    /// Neighbours in the timer wheel's list, as slots in the partition, or [`Links::NO_SLOT`]. A flow in no list is its
    /// own `previous`.
    pub(crate) next: u16,
    pub(crate) previous: u16,
    /// Number of the flow among those with packets in the system, plus one; 0 if it has none. Zero is the right value
    /// for fresh memory.
    pub(crate) active: u16,
    /// Slot of the timer wheel.
    pub(crate) wheel_slot: u8,
    /// Set in a replica while a function opens the flow.
    pub(crate) opening: u8,
}

impl Links {
    /// No flow.
    pub(crate) const NONE: u32 = u32::MAX;
    /// No slot.
    pub(crate) const NO_SLOT: u16 = u16::MAX;
}

/// Size of a flow's links in bytes.
pub(crate) const LINKS: usize = size_of::<Links>();

const _: () = assert!(LINKS == 16);

/// Links of one partition's flows.
#[derive(Debug)]
pub(crate) struct PartitionLinks<'a> {
    first: *mut Links,
    count: usize,
    memory: PhantomData<&'a mut Links>,
}

impl PartitionLinks<'_> {
    /// Links of the flow in slot `slot` of the partition.
    ///
    /// # Panics
    /// If the partition has no such slot.
    #[inline]
    pub(crate) fn at(&mut self, slot: u16) -> &mut Links {
        let slot = usize::from(slot);
        assert!(slot < self.count, "a slot of the partition");
        // SAFETY: in bounds by the assertion, and exclusive as guaranteed by the caller of `FlowMemory::partition`;
        // from there on `&mut self` makes it the only reference.
        unsafe { &mut *self.first.add(slot) }
    }
}

/// Index, records and links of all partitions.
#[derive(Debug)]
pub(crate) struct FlowMemory {
    /// Indices of the first flows of all homes. [Empty](Region::empty) in a replica.
    heads: Region,
    /// One record more than slots: that of [no flow](FlowMemory::none), with a key that no packet has.
    records: Region,
    links: Region,
    homes: usize,
    slots: usize,
    layout: RecordLayout,
}

// SAFETY: the regions are plain memory; callers are obliged to respect who may access which part.
unsafe impl Sync for FlowMemory {}

impl FlowMemory {
    /// Allocates memory for `slots` flows, reached from `homes` homes, with `state_bytes` bytes of state each.
    pub(crate) fn new(homes: usize, slots: usize, state_bytes: usize) -> io::Result<FlowMemory> {
        let layout = RecordLayout::new(state_bytes);
        let memory = FlowMemory {
            heads: Region::zeroed(homes * size_of::<u32>())?,
            records: Region::zeroed((slots + 1) * layout.stride)?,
            links: Region::zeroed(slots * LINKS)?,
            homes,
            slots,
            layout,
        };
        let none = memory.none();
        for home in 0..homes {
            // SAFETY: in range, and nothing else refers to the memory yet.
            unsafe { memory.set_head(home, none) };
        }
        // SAFETY: the record behind the last slot is in the region, and nothing else refers to it yet.
        unsafe { *memory.key_address(slots) = FlowKey::from_words([u64::MAX; 5]) };
        Ok(memory)
    }

    /// Size in bytes of the records and links of `slots` flows: all there is in [shared](FlowMemory::shared) memory.
    pub(crate) fn file_bytes(slots: usize, state_bytes: usize) -> usize {
        let records = (slots + 1) * RecordLayout::new(state_bytes).stride;
        records + slots * LINKS
    }

    /// Memory of a file, so that it outlives a process. It has no index. The caller's obligation covers other processes
    /// that map the file.
    pub(crate) fn shared(memory: &Arc<Memory>, slots: usize, state_bytes: usize) -> io::Result<FlowMemory> {
        let layout = RecordLayout::new(state_bytes);
        let records = (slots + 1) * layout.stride;
        Ok(FlowMemory {
            heads: Region::empty(),
            records: Region::shared(memory, 0, records)?,
            links: Region::shared(memory, records, slots * LINKS)?,
            homes: 0,
            slots,
            layout,
        })
    }

    /// Offsets in a replica's file of the two halves of a flow's generation, high half first.
    pub(crate) fn generation_offsets(index: usize, slots: usize, layout: &RecordLayout) -> [usize; 2] {
        let links = (slots + 1) * layout.stride + index * LINKS;
        [
            index * layout.stride + layout.last_seen,
            links + offset_of!(Links, chain),
        ]
    }

    /// Size of the regions in bytes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.heads.len() + self.records.len() + self.links.len()
    }

    pub(crate) fn layout(&self) -> &RecordLayout {
        &self.layout
    }

    /// Index of no flow. It has a record, which nothing writes, with a key that no packet has.
    #[inline]
    pub(crate) fn none(&self) -> u32 {
        self.slots as u32
    }

    #[inline]
    pub(crate) fn prefetch_head(&self, home: usize) {
        prefetch(self.heads.base().wrapping_add(home * size_of::<u32>()));
    }

    /// Prefetches these lines of a flow's record.
    #[inline]
    pub(crate) fn prefetch_record(&self, index: usize, lines: &FetchedLines) {
        let record = self.records.base().wrapping_add(index.wrapping_mul(self.layout.stride));
        lines.each(|offset| prefetch(record.wrapping_add(offset)));
    }

    /// Prefetches these bytes of a flow's state.
    #[inline]
    pub(crate) fn prefetch_state(&self, index: usize, bytes: &Range<usize>) {
        if !bytes.is_empty() {
            let start = index.wrapping_mul(self.layout.stride) + bytes.start;
            let start = self.records.base().wrapping_add(start);
            prefetch(start);
            // Most chains have one line of state. Lines beyond two are fetched on access.
            if bytes.len() > CACHE_LINE {
                prefetch(start.wrapping_add(CACHE_LINE));
            }
        }
    }

    /// Index of the first flow of a home, or [none](FlowMemory::none).
    ///
    /// # Safety
    /// `home` is below the number of homes, and the caller holds its partition.
    #[inline]
    pub(crate) unsafe fn head(&self, home: usize) -> u32 {
        debug_assert!(home < self.homes);
        // SAFETY: in bounds and not written meanwhile, as guaranteed by the caller; aligned, since regions are
        // page-aligned.
        unsafe { *self.heads.base().cast::<u32>().add(home) }
    }

    /// Sets the first flow of a home.
    ///
    /// # Safety
    /// Same as [`head`](FlowMemory::head).
    #[inline]
    pub(crate) unsafe fn set_head(&self, home: usize, index: u32) {
        debug_assert!(home < self.homes);
        // SAFETY: in bounds and exclusive, as guaranteed by the caller; aligned, since regions are page-aligned.
        unsafe { *self.heads.base().cast::<u32>().add(home) = index };
    }

    /// Links of one partition with `count` slots.
    ///
    /// # Safety
    /// The caller holds the partition, and no other reference to its links exists.
    #[inline]
    pub(crate) unsafe fn partition(&self, partition: usize, count: usize) -> PartitionLinks<'_> {
        assert!((partition + 1) * count <= self.slots);
        PartitionLinks {
            first: self.first_links().wrapping_add(partition * count),
            count,
            memory: PhantomData,
        }
    }

    #[inline]
    fn first_links(&self) -> *mut Links {
        // Aligned: regions are page-aligned, and records a multiple of the links' alignment. Every bit pattern is a
        // valid `Links`; memory is zero at first.
        self.links.base().cast::<Links>()
    }

    /// Address of a flow's key. Aligned, since the stride and the key's offset are multiples of 8. Every bit pattern is
    /// a valid key.
    #[inline]
    fn key_address(&self, index: usize) -> *mut FlowKey {
        let at = index * self.layout.stride + self.layout.key;
        self.records.base().wrapping_add(at).cast::<FlowKey>()
    }

    /// Key of one flow, or of none.
    ///
    /// # Safety
    /// `index` is at most the number of slots, and nothing writes the key while the reference exists: the caller holds
    /// the partition, or a packet of the flow.
    #[inline]
    pub(crate) unsafe fn key(&self, index: usize) -> &FlowKey {
        debug_assert!(index <= self.slots);
        // SAFETY: in bounds and shared, as guaranteed by the caller.
        unsafe { &*self.key_address(index) }
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
        unsafe { *self.key_address(index) = *key };
    }

    #[inline]
    fn last_seen_address(&self, index: usize) -> *mut u32 {
        let at = index * self.layout.stride + self.layout.last_seen;
        // Aligned, since the stride and the offset are multiples of 4.
        self.records.base().wrapping_add(at).cast::<u32>()
    }

    /// Tick of the last packet of one flow.
    ///
    /// # Safety
    /// `index` is below the number of slots, and the caller holds its partition.
    #[inline]
    pub(crate) unsafe fn last_seen(&self, index: usize) -> u32 {
        debug_assert!(index < self.slots);
        // SAFETY: in bounds and not written meanwhile, as guaranteed by the caller.
        unsafe { *self.last_seen_address(index) }
    }

    /// Sets the tick of the last packet of one flow.
    ///
    /// # Safety
    /// Same as [`last_seen`](FlowMemory::last_seen).
    #[inline]
    pub(crate) unsafe fn set_last_seen(&self, index: usize, tick: u32) {
        debug_assert!(index < self.slots);
        // SAFETY: in bounds and exclusive, as guaranteed by the caller.
        unsafe { *self.last_seen_address(index) = tick };
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
        unsafe { &*self.first_links().add(index) }
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
        unsafe { &mut *self.first_links().add(index) }
    }

    /// Address of these bytes of one flow's state. Access requires the same as [`state`](Self::state).
    ///
    /// # Panics
    /// If the slot or the bytes are out of range.
    #[inline]
    pub(crate) fn state_address(&self, index: usize, bytes: &Range<usize>) -> *mut u8 {
        let inside = bytes.start <= bytes.end && bytes.end <= self.layout.state_bytes;
        assert!(index < self.slots && inside, "bytes of a flow's state");
        let start = index * self.layout.stride + bytes.start;
        match self.layout.state_bytes {
            0 => std::ptr::null_mut(),
            _ => self.records.base().wrapping_add(start),
        }
    }

    /// These bytes of one flow's state. The state as a whole is aligned to 16 bytes.
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
        let inside = bytes.start <= bytes.end && bytes.end <= self.layout.state_bytes;
        assert!(inside, "bytes of the flow's state");
        // SAFETY: each slot's record begins with its state, and the range lies within it by the assertion. The bytes
        // are initialised, and exclusive as guaranteed by the caller.
        unsafe {
            let start = self.records.base().add(index * self.layout.stride + bytes.start);
            std::slice::from_raw_parts_mut(start, bytes.end - bytes.start)
        }
    }
}
