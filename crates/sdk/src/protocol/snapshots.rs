//! Snapshots of flow state: a function in its own process publishes the state of each flow to its worker, which stores
//! it externally, and receives state restored from there.
//!
//! One of the few modules with `unsafe` code. The memory is shared with a process that may write it at any time, so it
//! is accessed through atomics only, and its contents are treated as plain bytes.
//!
//! Each flow has a snapshot in its slot of the flow table, in cache lines of its own:
//!
//! | word | written by | contents |
//! |---|---|---|
//! | 0 | the function | low half: a sequence number, odd while the snapshot is being written, different afterwards; high half: number of flows the function refused in this slot |
//! | 1 | the function | generation of the snapshot's flow |
//! | 2 | the worker | external information on a flow that the function has not seen: an [`ExternalFlowInfo`] |
//! | 3... | the function; before it has seen the flow, the worker | durable state, in a format independent of process and server |
//!
//! A process may be killed at any point. The snapshot is then the new one, still the old one, or recognisably torn.

use super::memory::Memory;
use crate::sys::prefetch;
use std::io;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

const WORD: usize = size_of::<u64>();
const MARK: usize = 0;
const GENERATION: usize = 1;
const EXTERNAL_INFO: usize = 2;
const PIECE: usize = 3;

/// Words per cache line.
const LINE: usize = 8;

/// Increment of the refusal count.
const REFUSAL: u64 = 1 << 32;

/// Words of a snapshot with `piece_bytes` bytes of durable state.
const fn words(piece_bytes: usize) -> usize {
    (PIECE + piece_bytes.div_ceil(WORD)).next_multiple_of(LINE)
}

/// Size in bytes of a function's snapshot file, for `places` slots of the flow table and `piece_bytes` bytes each.
pub const fn file_bytes(places: usize, piece_bytes: usize) -> usize {
    places * words(piece_bytes) * WORD
}

/// External information on a flow, for a function that sees it for the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExternalFlowInfo {
    /// `true`: state of the flow was restored from outside.
    pub restored: bool,
    /// Bit mask of the function's companion candidates that are in use.
    pub taken: u8,
    /// Attempt the candidates belong to.
    pub turn: u8,
}

impl ExternalFlowInfo {
    fn encode(self) -> u64 {
        u64::from(self.restored) | u64::from(self.taken) << 8 | u64::from(self.turn) << 16
    }

    fn decode(word: u64) -> ExternalFlowInfo {
        ExternalFlowInfo {
            restored: word & 1 != 0,
            taken: (word >> 8) as u8,
            turn: (word >> 16) as u8,
        }
    }
}

/// Snapshots of all flows of a function.
#[derive(Debug)]
pub struct FlowSnapshots {
    memory: Memory,
    places: usize,
    words: usize,
    piece_bytes: usize,
}

impl FlowSnapshots {
    /// Opens the snapshots in `memory`, which is zero at first, of `piece_bytes` bytes each.
    ///
    /// # Errors
    /// The memory is too small for one snapshot.
    pub fn open(memory: Memory, piece_bytes: usize) -> io::Result<FlowSnapshots> {
        let words = words(piece_bytes);
        let places = memory.len() / (words * WORD);
        if places == 0 || u32::try_from(places).is_err() {
            return Err(io::Error::other("memory of no flows"));
        }
        Ok(FlowSnapshots {
            memory,
            places,
            words,
            piece_bytes,
        })
    }

    /// Returns the bytes of durable state per flow.
    pub fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    #[inline]
    fn word(&self, place: u32, at: usize) -> &AtomicU64 {
        let place = place as usize;
        assert!(place < self.places && at < self.words, "a word of the snapshot");
        let words = self.memory.base().cast::<AtomicU64>();
        // SAFETY: in bounds by the assertion, and aligned, because maps are page-aligned. The memory stays mapped as
        // long as `self`; any bytes are a valid number, and all other accesses are atomic or come from another process.
        unsafe { &*words.add(place * self.words + at) }
    }

    /// Prefetches a flow's snapshot; any number is allowed.
    #[inline]
    pub fn prefetch(&self, place: u32) {
        let base = self.memory.base();
        prefetch(base.wrapping_add((place as usize).wrapping_mul(self.words * WORD)));
    }

