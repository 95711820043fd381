//! What is in the memory that a chain's functions share with their worker. All words have eight bytes, little end first.
//!
//! | memory | written by | read by |
//! |---|---|---|
//! | the *board*: the round, what is known of each packet, flows that ended | the worker | all functions |
//! | a *slate* for each function: whose round is done, what became of each packet, counts | the function, and the worker its answers | the worker, and the next function |
//! | the *packets*: as many buffers as a batch has places | all, in their turn | all, in their turn |
//! | the *flows* of each function | the function | nobody else |
//!
//! A function's turn has come when the board's round is another than the last it did, and the function in front has
//! done it. A word [`Place`] says where a packet's frame is, or that it is none any more: the board has one for each
//! packet, for the first function, and each slate has one for each packet, for the next.

use crate::memory::Memory;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use tailwater_net::FlowKey;
use tailwater_nf::batch::MAX_BATCH;

/// Of this protocol and the layouts here.
pub const VERSION: u16 = 1;

/// Words in a cache line.
const LINE: usize = 8;

/// What has become of a packet so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It goes on.
    Here {
        /// Where in its buffer the frame starts.
        start: u16,
        /// Bytes of the frame.
        length: u16,
        /// Whether a function gave the flow other addresses or ports, so that those behind decide anew.
        rekeyed: bool,
    },
    /// This function dropped it, for the reason of that number.
    Dropped(u8),
    /// A function in front had dropped it.
    Gone,
}

impl Place {
    /// As a word of a round.
    ///
    /// | bits | |
    /// |---|---|
    /// | 0-7 | 1: here; 2: dropped; 3: gone |
    /// | 8-15 | the reason |
    /// | 16-31 | where the frame starts |
    /// | 32-47 | its length |
    /// | 48 | rekeyed |
    /// | 56-63 | the round's lowest |
    #[inline]
    pub fn encode(self, round: u64) -> u64 {
        let word = match self {
            Place::Here {
                start,
                length,
                rekeyed,
            } => 1 | u64::from(start) << 16 | u64::from(length) << 32 | u64::from(rekeyed) << 48,
            Place::Dropped(reason) => 2 | u64::from(reason) << 8,
            Place::Gone => 3,
        };
        word | round << 56
    }

    /// What [`encode`](Place::encode) made, in this round; `None` for any other word.
    #[inline]
    pub fn decode(word: u64, round: u64) -> Option<Place> {
        let place = match word & 0xff {
            1 => Place::Here {
                start: (word >> 16) as u16,
                length: (word >> 32) as u16,
                rekeyed: word >> 48 & 1 != 0,
            },
            2 => Place::Dropped((word >> 8) as u8),
            3 => Place::Gone,
            _ => return None,
        };
        (place.encode(round) == word).then_some(place)
    }

    /// Whether the frame, if there is one, is within a buffer of so many bytes.
    #[inline]
    pub fn fits(self, bytes: usize) -> bool {
        match self {
            Place::Here { start, length, .. } => {
                usize::from(start) + usize::from(length) <= bytes && length > 0
            }
            Place::Dropped(_) | Place::Gone => true,
        }
    }
}

/// What is known of a packet besides its frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// When it arrived, in nanoseconds since the run's start.
    pub arrival: u64,
    /// What receive-side scaling made of it.
    pub rss_hash: u32,
    /// Its flow's place in the flow table; `u32::MAX` for none.
    pub flow: u32,
    /// The flow's birth: another flow at the same place has another one. Not 0, if there is a flow.
    pub birth: u64,
    /// The flow's key, as it came to the chain.
    pub key: FlowKey,
}

/// A flow that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its place in the flow table.
    pub flow: u32,
    /// Its birth.
    pub birth: u64,
}

/// Ended flows that the board has room for.
pub const ENDED: u64 = 1024;

/// `Board::flags`: the last packet has passed, only ends of flows follow.
pub const FINISHING: u64 = 1;
/// `Board::flags`: nothing follows. The program ends after this turn.
pub const OVER: u64 = 2;

const ROUND: usize = 0;
const COUNT: usize = LINE;
const NOW: usize = LINE + 1;
const FLAGS: usize = LINE + 2;
const ENDED_HEAD: usize = LINE + 3;
const BOARD_PLACES: usize = 2 * LINE;
const KNOWN: usize = BOARD_PLACES + MAX_BATCH;
/// Words of what is [`Known`].
const KNOWN_WORDS: usize = 8;
const ENDS: usize = KNOWN + KNOWN_WORDS * MAX_BATCH;

