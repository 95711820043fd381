//! A worker's side: asks for flows that are not known here, writes what functions change, and holds packets back
//! until that is done.

use crate::buckets::PerBucket;
use crate::commits::{Bounds, Commits, Fate, Leaving, Stage};
use crate::counters::{Counters, Shared};
use crate::link::{self, Link};
use crate::request::{Ask, Entry, Request};
use std::sync::Arc;
use tailwater_api::{StateSpec, WhenUnavailable};
use tailwater_chain::batch::{Batch, MAX_BATCH};
use tailwater_chain::chain::{Chain, KeptFlow};
use tailwater_chain::function::MAX_WISHES;
use tailwater_chain::line::PacketLine;
use tailwater_measure::histogram::LatencyHistogram;
use tailwater_net::{FlowKey, Nanos};

/// What one packet may ask at the most: for its flow, and for what its functions wish.
const ASKS: usize = 1 + MAX_WISHES;
/// What one packet may update at the most: its flow and the companion.
const UPDATES: usize = 2;
/// Flows looked at in a turn when the store has missed something.
const CATCH_UP: usize = 32;
/// The incarnation of flows whose last update found no room.
const MISSED: u32 = u32::MAX;

/// What is to become of a packet that was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Run,
    Wait,
    Lose,
}

/// A worker's flow state outside.
#[derive(Debug)]
pub struct Keeper {
    commits: Commits,
    /// Packets that wait for their flows' state.
    before: PacketLine,
    /// Packets that wait for an acknowledgement.
    behind: PacketLine,
    link: Link,
    /// Where buckets may move.
    buckets: Option<PerBucket>,
    then: WhenUnavailable,
    /// All pieces there are.
    pieces: u16,
    row_bytes: usize,
    /// The flows of the batch that is being run, and their pieces before.
    flows: Vec<KeptFlow>,
    rows: Vec<u8>,
    ways: Vec<Way>,
    wishes: Vec<(u8, u8, FlowKey)>,
    /// The run's start, on the clock of the world.
    origin: Nanos,
    incarnation: u32,
    /// Where in the flow table the search for flows goes on whose state the store does not have.
    search: Option<u32>,
    /// Whether an update found no room since the last search.
    missed: bool,
    counters: Counters,
    waits: LatencyHistogram,
    away_since: Option<Nanos>,
    /// Another instance has taken this one's place.
    fenced: bool,
    shared: Arc<Shared>,
}

/// How many entries a worker's requests must have room for.
pub fn entries(spec: &StateSpec) -> usize {
    2 * UPDATES * spec.packets as usize + 2 * ASKS * MAX_BATCH
}

