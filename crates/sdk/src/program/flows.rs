//! Flow state of a function, in memory that outlives its process.
//!
//! One of the few modules with `unsafe` code: it views the memory as entries.
//!
//! Each slot of the flow table has an entry of one cache line. The states follow all entries, each in whole cache
//! lines. The server zeroes the file and gives it to one process of this function after the other.

use crate::abi;
use crate::protocol::layout::FlowSlot;
use crate::protocol::memory::Memory;
use crate::protocol::snapshots::FlowSnapshots;
use crate::sys::prefetch;
use std::io;
use std::mem::offset_of;
use std::sync::atomic::{Ordering, compiler_fence};
use tailwater_net::FlowKey;

/// Size of a cache line in bytes.
pub(super) const LINE: usize = 64;

/// Entry of a flow.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Entry {
    /// Key under which the flow entered the chain.
    key: abi::FlowKey,
    /// Generation of the flow, which differs from that of any other flow in this slot. 0: no flow.
    generation: u64,
    /// Progress of the function with the flow: [`UNSEEN`], or one of the values after it.
    seen: u32,
    /// 1 if later functions have yet to be notified that the flow was rewritten.
    pending: u32,
    /// For a flow the function must decide on: number in the batch, counted from 1, of the packet that requests it. If
    /// that packet is not of this flow, an earlier process made the request, and died during the batch. 0: no request.
    asked: u64,
}

const _: () = assert!(size_of::<Entry>() == LINE);

impl Entry {
    /// Offsets of fields.
    pub(super) const KEY: usize = offset_of!(Entry, key);
    pub(super) const GENERATION: usize = offset_of!(Entry, generation);
    pub(super) const SEEN: usize = offset_of!(Entry, seen);
}

/// [`Entry::seen`]: the function has not seen the flow. Value of fresh memory.
pub(super) const UNSEEN: u32 = 0;
/// [`Entry::seen`]: the function has seen the flow.
const SEEN: u32 = 1;
/// [`Entry::seen`]: the function has seen the flow, but a preceding function has rewritten it since.
pub(super) const SEEN_BEFORE: u32 = 2;

/// Packet of the batch being gathered.
pub(super) trait Gathered {
    /// Returns the slot of its flow.
    fn flow(&self) -> FlowSlot;
}

/// Flows of a function.
#[derive(Debug)]
pub(super) struct Flows {
    memory: Memory,
    places: usize,
    /// Distance between two states in bytes.
    stride: usize,
}

impl Flows {
    /// Opens the flows in this memory, with `state_bytes` bytes of state each.
    pub(super) fn open(memory: Memory, state_bytes: usize) -> io::Result<Flows> {
        let stride = state_bytes.next_multiple_of(LINE);
        let places = memory.len() / (LINE + stride);
        if places == 0 || u32::try_from(places).is_err() {
            return Err(io::Error::other("memory of no flows"));
        }
        Ok(Flows { memory, places, stride })
    }

    /// Prefetches the flow in a slot, if the slot exists.
    #[inline]
    pub(super) fn prefetch(&self, place: u32) {
        let place = place as usize;
        if place < self.places {
            prefetch(self.memory.base().wrapping_add(place * LINE));
            prefetch(self.state(place));
        }
    }

    #[inline]
    fn state(&self, place: usize) -> *mut u8 {
        let states = self.memory.base().wrapping_add(self.places * LINE);
        states.wrapping_add(place * self.stride)
    }

    /// Returns the entry of a slot.
    ///
    /// # Panics
    /// If the slot does not exist.
    #[inline]
    fn entry(&mut self, place: u32) -> &mut Entry {
        let place = place as usize;
        assert!(place < self.places, "a flow of the flow table");
        // SAFETY: in bounds, and aligned because maps are page-aligned; any bytes are a valid entry. The server gives
        // this memory to one process at a time, which accesses it through `self` alone.
        unsafe { &mut *self.memory.base().cast::<Entry>().add(place) }
    }

