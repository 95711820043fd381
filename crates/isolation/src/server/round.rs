//! Rounds of a worker: a batch passes through the group's processes and returns.

use super::area::Area;
use super::group::Group;
use super::run_queue::RunQueueOrder;
use super::status::{Measured, Status};
use crate::layout::{
    CHAIN_ENDED, COMPANION_QUERY, CompanionRequest, CompanionRequestKind, DRAINING, ENDED, EndedFlowSlot, MASKS, Masks,
    PacketMetadata, PacketResponse, all_of, slots,
};
use crate::program::number_of;
use rustix::thread::sched_yield;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tailwater_chain::batch::{Batch, DEFAULT_BATCH, MAX_BATCH, Packet, Verdict};
use tailwater_chain::flow_table::NoCompanion;
use tailwater_chain::function::{CompanionCandidates, FlowStates, Lifetimes, MAX_CANDIDATES};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::bucket_of;
use tailwater_policy::isolation::{BatchBounds, BatchSize};
use tailwater_sdk::host::find_headers;
use tailwater_sdk::protocol::snapshots::FlowSnapshots;

/// Worker's state of a flow: its generation and its slot.
pub(super) type Opened = [u64; 2];

/// Worker's view of a function's process.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    /// Number under which it was attached; each process has another.
    number: u32,
    /// Number of its last companion request.
    wishes: u64,
    /// Number of its drop reasons.
    reasons: u8,
    /// `true` if it must be notified of flow ends.
    wants_flow_ends: bool,
    /// `true` if it may request companions. Requires state, which is the purpose of companions.
    opens_companions: bool,
}

/// An incomplete round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Failed {
    /// The first function whose process failed.
    function: usize,
    /// Number of functions in front that finished their turns.
    turns: usize,
}

/// Rounds of a worker.
pub(super) struct Round {
    area: Arc<Area>,
    status: Arc<Status>,
    /// Number of the last round.
    round: u64,
    flags: u64,
    /// `true` if functions outside this group follow in the chain.
    followed: bool,
    /// `true` if other packets of the chain bypass the group.
    passed_by: bool,
    /// `true` if the group has had no batch since the last query of the batch size.
    rests: bool,
    /// Total time spent waiting for processes.
    waited: Duration,
    /// Number of ended flows of which all functions are known to be notified, or never will be.
    told: u64,
    /// Generation of the last flow opened.
    birth: u64,
    peers: Vec<Peer>,
    order: RunQueueOrder,
    /// Remaining packets in front of each function, and behind the last one.
    through: Vec<Masks>,
    /// Remaining packets whose frame has moved since the first function.
    moved: Masks,
    /// Drop reason by slot; valid for dropped packets.
    reasons: Box<[u8]>,
    /// Current frame bounds by slot; valid for moved packets.
    frames: Box<[[u16; 2]]>,
    /// Slots of the remaining packets, in order.
    left: Vec<u16>,
    size: BatchSize,
    /// Number of rounds until the next measured one without packets.
    until_empty: u32,
    /// Mean duration of rounds without packets, nanoseconds, and their number.
    empty: f64,
    empties: f64,
    /// Counters of each function: the sum of its previous processes, and the current one's.
    notes: Vec<Vec<[u64; 2]>>,
}

/// Number of rounds between two without packets. Switches take a few percent of the time, so the extra round is
/// negligible.
const EMPTY_EVERY: u32 = 64;

/// Total time to wait for processes that are down at the end of a run, and the poll interval.
const REPLACED: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(1);
/// Time to wait for them when flows move to another worker. Meanwhile all packets would be lost.
const REPLACED_SOON: Duration = Duration::from_millis(10);

/// Number of bits of a worker's own generation counter.
const GENERATION_BITS: u32 = 48;

