//! Layout of the memory shared between a chain's functions and their worker. Words have eight bytes, little-endian.
//!
//! | memory | written by | read by |
//! |---|---|---|
//! | *request area* ([`RequestArea`]): the round, data of each packet on arrival, flows that ended | the worker | all functions |
//! | *response area* ([`ResponseArea`]) of each function: last completed round, forwarded packets, counters | the function, and the worker its responses | the worker, and the next function |
//! | *packets*: one buffer per slot of a batch | all, in their turn | all, in their turn |
//! | *flows* of each function | the function | nobody else |
//!
//! A function's turn is due when the request area has a round that it has not done, and the function in front has done
//! that round.
//!
//! Nearly all packets of a batch are forwarded unchanged, so a response area has one bit for each. It has two
//! [`Masks`]: packets that are left, and those among them whose frame is no longer where the request area states. Only
//! these, and packets that the function dropped, have a word of their own, a [`PacketResponse`].

mod companions;
mod explanations;

pub use companions::{CompanionRefusal, CompanionRequest, CompanionRequestKind, CompanionResponse, FlowSlot};
pub use explanations::TRACED;

use super::memory::Memory;
use crate::abi::MAX_EXPLANATION;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use tailwater_net::FlowKey;
use tailwater_net::parse::{Fragment, Headers, Network};

/// Maximum number of packets in a batch.
pub const MAX_BATCH: usize = 256;

/// Maximum number of a function's companion candidates for a flow.
pub const MAX_CANDIDATES: usize = 4;

/// Version of this protocol and of its layouts.
pub const VERSION: u16 = 3;

/// Words per cache line.
const LINE: usize = 8;

/// One bit for each packet of a batch, by slot: bit `i % 64` of word `i / 64`.
pub type Masks = [u64; MASKS];

/// Words of [`Masks`].
pub const MASKS: usize = MAX_BATCH / 64;

/// Returns word `word` of the mask of `count` packets; its lowest bit is packet `64 * word`.
#[inline]
pub fn all_of(count: usize, word: usize) -> u64 {
    match count.saturating_sub(64 * word) {
        left @ 0..64 => (1 << left) - 1,
        _ => u64::MAX,
    }
}

/// Returns the slots whose bits are set in word `word` of [`Masks`].
#[inline]
pub fn slots(word: usize, mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let at = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (at < 64).then_some(64 * word + at)
    })
}

/// Response for a packet that was dropped, moved or rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketResponse {
    /// The packet is forwarded.
    Forwarded {
        /// Offset of the frame in its buffer.
        start: u16,
        /// Length of the frame in bytes.
        length: u16,
        /// `true`: a function changed the flow's addresses or ports, so later functions must decide again.
        rekeyed: bool,
        /// `true`: the packet has become a response, which leaves by its ingress port.
        turned: bool,
    },
    /// This function dropped it, with this reason number.
    Dropped(u8),
}

impl PacketResponse {
    /// Encodes it as a word of a round.
    ///
    /// | bits | |
    /// |---|---|
    /// | 0-7 | 1: forwarded; 2: dropped |
    /// | 8-15 | reason |
    /// | 16-31 | offset of the frame |
    /// | 32-47 | length of the frame |
    /// | 48 | rekeyed |
    /// | 49 | turned |
    /// | 56-63 | lowest bits of the round |
    #[inline]
    pub fn encode(self, round: u64) -> u64 {
        let word = match self {
            PacketResponse::Forwarded {
                start,
                length,
                rekeyed,
                turned,
            } => {
                let marks = u64::from(rekeyed) << 48 | u64::from(turned) << 49;
                1 | u64::from(start) << 16 | u64::from(length) << 32 | marks
            }
            PacketResponse::Dropped(reason) => 2 | u64::from(reason) << 8,
        };
        word | round << 56
    }

    /// Decodes a word that [`encode`](PacketResponse::encode) returned in this round; `None` for any other word.
    #[inline]
    pub fn decode(word: u64, round: u64) -> Option<PacketResponse> {
        let place = match word & 0xff {
            1 => PacketResponse::Forwarded {
                start: (word >> 16) as u16,
                length: (word >> 32) as u16,
                rekeyed: word >> 48 & 1 != 0,
                turned: word >> 49 & 1 != 0,
            },
            2 => PacketResponse::Dropped((word >> 8) as u8),
            _ => return None,
        };
        (place.encode(round) == word).then_some(place)
    }

