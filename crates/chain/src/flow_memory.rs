//! Where flow entries and per-flow state lie: two regions, indexed alike.
//!
//! One of the few modules with `unsafe` code. Several workers use one memory at once, each only
//! the partitions it holds and the flows it was handed; the obligation is written at each function, and met in
//! [`flow_table`](crate::flow_table), the only caller.

use crate::region::{CACHE_LINE, Region, prefetch};
use std::io;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::Arc;
use tailwater_net::FlowKey;
use tailwater_sdk::protocol::memory::Memory;

/// One flow: a cache line, in two parts with separate rights. Who holds the partition writes both, but
/// the key only while no packet of the flow is anywhere: so whoever has been handed a packet may read
/// the key meanwhile.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Entry {
    key: FlowKey,
    links: Links,
}

/// What the table keeps of a flow besides its key.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Links {
    /// Bit `d`: the place `d` further on holds a key at home here.
    pub(crate) near: u32,
    /// Tick of the last packet.
    pub(crate) last_seen: u32,
    /// The flow that lives and ends with this one, or [`Links::NONE`].
    pub(crate) companion: u32,
    /// Neighbours in the timer wheel's list: places in the partition, or [`Links::NONE`]. A flow that
    /// is in no list is its own `previous`.
    pub(crate) next: u32,
    pub(crate) previous: u32,
    /// The wheel's slot.
    pub(crate) wheel_slot: u8,
    /// How far from home the flow lies.
    pub(crate) distance: u8,
    /// One more than the number that the flow has among those with packets in the system, or 0: it
    /// has none there. (Zero, so that fresh memory is right.)
    pub(crate) active: u16,
}

impl Links {
    /// No place.
    pub(crate) const NONE: u32 = u32::MAX;
}

const _: () = assert!(size_of::<Entry>() == CACHE_LINE);

/// The links of one partition's flows.
#[derive(Debug)]
pub(crate) struct PartitionLinks<'a> {
    first: *mut Entry,
    count: usize,
    memory: PhantomData<&'a mut Links>,
}