impl Keeper {
    /// The keeper of a worker whose chain has `pieces` pieces of state, in rows of `row_bytes`. `origin` is the run's
    /// start on the clock of the world; later instances must have a later one.
    pub fn new(
        spec: &StateSpec,
        (pieces, row_bytes): (usize, usize),
        link: Link,
        origin: Nanos,
        shared: Arc<Shared>,
    ) -> Keeper {
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
            pieces: ((1u32 << pieces) - 1) as u16,
            row_bytes,
            flows: Vec::with_capacity(MAX_BATCH),
            rows: vec![0; MAX_BATCH * row_bytes],
            ways: Vec::with_capacity(MAX_BATCH),
            wishes: Vec::with_capacity(MAX_WISHES),
            origin,
            incarnation: 1,
            search: None,
            missed: false,
            counters: Counters::default(),
            waits: LatencyHistogram::default(),
            away_since: None,
            fenced: false,
            shared,
        }
    }

    /// As the keeper of a worker whose RSS buckets move.
    pub fn of_moving_buckets(mut self) -> Keeper {
        self.buckets = Some(PerBucket::new());
        self
    }

    /// Whether a bucket's flows may go to another worker: nothing of theirs waits, and all that was asked or written
    /// about them has been answered, so that nothing comes after what the other one writes.
    pub fn is_free_of(&self, chain: &Chain, bucket: u16) -> bool {
        let last = self.buckets.as_ref().and_then(|buckets| buckets.last_request(bucket));
        last.is_some_and(|request| self.commits.is_open(request)) && !chain.has_ended(bucket)
    }

    /// A bucket that is [free](Keeper::is_free_of) goes to another worker.
    pub fn release(&mut self, chain: &mut Chain, bucket: u16) {
        chain.forget_requests(bucket, link::NONE);
    }

    /// A bucket has come from another worker.
    pub fn adopt(&mut self) {
        // There may be flows among them that the store has forgotten, which the other had not come to.
        self.search = Some(0);
    }

    /// Takes the store's answers in: the first thing in a turn.
    #[inline]
    pub fn collect(&mut self, chain: &mut Chain, now: Nanos) {
        if self.link.health().is_fenced() && !self.fenced {
            self.fenced = true;
            self.then = WhenUnavailable::Drop;
            self.commits.fence();
        }
        let available = self.link.health().is_available();
        if available != self.commits.is_available() {
            self.note_availability(available, now);
        }
        while let Some(request) = self.link.answer() {
            self.learn(chain, &request);
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
        }
        for (place, entry) in request.entries.iter().enumerate() {
            match entry.ask {
                Ask::Read => {
                    self.counters.hits += u64::from(entry.found != 0);
                    let flow = chain.kept_flow_at(entry.flow, &entry.key);
                    if let Some(flow) = flow.filter(|_| entry.found != 0) {
                        chain.restore(flow, entry.found, request.row(place));
                    }
                }
                Ask::Probe if entry.found != 0 => {
                    self.counters.taken += 1;
                    if let Some(flow) = chain.kept_flow_at(entry.flow, &entry.asker) {
                        chain.standing(flow).taken |= 1 << entry.number;
                    }
                }
                Ask::Probe | Ask::Update | Ask::Forget => {}
            }
        }
    }

    /// Reads: packets of flows that are not known here leave the batch, which has been looked up, to wait until they
    /// have been asked for; with them those that may not overtake. Returns how many. Packets that may not wait
    /// are lost.
    #[inline]
    pub fn read(&mut self, chain: &mut Chain, batch: &mut Batch, now: Nanos) -> usize {
        self.ways.clear();
        let (mut gate, mut waiting, mut lose) = (0, 0, false);
        for packet in batch.iter() {
            let way = match chain.kept_flow(packet) {
                None => Way::Run,
                Some(flow) => {
                    let asked = chain.standing(flow).asked;
                    if self.fenced {
                        // What is known here is of the past.
                        Way::Lose
                    } else if asked != 0 && self.commits.is_open(asked) {
                        Way::Run
                    } else if self.commits.refuses(waiting + 1).is_some() {
                        Way::Lose
                    } else if asked != 0 {
                        gate = gate.max(asked);
                        Way::Wait
                    } else if self.link.has_half() && self.link.room() >= ASKS {
                        match self.ask(chain, packet, flow) {
                            Some(number) => {
                                gate = gate.max(number);
                                Way::Wait
                            }
                            None => Way::Lose,
                        }
                    } else if self.then == WhenUnavailable::Pass {
                        chain.standing(flow).asked = link::NONE;
                        Way::Run
                    } else {
                        Way::Lose
                    }
                }
            };
            if let (Way::Wait, Some(flow)) = (way, chain.kept_flow(packet)) {
                chain.hold(flow);
                waiting += 1;
            }
            lose |= way == Way::Lose;
            self.ways.push(way);
        }
        if waiting > 0 {
            let mut ways = self.ways.iter();
            let line = &mut self.before;
            line.take_from(batch, |_| ways.next() == Some(&Way::Wait));
            // They leave together, behind others: later packets of their flows come after all of that.
            let gate = self.commits.join(Stage::Read, waiting, gate, now);
            if let Some(buckets) = &mut self.buckets {
                buckets.join(self.before.last(waiting));
            }
            for packet in self.before.last(waiting) {
                if let Some(flow) = chain.kept_flow(packet) {
                    chain.standing(flow).asked = gate;
                }
            }
        }
        if lose {
            let mut ways = self.ways.iter().filter(|way| **way != Way::Wait);
            let lost = chain.lose_unkept(batch, |_| ways.next() == Some(&Way::Lose));
            self.counters.dropped += lost;
        }
        waiting
    }

    /// Asks for a packet's flow. Returns the request's number; `None` if its functions cannot say what they wish.
    fn ask(&mut self, chain: &mut Chain, packet: &tailwater_chain::batch::Packet, flow: KeptFlow) -> Option<u64> {
        self.wishes.clear();
        chain.standing(flow).taken = 0;
        if !chain.wishes(packet, &mut self.wishes) {
            return None;
        }
        let key = chain.kept_key(flow);
        let entry = Entry {
            ask: Ask::Read,
            key,
            asker: key,
            flow: flow.place(),
            pieces: self.pieces,
            ..Entry::default()
        };
        self.counters.reads += 1;
        let mut number = self.link.push(entry).0;
        for &(piece, wish, key) in &self.wishes {
            let probe = Entry {
                ask: Ask::Probe,
                key,
                pieces: 1 << piece,
                number: wish,
                ..entry
            };
            number = self.link.push(probe).0;
        }
        if let Some(buckets) = &mut self.buckets {
            buckets.note(chain.kept_bucket(flow), number);
        }
        // Its other packets in the batch wait for the same.
        chain.standing(flow).asked = number;
        Some(number)
    }

    /// The next packets that go on, or are dropped, instead of waiting for their flows' state: they are put in the
    /// batch, which is empty. With [`Fate::Drop`] they have left it again, lost.
    #[inline]
    pub fn next_read(&mut self, chain: &mut Chain, batch: &mut Batch, now: Nanos) -> Option<Leaving> {
        let leaving = self.commits.next(Stage::Read, now)?;
        self.before.give(leaving.packets, batch);
        self.leave(batch);
        self.note(leaving);
        if leaving.fate == Fate::Drop {
            for packet in batch.iter() {
                if let Some(flow) = chain.kept_flow(packet) {
                    chain.let_go(flow);
                }
            }
            chain.lose_unkept(batch, |_| true);
        }
        Some(leaving)
    }

    /// The next packets that leave, or are dropped, instead of waiting for an acknowledgement: as
    /// [`next_read`](Keeper::next_read).
    #[inline]
    pub fn next_update(&mut self, chain: &mut Chain, batch: &mut Batch, now: Nanos) -> Option<Leaving> {
        let leaving = self.commits.next(Stage::Update, now)?;
        self.behind.give(leaving.packets, batch);
        self.leave(batch);
        self.note(leaving);
        if leaving.fate == Fate::Drop {
            chain.lose_unkept(batch, |_| true);
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
        match leaving.fate {
            Fate::Go => {}
            Fate::Pass => self.counters.passed += packets,
            Fate::Drop => self.counters.dropped += packets,
        }
        (0..leaving.packets).for_each(|_| self.waits.record(leaving.waited));
    }

    /// Before functions run on a batch: remembers its flows' state. Without room for what they may change, packets
    /// are lost, unless they are to pass.
    #[inline]
    pub fn begin(&mut self, chain: &mut Chain, batch: &mut Batch) {
        self.flows.clear();
        for packet in batch.iter() {
            if let Some(flow) = chain.kept_flow(packet) {
                let at = self.flows.len() * self.row_bytes;
                chain.copy_row(flow, &mut self.rows[at..at + self.row_bytes]);
                self.flows.push(flow);
            }
        }
        let short = self.link.room() < UPDATES * batch.len();
        if short && self.then != WhenUnavailable::Pass {
            self.counters.dropped += chain.lose_unkept(batch, |_| true);
        }
    }

    /// Updates: what functions changed is written, and packets that it holds up leave the batch to wait until that is
    /// acknowledged. Returns how many. `held` says whether the batch came from
    /// [`next_read`](Keeper::next_read).
    #[inline]
    pub fn update(&mut self, chain: &mut Chain, batch: &mut Batch, held: bool, now: Nanos) -> usize {
        let flows = std::mem::take(&mut self.flows);
        for (i, &flow) in flows.iter().enumerate() {
            let row = i * self.row_bytes..(i + 1) * self.row_bytes;
            let mut changed = chain.changed(flow, &self.rows[row]);
            changed |= self.stale(chain, flow, now);
            if changed != 0 {
                self.write(chain, flow, changed, now);
                self.write_companion(chain, flow, now);
            }
            if held {
                chain.let_go(flow);
            }
        }
        self.flows = flows;
        self.hold(chain, batch, now)
    }

    /// The pieces that are to be written though they have not changed: the store has another incarnation, or did not
    /// get them, or is to forget them soon, or they came from there.
    #[inline]
    fn stale(&mut self, chain: &mut Chain, flow: KeptFlow, now: Nanos) -> u16 {
        let standing = *chain.standing(flow);
        if standing.took_up == 0 && standing.incarnation == 0 {
            return 0;
        }
        let age = millis(now).saturating_sub(standing.written);
        let fresh =
            standing.incarnation == self.incarnation && u64::from(age) < millis_of(chain.kept_timeout(flow)) / 2;
        match fresh {
            true => 0,
            false => chain.seen_pieces(flow),
        }
    }

    fn write(&mut self, chain: &mut Chain, flow: KeptFlow, pieces: u16, now: Nanos) {
        let (standing, open) = (*chain.standing(flow), self.link.open());
        let bucket = chain.kept_bucket(flow);
        let (number, place) = if standing.updated_in == open {
            (open, standing.entry as usize)
        } else if self.link.room() > 0 {
            let timeout = millis_of(chain.kept_timeout(flow));
            let key = chain.kept_key(flow);
            // Of one that was written before, no end can be untold: it would have ended since.
            if matches!(standing.incarnation, 0 | MISSED) {
                chain.not_ended(&key);
            }
            self.link.push(Entry {
                ask: Ask::Update,
                key,
                asker: key,
                flow: flow.place(),
                // A refresh is due after half the time that a flow may be idle: what is left is a whole one.
                life: u32::try_from(timeout + timeout / 2 + 1).unwrap_or(u32::MAX),
                ..Entry::default()
            })
        } else {
            let standing = chain.standing(flow);
            // Should it end like this, its bucket stays until the store is told.
            (standing.incarnation, standing.bucket) = (MISSED, bucket);
            self.missed = true;
            self.counters.missed += 1;
            return;
        };
        self.counters.updates += 1;
        if let Some(buckets) = &mut self.buckets {
            buckets.note(bucket, number);
        }
        let (entry, row) = self.link.entry(place);
        entry.pieces |= pieces;
        entry.stamp = self.origin.0.wrapping_add(now.0);
        chain.durable_row(flow, row);
        let standing = chain.standing(flow);
        standing.bucket = bucket;
        standing.updated_in = number;
        standing.entry = place as u32;
        standing.gate = number;
        standing.incarnation = self.incarnation;
        standing.written = millis(now);
    }

    /// A flow's companion is opened by the flow's packets, and may have none for long: it is written with it.
    fn write_companion(&mut self, chain: &mut Chain, flow: KeptFlow, now: Nanos) {
        let Some(companion) = chain.kept_companion(flow) else {
            return;
        };
        let (own, other) = (*chain.standing(flow), *chain.standing(companion));
        let late = other.incarnation != self.incarnation
            || millis(now).saturating_sub(other.written) > millis_of(chain.kept_timeout(flow)) as u32 / 2;
        let seen = chain.seen_pieces(companion);
        if !late || seen == 0 {
            return;
        }
        if other.asked == 0 && own.took_up == 0 {
            // It is as new as the flow.
            chain.standing(companion).asked = link::NONE;
        }
        self.write(chain, companion, seen, now);
        // Both directions are there before a packet of either leaves; the other may be of the next request.
        let gate = chain.standing(companion).gate;
        let own = chain.standing(flow);
        own.gate = own.gate.max(gate);
    }

    /// Takes packets whose gates are closed out of the batch.
    fn hold(&mut self, chain: &mut Chain, batch: &mut Batch, now: Nanos) -> usize {
        let (mut gate, mut count) = (0, 0);
        self.ways.clear();
        for packet in batch.iter() {
            let flow = chain.kept_flow(packet);
            let own = flow.map_or(0, |flow| chain.standing(flow).gate);
            let waits = !self.commits.is_open(own);
            self.ways.push(if waits { Way::Wait } else { Way::Run });
            if waits {
                gate = gate.max(own);
                count += 1;
            }
        }
        if count == 0 {
            return 0;
        }
        let mut ways = self.ways.iter();
        if self.commits.refuses(count).is_some() {
            let lost = chain.lose_unkept(batch, |_| ways.next() == Some(&Way::Wait));
            self.counters.dropped += lost;
            return 0;
        }
        self.behind.take_from(batch, |_| ways.next() == Some(&Way::Wait));
        let gate = self.commits.join(Stage::Update, count, gate, now);
        if let Some(buckets) = &mut self.buckets {
            buckets.join(self.behind.last(count));
        }
        for packet in self.behind.last(count) {
            if let Some(flow) = chain.kept_flow(packet) {
                chain.standing(flow).gate = gate;
            }
        }
        count
    }

    /// The last thing in a turn: forgets flows that have ended, writes what the store has missed, and sends all that
    /// was gathered.
    #[inline]
    pub fn finish_turn(&mut self, chain: &mut Chain, now: Nanos) {
        while self.link.has_half()
            && let Some((key, bucket)) = chain.next_ended()
        {
            self.counters.forgotten += 1;
            let (number, _) = self.link.push(Entry {
                ask: Ask::Forget,
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
            let flow = chain.next_kept_flow(place);
            self.search = flow.map(|flow| flow.place() + 1);
            let Some(flow) = flow else { return };
            let standing = *chain.standing(flow);
            if standing.incarnation != 0 && standing.incarnation != self.incarnation {
                let pieces = chain.seen_pieces(flow);
                self.write(chain, flow, pieces, now);
                self.counters.rewritten += 1;
            }
        }
    }

    /// Packets that wait.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.commits.waiting()
    }

    /// Whether nothing waits, and the store has answered everything.
    pub fn is_quiet(&self) -> bool {
        self.commits.waiting() == 0 && self.link.is_quiet()
    }

    /// Takes packets that still wait at the end out of the lines, as many as the batch has room for. Says whether there
    /// were any.
    pub fn give_up(&mut self, batch: &mut Batch) -> bool {
        for line in [&mut self.before, &mut self.behind] {
            let packets = line.len().min(batch.room());
            line.give(packets, batch);
        }
        !batch.is_empty()
    }

    /// What the keeper did, until `now`.
    pub fn finish(mut self, now: Nanos) -> (Counters, LatencyHistogram) {
        self.note_availability(true, now);
        self.counters.most_waiting = self.commits.most() as u64;
        self.shared.publish(&self.counters, 0);
        (self.counters, self.waits)
    }
}

fn millis(time: Nanos) -> u32 {
    millis_of(time) as u32
}

fn millis_of(span: Nanos) -> u64 {
    span.0 / 1_000_000
}