impl Round {
    pub(super) fn new(
        group: &Group,
        worker: u16,
        (bounds, followed, passed_by): (BatchBounds, bool, bool),
    ) -> Option<Round> {
        let seats = group.slots.iter().map(|seat| &seat.description);
        let peers = seats.clone().map(|description| Peer {
            reasons: description.drop_reasons.len() as u8,
            wants_flow_ends: description.wants_flow_ends,
            opens_companions: description.opens_companions && description.state_bytes > 0,
            ..Peer::default()
        });
        let area = group.area.as_ref()?;
        let (status, may_request_companions) = (&group.status, peers.clone());
        let may_request_companions = may_request_companions.map(|peer| peer.opens_companions);
        Some(Round {
            area: Arc::clone(area),
            status: Arc::clone(&group.status),
            round: 0,
            flags: 0,
            followed,
            passed_by,
            rests: false,
            waited: Duration::ZERO,
            told: 0,
            birth: u64::from(worker) << GENERATION_BITS,
            order: RunQueueOrder::new(Arc::clone(status), Arc::clone(area), may_request_companions.collect()),
            peers: peers.collect(),
            through: vec![Masks::default(); group.slots.len() + 1],
            moved: Masks::default(),
            reasons: vec![0; MAX_BATCH].into(),
            frames: vec![[0; 2]; MAX_BATCH].into(),
            left: Vec::with_capacity(MAX_BATCH),
            size: BatchSize::new(bounds, DEFAULT_BATCH),
            until_empty: 0,
            empty: 0.0,
            empties: 0.0,
            notes: seats.map(|d| vec![[0; 2]; d.counters.len()]).collect(),
        })
    }

    /// Returns a new flow generation, which no other flow of this or another worker has.
    pub(super) fn next_generation(&mut self) -> u64 {
        self.birth += 1;
        self.birth
    }

    /// Like [`next_generation`](Round::next_generation), for a flow of the next batch that no function has seen.
    pub(super) fn next_generation_of_new_flow(&mut self) -> u64 {
        self.order.expect_companion_requests();
        self.next_generation()
    }

    /// Runs a batch through all functions and stores the verdicts for [`tell`](Round::tell).
    pub(super) fn run(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>, has_state: bool) {
        let count = batch.len();
        self.rests = false;
        self.left.clear();
        self.left.extend(0..count as u16);
        let failed = match self.meet() {
            Some(down) => {
                self.read_verdicts(count, 0);
                Some(down)
            }
            None => {
                self.measure_switches();
                let began = Instant::now();
                self.order.restore_for_packets(began);
                self.describe(batch, flows, has_state);
                let failed = self.go(count, flows.now().0, |round, k, wish| {
                    round.grant(k, wish, batch, flows)
                });
                if failed.is_none() {
                    self.observe(count, began);
                }
                let turns = failed.map_or(self.peers.len(), |failed| failed.turns);
                let liar = self.read_verdicts(count, turns);
                if let Some(liar) = liar {
                    self.report_invalid_response(liar);
                    // Functions from the invalid response on do not count.
                    self.read_verdicts(count, liar);
                }
                self.status.end();
                liar.or(failed.map(|failed| failed.function))
            }
        };
        if let Some(failed) = failed {
            self.lose(failed);
        }
        self.copy_out(count, batch);
    }

    /// Returns the maximum size of the chain's next batch. A bypassed group without packets returns `None`: its
    /// measurements may be outdated or too few.
    pub(super) fn wanted_batch(&mut self) -> Option<usize> {
        let rested = std::mem::replace(&mut self.rests, true);
        (!rested || !self.passed_by).then(|| self.size.next())
    }