    /// Returns `true` if the frame, if there is one, lies within a buffer of `bytes` bytes.
    #[inline]
    pub fn fits(self, bytes: usize) -> bool {
        match self {
            PacketResponse::Forwarded { start, length, .. } => {
                usize::from(start) + usize::from(length) <= bytes && length > 0
            }
            PacketResponse::Dropped(_) => true,
        }
    }
}

/// Data of a packet on arrival at the chain, without its headers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PacketMetadata {
    /// Offset and length of the frame in its buffer.
    pub frame_range: [u16; 2],
    /// Arrival time in nanoseconds since the run's start.
    pub arrival: u64,
    /// RSS hash.
    pub rss_hash: u32,
    /// Chain port by which it arrived: 0 or 1.
    pub entry: u8,
    /// Slot of its flow in the flow table; `u32::MAX` for none. Where flows are connections each has two slots, the
    /// second for packets against its key's direction. Functions that track connections count half as many slots.
    pub flow: u32,
    /// Generation of the flow, which differs from that of any other flow in the slot. Not 0 if there is a flow.
    pub generation: u64,
}

/// Capacity of the request area for ended flows.
pub const ENDED: u64 = 1024;

/// `RequestArea::flags`: the last packet has passed; only ends of flows follow.
pub const DRAINING: u64 = 1;
/// `RequestArea::flags`: nothing follows. The program ends after this turn.
pub const CHAIN_ENDED: u64 = 2;
/// `RequestArea::flags`: the round has no packets. Functions report their companion candidates for the flow of the
/// first packet's data, from the attempt in its arrival field on.
pub const COMPANION_QUERY: u64 = 4;
/// `RequestArea::flags`: the round has no packets. Functions that inspect frames that are not IP inspect that of the
/// first packet's data, and respond as for a packet that does not move.
pub const NON_IP: u64 = 8;

const ROUND: usize = 0;
const COUNT: usize = 1;
const NOW: usize = 2;
const FLAGS: usize = 3;
const ENDED_HEAD: usize = 4;
/// Slots of traced packets, up to the end of the cache line.
const TRACED_SLOTS: usize = 5;
/// One cache line for each packet, with all data of most packets.
const METADATA: usize = LINE;
/// Four more words for each packet: the rest of an IPv6 key.
const REST: usize = METADATA + LINE * MAX_BATCH;
const REST_WORDS: usize = 4;
const ENDS: usize = REST + REST_WORDS * MAX_BATCH;

/// Size of the request area in bytes.
pub const REQUEST_AREA_BYTES: usize = (ENDS + 2 * ENDED as usize) * 8;

/// Request area: written by the worker for all functions.
#[derive(Debug)]
pub struct RequestArea(pub Memory);

impl RequestArea {
    /// Returns the current or last round.
    #[inline]
    pub fn round(&self) -> u64 {
        self.0.load(ROUND, SeqCst)
    }

    /// Begins a round of `count` packets.
    #[inline]
    pub fn begin(&self, round: u64, count: usize, now: u64, flags: u64) {
        self.0.store(COUNT, count as u64, Relaxed);
        self.0.store(NOW, now, Relaxed);
        self.0.store(FLAGS, flags, Relaxed);
        self.0.store(ROUND, round, SeqCst);
    }

    /// Returns the number of packets of the round, at most [`MAX_BATCH`].
    #[inline]
    pub fn count(&self) -> usize {
        (self.0.load(COUNT, Relaxed) as usize).min(MAX_BATCH)
    }

    /// Returns the time at which the batch was polled, in nanoseconds since the run's start.
    pub fn now(&self) -> u64 {
        self.0.load(NOW, Relaxed)
    }

    /// Returns the flags: [`DRAINING`], [`CHAIN_ENDED`], [`COMPANION_QUERY`], [`NON_IP`], [`TRACED`].
    pub fn flags(&self) -> u64 {
        self.0.load(FLAGS, Relaxed)
    }

