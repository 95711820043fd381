//! A worker's rounds: a batch goes out to the group's processes and comes back.

use super::area::Area;
use super::group::Group;
use super::status::{Measured, Status};
use crate::layout::{ENDED, Ended, FINISHING, Known, OVER, Place, Wish};
use crate::program::turns::number_of;
use rustix::thread::sched_yield;
use std::sync::Arc;
use std::time::Instant;
use tailwater_net::Nanos;
use tailwater_nf::batch::{Batch, DEFAULT_BATCH, MAX_BATCH, Verdict};
use tailwater_nf::flow_table::NoCompanion;
use tailwater_nf::function::FlowStates;
use tailwater_policy::isolation::{BatchBounds, BatchSize};

/// A flow's state with the worker: its birth, and its place.
pub(super) type Opened = [u64; 2];

/// What has become of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Forward,
    Dropped { by: u8, reason: u8 },
}

/// What a worker has of a function's process.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    /// The number under which it was attached; another one is another process.
    number: u32,
    /// Its last wish.
    wishes: u64,
    /// The number of its reasons to drop.
    reasons: u8,
    /// Whether it wants to know of flows that end.
    wants_flow_ends: bool,
}

/// A worker's rounds.
pub(super) struct Round {
    area: Arc<Area>,
    status: Arc<Status>,
    /// The last one.
    round: u64,
    flags: u64,
    /// The last flow opened.
    birth: u64,
    peers: Vec<Peer>,
    /// By place in the batch.
    fates: Box<[Fate]>,
    /// Where each packet's frame is now, by place.
    frames: Box<[[u16; 2]]>,
    /// The places of the packets that are left, in order.
    left: Vec<u16>,
    size: BatchSize,
    /// Rounds until one of no packets is measured.
    until_empty: u32,
    /// What these take on average, in nanoseconds, and how many there were.
    empty: f64,
    empties: f64,
    /// What the processes before counted, and what the present ones do: for each function its notes.
    notes: Vec<Vec<[u64; 2]>>,
}

/// Behind so many rounds comes one of no packets: since switches take a few hundredths of the time, that is not to be
/// noticed.
const EMPTY_EVERY: u32 = 64;

/// The number of bits for a worker's births.
const BIRTH_BITS: u32 = 48;

impl Round {
    pub(super) fn new(group: &Group, worker: u16, bounds: BatchBounds) -> Option<Round> {
        let seats = group.seats.iter().map(|seat| &seat.description);
        let peers = seats.clone().map(|description| Peer {
            reasons: description.drop_reasons.len() as u8,
            wants_flow_ends: description.wants_flow_ends,
            ..Peer::default()
        });
        Some(Round {
            area: Arc::clone(group.area.as_ref()?),
            status: Arc::clone(&group.status),
            round: 0,
            flags: 0,
            birth: u64::from(worker) << BIRTH_BITS,
            peers: peers.collect(),
            fates: vec![Fate::Forward; MAX_BATCH].into(),
            frames: vec![[0; 2]; MAX_BATCH].into(),
            left: Vec::with_capacity(MAX_BATCH),
            size: BatchSize::new(bounds, DEFAULT_BATCH),
            until_empty: 0,
            empty: 0.0,
            empties: 0.0,
            notes: seats.map(|d| vec![[0; 2]; d.notes.len()]).collect(),
        })
    }

    /// A flow's birth. Other flows at its place had others, and that of no other worker is the same.
    pub(super) fn give_birth(&mut self) -> u64 {
        self.birth += 1;
        self.birth
    }

    /// Runs a batch through all functions, and keeps what they make of each packet for [`tell`](Round::tell).
    pub(super) fn run(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>, has_state: bool) {
        let count = batch.len();
        self.left.clear();
        self.left.extend(0..count as u16);
        let failed = match self.meet() {
            Some(down) => {
                self.fates[..count].fill(Fate::Forward);
                Some(down)
            }
            None => {
                self.measure_switches();
                let began = Instant::now();
                self.describe(batch, flows, has_state);
                let failed = self.go(count, flows.now().0, |round, wish| {
                    round.grant(wish, batch, flows)
                });
                if failed.is_none() {
                    self.observe(count, began);
                }
                let liar = self.judge(count, failed);
                if let Some(liar) = liar {
                    self.status.accuse(liar);
                    // What was said before the lie was found does not count.
                    self.judge(count, Some(liar));
                }
                liar.or(failed)
            }
        };
        if let Some(failed) = failed {
            self.lose(count, failed);
        }
        self.copy_out(count, batch);
    }

    /// The most packets that a batch should have.
    pub(super) fn wanted_batch(&self) -> usize {
        self.size.next()
    }