    /// Every [`EMPTY_EVERY`] rounds, runs one without packets to measure the switches alone, and publishes the measured
    /// costs.
    fn measure_switches(&mut self) {
        if let Some(left) = self.until_empty.checked_sub(1) {
            self.until_empty = left;
            return;
        }
        self.until_empty = EMPTY_EVERY;
        let began = Instant::now();
        self.order.restore(began);
        let failed = self.go(0, 0, |_, _, _| Err(number_of(NoCompanion::TableFull)));
        self.status.end();
        if failed.is_none() {
            let took = began.elapsed().as_nanos() as f64;
            self.empties += 1.0;
            // Mean of all; a round during which the worker was preempted is capped.
            let usual = if self.empties > 8.0 { 3.0 * self.empty } else { took };
            self.empty += (took.min(usual) - self.empty) / self.empties;
            self.size.set_empty(Nanos(self.empty as u64));
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

    /// Copies out the frames of forwarded packets. If functions follow in this process, parses their headers again. The
    /// last function of the group loses packets whose headers have become invalid.
    fn copy_out(&mut self, count: usize, batch: &mut Batch) {
        let Area {
            packets,
            request_area: board,
            buffer_bytes,
            ..
        } = &*self.area;
        let (left, last) = (self.through[self.peers.len()], self.peers.last());
        let lost = last.map_or(u8::MAX, |last| last.reasons);
        for (word, left) in left.into_iter().enumerate().take(count.div_ceil(64)) {
            for i in slots(word, left) {
                let [start, length] = match self.moved[word] >> (i % 64) & 1 {
                    0 => board.frame_range(i),
                    _ => self.frames[i],
                };
                let place = [start.into(), length.into()];
                batch.replace_frame(i, place, |frame| {
                    packets.read(i * buffer_bytes + place[0], frame);
                });
                if self.followed {
                    let (packet, frame) = batch.packet_mut(i);
                    if !find_headers(frame, &mut packet.headers) {
                        self.reasons[i] = lost;
                        self.through[self.peers.len()][word] &= !(1 << (i % 64));
                    }
                }
            }
        }
    }

    /// Updates the numbers of the attached processes. Returns the first function that has none.
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
            if number == 0 || self.status.has_invalid_response(k) {
                down = down.or(Some(k));
            }
        }
        down
    }

    /// Writes the packets' metadata to the request area, and their frames to packet memory.
    fn describe(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>, has_state: bool) {
        let (board, packets) = (&self.area.request_area, &self.area.packets);
        let (buffer_bytes, connections) = (self.area.buffer_bytes, self.area.connections);
        let mut i = 0;
        batch.for_each(|packet, frame| {
            let start = packet.start();
            let (birth, flow) = match has_state {
                true => {
                    let [birth, place] = *flows.state::<Opened>(packet);
                    let place = place as u32;
                    // Functions that keep state per direction have one slot per direction.
                    let of_direction = place << 1 | u32::from(packet.is_reversed());
                    (birth, if connections { of_direction } else { place })
                }
                false => (0, packet.flow().unwrap_or(u32::MAX)),
            };
            board.set_metadata(
                i,
                &PacketMetadata {
                    frame_range: [start as u16, frame.len() as u16],
                    arrival: packet.arrival.0,
                    rss_hash: packet.rss_hash,
                    entry: packet.entry,
                    flow,
                    generation: birth,
                },
                &packet.headers,
            );
            packets.write(i * buffer_bytes + start, frame);
            i += 1;
        });
    }

    /// Lets all processes take their turns. Returns the first function whose process failed; the last round continues
    /// without it. The group stays busy until the responses have been read.
    fn go(
        &mut self,
        count: usize,
        now: u64,
        mut grant: impl FnMut(&mut Round, usize, CompanionRequest) -> Result<(u32, u64), u8>,
    ) -> Option<Failed> {
        self.round += 1;
        let (round, functions) = (self.round, self.peers.len());
        let area = Arc::clone(&self.area);
        let mut yields = 0;
        let is_last = self.flags & CHAIN_ENDED != 0;
        // The round is announced before any process can begin it.
        let numbers = self.peers.iter().map(|peer| peer.number);
        if let Err(failed) = self.status.begin(round, numbers)
            && !is_last
        {
            self.order.end(0);
            self.status.end();
            return Some(Failed {
                function: failed,
                turns: 0,
            });
        }
        area.request_area.begin(round, count, now, self.flags);
        let mut k = 0;
        let failed = loop {
            if is_last {
                // A response area may still be reset for a process that is attached too late.
                k = 0;
            }
            while k < functions && area.response_areas[k].done() == round {
                k += 1;
            }
            if k == functions {
                break None;
            }
            self.order.passed(k);
            let up = self.status.up(k);
            let failed = up == 0 || up != self.peers[k].number;
            if failed && is_last {
                // Its response concerns no packets, and the functions behind it must still take their turns.
                self.status.miss(k);
                area.response_areas[k].set_done(round);
                continue;
            }
            if failed {
                break Some(Failed { function: k, turns: k });
            }
            let slate = &area.response_areas[k];
            if slate.companion_requests() != self.peers[k].wishes {
                let wish = slate.companion_request();
                self.peers[k].wishes = wish.number;
                self.order.on_companion_request(k);
                let answer = grant(self, k, wish);
                slate.set_companion_response(wish.number, answer);
            }
            for slate in &area.response_areas[k..] {
                slate.wake();
            }
            yields += 1;
            sched_yield();
        };
        self.order.end(yields);
        self.status.count_turns(k);
        failed
    }

