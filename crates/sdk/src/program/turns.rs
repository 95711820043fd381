//! Turns of a program: its main loop.

use crate::abi::MAX_EXPLANATION;
use crate::protocol::layout::{
    CHAIN_ENDED, COMPANION_QUERY, DRAINING, ENDED, FlowSlot, MAX_CANDIDATES, NON_IP, PacketMasks, PacketResponse,
    RequestArea, ResponseArea, TRACED, all_of, slots,
};
use crate::sys::sched_yield;
use std::sync::Arc;
use tailwater_net::parse::Headers;
use tailwater_net::{FlowKey, Nanos};

/// Number of yields of a waiting program before it sleeps. With real-time priority, in chain order, its turn is due at
/// the first check.
pub const YIELDS: u32 = 8;

/// Drop reason of a packet that a preceding function left malformed. It is beyond all reasons of a function, so reports
/// show it as `other`.
const MALFORMED: u8 = u8::MAX;

/// Packet passed to a function in its own process.
#[derive(Clone, Copy, Debug)]
pub struct TurnPacket {
    /// Slot in the batch, which is also the index of its buffer.
    pub at: u16,
    /// Offset and length of the frame, within its buffer.
    pub frame_range: [u16; 2],
    /// Arrival time.
    pub arrival: Nanos,
    /// RSS hash.
    pub rss_hash: u32,
    /// Chain port by which it arrived: 0 or 1.
    pub entry: u8,
    /// Slot of its flow in the [flow table](crate::protocol::layout::PacketMetadata::flow).
    pub flow: Option<FlowSlot>,
    /// `true`: a preceding function rewrote the flow.
    pub rekeyed: bool,
    /// `true`: preceding functions of the group turned the packet into a response, which leaves by its ingress port.
    pub turned: bool,
}

/// Verdict of a function on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnVerdict {
    /// The packet is forwarded.
    Forward {
        /// Offset and length of the frame in its buffer.
        place: [u16; 2],
        /// `true`: the function, or a preceding one, rewrote the flow.
        rekeyed: bool,
        /// `true`: the packet has become a response, which leaves by its ingress port.
        turned: bool,
    },
    /// The packet is dropped for this reason.
    Drop(u8),
}

/// Function that takes turns.
pub trait TurnFunction {
    /// Prefetches a flow's state, and the headers of the packet in slot `at` of the batch, whose frame starts at
    /// `start` in its buffer. Only `at` must be in range.
    fn prefetch(&self, flow: u32, at: u16, start: u16);

    /// Appends a packet to the next batch. `metadata` writes the headers with which it entered the chain, whose key is
    /// its flow's.
    ///
    /// With `CHANGED`, a preceding function may have changed the frame, so its headers are parsed again. Returns
    /// `false`, with nothing changed, if the frame is not well-formed IP, which is a fault of those functions.
    fn put<const CHANGED: bool>(&mut self, packet: &TurnPacket, metadata: impl Fn(&mut Headers)) -> bool;

    /// Processes the batch. Calls `each` with slot and verdict of every packet, except those forwarded unchanged.
    fn run(&mut self, now: Nanos, each: impl FnMut(u16, TurnVerdict));

    /// Inspects a frame that is not IP, which is alone in the batch's memory. Returns the reason if it is dropped.
    fn inspect_non_ip(&mut self, packet: &TurnPacket) -> Option<u8> {
        let _ = packet;
        None
    }

    /// Appends the function's companion candidates for a new flow of this key and RSS hash, from attempt `turn` on: at
    /// most [`MAX_CANDIDATES`] keys with their numbers. Returns the attempt they belong to.
    fn companion_candidates(&mut self, key: FlowKey, rss_hash: u32, turn: u8, keys: &mut Vec<(u8, FlowKey)>) -> u8 {
        let _ = (key, rss_hash, keys);
        turn
    }

    /// The next [`run`](TurnFunction::run) is followed by an [explanation](TurnFunction::explain) of the packet in slot
    /// `at`, if it is in the batch.
    fn before_explanation(&mut self, at: u16) {
        let _ = at;
    }

    /// Writes the function's explanation of the packet in slot `at`, which the last [`run`](TurnFunction::run)
    /// processed. Returns `false` if there is none.
    fn explain(&mut self, at: u16, text: &mut [u8; MAX_EXPLANATION]) -> bool {
        let _ = (at, text);
        false
    }

    /// Handles the end of a flow.
    fn end_flow(&mut self, place: u32, generation: u64);

    /// Called after the last packet.
    fn drain(&mut self);

    /// Returns the function's counters.
    fn counters(&self) -> impl Iterator<Item = u64>;
}