    /// Handles a packet of the flow with this slot and key. `rekeyed` is set if a preceding function
    /// rewrote the flow; `gathered` are the preceding packets of the batch. Returns whether the function must decide on
    /// the flow, and the address of its state.
    ///
    /// The state is zero if the slot held another flow or none, or if a process died during the flow's first packets.
    /// If external state has arrived for the flow, the state is that, copied from the snapshots.
    ///
    /// # Panics
    /// If the slot does not exist.
    #[inline]
    pub(super) fn arrive(
        &mut self,
        flow: FlowSlot,
        key: impl FnOnce() -> FlowKey,
        rekeyed: bool,
        gathered: &[impl Gathered],
        images: Option<&FlowSnapshots>,
    ) -> (bool, *mut u8) {
        let place = flow.flow;
        if self.entry(place).generation != flow.generation {
            self.begin(flow, &key());
        }
        let entry = self.entry(place);
        if rekeyed {
            entry.pending = 1;
            if entry.seen == SEEN {
                entry.seen = SEEN_BEFORE;
            }
        }
        let new = entry.seen != SEEN && (rekeyed || !is_of(gathered, entry.asked, flow));
        if new {
            self.request_decision(flow, gathered, images);
        }
        (new, self.state(place as usize))
    }

    /// Records that the packet after those gathered requests a decision of the function. The flow counts as seen only
    /// after [`mark_seen`](Flows::mark_seen). If the process dies during the batch, the next packet repeats the
    /// request.
    fn request_decision(&mut self, flow: FlowSlot, gathered: &[impl Gathered], images: Option<&FlowSnapshots>) {
        let place = flow.flow;
        let entry = self.entry(place);
        let (unseen, before) = (entry.seen == UNSEEN, entry.asked);
        entry.asked = gathered.len() as u64 + 1;
        if !unseen || is_of(gathered, before, flow) {
            return;
        }
        write_in_order();
        if before != 0 {
            // A process that died during the flow's first packets may have left partial state. State of a flow that was
            // seen is kept, whichever packet a process dies on.
            self.clear(place);
        }
        if let Some(images) = images {
            images.external_info(place, self.piece_mut(place, images));
        }
    }

    /// Marks the flow of this slot and generation as seen, after [`arrive`](Flows::arrive) requested a decision on it.
    ///
    /// # Panics
    /// If the slot does not exist.
    #[inline]
    pub(super) fn mark_seen(&mut self, place: u32, generation: u64) {
        let entry = self.entry(place);
        if entry.generation == generation {
            entry.seen = SEEN;
        }
    }

    /// Returns the part of the flow's state that is in its snapshots.
    ///
    /// # Panics
    /// If the slot does not exist, or the state is smaller than that part.
    #[inline]
    pub(super) fn piece(&self, place: u32, images: &FlowSnapshots) -> &[u8] {
        let (place, bytes) = (place as usize, images.piece_bytes());
        assert!(place < self.places && bytes <= self.stride, "a flow's state");
        // SAFETY: in bounds; any bytes are valid. This process accesses it through `self` alone, except for the
        // function during the call of `process`.
        unsafe { std::slice::from_raw_parts(self.state(place), bytes) }
    }

    /// As [`piece`](Flows::piece), for writing.
    fn piece_mut(&mut self, place: u32, images: &FlowSnapshots) -> &mut [u8] {
        let (place, bytes) = (place as usize, images.piece_bytes());
        assert!(place < self.places && bytes <= self.stride, "a flow's state");
        // SAFETY: as in `piece`; `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.state(place), bytes) }
    }

    #[cold]
    fn begin(&mut self, flow: FlowSlot, key: &FlowKey) {
        let place = flow.flow;
        // A process killed in between leaves no flow in the slot.
        self.entry(place).generation = 0;
        write_in_order();
        self.clear(place);
        let entry = self.entry(place);
        *entry = Entry {
            key: abi::FlowKey { words: key.words() },
            generation: 0,
            seen: UNSEEN,
            pending: 0,
            asked: 0,
        };
        write_in_order();
        entry.generation = flow.generation;
    }