impl PartitionLinks<'_> {
    /// Those of the flow at `place` in the partition.
    ///
    /// # Panics
    /// If the place is not in the partition.
    #[inline]
    pub(crate) fn at(&mut self, place: u32) -> &mut Links {
        let place = place as usize;
        assert!(place < self.count, "a place of the partition");
        // SAFETY: in bounds by the assertion, and alone by the word of `FlowMemory::partition`'s
        // caller; `&mut self` makes it the only one from here. The key is not touched.
        unsafe { &mut (*self.first.add(place)).links }
    }
}

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

    /// Bytes of memory for so many flows, for [`shared`](FlowMemory::shared).
    pub(crate) fn file_bytes(places: usize, state_lines: usize) -> usize {
        places * (1 + state_lines) * CACHE_LINE
    }

    /// As [`new`](FlowMemory::new), in memory of a file: so it outlives a process. Whoever else maps the file is
    /// the caller's obligation, as for any other part of it.
    pub(crate) fn shared(memory: &Arc<Memory>, places: usize, state_lines: usize) -> io::Result<FlowMemory> {
        let state_bytes = state_lines * CACHE_LINE;
        let entries = places * CACHE_LINE;
        let states = match state_bytes {
            0 => None,
            _ => Some(Region::shared(memory, entries, places * state_bytes)?),
        };
        Ok(FlowMemory {
            entries: Region::shared(memory, 0, entries)?,
            states,
            places,
            state_bytes,
        })
    }

    /// Where in an entry the two halves are of when a mirrored flow was opened, the higher one first.
    pub(crate) fn births() -> [usize; 2] {
        let links = offset_of!(Entry, links);
        [links + offset_of!(Links, next), links + offset_of!(Links, previous)]
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

    /// Fetches these bytes of a flow's state.
    #[inline]
    pub(crate) fn prefetch_state(&self, place: usize, bytes: &Range<usize>) {
        if let Some(states) = &self.states
            && !bytes.is_empty()
        {
            let start = place.wrapping_mul(self.state_bytes) + bytes.start;
            let start = states.base().wrapping_add(start);
            prefetch(start);
            // Most chains have one line of state; more than two are fetched when they are reached.
            if bytes.len() > CACHE_LINE {
                prefetch(start.wrapping_add(CACHE_LINE));
            }
        }
    }

    /// The links of one partition of `count` places.
    ///
    /// # Safety
    /// The caller holds the partition, and no other reference to its links lives.
    #[inline]
    pub(crate) unsafe fn partition(&self, partition: usize, count: usize) -> PartitionLinks<'_> {
        assert!((partition + 1) * count <= self.places);
        PartitionLinks {
            first: self.first().wrapping_add(partition * count),
            count,
            memory: PhantomData,
        }
    }

    #[inline]
    fn first(&self) -> *mut Entry {
        // Aligned, since regions are page-aligned; every bit pattern, zero at first, is an `Entry`.
        self.entries.base().cast::<Entry>()
    }

    /// One flow's key.
    ///
    /// # Safety
    /// `place` is below the number of places, and nobody writes the key while the reference lives:
    /// the caller holds the partition, or a packet of the flow.
    #[inline]
    pub(crate) unsafe fn key(&self, place: usize) -> &FlowKey {
        debug_assert!(place < self.places);
        // SAFETY: in bounds and shared by the caller's word.
        unsafe { &(*self.first().add(place)).key }
    }

    /// Writes one flow's key.
    ///
    /// # Safety
    /// `place` is below the number of places; the caller holds its partition, and no packet of the
    /// flow is anywhere.
    #[inline]
    pub(crate) unsafe fn set_key(&self, place: usize, key: &FlowKey) {
        debug_assert!(place < self.places);
        // SAFETY: in bounds and alone by the caller's word.
        unsafe { (*self.first().add(place)).key = *key };
    }

    /// One flow's links.
    ///
    /// # Safety
    /// `place` is below the number of places; the caller holds its partition, and nobody writes the
    /// links while the reference lives.
    #[inline]
    pub(crate) unsafe fn links(&self, place: usize) -> &Links {
        debug_assert!(place < self.places);
        // SAFETY: in bounds and shared by the caller's word.
        unsafe { &(*self.first().add(place)).links }
    }

    /// One flow's links, to write.
    ///
    /// # Safety
    /// `place` is below the number of places; the caller holds its partition, and no other
    /// reference to the links lives.
    #[inline]
    #[expect(clippy::mut_from_ref)]
    pub(crate) unsafe fn links_mut(&self, place: usize) -> &mut Links {
        debug_assert!(place < self.places);
        // SAFETY: in bounds and alone by the caller's word.
        unsafe { &mut (*self.first().add(place)).links }
    }

    /// Where these bytes of the state of one flow are. To touch them takes what [`state`](Self::state) asks for.
    ///
    /// # Panics
    /// If the place or the bytes are out of range.
    #[inline]
    pub(crate) fn state_address(&self, place: usize, bytes: &Range<usize>) -> *mut u8 {
        let inside = bytes.start <= bytes.end && bytes.end <= self.state_bytes;
        assert!(place < self.places && inside, "bytes of a flow's state");
        let start = place * self.state_bytes + bytes.start;
        match &self.states {
            Some(states) => states.base().wrapping_add(start),
            None => std::ptr::null_mut(),
        }
    }

    /// These bytes of the state of one flow, which as a whole is aligned to a cache line.
    ///
    /// # Safety
    /// `place` is below the number of places; the caller owns these bytes of the flow: it holds the
    /// partition and has handed none of the flow's packets to another core, or none to one that
    /// touches these bytes, or it is the one they were handed to. No other reference to them lives.
    ///
    /// # Panics
    /// If the state has not so many bytes.
    #[inline]
    #[expect(clippy::mut_from_ref)]
    pub(crate) unsafe fn state(&self, place: usize, bytes: &Range<usize>) -> &mut [u8] {
        debug_assert!(place < self.places);
        let inside = bytes.start <= bytes.end && bytes.end <= self.state_bytes;
        assert!(inside, "bytes of the flow's state");
        match &self.states {
            // SAFETY: the region has `places * state_bytes` bytes, and these are among the place's by
            // the assertion; initialised; exclusive by the caller's word.
            Some(states) => unsafe {
                let start = states.base().add(place * self.state_bytes + bytes.start);
                std::slice::from_raw_parts_mut(start, bytes.end - bytes.start)
            },
            None => &mut [],
        }
    }
}