    /// Opens a companion flow that function `k` requests.
    fn grant(
        &mut self,
        k: usize,
        wish: CompanionRequest,
        batch: &Batch,
        flows: &mut FlowStates<'_>,
    ) -> Result<(u32, u64), u8> {
        if !self.peers[k].opens_companions {
            self.report_invalid_response(k);
            return Err(number_of(NoCompanion::TableFull));
        }
        // Whatever it requests: only for a packet of this batch, and in its flow's bucket.
        let at = usize::from(wish.at);
        if at >= batch.len() {
            return Err(number_of(NoCompanion::TableFull));
        }
        let packet = batch.packet(at);
        let opened = match wish.kind {
            CompanionRequestKind::Open => flows.open_companion::<Opened>(packet, &wish.key, wish.rss_hash),
            CompanionRequestKind::Rejoin => {
                let images = self.area.snapshots(k);
                let is_new = |place, opened: &mut Opened| {
                    images.is_some_and(|images: &Arc<FlowSnapshots>| !images.is_of(place, opened[0]))
                };
                flows.rejoin_companion(packet, &wish.key, wish.rss_hash, is_new)
            }
            CompanionRequestKind::Free => Err(NoCompanion::TableFull),
        };
        let (place, state) = opened.map_err(number_of)?;
        if state[0] == 0 {
            *state = [self.next_generation(), place.into()];
        }
        Ok((place, state[0]))
    }

    /// Returns function `k`'s companion candidates for a packet's flow through `wish`, from attempt `turn` on. Returns
    /// the attempt they belong to, or `None` if no response is available.
    pub(super) fn wishes(
        &mut self,
        k: usize,
        packet: &Packet,
        turn: u8,
        wish: &mut CompanionCandidates<'_>,
    ) -> Option<u8> {
        if self.meet().is_some() {
            return None;
        }
        self.order.restore(Instant::now());
        self.area.request_area.set_metadata(
            0,
            &PacketMetadata {
                frame_range: [0; 2],
                arrival: turn.into(),
                rss_hash: packet.rss_hash,
                entry: 0,
                flow: u32::MAX,
                generation: 0,
            },
            &packet.headers,
        );
        let flags = self.flags;
        self.flags |= COMPANION_QUERY;
        let failed = self.go(0, 0, |_, _, asked| {
            let bucket = bucket_of(asked.rss_hash);
            match asked.kind {
                CompanionRequestKind::Free if wish.is_free(&asked.key, bucket) => Ok((0, 0)),
                CompanionRequestKind::Free => Err(number_of(NoCompanion::Taken)),
                CompanionRequestKind::Open | CompanionRequestKind::Rejoin => Err(number_of(NoCompanion::TableFull)),
            }
        });
        self.flags = flags;
        let slate = &self.area.response_areas[k];
        let told = failed.is_none().then(|| {
            for (number, key) in slate.candidates() {
                if usize::from(number) < MAX_CANDIDATES {
                    wish.add(number, key);
                }
            }
            slate.candidates_attempt()
        });
        self.status.end();
        told
    }

