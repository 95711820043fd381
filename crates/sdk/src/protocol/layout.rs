//! What is in the memory that a chain's functions share with their worker. All words have eight bytes, little end first.
//!
//! | memory | written by | read by |
//! |---|---|---|
//! | the *board*: the round, what is known of each packet as it came, flows that ended | the worker | all functions |
//! | a *slate* for each function: whose round is done, which packets go on, counts | the function, and the worker its answers | the worker, and the next function |
//! | the *packets*: as many buffers as a batch has places | all, in their turn | all, in their turn |
//! | the *flows* of each function | the function | nobody else |
//!
//! A function's turn has come when the board's round is another than the last it did, and the function in front has
//! done it.
//!
//! Nearly all packets of a batch go on as they came, so a slate says that with a bit for each. It has two [`Masks`]: of the
//! packets that are left, and of those among them that are not any more where the board says. Only for these, and for
//! those that the function dropped, it has a word, a [`Place`].

use super::memory::Memory;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use tailwater_net::FlowKey;
use tailwater_net::parse::{Fragment, Headers, Network};

/// The most packets of a batch.
pub const MAX_BATCH: usize = 256;

/// The most keys that a function wishes for a flow.
pub const MAX_WISHES: usize = 4;

/// Of this protocol and the layouts here.
pub const VERSION: u16 = 3;

/// Words in a cache line.
const LINE: usize = 8;

/// A bit for each packet of a batch, by its place: bit `i % 64` of word `i / 64`.
pub type Masks = [u64; MASKS];

/// Words of [`Masks`].
pub const MASKS: usize = MAX_BATCH / 64;

/// Those of `count` packets, as many as 64 of which the first is packet `64 * word`.
#[inline]
pub fn all_of(count: usize, word: usize) -> u64 {
    match count.saturating_sub(64 * word) {
        left @ 0..64 => (1 << left) - 1,
        _ => u64::MAX,
    }
}

/// The places whose bits are set, of word `word` of [`Masks`].
#[inline]
pub fn places(word: usize, mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (at < 64).then_some(64 * word + at)
    })
}

/// What has become of a packet with which something has.
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
}

impl Place {
    /// As a word of a round.
    ///
    /// | bits | |
    /// |---|---|
    /// | 0-7 | 1: here; 2: dropped |
    /// | 8-15 | the reason |
    /// | 16-31 | where the frame starts |
    /// | 32-47 | its length |
    /// | 48 | rekeyed |
    /// | 56-63 | the round's lowest |
    #[inline]
    pub fn encode(self, round: u64) -> u64 {
        let word = match self {
            Place::Here { start, length, rekeyed } => {
                1 | u64::from(start) << 16 | u64::from(length) << 32 | u64::from(rekeyed) << 48
            }
            Place::Dropped(reason) => 2 | u64::from(reason) << 8,
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
            _ => return None,
        };
        (place.encode(round) == word).then_some(place)
    }

    /// Whether the frame, if there is one, is within a buffer of so many bytes.
    #[inline]
    pub fn fits(self, bytes: usize) -> bool {
        match self {
            Place::Here { start, length, .. } => usize::from(start) + usize::from(length) <= bytes && length > 0,
            Place::Dropped(_) => true,
        }
    }
}

/// What is known of a packet as it came to the chain, besides its headers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// Where in its buffer the frame starts, and its length.
    pub place: [u16; 2],
    /// When it arrived, in nanoseconds since the run's start.
    pub arrival: u64,
    /// What receive-side scaling made of it.
    pub rss_hash: u32,
    /// The port of the chain by which it came: 0 or 1.
    pub entry: u8,
    /// Its flow's place in the flow table; `u32::MAX` for none. Where flows are connections each has two, the second of which
    /// is for packets against the direction of its key: functions that track connections count half.
    pub flow: u32,
    /// The flow's birth: another flow at the same place has another one. Not 0, if there is a flow.
    pub birth: u64,
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
/// `Board::flags`: of what is known of the first packet, which is not there, functions say which companions they would
/// wish for its flow, from the turn on that stands in the place of its arrival.
pub const WISHING: u64 = 4;

const ROUND: usize = 0;
const COUNT: usize = 1;
const NOW: usize = 2;
const FLAGS: usize = 3;
const ENDED_HEAD: usize = 4;
/// A line for each packet, with all that is known of most.
const KNOWN: usize = LINE;
/// And four words for each with the rest of its key: of IPv6 only.
const REST: usize = KNOWN + LINE * MAX_BATCH;
const REST_WORDS: usize = 4;
const ENDS: usize = REST + REST_WORDS * MAX_BATCH;

/// Bytes of a board.
pub const BOARD_BYTES: usize = (ENDS + 2 * ENDED as usize) * 8;

