//! A program's turns.

use crate::layout::{Answer, Board, ENDED, FINISHING, OVER, Place, Slate, Wish};
use rustix::thread::sched_yield;
use std::sync::Arc;
use tailwater_net::{FlowKey, Nanos};
use tailwater_nf::chain::{Alone, AlonePacket, Made};
use tailwater_nf::flow_table::{Companions, NoCompanion};

/// How often a program whose turn has not come yields before it sleeps. With real-time priority, and in the chain's
/// order, it finds its turn at the first look.
const YIELDS: u32 = 8;

/// The reason of a packet that a function in front left malformed: beyond all that a function has, so that reports
/// call it `other`.
const MALFORMED: u8 = u8::MAX;

/// A function's turns.
pub(super) struct Turns {
    board: Board,
    slate: Arc<Slate>,
    in_front: Option<Slate>,
    alone: Alone,
    buffer_bytes: usize,
    /// The last round done.
    last: u64,
    finishing: bool,
}

/// The last turn, not yet called done.
pub(super) struct LastTurn {
    slate: Arc<Slate>,
    round: u64,
}

impl LastTurn {
    pub(super) fn done(self) {
        self.slate.set_done(self.round);
    }
}

impl Turns {
    pub(super) fn new(
        board: Board,
        slate: Arc<Slate>,
        in_front: Option<Slate>,
        alone: Alone,
        buffer_bytes: usize,
        last: u64,
    ) -> Turns {
        Turns {
            board,
            slate,
            in_front,
            alone,
            buffer_bytes,
            last,
            finishing: false,
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
    pub(super) fn run(mut self) -> LastTurn {
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

    fn turn(&mut self, round: u64, flags: u64) {
        let Turns {
            board,
            slate,
            alone,
            ..
        } = self;
        if flags & FINISHING != 0 && !self.finishing {
            self.finishing = true;
            alone.finish();
        }
        let (ended, taken) = (board.ended(), slate.taken());
        if ended != taken {
            for n in taken.max(ended.saturating_sub(ENDED))..ended {
                let ended = board.ended_flow(n);
                alone.end_flow(ended.flow, ended.birth);
            }
            slate.set_taken(ended);
        }
        let count = board.count();
        for i in 0..count {
            alone.prefetch(board.flow(i));
        }
        for i in 0..count {
            let word = match &self.in_front {
                Some(in_front) => in_front.place(i),
                None => board.place(i),
            };
            let place = Place::decode(word, round).filter(|place| place.fits(self.buffer_bytes));
            let Some(Place::Here {
                start,
                length,
                rekeyed,
            }) = place
            else {
                slate.set_place(i, Place::Gone.encode(round));
                continue;
            };
            let known = board.known(i);
            let packet = AlonePacket {
                at: i as u16,
                place: [start, length],
                arrival: Nanos(known.arrival),
                rss_hash: known.rss_hash,
                flow: (known.flow != u32::MAX).then_some((known.flow, known.birth, known.key)),
                rekeyed,
            };
            if !alone.put(&packet) {
                slate.set_place(i, Place::Dropped(MALFORMED).encode(round));
            }
        }
        alone.run(Nanos(board.now()), |at, made| {
            let place = match made {
                Made::Forward {
                    place: [start, length],
                    rekeyed,
                } => Place::Here {
                    start,
                    length,
                    rekeyed,
                },
                Made::Drop(reason) => Place::Dropped(reason),
            };
            slate.set_place(usize::from(at), place.encode(round));
        });
        for (i, count) in alone.notes().enumerate() {
            slate.set_note(i, count);
        }
    }
}

/// Has the worker open companions.
#[derive(Debug)]
pub(super) struct Asking {
    slate: Arc<Slate>,
    /// The last wish.
    number: u64,
}

impl Asking {
    pub(super) fn new(slate: Arc<Slate>) -> Asking {
        Asking { slate, number: 0 }
    }

    /// Waits for the worker's answer.
    fn answer(&self) -> Answer {
        let mut waited = 0;
        loop {
            if let Some(answer) = self.slate.answer(self.number) {
                return answer;
            }
            if waited < YIELDS {
                waited += 1;
                sched_yield();
            } else {
                waited = 0;
                self.slate
                    .sleep(|| self.slate.answer(self.number).is_some());
            }
        }
    }
}

impl Companions for Asking {
    fn open(&mut self, at: u16, key: &FlowKey, rss_hash: u32) -> Result<(u32, u64), NoCompanion> {
        self.number += 1;
        self.slate.set_wish(&Wish {
            number: self.number,
            at,
            rss_hash,
            key: *key,
        });
        self.answer().map_err(no_companion)
    }
}

/// As a number of an answer.
pub(crate) fn number_of(why: NoCompanion) -> u8 {
    match why {
        NoCompanion::Taken => 1,
        NoCompanion::OtherBucket => 2,
        NoCompanion::HasOne => 3,
        NoCompanion::NoPlace => 4,
    }
}

fn no_companion(number: u8) -> NoCompanion {
    match number {
        1 => NoCompanion::Taken,
        2 => NoCompanion::OtherBucket,
        3 => NoCompanion::HasOne,
        _ => NoCompanion::NoPlace,
    }
}
