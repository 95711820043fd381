//! A program's turns.

use crate::protocol::layout::{Board, ENDED, FINISHING, MAX_WISHES, OVER, Place, Slate, WISHING, all_of, places};
use crate::sys::sched_yield;
use std::sync::Arc;
use tailwater_net::parse::Headers;
use tailwater_net::{FlowKey, Nanos};

/// How often a program whose turn has not come yields before it sleeps. With real-time priority, and in the chain's
/// order, it finds its turn at the first look.
pub const YIELDS: u32 = 8;

/// The reason of a packet that a function in front left malformed: beyond all that a function has, so that reports
/// call it `other`.
const MALFORMED: u8 = u8::MAX;

/// A packet for a function by itself.
#[derive(Clone, Copy, Debug)]
pub struct TurnPacket {
    /// Its place in the batch, and its buffer's in the memory.
    pub at: u16,
    /// Where in its buffer the frame starts, and its length: within the buffer.
    pub place: [u16; 2],
    /// When it arrived.
    pub arrival: Nanos,
    /// Its RSS hash.
    pub rss_hash: u32,
    /// The port of the chain by which it came: 0 or 1.
    pub entry: u8,
    /// Its flow's [place](crate::protocol::layout::Known::flow) in the flow table, and the flow's birth there.
    pub flow: Option<(u32, u64)>,
    /// Whether a function in front rekeyed the flow.
    pub rekeyed: bool,
}

/// What a function made of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// It goes on.
    Forward {
        /// Where in its buffer the frame starts, and its length.
        place: [u16; 2],
        /// Whether the function, or one in front, rekeyed the flow.
        rekeyed: bool,
    },
    /// It is dropped, for this reason.
    Drop(u8),
}

/// A function that takes turns.
pub trait Work {
    /// Starts to fetch a flow's state, by its place in the flow table, and the headers of the packet at this place of the
    /// batch, whose frame starts there in its buffer; any numbers will do but for the place.
    fn prefetch(&self, flow: u32, at: u16, start: u16);

    /// Puts a packet into the next batch, behind those that are in it. `known` writes down its headers as it came to
    /// the chain, whose key is its flow's. `CHANGED`: a function in front may have changed the frame since, whose headers
    /// are to be found anew; `false`, with nothing changed, if it is no well-formed IP then, which these functions should
    /// have made it.
    fn put<const CHANGED: bool>(&mut self, packet: &TurnPacket, known: impl Fn(&mut Headers)) -> bool;

    /// Runs the batch, and tells what became of packets, by their places: of all but those that go on as they came.
    fn run(&mut self, now: Nanos, each: impl FnMut(u16, Made));

    /// What the function would wish to open for a flow of that key and RSS hash, of which nobody knows here, from this
    /// turn on: keys with their numbers, at most [`MAX_WISHES`]; and the turn of that.
    fn wishes(&self, flow: (FlowKey, u32), turn: u8, keys: &mut Vec<(u8, FlowKey)>) -> u8 {
        let _ = (flow, keys);
        turn
    }

    /// A flow has ended.
    fn end_flow(&mut self, place: u32, birth: u64);

    /// The last packet has passed.
    fn finish(&mut self);

    /// What the function counts of packets that pass.
    fn notes(&self) -> impl Iterator<Item = u64>;
}

/// A function's turns.
#[derive(Debug)]
pub struct Turns<W> {
    board: Board,
    slate: Arc<Slate>,
    in_front: Option<Slate>,
    work: W,
    buffer_bytes: usize,
    /// The last round done.
    last: u64,
    finishing: bool,
    /// Room for what the function would wish for a flow.
    wishes: Vec<(u8, FlowKey)>,
}

/// The last turn, not yet called done.
#[derive(Debug)]
pub struct LastTurn {
    slate: Arc<Slate>,
    round: u64,
}

impl LastTurn {
    /// Tells the worker, which may go away then.
    pub fn done(self) {
        self.slate.set_done(self.round);
    }
}

impl<W: Work> Turns<W> {
    /// Turns from behind round `last` on, in the memory that the server gave, whose buffers have so many bytes.
    pub fn new(
        board: Board,
        slate: Arc<Slate>,
        in_front: Option<Slate>,
        work: W,
        buffer_bytes: usize,
        last: u64,
    ) -> Turns<W> {
        Turns {
            board,
            slate,
            in_front,
            work,
            buffer_bytes,
            last,
            finishing: false,
            wishes: Vec::with_capacity(MAX_WISHES),
        }
    }

    /// The round that is to be done, if it is this function's turn.
    #[inline]
    fn due(&self) -> Option<u64> {
        let round = self.board.round();
        let in_front = self.in_front.as_ref();
        let due = round != self.last && in_front.is_none_or(|slate| slate.done() == round);
        due.then_some(round)
    }