    /// Returns the data of packet `i`.
    #[inline(always)]
    pub fn metadata(&self, i: usize) -> PacketMetadata {
        let word = self.0.load_line(METADATA + LINE * i);
        let place = word(3);
        PacketMetadata {
            frame_range: [place as u16, (place >> 16) as u16],
            arrival: word(0),
            rss_hash: word(1) as u32,
            entry: (place >> 48) as u8,
            flow: (word(1) >> 32) as u32,
            generation: word(2),
        }
    }

    /// Reads the headers of packet `i`, whose key is its flow's. They are not IP if none were written.
    #[inline(always)]
    pub fn headers(&self, i: usize, to: &mut Headers) {
        let word = self.0.load_line(METADATA + LINE * i);
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

    /// Returns what to prefetch for packet `i`: its flow's slot in the flow table (`u32::MAX` for none), and the offset
    /// of its frame on arrival.
    #[inline(always)]
    pub fn prefetch_hint(&self, i: usize) -> (u32, u16) {
        let word = self.0.load_line(METADATA + LINE * i);
        ((word(1) >> 32) as u32, word(3) as u16)
    }

    /// Returns offset and length of packet `i`'s frame on arrival.
    #[inline(always)]
    pub fn frame_range(&self, i: usize) -> [u16; 2] {
        let word = self.0.load(METADATA + LINE * i + 3, Relaxed);
        [word as u16, (word >> 16) as u16]
    }

    /// Writes the data of packet `i`, and its headers.
    #[inline(always)]
    pub fn set_metadata(&self, i: usize, known: &PacketMetadata, headers: &Headers) {
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
        let [start, length] = known.frame_range;
        let key = headers.key.words();
        let line = [
            known.arrival,
            u64::from(known.rss_hash) | u64::from(known.flow) << 32,
            known.generation,
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
        self.0.store_line(METADATA + LINE * i, line);
        if headers.network == Network::V6 {
            for (at, word) in key[1..4].iter().enumerate() {
                self.0.store(REST + REST_WORDS * i + at, *word, Relaxed);
            }
        }
    }

    /// Returns the number of flows that have ended so far. The last [`ENDED`] of them are available.
    #[inline]
    pub fn ended(&self) -> u64 {
        self.0.load(ENDED_HEAD, Relaxed)
    }

    /// Returns the flow that ended as number `n`.
    pub fn ended_flow(&self, n: u64) -> FlowSlot {
        let at = ENDS + 2 * (n % ENDED) as usize;
        FlowSlot {
            flow: self.0.load(at, Relaxed) as u32,
            generation: self.0.load(at + 1, Relaxed),
        }
    }

    /// Adds an ended flow, for the next round.
    pub fn add_ended(&self, ended: FlowSlot) {
        let n = self.ended();
        let at = ENDS + 2 * (n % ENDED) as usize;
        self.0.store(at, ended.flow.into(), Relaxed);
        self.0.store(at + 1, ended.generation, Relaxed);
        self.0.store(ENDED_HEAD, n + 1, Relaxed);
    }

    /// Invalidates the flow that ended as number `n`, by a generation that no flow has. Between rounds only.
    pub fn forget_ended(&self, n: u64) {
        let at = ENDS + 2 * (n % ENDED) as usize;
        self.0.store(at + 1, 0, Relaxed);
    }
}

/// One word of both masks of a [`ResponseArea`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketMasks {
    /// Packets that are left.
    pub left: u64,
    /// Packets among them whose frame is no longer where the request area states.
    pub moved: u64,
}

/// Maximum number of a function's counters.
pub const MAX_FUNCTION_COUNTERS: usize = 32;

const DONE: usize = 0;
/// Futex word.
const ASLEEP: usize = LINE;
const HANDLED_ENDED: usize = 2 * LINE;
const COMPANION_REQUEST: usize = 3 * LINE;
const COMPANION_RESPONSE: usize = 5 * LINE;
const COUNTERS: usize = 6 * LINE;
/// Round of the masks.
const MASKS_ROUND: usize = COUNTERS + MAX_FUNCTION_COUNTERS;
const LEFT: usize = MASKS_ROUND + 1;
const MOVED: usize = LEFT + MASKS;
const RESPONSE_WORDS: usize = (MOVED + MASKS).next_multiple_of(LINE);

/// Offset of the companion candidates, after the packets' words.
const CANDIDATES: usize = RESPONSE_WORDS + MAX_BATCH;
/// Words of a companion candidate: a number and a key.
const CANDIDATE_WORDS: usize = 6;
/// Offset of the explanations, which servers and programs before them do not have.
const EXPLANATIONS: usize = (CANDIDATES + 1 + MAX_CANDIDATES * CANDIDATE_WORDS).next_multiple_of(LINE);
/// Words of an explanation: the round, and the text.
const EXPLANATION_WORDS: usize = 1 + MAX_EXPLANATION / 8;
/// Maximum number of packets of a round that functions explain.
pub const MAX_TRACED: usize = 12;
const RESPONSE_AREA_WORDS: usize = (EXPLANATIONS + MAX_TRACED * EXPLANATION_WORDS).next_multiple_of(LINE);

/// Size of a response area in bytes.
pub const RESPONSE_AREA_BYTES: usize = RESPONSE_AREA_WORDS * 8;
/// Least size of a response area in bytes: without explanations.
pub const LEAST_RESPONSE_AREA_BYTES: usize = EXPLANATIONS * 8;

/// Response area: written by a function for its worker and the next function.
#[derive(Debug)]
pub struct ResponseArea(pub Memory);

impl ResponseArea {
    /// Returns the last round that the function completed.
    #[inline]
    pub fn done(&self) -> u64 {
        self.0.load(DONE, Acquire)
    }