/// Bytes of a board.
pub const BOARD_BYTES: usize = (ENDS + 2 * ENDED as usize) * 8;

/// The board: what the worker tells all functions.
#[derive(Debug)]
pub(crate) struct Board(pub(crate) Memory);

impl Board {
    /// The round that is under way or over.
    #[inline]
    pub(crate) fn round(&self) -> u64 {
        self.0.load(ROUND, SeqCst)
    }

    /// Begins a round, of so many packets.
    #[inline]
    pub(crate) fn begin(&self, round: u64, count: usize, now: u64, flags: u64) {
        self.0.store(COUNT, count as u64, Relaxed);
        self.0.store(NOW, now, Relaxed);
        self.0.store(FLAGS, flags, Relaxed);
        self.0.store(ROUND, round, SeqCst);
    }

    /// Packets of the round, at most [`MAX_BATCH`].
    #[inline]
    pub(crate) fn count(&self) -> usize {
        (self.0.load(COUNT, Relaxed) as usize).min(MAX_BATCH)
    }

    /// When the batch was taken, in nanoseconds since the run's start.
    pub(crate) fn now(&self) -> u64 {
        self.0.load(NOW, Relaxed)
    }

    /// [`FINISHING`], [`OVER`].
    pub(crate) fn flags(&self) -> u64 {
        self.0.load(FLAGS, Relaxed)
    }

    /// Where packet `i` is for the first function.
    #[inline]
    pub(crate) fn place(&self, i: usize) -> u64 {
        self.0.load(BOARD_PLACES + i, Relaxed)
    }

    #[inline]
    pub(crate) fn set_place(&self, i: usize, word: u64) {
        self.0.store(BOARD_PLACES + i, word, Relaxed);
    }

    /// What is known of packet `i`.
    #[inline]
    pub(crate) fn known(&self, i: usize) -> Known {
        let word = |at| self.0.load(KNOWN + KNOWN_WORDS * i + at, Relaxed);
        Known {
            arrival: word(0),
            rss_hash: word(1) as u32,
            flow: (word(1) >> 32) as u32,
            birth: word(2),
            key: FlowKey::from_words([word(3), word(4), word(5), word(6), word(7)]),
        }
    }

    /// The place of packet `i`'s flow in the flow table; `u32::MAX` for none.
    #[inline]
    pub(crate) fn flow(&self, i: usize) -> u32 {
        (self.0.load(KNOWN + KNOWN_WORDS * i + 1, Relaxed) >> 32) as u32
    }

    #[inline]
    pub(crate) fn set_known(&self, i: usize, known: &Known) {
        let set = |at, value| self.0.store(KNOWN + KNOWN_WORDS * i + at, value, Relaxed);
        set(0, known.arrival);
        set(1, u64::from(known.rss_hash) | u64::from(known.flow) << 32);
        set(2, known.birth);
        for (at, word) in known.key.words().into_iter().enumerate() {
            set(3 + at, word);
        }
    }

    /// How many flows have ended so far. The last [`ENDED`] of them are here.
    #[inline]
    pub(crate) fn ended(&self) -> u64 {
        self.0.load(ENDED_HEAD, Relaxed)
    }

    /// The flow that ended as number `n`.
    pub(crate) fn ended_flow(&self, n: u64) -> Ended {
        let at = ENDS + 2 * (n % ENDED) as usize;
        Ended {
            flow: self.0.load(at, Relaxed) as u32,
            birth: self.0.load(at + 1, Relaxed),
        }
    }

    /// Adds a flow that has ended, for the next round.
    pub(crate) fn add_ended(&self, ended: Ended) {
        let n = self.ended();
        let at = ENDS + 2 * (n % ENDED) as usize;
        self.0.store(at, ended.flow.into(), Relaxed);
        self.0.store(at + 1, ended.birth, Relaxed);
        self.0.store(ENDED_HEAD, n + 1, Relaxed);
    }
}

/// A function's wish for a companion of a packet's flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wish {
    /// Its number: one more than the last.
    pub(crate) number: u64,
    /// The packet's place.
    pub(crate) at: u16,
    pub(crate) rss_hash: u32,
    pub(crate) key: FlowKey,
}

/// What the worker says to a wish: place and birth of the companion, or a number that says why not.
pub(crate) type Answer = Result<(u32, u64), u8>;

/// The most counts that a function may have.
pub const MAX_NOTES: usize = 32;