    /// Now and then, has a batch of no packets go round, which tells what switching alone takes; and writes down what
    /// was measured.
    fn measure_switches(&mut self) {
        if let Some(left) = self.until_empty.checked_sub(1) {
            self.until_empty = left;
            return;
        }
        self.until_empty = EMPTY_EVERY;
        let began = Instant::now();
        let failed = self.go(0, 0, |_, _| Err(number_of(NoCompanion::NoPlace)));
        if failed.is_none() {
            let took = began.elapsed().as_nanos() as f64;
            self.empties += 1.0;
            // The mean of all; one for which the machine was away counts little.
            let usual = if self.empties > 8.0 {
                3.0 * self.empty
            } else {
                took
            };
            self.empty += (took.min(usual) - self.empty) / self.empties;
        }
        let costs = self.size.costs();
        self.status.measure(&Measured {
            batch: self.size.size(),
            empty: self.empty,
            switches: costs.map_or(0.0, |costs| costs.switches),
            packet: costs.map_or(0.0, |costs| costs.packet),
        });
    }

    fn observe(&mut self, packets: usize, began: Instant) {
        let took = began.elapsed().as_nanos();
        self.size.observe(packets, Nanos(took as u64));
    }

    /// Copies the frames of those packets out that go on.
    fn copy_out(&self, count: usize, batch: &mut Batch) {
        let packets = &self.area.packets;
        let buffer_bytes = self.area.buffer_bytes;
        for i in 0..count {
            if self.fates[i] == Fate::Forward {
                let [start, length] = self.frames[i].map(usize::from);
                batch.replace_frame(i, [start, length], |frame| {
                    packets.read(i * buffer_bytes + start, frame);
                });
            }
        }
    }

    /// Learns which processes are there. The first function that has none.
    fn meet(&mut self) -> Option<usize> {
        let mut down = None;
        for (k, peer) in self.peers.iter_mut().enumerate() {
            let number = self.status.up(k);
            if number != peer.number && number != 0 {
                (peer.number, peer.wishes) = (number, 0);
                for note in &mut self.notes[k] {
                    *note = [note[0].wrapping_add(note[1]), 0];
                }
            }
            if number == 0 || self.status.has_lied(k) {
                down = down.or(Some(k));
            }
        }
        down
    }

    /// Writes down what is known of the packets, and copies their frames.
    fn describe(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>, has_state: bool) {
        let (board, packets) = (&self.area.board, &self.area.packets);
        let (buffer_bytes, round) = (self.area.buffer_bytes, self.round + 1);
        let mut i = 0;
        batch.for_each(|packet, frame| {
            let [start, length] = [packet.start(), frame.len()];
            let (birth, flow) = match has_state {
                true => {
                    let [birth, flow] = *flows.state::<Opened>(packet);
                    (birth, flow as u32)
                }
                false => (0, packet.flow().unwrap_or(u32::MAX)),
            };
            board.set_known(
                i,
                &Known {
                    arrival: packet.arrival.0,
                    rss_hash: packet.rss_hash,
                    flow,
                    birth,
                    key: packet.headers.key,
                },
            );
            let place = Place::Here {
                start: start as u16,
                length: length as u16,
                rekeyed: false,
            };
            board.set_place(i, place.encode(round));
            packets.write(i * buffer_bytes + start, frame);
            i += 1;
        });
    }

    /// Has all processes take their turns. The first function whose process failed.
    fn go(
        &mut self,
        count: usize,
        now: u64,
        mut grant: impl FnMut(&mut Round, Wish) -> Result<(u32, u64), u8>,
    ) -> Option<usize> {
        self.round += 1;
        let (round, functions) = (self.round, self.peers.len());
        let area = Arc::clone(&self.area);
        area.board.begin(round, count, now, self.flags);
        self.status.set_busy(round);
        let mut k = 0;
        let failed = loop {
            while k < functions && area.slates[k].done() == round {
                k += 1;
            }
            if k == functions {
                break None;
            }
            if self.status.up(k) != self.peers[k].number {
                break Some(k);
            }
            let slate = &area.slates[k];
            if slate.wishes() != self.peers[k].wishes {
                let wish = slate.wish();
                self.peers[k].wishes = wish.number;
                let answer = grant(self, wish);
                slate.set_answer(wish.number, answer);
            }
            for slate in &area.slates[k..] {
                slate.wake();
            }
            sched_yield();
        };
        self.status.set_busy(0);
        self.status.count_turns(k);
        failed
    }

