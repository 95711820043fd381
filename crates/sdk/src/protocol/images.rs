//! Images of flow state: what a function in a process of its own shows its worker of each flow, for who keeps state
//! outside, and what came from there for it.
//!
//! One of the few modules with `unsafe` code. The memory is shared with a process that may write it at any time, so it
//! is read and written through atomics only, and nothing that is read of it is more than bytes.
//!
//! Each flow has an image at its place of the flow table, in cache lines of its own:
//!
//! | word | written by | |
//! |---|---|---|
//! | 0 | the function | low half: a stamp, odd while the image is being written, another one after; high half: how often the function refused a flow here |
//! | 1 | the function | the birth of the flow that the image is of |
//! | 2 | the worker | what is known outside of a flow that the function has not seen: an [`Offer`] |
//! | 3... | the function; before it has seen the flow, the worker | the piece of state, as it means something everywhere |
//!
//! A process may be killed anywhere: an image is another one, or still the old one, or known to be neither.

use super::memory::Memory;
use crate::sys::prefetch;
use std::io;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU64, fence};

const WORD: usize = size_of::<u64>();
const MARK: usize = 0;
const BIRTH: usize = 1;
const OFFER: usize = 2;
const PIECE: usize = 3;

/// Words of a cache line.
const LINE: usize = 8;

/// One refusal more.
const REFUSAL: u64 = 1 << 32;

/// Words of an image whose piece has so many bytes.
const fn words(piece_bytes: usize) -> usize {
    (PIECE + piece_bytes.div_ceil(WORD)).next_multiple_of(LINE)
}

/// Bytes of the file of a function's images, for so many places of the flow table and pieces of so many bytes.
pub const fn file_bytes(places: usize, piece_bytes: usize) -> usize {
    places * words(piece_bytes) * WORD
}

/// What is known outside of a flow, for the function that sees it for the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Whether its piece has come from there.
    pub restored: bool,
    /// Which of the function's wishes are somebody's.
    pub taken: u8,
    /// The turn of these wishes.
    pub turn: u8,
}

impl Offer {
    fn encode(self) -> u64 {
        u64::from(self.restored) | u64::from(self.taken) << 8 | u64::from(self.turn) << 16
    }

    fn decode(word: u64) -> Offer {
        Offer {
            restored: word & 1 != 0,
            taken: (word >> 8) as u8,
            turn: (word >> 16) as u8,
        }
    }
}

/// A function's images of all flows.
#[derive(Debug)]
pub struct FlowImages {
    memory: Memory,
    places: usize,
    words: usize,
    piece_bytes: usize,
}

impl FlowImages {
    /// The images in `memory`, which is zero at first, of pieces of so many bytes.
    ///
    /// # Errors
    /// There is no room for one.
    pub fn open(memory: Memory, piece_bytes: usize) -> io::Result<FlowImages> {
        let words = words(piece_bytes);
        let places = memory.len() / (words * WORD);
        if places == 0 || u32::try_from(places).is_err() {
            return Err(io::Error::other("memory of no flows"));
        }
        Ok(FlowImages {
            memory,
            places,
            words,
            piece_bytes,
        })
    }

    /// Bytes of a piece.
    pub fn piece_bytes(&self) -> usize {
        self.piece_bytes
    }

    #[inline]
    fn word(&self, place: u32, at: usize) -> &AtomicU64 {
        let place = place as usize;
        assert!(place < self.places && at < self.words, "an image's word");
        let words = self.memory.base().cast::<AtomicU64>();
        // SAFETY: in bounds by the assertion, and aligned, since maps are to pages. The memory stays mapped as long
        // as `self`; any bytes are a number, and whoever else touches them does so through atomics or is another
        // process.
        unsafe { &*words.add(place * self.words + at) }
    }

    /// Starts to fetch a flow's image; any number will do.
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