    /// Returns the flow lifetimes, if a function determines them.
    pub(super) fn lifetimes(&self) -> Option<Arc<dyn Lifetimes>> {
        let lifetimes = self.area.lifetimes()?;
        Some(Arc::clone(lifetimes) as Arc<dyn Lifetimes>)
    }

    /// Returns the snapshots of function `k`'s flow state.
    pub(super) fn images(&self, k: usize) -> Option<&Arc<FlowSnapshots>> {
        self.area.snapshots(k)
    }

    /// Reports an invalid response of the process that function `k` had at the start of the round.
    fn report_invalid_response(&self, k: usize) {
        self.status.report_invalid_response(k, self.peers[k].number);
    }

    /// Reads the verdicts of the first `functions` functions. Returns the first one whose response is invalid.
    fn read_verdicts(&mut self, count: usize, functions: usize) -> Option<usize> {
        self.through[0] = std::array::from_fn(|word| all_of(count, word));
        self.moved = Masks::default();
        for k in 0..functions {
            if !self.read_response(k, count) {
                return Some(k);
            }
        }
        for k in functions..self.peers.len() {
            self.through[k + 1] = self.through[k];
        }
        None
    }

    /// Reads function `k`'s verdicts on the packets that reached it. Returns `true` if the response is valid.
    fn read_response(&mut self, k: usize, count: usize) -> bool {
        let Area {
            response_areas: slates,
            buffer_bytes,
            ..
        } = &*self.area;
        let (slate, round, reasons) = (&slates[k], self.round, self.peers[k].reasons);
        if slate.masks_round() != round {
            return false;
        }
        self.through[k + 1] = Masks::default();
        for word in 0..count.div_ceil(64) {
            let [left, moved] = slate.masks(word);
            let before = self.through[k][word];
            if left & !before != 0 || moved & !left != 0 {
                return false;
            }
            for i in slots(word, before & !left) {
                let Some(PacketResponse::Dropped(reason)) = PacketResponse::decode(slate.response_word(i), round)
                else {
                    return false;
                };
                // An unknown reason must not be confused with the server's own.
                self.reasons[i] = match reason < reasons {
                    true => reason,
                    false => u8::MAX,
                };
            }
            for i in slots(word, moved) {
                match PacketResponse::decode(slate.response_word(i), round) {
                    Some(place @ PacketResponse::Forwarded { start, length, .. }) if place.fits(*buffer_bytes) => {
                        self.frames[i] = [start, length];
                    }
                    _ => return false,
                }
            }
            (self.through[k + 1][word], self.moved[word]) = (left, moved);
        }
        true
    }

    /// Marks the packets that a failed process held as lost by its function.
    #[cold]
    fn lose(&mut self, failed: usize) {
        let lost = self.peers[failed].reasons;
        for word in 0..MASKS {
            for i in slots(word, self.through[failed][word]) {
                self.reasons[i] = lost;
            }
        }
        self.through[failed + 1..].fill(Masks::default());
    }

    /// Sets the verdicts of the remaining packets that function `k` dropped.
    pub(super) fn tell(&mut self, k: usize, batch: &mut Batch) {
        if self.through[k] == self.through[k + 1] {
            return;
        }
        let dropped: Masks = std::array::from_fn(|word| self.through[k][word] & !self.through[k + 1][word]);
        let reasons = &self.reasons;
        let is_gone = |at: u16| dropped[usize::from(at) / 64] >> (at % 64) & 1 != 0;
        for (packet, &at) in batch.iter_mut().zip(&self.left) {
            if is_gone(at) {
                packet.verdict = Verdict::Drop(reasons[usize::from(at)]);
            }
        }
        self.left.retain(|&at| !is_gone(at));
    }

    /// Reads function `k`'s counters.
    pub(super) fn read_notes(&mut self, k: usize, counts: &mut [u64]) {
        let slate = &self.area.response_areas[k];
        // The area does not yet hold the counters of a process that has not begun.
        let present = self.status.up(k) == self.peers[k].number;
        for (i, (note, count)) in self.notes[k].iter_mut().zip(counts).enumerate() {
            if present {
                note[1] = slate.counter(i);
            }
            *count = note[0].wrapping_add(note[1]);
        }
    }

