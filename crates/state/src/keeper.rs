//! Worker's client of the external store: reads the state of unknown flows, writes changes, and holds packets until
//! both are done.

use crate::buckets::PerBucket;
use crate::commits::{Bounds, Commits, LeaveReason, Leaving, Stage};
use crate::counters::{Counters, Shared};
use crate::link::{self, Link};
use crate::request::{Entry, Operation, Request};
use std::sync::Arc;
use tailwater_api::{StateSpec, WhenUnavailable};
use tailwater_chain::batch::{Batch, MAX_BATCH};
use tailwater_chain::chain::{Chain, DurableFlow};
use tailwater_chain::function::MAX_CANDIDATES;
use tailwater_chain::line::PacketLine;
use tailwater_measure::histogram::LatencyHistogram;
use tailwater_net::{FlowKey, Nanos};

mod refusal;
mod writing;

/// Maximum number of read entries per packet: its flow and the companion candidates of its functions.
const ASKS: usize = 1 + MAX_CANDIDATES;
/// Maximum number of updates per packet: its flow and the companion.
const UPDATES: usize = 2;
/// Refused flows that wait for their end at a time. Others are found again with their next packet.
const REFUSED: usize = 256;
/// Flows checked per turn while searching for ones the store lacks.
const CATCH_UP: usize = 32;

/// Verdict on a packet after the look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketAction {
    Run,
    Wait,
    Lose,
}

/// External flow state of one worker.
#[derive(Debug)]
pub struct Keeper {
    commits: Commits,
    /// Packets that wait for their flow's state.
    before: PacketLine,
    /// Packets that wait for an acknowledgement.
    behind: PacketLine,
    link: Link,
    /// `Some` if RSS buckets may migrate.
    buckets: Option<PerBucket>,
    then: WhenUnavailable,
    /// Bit mask of all functions with external state.
    pieces: u16,
    row_bytes: usize,
    /// Flows of the current batch, and a copy of their state before the functions ran.
    flows: Vec<DurableFlow>,
    rows: Vec<u8>,
    actions: Vec<PacketAction>,
    wishes: Vec<(u8, u8, FlowKey)>,
    /// Start of the run, in wall-clock time.
    origin: Nanos,
    incarnation: u32,
    /// Last update number.
    stamp: u64,
    /// Flows that another instance has, which end here once none of their packets waits.
    refused: Vec<(u32, FlowKey)>,
    /// Set once the store has refused a change.
    has_refused: bool,
    /// Next index in the flow table for the search for flows whose state the store lacks.
    search: Option<u32>,
    /// Set if an update found no room since the last search.
    missed: bool,
    counters: Counters,
    waits: LatencyHistogram,
    away_since: Option<Nanos>,
    /// Set once another instance has replaced this one.
    fenced: bool,
    shared: Arc<Shared>,
}

/// Size of a chain's external state.
#[derive(Clone, Copy, Debug)]
pub struct StateSize {
    /// Number of functions with external state.
    pub functions: usize,
    /// Length in bytes of a row, the state of all these functions for one flow.
    pub row_bytes: usize,
}

/// Number of entries a worker's requests need room for.
pub fn entries(spec: &StateSpec) -> usize {
    2 * UPDATES * spec.packets as usize + 2 * ASKS * MAX_BATCH
}

impl Keeper {
    /// Creates the keeper of a worker whose chain has external state of this size.
    /// `origin` is the start of the run in wall-clock time. Later instances must have a later one.
    pub fn new(spec: &StateSpec, size: StateSize, link: Link, origin: Nanos, shared: Arc<Shared>) -> Keeper {
        let bounds = Bounds {
            packets: spec.packets as usize,
            wait: spec.wait,
            then: spec.when_unavailable,
        };
        let room = bounds.packets + MAX_BATCH;
        Keeper {
            commits: Commits::new(bounds, link::NONE),
            before: PacketLine::with_room(room),
            behind: PacketLine::with_room(room),
            link,
            buckets: None,
            then: spec.when_unavailable,
            pieces: ((1u32 << size.functions) - 1) as u16,
            row_bytes: size.row_bytes,
            flows: Vec::with_capacity(MAX_BATCH),
            rows: vec![0; MAX_BATCH * size.row_bytes],
            actions: Vec::with_capacity(MAX_BATCH),
            wishes: Vec::with_capacity(MAX_CANDIDATES),
            origin,
            incarnation: 1,
            stamp: 0,
            refused: Vec::with_capacity(REFUSED),
            has_refused: false,
            search: None,
            missed: false,
            counters: Counters::default(),
            waits: LatencyHistogram::default(),
            away_since: None,
            fenced: false,
            shared,
        }
    }