/// The board: what the worker tells all functions.
#[derive(Debug)]
pub struct Board(pub Memory);

impl Board {
    /// The round that is under way or over.
    #[inline]
    pub fn round(&self) -> u64 {
        self.0.load(ROUND, SeqCst)
    }

    /// Begins a round, of so many packets.
    #[inline]
    pub fn begin(&self, round: u64, count: usize, now: u64, flags: u64) {
        self.0.store(COUNT, count as u64, Relaxed);
        self.0.store(NOW, now, Relaxed);
        self.0.store(FLAGS, flags, Relaxed);
        self.0.store(ROUND, round, SeqCst);
    }

    /// Packets of the round, at most [`MAX_BATCH`].
    #[inline]
    pub fn count(&self) -> usize {
        (self.0.load(COUNT, Relaxed) as usize).min(MAX_BATCH)
    }

    /// When the batch was taken, in nanoseconds since the run's start.
    pub fn now(&self) -> u64 {
        self.0.load(NOW, Relaxed)
    }

    /// [`FINISHING`], [`OVER`].
    pub fn flags(&self) -> u64 {
        self.0.load(FLAGS, Relaxed)
    }

    /// What is known of packet `i`.
    #[inline(always)]
    pub fn known(&self, i: usize) -> Known {
        let word = self.0.load_line(KNOWN + LINE * i);
        let place = word(3);
        Known {
            place: [place as u16, (place >> 16) as u16],
            arrival: word(0),
            rss_hash: word(1) as u32,
            entry: (place >> 48) as u8,
            flow: (word(1) >> 32) as u32,
            birth: word(2),
        }
    }

    /// The headers of packet `i`, whose key is its flow's; of no IP if nobody wrote them there.
    #[inline(always)]
    pub fn headers(&self, i: usize, to: &mut Headers) {
        let word = self.0.load_line(KNOWN + LINE * i);
        let part = |word: u64, at: u32| (word >> (16 * at)) as u16;
        let (kind, offsets) = (part(word(3), 2), word(4));
        to.network_offset = part(offsets, 0);
        to.transport_offset = part(offsets, 1);
        to.payload_offset = part(offsets, 2);
        to.end = part(offsets, 3);
        to.fragment = match kind >> 8 {
            0 => Fragment::Whole,
            1 => Fragment::First,
            _ => Fragment::Later,
        };
        to.network = match kind as u8 {
            4 => Network::V4,
            6 => Network::V6,
            _ => Network::NotIp,
        };
        let rest = |at| match to.network {
            Network::V6 => self.0.load(REST + REST_WORDS * i + at, Relaxed),
            Network::V4 | Network::NotIp => 0,
        };
        to.key = FlowKey::from_words([word(5), rest(0), rest(1), rest(2), word(6)]);
    }

    /// What is to be fetched of packet `i`: its flow's place in the flow table, `u32::MAX` for none, and where its frame
    /// started in its buffer when it came.
    #[inline(always)]
    pub fn to_fetch(&self, i: usize) -> (u32, u16) {
        let word = self.0.load_line(KNOWN + LINE * i);
        ((word(1) >> 32) as u32, word(3) as u16)
    }

    /// Where the frame of packet `i` was when it came: start, and length.
    #[inline(always)]
    pub fn place(&self, i: usize) -> [u16; 2] {
        let word = self.0.load(KNOWN + LINE * i + 3, Relaxed);
        [word as u16, (word >> 16) as u16]
    }

    /// Writes what is known of packet `i`, and its headers.
    #[inline(always)]
    pub fn set_known(&self, i: usize, known: &Known, headers: &Headers) {
        let joined = |halves: [u16; 4]| {
            let [a, b, c, d] = halves.map(u64::from);
            a | b << 16 | c << 32 | d << 48
        };
        let version = match headers.network {
            Network::V4 => 4,
            Network::V6 => 6,
            Network::NotIp => 0,
        };
        let fragment = match headers.fragment {
            Fragment::Whole => 0,
            Fragment::First => 1,
            Fragment::Later => 2,
        };
        let [start, length] = known.place;
        let key = headers.key.words();
        let line = [
            known.arrival,
            u64::from(known.rss_hash) | u64::from(known.flow) << 32,
            known.birth,
            joined([start, length, version | fragment << 8, known.entry.into()]),
            joined([
                headers.network_offset,
                headers.transport_offset,
                headers.payload_offset,
                headers.end,
            ]),
            key[0],
            key[4],
            0,
        ];
        self.0.store_line(KNOWN + LINE * i, line);
        if headers.network == Network::V6 {
            for (at, word) in key[1..4].iter().enumerate() {
                self.0.store(REST + REST_WORDS * i + at, *word, Relaxed);
            }
        }
    }