    /// Marks a round as completed by the function.
    #[inline]
    pub fn set_done(&self, round: u64) {
        self.0.store(DONE, round, Release);
    }

    /// Returns the round of the masks.
    #[inline]
    pub fn masks_round(&self) -> u64 {
        self.0.load(MASKS_ROUND, Relaxed)
    }

    /// Sets the round of the masks.
    #[inline]
    pub fn set_masks_round(&self, round: u64) {
        self.0.store(MASKS_ROUND, round, Relaxed);
    }

    /// Returns word `word` of both masks.
    #[inline]
    pub fn masks(&self, word: usize) -> PacketMasks {
        PacketMasks {
            left: self.0.load(LEFT + word, Relaxed),
            moved: self.0.load(MOVED + word, Relaxed),
        }
    }

    /// Writes word `word` of both masks.
    #[inline]
    pub fn set_masks(&self, word: usize, masks: PacketMasks) {
        self.0.store(LEFT + word, masks.left, Relaxed);
        self.0.store(MOVED + word, masks.moved, Relaxed);
    }

    /// Returns the response word of packet `i`. Valid only if the masks show that the packet was dropped or moved.
    #[inline]
    pub fn response_word(&self, i: usize) -> u64 {
        self.0.load(RESPONSE_WORDS + i, Relaxed)
    }

    /// Writes the response word of packet `i`.
    #[inline]
    pub fn set_response_word(&self, i: usize, word: u64) {
        self.0.store(RESPONSE_WORDS + i, word, Relaxed);
    }

    /// Puts the function to sleep until it is woken, unless `awake` returns `true`.
    pub fn sleep(&self, awake: impl FnOnce() -> bool) {
        self.0.sleep(ASLEEP, awake);
    }

    /// Wakes the function if it sleeps. Returns `true` if it did.
    #[inline]
    pub fn wake(&self) -> bool {
        self.0.wake(ASLEEP)
    }

    /// Returns the number of [ended](RequestArea::ended) flows that the function has handled.
    #[inline]
    pub fn handled_ended(&self) -> u64 {
        self.0.load(HANDLED_ENDED, Relaxed)
    }

    /// Sets the number of ended flows that the function has handled.
    pub fn set_handled_ended(&self, taken: u64) {
        self.0.store(HANDLED_ENDED, taken, Relaxed);
    }

    /// Returns counter `i` of the function.
    #[inline]
    pub fn counter(&self, i: usize) -> u64 {
        self.0.load(COUNTERS + i, Relaxed)
    }

    /// Writes counter `i` of the function.
    #[inline]
    pub fn set_counter(&self, i: usize, count: u64) {
        self.0.store(COUNTERS + i, count, Relaxed);
    }