    /// Enables migration of the worker's RSS buckets.
    pub fn of_moving_buckets(mut self) -> Keeper {
        self.buckets = Some(PerBucket::new());
        self
    }

    /// Returns `true` if a bucket's flows may migrate to another worker. None of their packets waits, and all requests
    /// about them have been answered. So no write of ours can follow one of the new worker.
    #[inline]
    pub fn is_free_of(&self, chain: &Chain, bucket: u16) -> bool {
        let last = self.buckets.as_ref().and_then(|buckets| buckets.last_request(bucket));
        let is_done = |request| {
            // After another instance has replaced this one, nothing is written or learned any more.
            let is_answered = self.commits.is_open(request);
            self.fenced || is_answered && !chain.has_ended(bucket) && !self.ends_flow_of(chain, bucket)
        };
        last.is_some_and(is_done)
    }

    /// Returns `true` if a refused flow of the bucket waits for its end.
    #[inline]
    fn ends_flow_of(&self, chain: &Chain, bucket: u16) -> bool {
        let mut refused = self.refused.iter();
        refused.any(|(index, _)| chain.durable_bucket_at(*index) == bucket)
    }

    /// Returns `true` if packets of the bucket wait.
    #[inline]
    fn has_waiting(&self, bucket: u16) -> bool {
        let buckets = self.buckets.as_ref();
        buckets.is_some_and(|buckets| buckets.last_request(bucket).is_none())
    }

    /// Releases a bucket that is [free](Keeper::is_free_of) to another worker.
    pub fn release(&mut self, chain: &mut Chain, bucket: u16) {
        chain.forget_requests(bucket);
    }

    /// Accepts a bucket from another worker.
    pub fn adopt(&mut self) {
        // The store may have lost some of its flows, which the other worker had not rewritten yet.
        self.search = Some(0);
    }

    /// Processes the store's answers. First step of a turn.
    #[inline]
    pub fn collect(&mut self, chain: &mut Chain, now: Nanos) {
        if self.link.health().is_fenced() && !self.fenced {
            self.fenced = true;
            self.then = WhenUnavailable::Drop;
            self.commits.fence();
            self.refused.clear();
        }
        let available = self.link.health().is_available();
        if available != self.commits.is_available() {
            self.note_availability(available, now);
        }
        if chain.take_behind() {
            self.search = Some(0);
        }
        while let Some(request) = self.link.answer() {
            if !self.fenced {
                self.learn(chain, &request);
            }
            self.commits.answer(request.number);
            self.link.give_back(request);
        }
    }

    #[cold]
    fn note_availability(&mut self, available: bool, now: Nanos) {
        self.commits.set_available(available);
        match self.away_since.take() {
            Some(since) if available => self.counters.away += now.saturating_sub(since),
            _ => self.away_since = (!available).then_some(now),
        }
    }

    fn learn(&mut self, chain: &mut Chain, request: &Request) {
        if request.incarnation != self.incarnation {
            self.incarnation = request.incarnation;
            self.search = Some(0);
            chain.set_incarnation(self.incarnation);
        }
        for (place, entry) in request.entries.iter().enumerate() {
            match entry.operation {
                Operation::Read => {
                    self.counters.hits += u64::from(entry.found != 0);
                    let flow = chain.durable_flow_at(entry.flow, &entry.key);
                    if let Some(flow) = flow.filter(|_| entry.found != 0) {
                        let standing = chain.persist_state(flow);
                        standing.base = standing.base.max(entry.stamp);
                        chain.restore(flow, entry.found, request.row(place));
                    }
                }
                Operation::Probe if entry.found != 0 => {
                    self.counters.taken += 1;
                    if let Some(flow) = chain.durable_flow_at(entry.flow, &entry.asker) {
                        chain.persist_state(flow).taken |= 1 << entry.number;
                    }
                }
                Operation::Update if entry.refused != 0 => {
                    self.counters.refused += 1;
                    self.has_refused = true;
                    if let Some(flow) = chain.durable_flow_at(entry.flow, &entry.key) {
                        self.refuse(chain, flow, entry.joins);
                    }
                }
                Operation::Probe | Operation::Update | Operation::Forget => {}
            }
        }
    }