/// Turns of a function's process.
#[derive(Debug)]
pub struct Turns<W> {
    requests: RequestArea,
    responses: Arc<ResponseArea>,
    in_front: Option<ResponseArea>,
    function: W,
    buffer_bytes: usize,
    /// Last completed round.
    last: u64,
    finishing: bool,
    /// Buffer for companion candidates.
    candidates: Vec<(u8, FlowKey)>,
}

/// Last turn, not yet reported as done.
#[derive(Debug)]
pub struct LastTurn {
    responses: Arc<ResponseArea>,
    round: u64,
}

impl LastTurn {
    /// Reports it as done. The worker may end afterwards.
    pub fn done(self) {
        self.responses.set_done(self.round);
    }
}

impl<W: TurnFunction> Turns<W> {
    /// Creates the turns after round `last`, in the server's memory, with buffers of `buffer_bytes` bytes.
    pub fn new(
        requests: RequestArea,
        responses: Arc<ResponseArea>,
        in_front: Option<ResponseArea>,
        function: W,
        buffer_bytes: usize,
        last: u64,
    ) -> Turns<W> {
        Turns {
            requests,
            responses,
            in_front,
            function,
            buffer_bytes,
            last,
            finishing: false,
            candidates: Vec::with_capacity(MAX_CANDIDATES),
        }
    }

    /// Returns the current round, if this function's turn in it is due.
    #[inline]
    fn due(&self) -> Option<u64> {
        let round = self.requests.round();
        let in_front = self.in_front.as_ref();
        let due = round != self.last && in_front.is_none_or(|responses| responses.done() == round);
        due.then_some(round)
    }

    /// Processes batches until the chain ends. The function has been dropped on return.
    pub fn run(mut self) -> LastTurn {
        let mut waited = 0;
        loop {
            if let Some(round) = self.due() {
                let flags = self.requests.flags();
                self.turn(round, flags);
                if flags & CHAIN_ENDED != 0 {
                    let responses = self.responses;
                    return LastTurn { responses, round };
                }
                self.last = round;
                self.responses.set_done(round);
                waited = 0;
            }
            if waited < YIELDS {
                waited += 1;
                sched_yield();
            } else {
                waited = 0;
                self.responses.sleep(|| self.due().is_some());
            }
        }
    }

    /// Writes the function's companion candidates for a flow.
    fn answer_companion_query(&mut self) {
        let metadata = self.requests.metadata(0);
        let mut headers = Headers::default();
        self.requests.headers(0, &mut headers);
        self.candidates.clear();
        let turn = metadata.arrival as u8;
        let turn = self
            .function
            .companion_candidates(headers.key, metadata.rss_hash, turn, &mut self.candidates);
        self.responses.set_candidates(turn, &self.candidates);
    }

    /// Inspects a frame that is not IP.
    #[cold]
    fn inspect_non_ip(&mut self, round: u64) {
        let metadata = self.requests.metadata(0);
        let dropped = self.function.inspect_non_ip(&TurnPacket {
            at: 0,
            frame_range: metadata.frame_range,
            arrival: Nanos(metadata.arrival),
            rss_hash: metadata.rss_hash,
            entry: metadata.entry,
            flow: None,
            rekeyed: false,
            turned: false,
        });
        let response = dropped.map_or(0, |reason| PacketResponse::Dropped(reason).encode(round));
        self.responses.set_response_word(0, response);
        let left = u64::from(dropped.is_none());
        self.responses.set_masks(0, PacketMasks { left, moved: 0 });
        self.respond(round);
    }

    /// Publishes the round's masks, and the counters.
    fn respond(&self, round: u64) {
        self.responses.set_masks_round(round);
        for (i, count) in self.function.counters().enumerate() {
            self.responses.set_counter(i, count);
        }
    }

    fn turn(&mut self, round: u64, flags: u64) {
        if flags & COMPANION_QUERY != 0 {
            return self.answer_companion_query();
        }
        if flags & NON_IP != 0 {
            return self.inspect_non_ip(round);
        }
        let Turns {
            requests,
            responses,
            function,
            ..
        } = self;
        if flags & DRAINING != 0 && !self.finishing {
            self.finishing = true;
            function.drain();
        }
        let (ended, taken) = (requests.ended(), responses.handled_ended());
        if ended != taken {
            for n in taken.max(ended.saturating_sub(ENDED))..ended {
                let ended = requests.ended_flow(n);
                function.end_flow(ended.flow, ended.generation);
            }
            responses.set_handled_ended(ended);
        }
        let count = self.requests.count();
        // In groups of 64: their data stays in the L1 cache, that of a whole batch may not.
        for word in 0..count.div_ceil(64) {
            match self.in_front {
                None => self.process::<false>(round, count, (word, flags)),
                Some(_) => self.process::<true>(round, count, (word, flags)),
            }
            if flags & TRACED != 0 {
                self.explain(round, word);
            }
        }
        self.respond(round);
    }