    fn get(&self, place: u32, piece: &mut [u8]) {
        for (i, part) in piece.chunks_mut(WORD).enumerate() {
            let bytes = self.word(place, PIECE + i).load(Relaxed).to_le_bytes();
            part.copy_from_slice(&bytes[..part.len()]);
        }
    }

    fn set(&self, place: u32, piece: &[u8]) {
        for (i, part) in piece.chunks(WORD).enumerate() {
            self.word(place, PIECE + i).store(word_of(part), Relaxed);
        }
    }

    /// Function side: returns the external information on a flow that the function has not seen, and copies its
    /// restored state to `piece`, if there is any.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn external_info(&self, place: u32, piece: &mut [u8]) -> ExternalFlowInfo {
        let info = ExternalFlowInfo::decode(self.word(place, EXTERNAL_INFO).load(Acquire));
        if info.restored {
            self.get(place, piece);
        }
        info
    }

    /// Function side: updates the snapshot of a flow that the function has seen.
    ///
    /// # Panics
    /// If the slot does not exist.
    #[inline]
    pub fn publish(&self, place: u32, generation: u64, piece: &[u8]) {
        let mark = self.word(place, MARK);
        let before = mark.load(Relaxed);
        let same = before & 1 == 0
            && self.word(place, GENERATION).load(Relaxed) == generation
            && piece
                .chunks(WORD)
                .enumerate()
                .all(|(i, part)| self.word(place, PIECE + i).load(Relaxed) == word_of(part));
        if same {
            return;
        }
        // The number is odd if a process was killed while writing.
        let stamp = (before as u32 | 1).wrapping_add(1);
        let high = before & !u64::from(u32::MAX);
        mark.store(before | 1, Relaxed);
        fence(AcqRel);
        self.word(place, GENERATION).store(generation, Relaxed);
        self.set(place, piece);
        mark.store(high | u64::from(stamp), Release);
    }

    /// Function side: records that the function refused a flow.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn refuse(&self, place: u32) {
        let mark = self.word(place, MARK);
        mark.store(mark.load(Relaxed).wrapping_add(REFUSAL), Release);
    }

    /// Worker side: returns a number that changes with the snapshot, and when a flow is refused.
    ///
    /// # Panics
    /// If the slot does not exist.
    #[inline]
    pub fn mark(&self, place: u32) -> u64 {
        self.word(place, MARK).load(Acquire)
    }

    /// Returns `true` if the snapshot changed between two marks.
    pub fn has_changed(before: u64, after: u64) -> bool {
        before as u32 != after as u32
    }

    /// Returns `true` if a flow was refused between two marks.
    pub fn was_refused(before: u64, after: u64) -> bool {
        before >> 32 != after >> 32
    }

    /// Worker side: returns `true` if the snapshot is complete and of this generation. The function has seen the flow
    /// then.
    ///
    /// # Panics
    /// If the slot does not exist.
    #[inline]
    pub fn is_of(&self, place: u32, generation: u64) -> bool {
        let mark = self.mark(place);
        mark & 1 == 0 && generation != 0 && self.word(place, GENERATION).load(Relaxed) == generation
    }

    /// Worker side: copies the snapshot of the flow of this generation. Returns `false`, with nothing changed, if there
    /// is no complete one.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn copy(&self, place: u32, generation: u64, piece: &mut [u8]) -> bool {
        let is_of = self.is_of(place, generation);
        if is_of {
            self.get(place, piece);
        }
        is_of
    }

    /// Worker side: passes external information on a flow that the function has not seen.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn set_external_info(&self, place: u32, info: ExternalFlowInfo) {
        self.word(place, EXTERNAL_INFO).store(info.encode(), Release);
    }

    /// Worker side: writes restored state, which the function reads after
    /// [`set_external_info`](FlowSnapshots::set_external_info).
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn put(&self, place: u32, piece: &[u8]) {
        self.set(place, piece);
    }
}