const DONE: usize = 0;
/// A word to sleep on.
const ASLEEP: usize = LINE;
const TAKEN: usize = 2 * LINE;
const WISH: usize = 3 * LINE;
const ANSWER: usize = 5 * LINE;
const NOTES: usize = 6 * LINE;
const SLATE_PLACES: usize = NOTES + MAX_NOTES;

/// Bytes of a slate.
pub const SLATE_BYTES: usize = (SLATE_PLACES + MAX_BATCH) * 8;

/// A slate: what a function tells its worker and the next function.
#[derive(Debug)]
pub(crate) struct Slate(pub(crate) Memory);

impl Slate {
    /// The last round that the function did.
    #[inline]
    pub(crate) fn done(&self) -> u64 {
        self.0.load(DONE, Acquire)
    }

    #[inline]
    pub(crate) fn set_done(&self, round: u64) {
        self.0.store(DONE, round, Release);
    }

    /// What the function made of packet `i`.
    #[inline]
    pub(crate) fn place(&self, i: usize) -> u64 {
        self.0.load(SLATE_PLACES + i, Relaxed)
    }

    #[inline]
    pub(crate) fn set_place(&self, i: usize, word: u64) {
        self.0.store(SLATE_PLACES + i, word, Relaxed);
    }

    pub(crate) fn sleep(&self, awake: impl FnOnce() -> bool) {
        self.0.sleep(ASLEEP, awake);
    }

    #[inline]
    pub(crate) fn wake(&self) {
        self.0.wake(ASLEEP);
    }

    /// How many of the [ended](Board::ended) flows the function has looked at.
    #[inline]
    pub(crate) fn taken(&self) -> u64 {
        self.0.load(TAKEN, Relaxed)
    }

    pub(crate) fn set_taken(&self, taken: u64) {
        self.0.store(TAKEN, taken, Relaxed);
    }

    /// Count `i` of the function's.
    #[inline]
    pub(crate) fn note(&self, i: usize) -> u64 {
        self.0.load(NOTES + i, Relaxed)
    }

    #[inline]
    pub(crate) fn set_note(&self, i: usize, count: u64) {
        self.0.store(NOTES + i, count, Relaxed);
    }

    /// The function's last wish. Anything, if the function lies.
    pub(crate) fn wish(&self) -> Wish {
        let number = self.0.load(WISH, Acquire);
        let word = |at| self.0.load(WISH + at, Relaxed);
        Wish {
            number,
            at: word(1) as u16,
            rss_hash: (word(1) >> 32) as u32,
            key: FlowKey::from_words([word(2), word(3), word(4), word(5), word(6)]),
        }
    }

    /// The number of the function's last wish.
    #[inline]
    pub(crate) fn wishes(&self) -> u64 {
        self.0.load(WISH, Acquire)
    }

    pub(crate) fn set_wish(&self, wish: &Wish) {
        let set = |at, value| self.0.store(WISH + at, value, Relaxed);
        set(1, u64::from(wish.at) | u64::from(wish.rss_hash) << 32);
        for (at, word) in wish.key.words().into_iter().enumerate() {
            set(2 + at, word);
        }
        self.0.store(WISH, wish.number, Release);
    }

    /// What was answered to the wish of this number, if it was by now.
    pub(crate) fn answer(&self, number: u64) -> Option<Answer> {
        (self.0.load(ANSWER, Acquire) == number).then(|| {
            let word = self.0.load(ANSWER + 1, Relaxed);
            match word & 0xff {
                0 => Ok(((word >> 32) as u32, self.0.load(ANSWER + 2, Relaxed))),
                why => Err(why as u8),
            }
        })
    }

    pub(crate) fn set_answer(&self, number: u64, answer: Answer) {
        let (word, birth) = match answer {
            Ok((flow, birth)) => (u64::from(flow) << 32, birth),
            Err(why) => (u64::from(why.max(1)), 0),
        };
        self.0.store(ANSWER + 1, word, Relaxed);
        self.0.store(ANSWER + 2, birth, Relaxed);
        self.0.store(ANSWER, number, Release);
    }

    /// Makes it that of a function that begins now: it has done this round, and looked at so many ended flows.
    pub(crate) fn reset(&self, round: u64, taken: u64) {
        for word in 0..SLATE_BYTES / 8 {
            // Nobody sleeps there: the process before is gone, the next has not begun.
            self.0.store(word, 0, Relaxed);
        }
        self.set_taken(taken);
        self.set_done(round);
    }
}

#[cfg(test)]
mod tests;