    /// Writes explanations of the traced packets among the 64 that a word of the masks covers.
    #[cold]
    fn explain(&mut self, round: u64, word: usize) {
        for (i, slot) in self
            .requests
            .traced()
            .filter(|(_, slot)| usize::from(*slot) / 64 == word)
        {
            let mut text = [0; MAX_EXPLANATION];
            if self.function.explain(slot, &mut text) {
                self.responses.set_explanation(i, round, &text);
            }
        }
    }

    /// Processes the 64 packets that a word of the [masks](ResponseArea::masks) covers, of a batch of `count`.
    /// `CHANGED`: preceding functions may have changed frames.
    fn process<const CHANGED: bool>(&mut self, round: u64, count: usize, (word, flags): (usize, u64)) {
        let Turns {
            requests,
            responses,
            in_front,
            function,
            buffer_bytes,
            ..
        } = self;
        let (requests, bytes) = (&*requests, *buffer_bytes);
        let all = all_of(count, word);
        let PacketMasks { mut left, moved } = match in_front {
            None => PacketMasks { left: all, moved: 0 },
            Some(in_front) => in_front.masks(word),
        };
        // Bits of packets that do not exist are an invalid response of the preceding function. The worker detects it.
        left &= all;
        // Frames moved by preceding functions stay moved, unless this function reports otherwise.
        let mut moves = 0;
        for i in slots(word, left) {
            let (flow, start) = requests.prefetch_hint(i);
            function.prefetch(flow, i as u16, start);
        }
        for i in slots(word, left) {
            let bit = 1 << (i % 64);
            let metadata = requests.metadata(i);
            let (mut place, mut rekeyed, mut turned) = (metadata.frame_range, false, false);
            if moved & bit != 0
                && let Some(in_front) = in_front
            {
                let said = PacketResponse::decode(in_front.response_word(i), round);
                match said.filter(|said| said.fits(bytes)) {
                    Some(PacketResponse::Forwarded {
                        start,
                        length,
                        rekeyed: is_rekeyed,
                        turned: is_turned,
                    }) => (place, rekeyed, turned) = ([start, length], is_rekeyed, is_turned),
                    // Invalid response of the preceding function.
                    _ => {
                        left &= !bit;
                        continue;
                    }
                }
            }
            let packet = TurnPacket {
                at: i as u16,
                frame_range: place,
                arrival: Nanos(metadata.arrival),
                rss_hash: metadata.rss_hash,
                entry: metadata.entry,
                flow: (metadata.flow != u32::MAX).then_some(FlowSlot {
                    flow: metadata.flow,
                    generation: metadata.generation,
                }),
                rekeyed,
                turned,
            };
            let headers = move |headers: &mut Headers| requests.headers(i, headers);
            if !function.put::<CHANGED>(&packet, headers) {
                responses.set_response_word(i, PacketResponse::Dropped(MALFORMED).encode(round));
                left &= !bit;
            } else if CHANGED && moved & bit != 0 {
                let [start, length] = place;
                let here = PacketResponse::Forwarded {
                    start,
                    length,
                    rekeyed,
                    turned,
                };
                responses.set_response_word(i, here.encode(round));
                moves |= bit;
            }
        }
        if flags & TRACED != 0 {
            for (_, slot) in requests.traced().filter(|(_, slot)| usize::from(*slot) / 64 == word) {
                function.before_explanation(slot);
            }
        }
        function.run(Nanos(requests.now()), |at, made| {
            let i = usize::from(at);
            let bit = 1 << (i % 64);
            let place = match made {
                TurnVerdict::Forward { place, rekeyed, turned } => {
                    if place == requests.frame_range(i) && !rekeyed && !turned {
                        moves &= !bit;
                        return;
                    }
                    moves |= bit;
                    let [start, length] = place;
                    PacketResponse::Forwarded {
                        start,
                        length,
                        rekeyed,
                        turned,
                    }
                }
                TurnVerdict::Drop(reason) => {
                    left &= !bit;
                    moves &= !bit;
                    PacketResponse::Dropped(reason)
                }
            };
            responses.set_response_word(i, place.encode(round));
        });
        responses.set_masks(word, PacketMasks { left, moved: moves });
    }
}