    /// Moves packets of unknown flows out of the batch, which has been looked up, and requests their flows' state.
    /// Packets that must not overtake them leave, too. Returns the number of packets that wait. Packets that may not
    /// wait are lost.
    #[inline]
    pub fn read(&mut self, chain: &mut Chain, batch: &mut Batch, now: Nanos) -> usize {
        self.actions.clear();
        let (mut gate, mut waiting, mut lose) = (0, 0, false);
        for packet in batch.iter() {
            let way = match chain.durable_flow(packet) {
                None => PacketAction::Run,
                Some(flow) => {
                    let standing = *chain.persist_state(flow);
                    let asked = standing.asked;
                    if self.fenced {
                        // The state known here is outdated.
                        PacketAction::Lose
                    } else if standing.refused != 0 {
                        self.end_later(chain, flow);
                        PacketAction::Lose
                    } else if asked != 0 && self.commits.is_open(asked) {
                        PacketAction::Run
                    } else if self.commits.refuses(waiting + 1).is_some() {
                        PacketAction::Lose
                    } else if asked != 0 {
                        gate = gate.max(asked);
                        PacketAction::Wait
                    } else if self.link.has_half() && self.link.room() >= ASKS {
                        match self.ask(chain, packet, flow) {
                            Some(number) => {
                                gate = gate.max(number);
                                PacketAction::Wait
                            }
                            None => PacketAction::Lose,
                        }
                    } else if self.then == WhenUnavailable::Pass {
                        chain.persist_state(flow).asked = link::NONE;
                        PacketAction::Run
                    } else {
                        PacketAction::Lose
                    }
                }
            };
            if let (PacketAction::Wait, Some(flow)) = (way, chain.durable_flow(packet)) {
                chain.pin(flow);
                waiting += 1;
            }
            lose |= way == PacketAction::Lose;
            self.actions.push(way);
        }
        if waiting > 0 {
            let mut ways = self.actions.iter();
            let line = &mut self.before;
            line.take_from(batch, |_| ways.next() == Some(&PacketAction::Wait));
            // They leave together, behind others: later packets of their flows must come after all of them.
            let gate = self.commits.join(Stage::Read, waiting, gate, now);
            if let Some(buckets) = &mut self.buckets {
                buckets.join(self.before.last(waiting));
            }
            for packet in self.before.last(waiting) {
                if let Some(flow) = chain.durable_flow(packet) {
                    chain.persist_state(flow).asked = gate;
                }
            }
        }
        if lose {
            let mut ways = self.actions.iter().filter(|way| **way != PacketAction::Wait);
            let lost = chain.drop_unavailable(batch, |_| ways.next() == Some(&PacketAction::Lose));
            self.counters.dropped += lost;
        }
        waiting
    }

    /// Requests the state of a packet's flow. Returns the request's number, or `None` if its functions cannot name
    /// their companion candidates now.
    fn ask(&mut self, chain: &mut Chain, packet: &tailwater_chain::batch::Packet, flow: DurableFlow) -> Option<u64> {
        self.wishes.clear();
        chain.persist_state(flow).taken = 0;
        if !chain.companion_candidates(packet, &mut self.wishes) {
            return None;
        }
        let key = chain.durable_key(flow);
        let entry = Entry {
            operation: Operation::Read,
            key,
            asker: key,
            flow: flow.index(),
            pieces: self.pieces,
            ..Entry::default()
        };
        self.counters.reads += 1;
        let mut number = self.link.push(entry).0;
        for &(piece, wish, key) in &self.wishes {
            let probe = Entry {
                operation: Operation::Probe,
                key,
                pieces: 1 << piece,
                number: wish,
                ..entry
            };
            number = self.link.push(probe).0;
        }
        if let Some(buckets) = &mut self.buckets {
            buckets.note(chain.durable_bucket(flow), number);
        }
        // Other packets of the flow in this batch wait for the same request.
        chain.persist_state(flow).asked = number;
        Some(number)
    }