    /// How many flows have ended so far. The last [`ENDED`] of them are here.
    #[inline]
    pub fn ended(&self) -> u64 {
        self.0.load(ENDED_HEAD, Relaxed)
    }

    /// The flow that ended as number `n`.
    pub fn ended_flow(&self, n: u64) -> Ended {
        let at = ENDS + 2 * (n % ENDED) as usize;
        Ended {
            flow: self.0.load(at, Relaxed) as u32,
            birth: self.0.load(at + 1, Relaxed),
        }
    }

    /// Adds a flow that has ended, for the next round.
    pub fn add_ended(&self, ended: Ended) {
        let n = self.ended();
        let at = ENDS + 2 * (n % ENDED) as usize;
        self.0.store(at, ended.flow.into(), Relaxed);
        self.0.store(at + 1, ended.birth, Relaxed);
        self.0.store(ENDED_HEAD, n + 1, Relaxed);
    }

    /// Nobody is to look at the flow that ended as number `n` any more: no flow has this birth. Between rounds only.
    pub fn forget_ended(&self, n: u64) {
        let at = ENDS + 2 * (n % ENDED) as usize;
        self.0.store(at + 1, 0, Relaxed);
    }
}

/// What a function wishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WishKind {
    /// That a companion be opened.
    Open,
    /// The same, or that a flow which it has not seen become the companion.
    Rejoin,
    /// To know whether no flow has the key.
    Free,
}

impl WishKind {
    fn decode(number: u8) -> WishKind {
        match number {
            1 => WishKind::Rejoin,
            2 => WishKind::Free,
            _ => WishKind::Open,
        }
    }
}

/// A function's wish for a companion of a packet's flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wish {
    /// Its number: one more than the last.
    pub number: u64,
    /// What it wishes.
    pub kind: WishKind,
    /// The packet's place.
    pub at: u16,
    /// What receive-side scaling is to make of the companion's packets.
    pub rss_hash: u32,
    /// The companion's key.
    pub key: FlowKey,
}

/// What the worker says to a wish: place and birth of the companion, or a number that says why not.
pub type Answer = Result<(u32, u64), u8>;

/// The most counts that a function may have.
pub const MAX_NOTES: usize = 32;

const DONE: usize = 0;
/// A word to sleep on.
const ASLEEP: usize = LINE;
const TAKEN: usize = 2 * LINE;
const WISH: usize = 3 * LINE;
const ANSWER: usize = 5 * LINE;
const NOTES: usize = 6 * LINE;
/// The round of which the masks are.
const SAID: usize = NOTES + MAX_NOTES;
const LEFT: usize = SAID + 1;
const MOVED: usize = LEFT + MASKS;
const SLATE_PLACES: usize = (MOVED + MASKS).next_multiple_of(LINE);

/// Behind the places: what the function would wish for a flow.
const LIST: usize = SLATE_PLACES + MAX_BATCH;
/// Words of an entry there: a number and a key.
const LIST_WORDS: usize = 6;
const SLATE_WORDS: usize = (LIST + 1 + MAX_WISHES * LIST_WORDS).next_multiple_of(LINE);

/// Bytes of a slate.
pub const SLATE_BYTES: usize = SLATE_WORDS * 8;

/// A slate: what a function tells its worker and the next function.
#[derive(Debug)]
pub struct Slate(pub Memory);

impl Slate {
    /// The last round that the function did.
    #[inline]
    pub fn done(&self) -> u64 {
        self.0.load(DONE, Acquire)
    }

    /// The function is done with a round.
    #[inline]
    pub fn set_done(&self, round: u64) {
        self.0.store(DONE, round, Release);
    }

    /// The round of which the masks are.
    #[inline]
    pub fn said(&self) -> u64 {
        self.0.load(SAID, Relaxed)
    }

    /// The masks are of this round.
    #[inline]
    pub fn set_said(&self, round: u64) {
        self.0.store(SAID, round, Relaxed);
    }

    /// Word `word` of both masks: which packets are left, and which of these have moved.
    #[inline]
    pub fn masks(&self, word: usize) -> [u64; 2] {
        [LEFT, MOVED].map(|masks| self.0.load(masks + word, Relaxed))
    }

    /// Writes word `word` of both masks.
    #[inline]
    pub fn set_masks(&self, word: usize, [left, moved]: [u64; 2]) {
        self.0.store(LEFT + word, left, Relaxed);
        self.0.store(MOVED + word, moved, Relaxed);
    }

    /// What the function made of packet `i`, if the masks say that it made something.
    #[inline]
    pub fn place(&self, i: usize) -> u64 {
        self.0.load(SLATE_PLACES + i, Relaxed)
    }