    /// Returns the function's last companion request. A hostile function may have written any value.
    pub fn companion_request(&self) -> CompanionRequest {
        let number = self.0.load(COMPANION_REQUEST, Acquire);
        let word = |at| self.0.load(COMPANION_REQUEST + at, Relaxed);
        CompanionRequest {
            number,
            kind: CompanionRequestKind::decode((word(1) >> 16) as u8),
            at: word(1) as u16,
            rss_hash: (word(1) >> 32) as u32,
            key: FlowKey::from_words([word(2), word(3), word(4), word(5), word(6)]),
        }
    }

    /// Returns the number of the function's last companion request.
    #[inline]
    pub fn companion_requests(&self) -> u64 {
        self.0.load(COMPANION_REQUEST, Acquire)
    }

    /// Writes a companion request.
    pub fn set_companion_request(&self, request: &CompanionRequest) {
        let set = |at, value| self.0.store(COMPANION_REQUEST + at, value, Relaxed);
        let kind = request.kind as u64;
        set(
            1,
            u64::from(request.at) | kind << 16 | u64::from(request.rss_hash) << 32,
        );
        for (at, word) in request.key.words().into_iter().enumerate() {
            set(2 + at, word);
        }
        self.0.store(COMPANION_REQUEST, request.number, Release);
    }

    /// Writes the companion candidates for a flow: the attempt, and keys with their numbers.
    pub fn set_candidates(&self, turn: u8, keys: &[(u8, FlowKey)]) {
        let keys = &keys[..keys.len().min(MAX_CANDIDATES)];
        let head = u64::from(turn) | (keys.len() as u64) << 8;
        self.0.store(CANDIDATES, head, Relaxed);
        for (i, (number, key)) in keys.iter().enumerate() {
            let at = CANDIDATES + 1 + i * CANDIDATE_WORDS;
            self.0.store(at, (*number).into(), Relaxed);
            for (j, word) in key.words().into_iter().enumerate() {
                self.0.store(at + 1 + j, word, Relaxed);
            }
        }
    }

    /// Returns the attempt of the companion candidates. A hostile function may have written any list.
    pub fn candidates_attempt(&self) -> u8 {
        self.0.load(CANDIDATES, Relaxed) as u8
    }

    /// Returns the companion candidates.
    pub fn candidates(&self) -> impl Iterator<Item = (u8, FlowKey)> {
        let count = (self.0.load(CANDIDATES, Relaxed) >> 8) as usize;
        (0..count.min(MAX_CANDIDATES)).map(|i| {
            let word = |j| self.0.load(CANDIDATES + 1 + i * CANDIDATE_WORDS + j, Relaxed);
            let key = FlowKey::from_words([word(1), word(2), word(3), word(4), word(5)]);
            (word(0) as u8, key)
        })
    }

    /// Returns the response to the companion request of this number, if it is available.
    pub fn companion_response(&self, number: u64) -> Option<CompanionResponse> {
        (self.0.load(COMPANION_RESPONSE, Acquire) == number).then(|| {
            let word = self.0.load(COMPANION_RESPONSE + 1, Relaxed);
            match word & 0xff {
                0 => Ok(FlowSlot {
                    flow: (word >> 32) as u32,
                    generation: self.0.load(COMPANION_RESPONSE + 2, Relaxed),
                }),
                refusal => Err(CompanionRefusal::decode(refusal as u8)),
            }
        })
    }

    /// Writes the response to the companion request of this number.
    pub fn set_companion_response(&self, number: u64, answer: CompanionResponse) {
        let (word, generation) = match answer {
            Ok(FlowSlot { flow, generation }) => (u64::from(flow) << 32, generation),
            Err(refusal) => (refusal as u64, 0),
        };
        self.0.store(COMPANION_RESPONSE + 1, word, Relaxed);
        self.0.store(COMPANION_RESPONSE + 2, generation, Relaxed);
        self.0.store(COMPANION_RESPONSE, number, Release);
    }

    /// Resets the area for a new process, which counts as having done `round` and handled `taken` ended flows.
    pub fn reset(&self, round: u64, taken: u64) {
        for word in 0..RESPONSE_AREA_BYTES / 8 {
            // Nobody sleeps on it: the previous process is gone, and the next has not started.
            self.0.store(word, 0, Relaxed);
        }
        self.set_handled_ended(taken);
        self.set_done(round);
    }
}

#[cfg(test)]
mod tests;
