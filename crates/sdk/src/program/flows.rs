//! A function's state of flows, in memory that outlives its process.
//!
//! One of the few modules with `unsafe` code: the memory is viewed as entries.
//!
//! For each place of the flow table there is an entry of a cache line, and behind all entries the state, in whole
//! cache lines. The server zeroes the file and gives it to one process of this function after the other.

use crate::abi;
use crate::protocol::images::FlowImages;
use crate::protocol::memory::Memory;
use crate::sys::prefetch;
use std::io;
use std::sync::atomic::{Ordering, compiler_fence};
use tailwater_net::FlowKey;

/// Bytes of a cache line.
const LINE: usize = 64;

/// A flow.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Entry {
    /// As the flow came to the chain.
    key: abi::FlowKey,
    /// The flow's birth: another flow here has another one. 0: there is none.
    birth: u64,
    /// Whether the function has seen the flow: [`UNSEEN`], or one of those behind.
    seen: u32,
    /// 1 if functions behind have yet to be told that the flow has other addresses now.
    pending: u32,
    /// Of a flow about which the function is to decide anew: the packet of the batch that asks it to, counted from 1.
    /// If there is no such packet of the flow, a process before asked, and ended over the batch. 0: nobody has asked.
    asked: u64,
}

const _: () = assert!(size_of::<Entry>() == LINE);

/// [`Entry::seen`]: the function has not seen the flow. Memory is so at first.
const UNSEEN: u32 = 0;
/// It has.
const SEEN: u32 = 1;
/// It has, but a function in front sent the flow elsewhere since.
const SEEN_BEFORE: u32 = 2;

/// A packet of the batch that is being gathered.
pub(super) trait Gathered {
    /// The place and the birth of its flow.
    fn flow(&self) -> (u32, u64);
}

/// The flows of a function.
#[derive(Debug)]
pub(super) struct Flows {
    memory: Memory,
    places: usize,
    /// From one state to the next.
    stride: usize,
}

impl Flows {
    /// Those in this memory, with so many bytes of state each.
    pub(super) fn open(memory: Memory, state_bytes: usize) -> io::Result<Flows> {
        let stride = state_bytes.next_multiple_of(LINE);
        let places = memory.len() / (LINE + stride);
        if places == 0 || u32::try_from(places).is_err() {
            return Err(io::Error::other("memory of no flows"));
        }
        Ok(Flows { memory, places, stride })
    }

    /// Starts to fetch the flow at a place, if there is one.
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

    /// The entry at a place.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    fn entry(&mut self, place: u32) -> &mut Entry {
        let place = place as usize;
        assert!(place < self.places, "a flow of the flow table");
        // SAFETY: in bounds, and aligned since maps are to pages; any bytes are an entry. The server gives this memory
        // to one process at a time, in which it is reached through `self` alone.
        unsafe { &mut *self.memory.base().cast::<Entry>().add(place) }
    }

    /// A packet of the flow at a place has come, which was opened with this birth and key; `rekeyed` if a function in
    /// front sent it elsewhere; `gathered` are the packets of the batch before it. Whether the function is to decide
    /// anew, and where the flow's state is: zero, if another flow, or none, was there before, or the function failed
    /// over the flow's first packets; or what has come for it from outside, which is in the images.
    ///
    /// # Panics
    /// If there is no such place.
    #[inline]
    pub(super) fn arrive(
        &mut self,
        (place, birth): (u32, u64),
        key: impl FnOnce() -> FlowKey,
        rekeyed: bool,
        gathered: &[impl Gathered],
        images: Option<&FlowImages>,
    ) -> (bool, *mut u8) {
        if self.entry(place).birth != birth {
            self.begin(place, birth, &key());
        }
        let entry = self.entry(place);
        if rekeyed {
            entry.pending = 1;
            if entry.seen == SEEN {
                entry.seen = SEEN_BEFORE;
            }
        }
        let new = entry.seen != SEEN && (rekeyed || !is_of(gathered, entry.asked, (place, birth)));
        if new {
            self.ask(place, birth, gathered, images);
        }
        (new, self.state(place as usize))
    }

    /// The packet behind those gathered asks the function to decide anew. It has seen the flow when it is
    /// [told so](Flows::saw), and not before: should the process end over the batch, the next packet asks again.
    fn ask(&mut self, place: u32, birth: u64, gathered: &[impl Gathered], images: Option<&FlowImages>) {
        let entry = self.entry(place);
        let (unseen, before) = (entry.seen == UNSEEN, entry.asked);
        entry.asked = gathered.len() as u64 + 1;
        if !unseen || is_of(gathered, before, (place, birth)) {
            return;
        }
        write_in_order();
        if before != 0 {
            // A process that ended over the flow's first packets may have left half a state. One of a flow that was
            // seen stays, as it does whichever packet a process ends over.
            self.clear(place);
        }
        if let Some(images) = images {
            images.offer(place, self.piece_mut(place, images));
        }
    }

    /// The function has seen the flow of this birth at a place, of which [`arrive`](Flows::arrive) said that it was to
    /// decide anew.
    ///
    /// # Panics
    /// If there is no such place.
    #[inline]
    pub(super) fn saw(&mut self, place: u32, birth: u64) {
        let entry = self.entry(place);
        if entry.birth == birth {
            entry.seen = SEEN;
        }
    }

    /// The state of the flow at a place, as much of it as images have.
    ///
    /// # Panics
    /// If there is no such place, or not so much.
    #[inline]
    pub(super) fn piece(&self, place: u32, images: &FlowImages) -> &[u8] {
        let (place, bytes) = (place as usize, images.piece_bytes());
        assert!(place < self.places && bytes <= self.stride, "a flow's state");
        // SAFETY: in bounds; any bytes will do. In this process it is reached through `self` alone, but for the
        // function, which has it for the call of `process`.
        unsafe { std::slice::from_raw_parts(self.state(place), bytes) }
    }

    /// The same, to write.
    fn piece_mut(&mut self, place: u32, images: &FlowImages) -> &mut [u8] {
        let (place, bytes) = (place as usize, images.piece_bytes());
        assert!(place < self.places && bytes <= self.stride, "a flow's state");
        // SAFETY: as in `piece`; `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.state(place), bytes) }
    }

    #[cold]
    fn begin(&mut self, place: u32, birth: u64, key: &FlowKey) {
        // Who is killed in between leaves no flow there.
        self.entry(place).birth = 0;
        write_in_order();
        self.clear(place);
        let entry = self.entry(place);
        *entry = Entry {
            key: abi::FlowKey { words: key.words() },
            birth: 0,
            seen: UNSEEN,
            pending: 0,
            asked: 0,
        };
        write_in_order();
        entry.birth = birth;
    }

    /// Makes the state at a place zero.
    fn clear(&mut self, place: u32) {
        assert!((place as usize) < self.places, "a flow of the flow table");
        let state = self.state(place as usize);
        // SAFETY: the state of a place that there is; nothing refers to it.
        unsafe { state.write_bytes(0, self.stride) };
    }

    /// Whether functions behind have yet to be told that the flow has other addresses now. The packet that goes on
    /// tells them.
    ///
    /// # Panics
    /// If there is no such place.
    #[inline]
    pub(super) fn take_pending(&mut self, place: u32) -> bool {
        std::mem::take(&mut self.entry(place).pending) != 0
    }

    /// Forgets the flow at a place, if it is the one of this birth. `each` gets its key and state first, if the
    /// function has seen it.
    ///
    /// # Panics
    /// If there is no such place.
    pub(super) fn end(&mut self, place: u32, birth: u64, each: impl FnOnce(abi::EndedFlow)) {
        let state = self.state(place as usize);
        let entry = self.entry(place);
        if birth == 0 || entry.birth != birth {
            return;
        }
        if entry.seen != UNSEEN {
            each(abi::EndedFlow {
                key: &raw const entry.key,
                state: state.cast_const().cast(),
            });
        }
        self.entry(place).birth = 0;
    }
}

