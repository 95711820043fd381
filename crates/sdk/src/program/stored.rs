//! Server side of a function's [flows](super::flows): they pass to another process of the server, without the function.

use super::flows::{Entry, LINE, SEEN_BEFORE, UNSEEN};
use crate::protocol::layout::FlowSlot;
use crate::protocol::memory::Memory;
use std::io;
use tailwater_net::FlowKey;

/// Flows of a function in the memory that its processes share. They are accessed while none of these has a turn.
#[derive(Debug)]
pub struct StoredFlows {
    memory: Memory,
    places: usize,
    stride: usize,
}

impl StoredFlows {
    /// Opens the flows in this memory, with `state_bytes` bytes of state each.
    ///
    /// # Errors
    /// The memory is too small for one flow.
    pub fn open(memory: Memory, state_bytes: usize) -> io::Result<StoredFlows> {
        let stride = state_bytes.next_multiple_of(LINE);
        match memory.len() / (LINE + stride) {
            0 => Err(io::Error::other("memory of no flows")),
            places => Ok(StoredFlows { memory, places, stride }),
        }
    }

    /// Offset of a slot's state, of which `bytes` are accessed; `None` if there are no such bytes.
    fn state(&self, flow: FlowSlot, bytes: usize) -> Option<usize> {
        let place = flow.flow as usize;
        (place < self.places && bytes <= self.stride).then(|| self.places * LINE + place * self.stride)
    }

    /// Copies the beginning of a flow's state. Returns `false` if the function has not seen the flow.
    pub fn read(&self, flow: FlowSlot, to: &mut [u8]) -> bool {
        let Some(state) = self.state(flow, to.len()) else {
            return false;
        };
        let entry = flow.flow as usize * LINE;
        let (mut generation, mut seen) = ([0; size_of::<u64>()], [0; size_of::<u32>()]);
        self.memory.read(entry + Entry::GENERATION, &mut generation);
        self.memory.read(entry + Entry::SEEN, &mut seen);
        let is_there = flow.generation != 0 && u64::from_ne_bytes(generation) == flow.generation;
        if !is_there || u32::from_ne_bytes(seen) == UNSEEN {
            return false;
        }
        self.memory.read(state, to);
        true
    }

    /// Writes a flow that the function has seen in another process, and is presented again with its next packet.
    /// Returns `false` if there is no such slot, or the state is too long.
    pub fn write(&self, flow: FlowSlot, key: &FlowKey, from: &[u8]) -> bool {
        let Some(state) = self.state(flow, from.len()) else {
            return false;
        };
        let entry = flow.flow as usize * LINE;
        self.memory.wipe(entry, LINE);
        self.memory.wipe(state, self.stride);
        self.memory.write(state, from);
        let words = key.words().map(u64::to_ne_bytes);
        self.memory.write(entry + Entry::KEY, words.as_flattened());
        self.memory.write(entry + Entry::SEEN, &SEEN_BEFORE.to_ne_bytes());
        self.memory
            .write(entry + Entry::GENERATION, &flow.generation.to_ne_bytes());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::flows::tests::file;
    use super::super::flows::{Flows, Gathered};
    use super::*;
    use std::time::Duration;

    struct None;

    impl Gathered for None {
        fn flow(&self) -> FlowSlot {
            unreachable!("a packet of no batch")
        }
    }

    /// The function is presented the flow with its state, and notified of its end without one.
    #[test]
    fn a_function_goes_on_with_what_the_server_writes() {
        let file = file("stored");
        let open = || Memory::whole(&file, Duration::ZERO).unwrap();
        let stored = StoredFlows::open(open(), 100).unwrap();
        let mut flows = Flows::open(open(), 100).unwrap();
        let key = FlowKey::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 1, 2);
        let slot = |flow, generation| FlowSlot { flow, generation };
        let mut state = [0; 100];
        for place in 0..2 {
            assert!(!stored.read(slot(place, 7), &mut state));
            assert!(stored.write(slot(place, 7), &key, &[place as u8 + 1; 100]));
            assert!(stored.read(slot(place, 7), &mut state));
            assert_eq!(state, [place as u8 + 1; 100]);
            assert!(!stored.read(slot(place, 8), &mut state) && !stored.read(slot(place, 0), &mut state));
        }
        let gathered: &[None] = &[];
        let (is_new, at) = flows.arrive(slot(0, 7), || panic!("its key"), false, gathered, Option::None);
        // SAFETY: the state of an existing slot; nothing else refers to it.
        let found = unsafe { std::slice::from_raw_parts(at, 100) };
        assert!(is_new && found == [1; 100]);
        let mut ended = Option::None;
        // SAFETY: the entry's key, in memory that is mapped as long as `flows`.
        flows.end(1, 7, |flow| ended = Some(unsafe { (*flow.key).words }));
        assert_eq!(ended, Some(key.words()));
        assert!(!stored.read(slot(1, 7), &mut state));
        // Beyond the four slots, and the state.
        assert!(!stored.write(slot(4, 7), &key, &[1]) && !stored.read(slot(4, 7), &mut state));
        assert!(!stored.write(slot(0, 7), &key, &[1; 200]));
    }
}