    /// Zeroes the state of a slot.
    fn clear(&mut self, place: u32) {
        assert!((place as usize) < self.places, "a flow of the flow table");
        let state = self.state(place as usize);
        // SAFETY: the state of an existing slot; nothing refers to it.
        unsafe { state.write_bytes(0, self.stride) };
    }

    /// Returns `true` if later functions have yet to be notified that the flow was rewritten, and clears that. The
    /// forwarded packet notifies them.
    ///
    /// # Panics
    /// If the slot does not exist.
    #[inline]
    pub(super) fn take_pending(&mut self, place: u32) -> bool {
        std::mem::take(&mut self.entry(place).pending) != 0
    }

    /// Removes the flow in a slot, if it has this generation. If the function has seen the flow, `each` receives its
    /// key and state first.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub(super) fn end(&mut self, place: u32, generation: u64, each: impl FnOnce(abi::EndedFlow)) {
        let state = self.state(place as usize);
        let entry = self.entry(place);
        if generation == 0 || entry.generation != generation {
            return;
        }
        if entry.seen != UNSEEN {
            each(abi::EndedFlow {
                key: &raw const entry.key,
                state: state.cast_const().cast(),
            });
        }
        self.entry(place).generation = 0;
    }
}

/// Returns `true` if packet `number`, counted from 1, is in `gathered` and belongs to this flow.
#[inline]
fn is_of<G: Gathered>(gathered: &[G], number: u64, flow: FlowSlot) -> bool {
    let i = usize::try_from(number.wrapping_sub(1)).unwrap_or(usize::MAX);
    gathered.get(i).is_some_and(|packet| packet.flow() == flow)
}

/// Orders earlier writes before later ones, for the process that replaces a killed one. Costs no instruction, because
/// only the compiler may reorder them.
#[inline(always)]
fn write_in_order() {
    compiler_fence(Ordering::SeqCst);
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::time::Duration;

    const STATE_BYTES: usize = 100;

    impl Gathered for FlowSlot {
        fn flow(&self) -> FlowSlot {
            *self
        }
    }

    /// File of four flows with this much state.
    pub(crate) fn file(name: &str) -> File {
        let path = std::env::temp_dir().join(format!("tailwater-{name}-{}", std::process::id()));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).open(&path);
        std::fs::remove_file(&path).unwrap();
        let file = file.unwrap();
        file.set_len(4 * (LINE as u64 + 128)).unwrap();
        file
    }

    fn flows() -> Flows {
        let memory = Memory::whole(&file("flows"), Duration::MAX).unwrap();
        Flows::open(memory, STATE_BYTES).unwrap()
    }

    /// A flow's entry that a killed process left half-written is started again.
    #[test]
    fn a_flow_that_a_killed_process_only_began_is_begun_again() {
        let mut flows = flows();
        let key = FlowKey::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 1, 2);
        for generation in [7, 8] {
            *flows.entry(3) = Entry {
                key: abi::FlowKey { words: [u64::MAX; 5] },
                generation: 0,
                seen: SEEN,
                pending: 1,
                asked: 1,
            };
            let state = flows.state(3);
            // SAFETY: the state of an existing slot; nothing refers to it.
            unsafe { state.write_bytes(0xa5, flows.stride) };
            flows.end(3, 0, |_| panic!("no flow"));
            flows.end(3, generation, |_| panic!("no flow"));
            let none: &[FlowSlot] = &[];
            let flow = FlowSlot { flow: 3, generation };
            let (new, at) = flows.arrive(flow, || key, false, none, None);
            assert!(new && at == state);
            // SAFETY: as above.
            let bytes = unsafe { std::slice::from_raw_parts(at, flows.stride) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            assert!(!flows.take_pending(3));
            flows.mark_seen(3, generation);
            let mut ended = None;
            // SAFETY: the entry's key, in memory that is mapped as long as `flows`.
            flows.end(3, generation, |flow| ended = Some(unsafe { (*flow.key).words }));
            assert_eq!(ended, Some(key.words()));
        }
    }
}