    /// The function's side: what is known outside of a flow that it has not seen, and the piece that came from there,
    /// if one did.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn offer(&self, place: u32, piece: &mut [u8]) -> Offer {
        let offer = Offer::decode(self.word(place, OFFER).load(Acquire));
        if offer.restored {
            self.get(place, piece);
        }
        offer
    }

    /// The function's side: makes the image of a flow that it has seen what the flow's piece is by now.
    ///
    /// # Panics
    /// If there is no such place.
    #[inline]
    pub fn show(&self, place: u32, birth: u64, piece: &[u8]) {
        let mark = self.word(place, MARK);
        let before = mark.load(Relaxed);
        let same = before & 1 == 0
            && self.word(place, BIRTH).load(Relaxed) == birth
            && piece
                .chunks(WORD)
                .enumerate()
                .all(|(i, part)| self.word(place, PIECE + i).load(Relaxed) == word_of(part));
        if same {
            return;
        }
        // Whoever was killed in between left it odd.
        let stamp = (before as u32 | 1).wrapping_add(1);
        let high = before & !u64::from(u32::MAX);
        mark.store(before | 1, Relaxed);
        fence(AcqRel);
        self.word(place, BIRTH).store(birth, Relaxed);
        self.set(place, piece);
        mark.store(high | u64::from(stamp), Release);
    }

    /// The function's side: it has refused a flow.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn refuse(&self, place: u32) {
        let mark = self.word(place, MARK);
        mark.store(mark.load(Relaxed).wrapping_add(REFUSAL), Release);
    }

    /// The worker's side: a number that is another one when the image is, or the flow was refused.
    ///
    /// # Panics
    /// If there is no such place.
    #[inline]
    pub fn mark(&self, place: u32) -> u64 {
        self.word(place, MARK).load(Acquire)
    }

    /// Whether two marks are of two images.
    pub fn is_another(before: u64, after: u64) -> bool {
        before as u32 != after as u32
    }

    /// Whether a flow was refused between two marks.
    pub fn was_refused(before: u64, after: u64) -> bool {
        before >> 32 != after >> 32
    }

    /// The worker's side: whether there is a whole image of the flow of this birth: then the function has seen it.
    ///
    /// # Panics
    /// If there is no such place.
    #[inline]
    pub fn is_of(&self, place: u32, birth: u64) -> bool {
        let mark = self.mark(place);
        mark & 1 == 0 && birth != 0 && self.word(place, BIRTH).load(Relaxed) == birth
    }

    /// The worker's side: copies the image of the flow of this birth; `false`, with nothing changed, if there is
    /// none that is whole.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn copy(&self, place: u32, birth: u64, piece: &mut [u8]) -> bool {
        let is_of = self.is_of(place, birth);
        if is_of {
            self.get(place, piece);
        }
        is_of
    }

    /// The worker's side: tells the function what is known outside of a flow that it has not seen.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn tell(&self, place: u32, offer: Offer) {
        self.word(place, OFFER).store(offer.encode(), Release);
    }

    /// The worker's side: puts a piece from outside there, for the function to find when it is
    /// [told](FlowImages::tell).
    ///
    /// # Panics
    /// If there is no such place.
    pub fn put(&self, place: u32, piece: &[u8]) {
        self.set(place, piece);
    }
}

/// Up to eight bytes as a word, zero behind.
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

    /// The same images, as function and worker have them.
    fn images(name: &str) -> [FlowImages; 2] {
        let path = std::env::temp_dir().join(format!("tailwater-{name}-{}", std::process::id()));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true);
        let file = file.open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.set_len(file_bytes(16, PIECE_BYTES) as u64).unwrap();
        [(), ()].map(|()| {
            let memory = Memory::whole(&file, Duration::MAX).unwrap();
            FlowImages::open(memory, PIECE_BYTES).unwrap()
        })
    }

    #[test]
    fn a_worker_finds_what_the_function_shows_under_the_flow_s_birth() {
        let [function, worker] = images("shown");
        let mut piece = [0; 12];
        assert!(!worker.is_of(3, 7) && !worker.is_of(3, 0));
        let before = worker.mark(3);
        function.show(3, 7, b"twelve bytes");
        assert!(FlowImages::is_another(before, worker.mark(3)));
        assert!(worker.copy(3, 7, &mut piece));
        assert_eq!(&piece, b"twelve bytes");
        // The same again is no change; another piece, and another flow at the place, is.
        let before = worker.mark(3);
        function.show(3, 7, b"twelve bytes");
        assert!(!FlowImages::is_another(before, worker.mark(3)));
        function.show(3, 7, b"other twelve");
        let other = worker.mark(3);
        assert!(FlowImages::is_another(before, other));
        function.show(3, 8, b"other twelve");
        assert!(FlowImages::is_another(other, worker.mark(3)));
        assert!(!worker.copy(3, 7, &mut piece) && worker.copy(3, 8, &mut piece));
        assert!(!worker.is_of(2, 8));
    }

    #[test]
    fn refusals_are_no_images() {
        let [function, worker] = images("refused");
        let before = worker.mark(0);
        function.refuse(0);
        let after = worker.mark(0);
        assert!(FlowImages::was_refused(before, after) && !FlowImages::is_another(before, after));
        function.show(0, 1, &[1; 12]);
        assert!(!FlowImages::was_refused(after, worker.mark(0)));
    }

    #[test]
    fn what_comes_from_outside_is_found_by_the_function() {
        let [function, worker] = images("offered");
        let mut piece = [0; 12];
        let offer = Offer {
            restored: true,
            taken: 0b101,
            turn: 200,
        };
        worker.put(9, b"from outside");
        worker.tell(9, offer);
        assert_eq!(function.offer(9, &mut piece), offer);
        assert_eq!(&piece, b"from outside");
        // Until the function shows something, it is no image of its.
        assert!(!worker.is_of(9, 1));
    }

    proptest! {
        /// A process that is killed at any word of an image leaves one that is known to be none, and the next one
        /// makes it whole.
        #[test]
        fn a_torn_image_is_none(first: [u8; 12], second: [u8; 12], killed in 0usize..4) {
            let [function, worker] = images("torn");
            function.show(5, 1, &first);
            let whole = worker.mark(5);
            // As `show` does it, up to there.
            let words = [
                (MARK, whole | 1),
                (BIRTH, 1),
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
            function.show(5, 1, &second);
            prop_assert!(FlowImages::is_another(torn, worker.mark(5)));
            prop_assert!(worker.copy(5, 1, &mut piece));
            prop_assert_eq!(piece, second);
        }
    }
}