    /// Puts the next packets that leave the read queue into the batch, which must be empty. With [`LeaveReason::Drop`]
    /// they have left it again, counted as lost.
    #[inline]
    pub fn next_read(&mut self, chain: &mut Chain, batch: &mut Batch, now: Nanos) -> Option<Leaving> {
        let leaving = self.commits.next(Stage::Read, now)?;
        self.before.give(leaving.packets, batch);
        self.leave(batch);
        self.note(leaving);
        if leaving.reason == LeaveReason::Drop {
            for packet in batch.iter() {
                if let Some(flow) = chain.durable_flow(packet) {
                    chain.unpin(flow);
                }
            }
            chain.drop_unavailable(batch, |_| true);
        } else if self.has_refused {
            self.lose_refused(chain, batch, true);
        }
        Some(leaving)
    }

    /// Puts the next packets that leave the update queue into the batch, as [`next_read`](Keeper::next_read) does.
    #[inline]
    pub fn next_update(&mut self, chain: &mut Chain, batch: &mut Batch, now: Nanos) -> Option<Leaving> {
        let leaving = self.commits.next(Stage::Update, now)?;
        self.behind.give(leaving.packets, batch);
        self.leave(batch);
        self.note(leaving);
        if leaving.reason == LeaveReason::Drop {
            chain.drop_unavailable(batch, |_| true);
        } else if self.has_refused {
            self.lose_refused(chain, batch, false);
        }
        Some(leaving)
    }

    #[inline]
    fn leave(&mut self, batch: &Batch) {
        if let Some(buckets) = &mut self.buckets {
            buckets.leave(batch.iter());
        }
    }

    fn note(&mut self, leaving: Leaving) {
        let packets = leaving.packets as u64;
        match leaving.reason {
            LeaveReason::Go => {}
            LeaveReason::Pass => self.counters.passed += packets,
            LeaveReason::Drop => self.counters.dropped += packets,
        }
        (0..leaving.packets).for_each(|_| self.waits.record(leaving.waited));
    }

    /// Copies the state of the batch's flows before the functions run. Without room for their changes, packets are
    /// lost, unless the policy is to pass them.
    #[inline]
    pub fn begin(&mut self, chain: &mut Chain, batch: &mut Batch) {
        self.flows.clear();
        for packet in batch.iter() {
            if let Some(flow) = chain.durable_flow(packet) {
                let at = self.flows.len() * self.row_bytes;
                chain.copy_row(flow, &mut self.rows[at..at + self.row_bytes]);
                self.flows.push(flow);
            }
        }
        let short = self.link.room() < UPDATES * batch.len();
        if short && self.then != WhenUnavailable::Pass {
            self.counters.dropped += chain.drop_unavailable(batch, |_| true);
        }
    }

    /// Writes the functions' changes and moves packets that must wait for the acknowledgement out of the batch. Returns
    /// the number of packets that wait. `held` is `true` if the batch came from [`next_read`](Keeper::next_read).
    #[inline]
    pub fn update(&mut self, chain: &mut Chain, batch: &mut Batch, held: bool, now: Nanos) -> usize {
        let flows = std::mem::take(&mut self.flows);
        for (i, &flow) in flows.iter().enumerate() {
            let row = i * self.row_bytes..(i + 1) * self.row_bytes;
            let mut changed = chain.changed_pieces(flow, &self.rows[row]);
            changed |= self.stale(chain, flow, now);
            if changed != 0 {
                self.write(chain, flow, changed, now);
                self.write_companion(chain, flow, now);
            }
            if held {
                chain.unpin(flow);
            }
        }
        self.flows = flows;
        self.hold(chain, batch, now)
    }