    /// Processes batches until nothing follows. The function has been dropped then.
    pub fn run(mut self) -> LastTurn {
        let mut waited = 0;
        loop {
            if let Some(round) = self.due() {
                let flags = self.board.flags();
                self.turn(round, flags);
                if flags & OVER != 0 {
                    let slate = self.slate;
                    return LastTurn { slate, round };
                }
                self.last = round;
                self.slate.set_done(round);
                waited = 0;
            }
            if waited < YIELDS {
                waited += 1;
                sched_yield();
            } else {
                waited = 0;
                self.slate.sleep(|| self.due().is_some());
            }
        }
    }

    /// Writes down what the function would wish for a flow.
    fn wish(&mut self) {
        let known = self.board.known(0);
        let mut headers = Headers::default();
        self.board.headers(0, &mut headers);
        let flow = (headers.key, known.rss_hash);
        self.wishes.clear();
        let turn = known.arrival as u8;
        let turn = self.work.wishes(flow, turn, &mut self.wishes);
        self.slate.set_list(turn, &self.wishes);
    }

    fn turn(&mut self, round: u64, flags: u64) {
        if flags & WISHING != 0 {
            return self.wish();
        }
        let Turns { board, slate, work, .. } = self;
        if flags & FINISHING != 0 && !self.finishing {
            self.finishing = true;
            work.finish();
        }
        let (ended, taken) = (board.ended(), slate.taken());
        if ended != taken {
            for n in taken.max(ended.saturating_sub(ENDED))..ended {
                let ended = board.ended_flow(n);
                work.end_flow(ended.flow, ended.birth);
            }
            slate.set_taken(ended);
        }
        let count = self.board.count();
        // As many at a time as stay in the nearest cache: what is known of a whole batch may not.
        for word in 0..count.div_ceil(64) {
            match self.in_front {
                None => self.process::<false>(round, count, word),
                Some(_) => self.process::<true>(round, count, word),
            }
        }
        self.slate.set_said(round);
        for (i, count) in self.work.notes().enumerate() {
            self.slate.set_note(i, count);
        }
    }

    /// Processes those 64 packets of a batch of so many that a word of its [masks](Slate::masks) is about. `CHANGED`:
    /// functions in front may have changed frames.
    fn process<const CHANGED: bool>(&mut self, round: u64, count: usize, word: usize) {
        let Turns {
            board,
            slate,
            in_front,
            work,
            buffer_bytes,
            ..
        } = self;
        let (board, bytes) = (&*board, *buffer_bytes);
        let all = all_of(count, word);
        let [mut left, moved] = match in_front {
            None => [all, 0],
            Some(in_front) => in_front.masks(word),
        };
        // What is said of packets that there are not is a lie, which is the worker's to find.
        left &= all;
        // Those that others moved stay so, unless this function says something else of them.
        let mut moves = 0;
        for i in places(word, left) {
            let (flow, start) = board.to_fetch(i);
            work.prefetch(flow, i as u16, start);
        }
        for i in places(word, left) {
            let bit = 1 << (i % 64);
            let known = board.known(i);
            let (mut place, mut rekeyed) = (known.place, false);
            if moved & bit != 0
                && let Some(in_front) = in_front
            {
                let said = Place::decode(in_front.place(i), round);
                match said.filter(|said| said.fits(bytes)) {
                    Some(Place::Here {
                        start,
                        length,
                        rekeyed: said,
                    }) => (place, rekeyed) = ([start, length], said),
                    // Another lie.
                    _ => {
                        left &= !bit;
                        continue;
                    }
                }
            }
            let packet = TurnPacket {
                at: i as u16,
                place,
                arrival: Nanos(known.arrival),
                rss_hash: known.rss_hash,
                entry: known.entry,
                flow: (known.flow != u32::MAX).then_some((known.flow, known.birth)),
                rekeyed,
            };
            let headers = move |headers: &mut Headers| board.headers(i, headers);
            if !work.put::<CHANGED>(&packet, headers) {
                slate.set_place(i, Place::Dropped(MALFORMED).encode(round));
                left &= !bit;
            } else if CHANGED && moved & bit != 0 {
                let [start, length] = place;
                let here = Place::Here { start, length, rekeyed };
                slate.set_place(i, here.encode(round));
                moves |= bit;
            }
        }
        work.run(Nanos(board.now()), |at, made| {
            let i = usize::from(at);
            let bit = 1 << (i % 64);
            let place = match made {
                Made::Forward { place, rekeyed } => {
                    if place == board.place(i) && !rekeyed {
                        moves &= !bit;
                        return;
                    }
                    moves |= bit;
                    let [start, length] = place;
                    Place::Here { start, length, rekeyed }
                }
                Made::Drop(reason) => {
                    left &= !bit;
                    moves &= !bit;
                    Place::Dropped(reason)
                }
            };
            slate.set_place(i, place.encode(round));
        });
        slate.set_masks(word, [left, moves]);
    }
}