/// Whether the packet of this number, counted from 1, is among these and of this flow.
#[inline]
fn is_of<G: Gathered>(gathered: &[G], number: u64, flow: (u32, u64)) -> bool {
    let i = usize::try_from(number.wrapping_sub(1)).unwrap_or(usize::MAX);
    gathered.get(i).is_some_and(|packet| packet.flow() == flow)
}

/// What was written before is there before what is written from here on, for the process that comes after one that was
/// killed. Costs no instruction: only the compiler is told.
#[inline(always)]
fn write_in_order() {
    compiler_fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::time::Duration;

    const STATE_BYTES: usize = 100;

    impl Gathered for (u32, u64) {
        fn flow(&self) -> (u32, u64) {
            *self
        }
    }

    fn flows() -> Flows {
        let path = std::env::temp_dir().join(format!("tailwater-flows-{}", std::process::id()));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).open(&path);
        std::fs::remove_file(&path).unwrap();
        let file = file.unwrap();
        file.set_len(4 * (LINE as u64 + 128)).unwrap();
        let memory = Memory::whole(&file, Duration::MAX).unwrap();
        Flows::open(memory, STATE_BYTES).unwrap()
    }

    /// Whatever of a flow's beginning was written before the process was killed.
    #[test]
    fn a_flow_that_a_killed_process_only_began_is_begun_again() {
        let mut flows = flows();
        let key = FlowKey::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 1, 2);
        for birth in [7, 8] {
            *flows.entry(3) = Entry {
                key: abi::FlowKey { words: [u64::MAX; 5] },
                birth: 0,
                seen: SEEN,
                pending: 1,
                asked: 1,
            };
            let state = flows.state(3);
            // SAFETY: the state of a place that there is; nothing refers to it.
            unsafe { state.write_bytes(0xa5, flows.stride) };
            flows.end(3, 0, |_| panic!("no flow"));
            flows.end(3, birth, |_| panic!("no flow"));
            let none: &[(u32, u64)] = &[];
            let (new, at) = flows.arrive((3, birth), || key, false, none, None);
            assert!(new && at == state);
            // SAFETY: as above.
            let bytes = unsafe { std::slice::from_raw_parts(at, flows.stride) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            assert!(!flows.take_pending(3));
            flows.saw(3, birth);
            let mut ended = None;
            // SAFETY: the entry's key, in memory that is mapped as long as `flows`.
            flows.end(3, birth, |flow| ended = Some(unsafe { (*flow.key).words }));
            assert_eq!(ended, Some(key.words()));
        }
    }
}