    /// Queues the end of a flow, for a connection of both directions. The functions that require it are notified in the
    /// next round.
    pub(super) fn end_flow(&mut self, [birth, place]: Opened) {
        let place = place as u32;
        if self.area.connections {
            self.end_place(birth, place << 1);
            self.end_place(birth, place << 1 | 1);
        } else {
            self.end_place(birth, place);
        }
    }

    fn end_place(&mut self, birth: u64, flow: u32) {
        if self.waiting() >= ENDED {
            // A round without packets makes room. If it fails, the oldest ends are overwritten.
            self.run_empty_patiently();
            if self.flags & DRAINING != 0 {
                for k in 0..self.peers.len() {
                    if self.waiting_for(k) >= ENDED {
                        self.status.miss(k);
                    }
                }
            }
        }
        self.area.request_area.add_ended(EndedFlowSlot {
            flow,
            generation: birth,
        });
    }

    /// Returns the largest number of flow ends that a function has not taken yet.
    fn waiting(&self) -> u64 {
        let waiting = (0..self.peers.len()).map(|k| self.waiting_for(k));
        waiting.max().unwrap_or(0)
    }

    /// Returns the number of flow ends that function `k` has not taken yet; 0 if it requires none.
    fn waiting_for(&self, k: usize) -> u64 {
        let taken = self.area.response_areas[k].handled_ended();
        match self.peers[k].wants_flow_ends {
            true => self.area.request_area.ended().saturating_sub(taken),
            false => 0,
        }
    }

    /// Runs a round without packets. Waits up to `bound` for processes that are down, and repeats the round if one
    /// fails. Returns the time waited.
    fn run_empty(&mut self, bound: Duration) -> Duration {
        let mut waited = Duration::ZERO;
        loop {
            while self.meet().is_some() {
                if waited >= bound {
                    return waited;
                }
                let began = Instant::now();
                thread::sleep(LOOK);
                waited += began.elapsed();
            }
            self.order.restore(Instant::now());
            let failed = self.go(0, 0, |_, _, _| Err(number_of(NoCompanion::TableFull)));
            self.status.end();
            if failed.is_none() || bound.is_zero() {
                return waited;
            }
        }
    }

    /// Like [`run_empty`](Round::run_empty). At the end of the run it waits for processes, since no later round
    /// delivers the flow ends.
    fn run_empty_patiently(&mut self) {
        let bound = match self.flags & DRAINING {
            0 => Duration::ZERO,
            _ => REPLACED.saturating_sub(self.waited),
        };
        let waited = self.run_empty(bound);
        self.waited += waited;
    }

    /// Delivers pending flow ends before flows move to another worker, since their slots may soon hold other flows.
    /// Ends that cannot be delivered are discarded.
    pub(super) fn deliver_flow_ends(&mut self) {
        let ended = self.area.request_area.ended();
        let is_told = |round: &Round| {
            let mut response_areas = round.area.response_areas.iter();
            response_areas.all(|slate| slate.handled_ended() == ended)
        };
        if self.told == ended {
            return;
        }
        self.told = ended;
        if is_told(self) {
            return;
        }
        self.run_empty(REPLACED_SOON);
        if !is_told(self) {
            for n in ended.saturating_sub(ENDED)..ended {
                self.area.request_area.forget_ended(n);
            }
        }
    }

    /// Marks the start of the run's end: only flow ends follow.
    pub(super) fn begin_to_finish(&mut self) {
        self.flags |= DRAINING;
    }

    /// Ends all processes with a last round.
    pub(super) fn finish(&mut self) {
        if self.flags & CHAIN_ENDED == 0 {
            // After this, all processes that can be replaced are attached.
            self.run_empty_patiently();
            self.flags |= CHAIN_ENDED;
            self.status.set_last_round();
            self.go(0, 0, |_, _, _| Err(number_of(NoCompanion::TableFull)));
            self.status.end();
        }
    }
}

#[cfg(test)]
mod tests;