    /// Moves packets whose gates are closed out of the batch.
    fn hold(&mut self, chain: &mut Chain, batch: &mut Batch, now: Nanos) -> usize {
        let (mut gate, mut count) = (0, 0);
        self.actions.clear();
        for packet in batch.iter() {
            let flow = chain.durable_flow(packet);
            let own = flow.map_or(0, |flow| chain.persist_state(flow).gate);
            let waits = !self.commits.is_open(own);
            self.actions
                .push(if waits { PacketAction::Wait } else { PacketAction::Run });
            if waits {
                gate = gate.max(own);
                count += 1;
            }
        }
        if count == 0 {
            return 0;
        }
        let mut ways = self.actions.iter();
        if self.commits.refuses(count).is_some() {
            let lost = chain.drop_unavailable(batch, |_| ways.next() == Some(&PacketAction::Wait));
            self.counters.dropped += lost;
            return 0;
        }
        self.behind
            .take_from(batch, |_| ways.next() == Some(&PacketAction::Wait));
        let gate = self.commits.join(Stage::Update, count, gate, now);
        if let Some(buckets) = &mut self.buckets {
            buckets.join(self.behind.last(count));
        }
        for packet in self.behind.last(count) {
            if let Some(flow) = chain.durable_flow(packet) {
                chain.persist_state(flow).gate = gate;
            }
        }
        count
    }

    /// Deletes ended flows in the store, rewrites flows the store lacks, and sends the open request. Last step of a
    /// turn.
    #[inline]
    pub fn finish_turn(&mut self, chain: &mut Chain, now: Nanos) {
        self.finish_turn_of(chain, now, |_| true);
    }

    /// Same as [`finish_turn`](Keeper::finish_turn) for a keeper that shares the chain with others, each with buckets
    /// of its own: those for which `is_own` returns `true`, and those with packets that wait.
    #[inline]
    pub fn finish_turn_of(&mut self, chain: &mut Chain, now: Nanos, is_own: impl Fn(u16) -> bool) {
        if !self.refused.is_empty() {
            self.end_refused(chain, now);
        }
        while self.link.has_half()
            && let Some((key, bucket)) = chain.next_ended(|bucket| is_own(bucket) || self.has_waiting(bucket))
        {
            self.counters.forgotten += 1;
            let (number, _) = self.link.push(Entry {
                operation: Operation::Forget,
                key,
                pieces: self.pieces,
                ..Entry::default()
            });
            if let Some(buckets) = &mut self.buckets {
                buckets.note(bucket, number);
            }
        }
        if self.search.is_some() || self.missed {
            self.catch_up(chain, now);
        }
        self.link.flush();
        self.shared.publish(&self.counters, self.commits.waiting() as u64);
    }

    #[cold]
    fn catch_up(&mut self, chain: &mut Chain, now: Nanos) {
        if self.search.is_none() && std::mem::take(&mut self.missed) {
            self.search = Some(0);
        }
        for _ in 0..CATCH_UP {
            let Some(place) = self.search.filter(|_| self.link.has_half()) else {
                return;
            };
            let flow = chain.next_durable_flow(place);
            self.search = flow.map(|flow| flow.index() + 1);
            let Some(flow) = flow else { return };
            let standing = *chain.persist_state(flow);
            if standing.incarnation != 0 && standing.incarnation != self.incarnation {
                let pieces = chain.seen_pieces(flow);
                self.write(chain, flow, pieces, now);
                self.counters.rewritten += 1;
            }
        }
    }

    /// Number of waiting packets.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.commits.waiting()
    }

    /// Returns `true` if no packet waits and the store has answered all requests.
    pub fn is_quiet(&self) -> bool {
        self.commits.waiting() == 0 && self.link.is_quiet()
    }

    /// Moves packets that still wait at the end of the run into the batch, as many as fit. Returns `true` if there were
    /// any.
    pub fn give_up(&mut self, batch: &mut Batch) -> bool {
        for line in [&mut self.before, &mut self.behind] {
            let packets = line.len().min(batch.room());
            line.give(packets, batch);
        }
        !batch.is_empty()
    }

    /// Final counters at `now`, and the waiting times.
    pub fn finish(mut self, now: Nanos) -> (Counters, LatencyHistogram) {
        self.note_availability(true, now);
        self.counters.most_waiting = self.commits.most() as u64;
        self.shared.publish(&self.counters, 0);
        (self.counters, self.waits)
    }
}