/// Returns up to eight bytes as a word, padded with zeros.
#[inline]
fn word_of(part: &[u8]) -> u64 {
    match part.first_chunk() {
        Some(word) => u64::from_le_bytes(*word),
        None => {
            let mut bytes = [0; WORD];
            bytes[..part.len()].copy_from_slice(part);
            u64::from_le_bytes(bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs::OpenOptions;
    use std::time::Duration;

    const PIECE_BYTES: usize = 12;

    /// Returns the same snapshots twice, as mapped by function and worker.
    fn images(name: &str) -> [FlowSnapshots; 2] {
        let path = std::env::temp_dir().join(format!("tailwater-{name}-{}", std::process::id()));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true);
        let file = file.open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(file_bytes(16, PIECE_BYTES) as u64).unwrap();
        [(), ()].map(|()| {
            let memory = Memory::whole(&file, Duration::MAX).unwrap();
            FlowSnapshots::open(memory, PIECE_BYTES).unwrap()
        })
    }

    #[test]
    fn a_worker_finds_what_the_function_shows_under_the_flow_s_birth() {
        let [function, worker] = images("shown");
        let mut piece = [0; 12];
        assert!(!worker.is_of(3, 7) && !worker.is_of(3, 0));
        let before = worker.mark(3);
        function.publish(3, 7, b"twelve bytes");
        assert!(FlowSnapshots::has_changed(before, worker.mark(3)));
        assert!(worker.copy(3, 7, &mut piece));
        assert_eq!(&piece, b"twelve bytes");
        // The same state is no change; other state is, and another flow in the slot too.
        let before = worker.mark(3);
        function.publish(3, 7, b"twelve bytes");
        assert!(!FlowSnapshots::has_changed(before, worker.mark(3)));
        function.publish(3, 7, b"other twelve");
        let other = worker.mark(3);
        assert!(FlowSnapshots::has_changed(before, other));
        function.publish(3, 8, b"other twelve");
        assert!(FlowSnapshots::has_changed(other, worker.mark(3)));
        assert!(!worker.copy(3, 7, &mut piece) && worker.copy(3, 8, &mut piece));
        assert!(!worker.is_of(2, 8));
    }

    #[test]
    fn refusals_are_no_images() {
        let [function, worker] = images("refused");
        let before = worker.mark(0);
        function.refuse(0);
        let after = worker.mark(0);
        assert!(FlowSnapshots::was_refused(before, after) && !FlowSnapshots::has_changed(before, after));
        function.publish(0, 1, &[1; 12]);
        assert!(!FlowSnapshots::was_refused(after, worker.mark(0)));
    }

    #[test]
    fn what_comes_from_outside_is_found_by_the_function() {
        let [function, worker] = images("offered");
        let mut piece = [0; 12];
        let info = ExternalFlowInfo {
            restored: true,
            taken: 0b101,
            turn: 200,
        };
        worker.put(9, b"from outside");
        worker.set_external_info(9, info);
        assert_eq!(function.external_info(9, &mut piece), info);
        assert_eq!(&piece, b"from outside");
        // Without a snapshot of the function's, the state is not the flow's.
        assert!(!worker.is_of(9, 1));
    }

    proptest! {
        /// A process killed at any word of a snapshot leaves it recognisably torn, and the next process completes it.
        #[test]
        fn a_torn_image_is_none(first: [u8; 12], second: [u8; 12], killed in 0usize..4) {
            let [function, worker] = images("torn");
            function.publish(5, 1, &first);
            let whole = worker.mark(5);
            // The steps of `publish`, up to that word.
            let words = [
                (MARK, whole | 1),
                (GENERATION, 1),
                (PIECE, word_of(&second[..8])),
                (PIECE + 1, word_of(&second[8..])),
            ];
            for (at, word) in &words[..=killed] {
                function.word(5, *at).store(*word, Relaxed);
            }
            let mut piece = first;
            prop_assert!(!worker.copy(5, 1, &mut piece));
            prop_assert_eq!(piece, first);
            let torn = worker.mark(5);
            function.publish(5, 1, &second);
            prop_assert!(FlowSnapshots::has_changed(torn, worker.mark(5)));
            prop_assert!(worker.copy(5, 1, &mut piece));
            prop_assert_eq!(piece, second);
        }
    }
}