    /// Opens a companion that a function wishes for.
    fn grant(
        &mut self,
        wish: Wish,
        batch: &Batch,
        flows: &mut FlowStates<'_>,
    ) -> Result<(u32, u64), u8> {
        // Whatever it says: only for a packet of this batch, and in its flow's bucket.
        let at = usize::from(wish.at);
        if at >= batch.len() {
            return Err(number_of(NoCompanion::NoPlace));
        }
        let opened = flows.open_companion::<Opened>(batch.packet(at), &wish.key, wish.rss_hash);
        let (place, state) = opened.map_err(number_of)?;
        if state[0] == 0 {
            *state = [self.give_birth(), place.into()];
        }
        Ok((place, state[0]))
    }

    /// Reads what the functions in front of the one that failed made of the packets. The first that lies.
    fn judge(&mut self, count: usize, failed: Option<usize>) -> Option<usize> {
        let functions = failed.unwrap_or(self.peers.len());
        let (area, round) = (&self.area, self.round);
        let mut liar = None;
        for i in 0..count {
            let mut here = Place::decode(area.board.place(i), round);
            let mut fate = Fate::Forward;
            for (k, slate) in area.slates[..functions].iter().enumerate() {
                let place = Place::decode(slate.place(i), round);
                let place = place.filter(|place| place.fits(area.buffer_bytes));
                match (here, place) {
                    (Some(_), Some(Place::Here { .. })) => here = place,
                    (Some(_), Some(Place::Dropped(reason))) => {
                        here = None;
                        fate = Fate::Dropped {
                            by: k as u8,
                            // A number that is no reason of its own is not to look like one of ours.
                            reason: match reason < self.peers[k].reasons {
                                true => reason,
                                false => u8::MAX,
                            },
                        };
                    }
                    (None, Some(Place::Gone)) => {}
                    _ => {
                        liar = Some(liar.map_or(k, |liar: usize| liar.min(k)));
                        break;
                    }
                }
            }
            self.fates[i] = fate;
            if let Some(Place::Here { start, length, .. }) = here {
                self.frames[i] = [start, length];
            }
        }
        liar
    }

    /// The packets that a function had in its hands when its process failed are lost by it.
    #[cold]
    fn lose(&mut self, count: usize, failed: usize) {
        let lost = Fate::Dropped {
            by: failed as u8,
            reason: self.peers[failed].reasons,
        };
        for fate in &mut self.fates[..count] {
            match fate {
                Fate::Dropped { by, .. } if usize::from(*by) < failed => {}
                fate => *fate = lost,
            }
        }
    }

    /// Says of the packets that are left which of them function `k` has dropped.
    pub(super) fn tell(&mut self, k: usize, batch: &mut Batch) {
        let fates = &self.fates;
        for (packet, &at) in batch.iter_mut().zip(&self.left) {
            match fates[usize::from(at)] {
                Fate::Dropped { by, reason } if usize::from(by) == k => {
                    packet.verdict = Verdict::Drop(reason);
                }
                _ => {}
            }
        }
        let gone = |at: &u16| matches!(fates[usize::from(*at)], Fate::Dropped { by, .. } if usize::from(by) == k);
        self.left.retain(|at| !gone(at));
    }

    /// What function `k` has counted.
    pub(super) fn read_notes(&mut self, k: usize, counts: &mut [u64]) {
        let slate = &self.area.slates[k];
        // Those of a process that has not begun are not its own.
        let present = self.status.up(k) == self.peers[k].number;
        for (i, (note, count)) in self.notes[k].iter_mut().zip(counts).enumerate() {
            if present {
                note[1] = slate.note(i);
            }
            *count = note[0].wrapping_add(note[1]);
        }
    }

    /// A flow has ended: the functions that want to know are told with the next round.
    pub(super) fn end_flow(&mut self, [birth, flow]: Opened) {
        if self.waiting() >= ENDED {
            // A round of no packets makes room. Without it, the first are forgotten.
            self.run_empty();
        }
        let flow = flow as u32;
        self.area.board.add_ended(Ended { flow, birth });
    }

    /// How many ended flows some function has not looked at.
    fn waiting(&self) -> u64 {
        let ended = self.area.board.ended();
        let wanting = self.peers.iter().zip(&self.area.slates);
        let waiting = wanting.filter(|(peer, _)| peer.wants_flow_ends);
        let waiting = waiting.map(|(_, slate)| ended.saturating_sub(slate.taken()));
        waiting.max().unwrap_or(0)
    }

    fn run_empty(&mut self) {
        if self.meet().is_none() {
            self.go(0, 0, |_, _| Err(number_of(NoCompanion::NoPlace)));
        }
    }

    /// Only ends of flows follow.
    pub(super) fn begin_to_finish(&mut self) {
        self.flags |= FINISHING;
    }

    /// Nothing follows: all processes end.
    pub(super) fn finish(&mut self) {
        if self.flags & OVER == 0 {
            self.flags |= OVER;
            self.status.be_patient();
            self.run_empty();
        }
    }
}