    /// Writes what the function made of packet `i`.
    #[inline]
    pub fn set_place(&self, i: usize, word: u64) {
        self.0.store(SLATE_PLACES + i, word, Relaxed);
    }

    /// The function sleeps until it is woken, but not if `awake`.
    pub fn sleep(&self, awake: impl FnOnce() -> bool) {
        self.0.sleep(ASLEEP, awake);
    }

    /// Wakes the function, if it sleeps: whether it did.
    #[inline]
    pub fn wake(&self) -> bool {
        self.0.wake(ASLEEP)
    }

    /// How many of the [ended](Board::ended) flows the function has looked at.
    #[inline]
    pub fn taken(&self) -> u64 {
        self.0.load(TAKEN, Relaxed)
    }

    /// The function has looked at so many ended flows.
    pub fn set_taken(&self, taken: u64) {
        self.0.store(TAKEN, taken, Relaxed);
    }

    /// Count `i` of the function's.
    #[inline]
    pub fn note(&self, i: usize) -> u64 {
        self.0.load(NOTES + i, Relaxed)
    }

    /// Writes count `i` of the function's.
    #[inline]
    pub fn set_note(&self, i: usize, count: u64) {
        self.0.store(NOTES + i, count, Relaxed);
    }

    /// The function's last wish. Anything, if the function lies.
    pub fn wish(&self) -> Wish {
        let number = self.0.load(WISH, Acquire);
        let word = |at| self.0.load(WISH + at, Relaxed);
        Wish {
            number,
            kind: WishKind::decode((word(1) >> 16) as u8),
            at: word(1) as u16,
            rss_hash: (word(1) >> 32) as u32,
            key: FlowKey::from_words([word(2), word(3), word(4), word(5), word(6)]),
        }
    }

    /// The number of the function's last wish.
    #[inline]
    pub fn wishes(&self) -> u64 {
        self.0.load(WISH, Acquire)
    }

    /// The function wishes for a companion.
    pub fn set_wish(&self, wish: &Wish) {
        let set = |at, value| self.0.store(WISH + at, value, Relaxed);
        let kind = wish.kind as u64;
        set(1, u64::from(wish.at) | kind << 16 | u64::from(wish.rss_hash) << 32);
        for (at, word) in wish.key.words().into_iter().enumerate() {
            set(2 + at, word);
        }
        self.0.store(WISH, wish.number, Release);
    }

    /// Writes down what the function would wish for a flow: the turn, and keys with their numbers.
    pub fn set_list(&self, turn: u8, keys: &[(u8, FlowKey)]) {
        let keys = &keys[..keys.len().min(MAX_WISHES)];
        let head = u64::from(turn) | (keys.len() as u64) << 8;
        self.0.store(LIST, head, Relaxed);
        for (i, (number, key)) in keys.iter().enumerate() {
            let at = LIST + 1 + i * LIST_WORDS;
            self.0.store(at, (*number).into(), Relaxed);
            for (j, word) in key.words().into_iter().enumerate() {
                self.0.store(at + 1 + j, word, Relaxed);
            }
        }
    }

    /// The turn in that list. Anything, if the function lies, as all of it.
    pub fn list_turn(&self) -> u8 {
        self.0.load(LIST, Relaxed) as u8
    }

    /// The keys in that list.
    pub fn list(&self) -> impl Iterator<Item = (u8, FlowKey)> {
        let count = (self.0.load(LIST, Relaxed) >> 8) as usize;
        (0..count.min(MAX_WISHES)).map(|i| {
            let word = |j| self.0.load(LIST + 1 + i * LIST_WORDS + j, Relaxed);
            let key = FlowKey::from_words([word(1), word(2), word(3), word(4), word(5)]);
            (word(0) as u8, key)
        })
    }

    /// What was answered to the wish of this number, if it was by now.
    pub fn answer(&self, number: u64) -> Option<Answer> {
        (self.0.load(ANSWER, Acquire) == number).then(|| {
            let word = self.0.load(ANSWER + 1, Relaxed);
            match word & 0xff {
                0 => Ok(((word >> 32) as u32, self.0.load(ANSWER + 2, Relaxed))),
                why => Err(why as u8),
            }
        })
    }

    /// Answers the wish of this number.
    pub fn set_answer(&self, number: u64, answer: Answer) {
        let (word, birth) = match answer {
            Ok((flow, birth)) => (u64::from(flow) << 32, birth),
            Err(why) => (u64::from(why.max(1)), 0),
        };
        self.0.store(ANSWER + 1, word, Relaxed);
        self.0.store(ANSWER + 2, birth, Relaxed);
        self.0.store(ANSWER, number, Release);
    }

    /// Makes it that of a function that begins now: it has done this round, and looked at so many ended flows.
    pub fn reset(&self, round: u64, taken: u64) {
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
