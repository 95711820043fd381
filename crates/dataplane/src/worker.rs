//! A worker: polls its queue, runs the chain to completion, measures.

use crate::attribution::Cause;
use crate::batches::{Book, Part};
use crate::clock::Clock;
use crate::death::survive;
use crate::kept::{Kept, Turn};
use crate::meter::Meter;
use crate::port::{PortQueue, Received};
use crate::report::ExternalReport;
use crate::scaling::buckets::Buckets;
use crate::scaling::dispatch::{Dispatch, MOST_RECEIVED};
use crate::telemetry::WindowSender;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tailwater_chain::batch::{Batch, MAX_BATCH};
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_measure::histogram::LatencyHistogram;
use tailwater_net::Nanos;
use tailwater_state::counters::Counters;

/// What a worker needs to know besides its queue and chain.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Packets later than this are late.
    pub slo: Nanos,
    /// The length of a measurement window.
    pub window: Nanos,
    /// When the first packet arrives.
    pub start: Nanos,
    /// Most packets in a batch.
    pub batch: usize,
}

/// How long after the end queued packets are still processed: twice the SLO, but never so long that
/// a user who pressed Ctrl-C waits.
pub(crate) const LONGEST_DRAIN: Nanos = Nanos::from_millis(500);

/// What is left of a worker.
pub(crate) struct Finished {
    /// Its instance of the chain, or of each of its parts.
    pub(crate) chains: Vec<Chain>,
    /// What became of packets at external functions.
    pub(crate) externals: Vec<ExternalReport>,
    /// Where buckets that arrive after the end can still be taken over.
    pub(crate) buckets: Option<Box<Buckets>>,
    /// What its panic said, if it died.
    pub(crate) died: Option<String>,
    /// What it did with flow state outside.
    pub(crate) kept: Option<(Counters, LatencyHistogram)>,
}

/// A worker, ready to run on the thread it is moved to.
pub struct Worker {
    queue: Box<dyn PortQueue>,
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    clock: Clock,
    config: WorkerConfig,
    meter: Meter,
    /// Without it every packet is processed here.
    dispatch: Option<Box<Dispatch>>,
    /// Without it the worker keeps the RSS buckets it has.
    buckets: Option<Box<Buckets>>,
    /// Whether the batch is from the dispatcher's own queue.
    from_queue: bool,
    /// What the chain had lost when that was last counted.
    lost: u64,
    /// Whether a function says how large batches should be.
    sized: bool,
    /// Where batches that go straight through are noted, if somebody wants to know.
    book: Option<Box<Book>>,
    /// Without it, flow state stays here.
    kept: Option<Box<Kept>>,
    /// For how long it sleeps at a time once it has had nothing to do for as long; without it, it never does.
    naps: Option<Nanos>,
    /// When it last had something to do.
    busy_at: Nanos,
}

impl Worker {
    /// A worker that runs `chain` on what `queue` receives into buffers of `pool`.
    pub fn new(
        queue: Box<dyn PortQueue>,
        chain: Chain,
        pool: BufferPool,
        clock: Clock,
        config: WorkerConfig,
        telemetry: WindowSender,
    ) -> Worker {
        let mut batch = Batch::new(&pool, config.batch);
        let wanted = chain.wanted_batch();
        if let Some(packets) = wanted {
            batch = Batch::new(&pool, MAX_BATCH);
            batch.limit(packets);
        }
        Worker {
            batch,
            sized: wanted.is_some(),
            meter: Meter::new(&config, telemetry),
            lost: chain.lost(),
            queue,
            chain,
            pool,
            clock,
            config,
            dispatch: None,
            buckets: None,
            from_queue: false,
            book: None,
            kept: None,
            naps: None,
            busy_at: Nanos::ZERO,
        }
    }

    /// Keeps flow state outside, too.
    pub(crate) fn keeping(mut self, keeper: tailwater_state::keeper::Keeper) -> Worker {
        let most = if self.sized { MAX_BATCH } else { self.config.batch };
        let kept = Kept::new(keeper, &self.pool, most);
        self.kept = Some(Box::new(match &self.buckets {
            Some(_) => kept.of_moving_buckets(),
            None => kept,
        }));
        self
    }

    /// Lets the worker sleep for so long at a time, once it has had nothing to do for as long.
    pub fn napping(mut self, naps: Option<Nanos>) -> Worker {
        self.naps = naps;
        self
    }

    /// Notes what batches take.
    pub(crate) fn noting(mut self, book: Book) -> Worker {
        self.book = Some(Box::new(book));
        self
    }

    /// Lets the worker hand flows to helpers.
    pub(crate) fn dispatching(mut self, dispatch: Dispatch) -> Worker {
        self.dispatch = Some(Box::new(dispatch));
        self
    }

    /// Lets RSS buckets come and go.
    pub(crate) fn moving(mut self, buckets: Buckets) -> Worker {
        self.meter.know(buckets.kept());
        self.buckets = Some(Box::new(buckets));
        self
    }

    /// Runs until the port ends or `stop` says so, then drains the queue. Returns
    /// the chain, for its counters.
    ///
    /// # Panics
    /// If a function does.
    pub fn run(self, stop: impl Fn() -> bool) -> Chain {
        let Finished { chains, died, .. } = self.run_among_others(stop, &AtomicBool::new(false));
        let chain = chains.into_iter().next();
        chain
            .filter(|_| died.is_none())
            .unwrap_or_else(|| panic!("{}", died.unwrap_or_default()))
    }

    /// As [`run`](Worker::run). Should it die, `failed` is set, and what it has is counted as lost.
    pub(crate) fn run_among_others(mut self, stop: impl Fn() -> bool, failed: &AtomicBool) -> Finished {
        let died = survive(|| self.work(stop)).err();
        if died.is_some() {
            failed.store(true, Ordering::Relaxed);
            self.give_back();
        }
        if let Some(dispatch) = &mut self.dispatch {
            dispatch.release_all();
        }
        if let Some(buckets) = &mut self.buckets {
            buckets.report(&mut self.meter.window().buckets);
        }
        if let Some(book) = self.book {
            book.close();
        }
        self.meter.finish(&self.chain);
        Finished {
            chains: vec![self.chain],
            externals: Vec::new(),
            buckets: self.buckets,
            died,
            kept: self.kept.map(|kept| kept.finish(self.clock.now())),
        }
    }

    fn work(&mut self, stop: impl Fn() -> bool) {
        let mut now = self.clock.now();
        // How long ago the loop last knew what it was doing. A worker that got its core only after
        // the first arrival has been off it since.
        let mut last = self.config.start;
        let drain = Nanos(self.config.slo.0.saturating_mul(2)).min(LONGEST_DRAIN);
        let mut drain_until = None;
        loop {
            if drain_until.is_none() && stop() {
                self.queue.stop();
                drain_until = Some(now + drain);
            }
            if let Some(buckets) = &mut self.buckets {
                let (queue, dispatch) = (&*self.queue, self.dispatch.as_deref());
                let kept = self.kept.as_deref_mut();
                buckets.turn(now, queue, &mut self.chain, dispatch, kept);
            }
            let mut received = receive(
                (&mut *self.queue, self.buckets.as_deref_mut()),
                now,
                &mut self.pool,
                &mut self.batch,
            );
            let full = || cause_of_full(&self.pool, self.dispatch.as_deref(), &self.buckets);
            self.meter.note_arrivals(received, [last, now], full);
            let busy = if self.kept.is_some() {
                let after = self.process_kept(now, received.waiting > 0);
                last = after.unwrap_or(last);
                after.is_some()
            } else if self.dispatches(received) {
                last = self.dispatch(&mut received, now);
                true
            } else {
                !self.batch.is_empty() && {
                    last = self.process(now, received.waiting > 0);
                    true
                }
            };
            if busy {
                self.busy_at = last;
            } else {
                if let Some(book) = &mut self.book {
                    book.idle();
                }
                self.meter.idle();
                self.chain.expire(now);
                // Before the start there is nothing to be away from.
                last = self.rest(received, now).max(self.config.start);
            }
            if received.ended {
                if received.waiting == 0 && self.is_quiet() && self.may_end() {
                    break;
                }
                drain_until = drain_until.or(Some(now + drain));
            }
            if drain_until.is_some_and(|until| now > until) {
                self.give_up(now);
                break;
            }
            self.meter.roll(last, &self.chain);
            // A busy loop needs one reading of the clock a turn.
            now = if busy { last } else { self.clock.now() };
        }
    }

    /// As [`process`](Worker::process), with flow state that is kept outside, and packets that wait for it.
    fn process_kept(&mut self, now: Nanos, backlog: bool) -> Option<Nanos> {
        let kept = self.kept.as_mut()?;
        let mut turn = Turn {
            queue: &mut *self.queue,
            chain: &mut self.chain,
            pool: &mut self.pool,
            clock: &self.clock,
            meter: &mut self.meter,
            lost: &mut self.lost,
        };
        let packets = self.batch.len();
        let after = turn.process(kept, &mut self.batch, now, backlog);
        if let (Some(buckets), Some(after)) = (&mut self.buckets, after.filter(|_| packets > 0)) {
            buckets.note_batch(after.saturating_sub(now));
        }
        self.size_batch();
        after
    }

    /// Has the next batch as many packets as a function wishes.
    #[inline]
    fn size_batch(&mut self) {
        if self.sized
            && let Some(packets) = self.chain.wanted_batch()
        {
            self.batch.limit(packets);
        }
    }

    /// Counts what the worker, which has died, was processing as lost, and all that waits for it.
    fn give_back(&mut self) {
        self.meter.die();
        let now = self.clock.now();
        self.queue.stop();
        if self.batch.in_hand() > 0 {
            let lost = since(&self.chain, &mut self.lost);
            self.meter.note_unfinished(&mut self.batch, lost, now);
        }
        match &mut self.dispatch {
            Some(dispatch) if self.from_queue => {
                dispatch.done(&mut self.batch, &mut self.pool, &mut self.chain);
            }
            _ => self.batch.release(&mut self.pool),
        }
        if let Some(batch) = self.kept.as_mut().and_then(|kept| kept.in_hand()) {
            let lost = since(&self.chain, &mut self.lost);
            self.meter.note_unfinished(batch, lost, now);
            batch.release(&mut self.pool);
        }
        if let Some(dispatch) = &mut self.dispatch {
            for from in 1..self.chain.segments() {
                let part = dispatch.part(from);
                if part.in_hand() > 0 {
                    let lost = since(&self.chain, &mut self.lost);
                    self.meter.note_unfinished(part, lost, now);
                    dispatch.done_part(from, &mut self.pool, &mut self.chain);
                }
            }
            // What it was about to hand over comes back as lost.
            dispatch.abandon();
            dispatch.flush(now);
        }
        self.give_up(now);
    }

    /// What a worker does that has nothing to do: it looks again; or, if no packet can come for some time
    /// since it has no RSS bucket, or none has come for so long that it may nap, leaves its core to others for a
    /// while. Returns the time after.
    #[inline]
    fn rest(&mut self, received: Received, now: Nanos) -> Nanos {
        let runs = !received.ended && now >= self.config.start;
        let rest = match &self.buckets {
            Some(buckets) if runs => buckets.rest(),
            _ => None,
        };
        let idle = now.saturating_sub(self.busy_at.max(self.config.start));
        let nap = self.naps.filter(|nap| runs && idle >= *nap);
        // What waits for the store is not to wait for the worker besides.
        let quiet = self.kept.as_ref().is_none_or(|kept| kept.is_quiet());
        let rest = rest.or_else(|| {
            let nap = nap.filter(|_| received.waiting == 0 && quiet)?;
            Some(Duration::from_nanos(nap.0))
        });
        let Some(rest) = rest else {
            std::hint::spin_loop();
            return now;
        };
        std::thread::sleep(rest);
        let awake = self.clock.now();
        self.meter.window().rested += awake.saturating_sub(now);
        awake
    }

    /// Whether no packet is in the system but those in the port's ring.
    fn is_quiet(&self) -> bool {
        let kept = self.kept.as_ref();
        kept.is_none_or(|kept| kept.is_quiet()) && self.dispatch.as_ref().is_none_or(|dispatch| dispatch.is_quiet())
    }

    /// Whether no RSS bucket that is on its way needs this worker.
    fn may_end(&self) -> bool {
        self.buckets.as_ref().is_none_or(|buckets| buckets.may_end())
    }

    /// Counts what is still in the ring, kept back, in the own queue or with helpers as lost.
    fn give_up(&mut self, now: Nanos) {
        let meter = &mut self.meter;
        self.queue.discard(&mut |arrival, rss_hash| {
            meter.note_arrival(arrival);
            meter.note_undrained(arrival, rss_hash, now);
        });
        if let Some(buckets) = &mut self.buckets {
            while buckets.take_rest(&mut self.batch) {
                for packet in self.batch.iter() {
                    let (arrival, rss_hash) = (packet.arrival, packet.rss_hash);
                    meter.note_arrival(arrival);
                    meter.note_undrained(arrival, rss_hash, now);
                }
                self.batch.release(&mut self.pool);
            }
        }
        while let Some(batch) = self.kept.as_mut().and_then(|kept| kept.give_up()) {
            for packet in batch.iter() {
                let (arrival, rss_hash) = (packet.arrival, packet.rss_hash);
                meter.note_undrained(arrival, rss_hash, now);
            }
            batch.release(&mut self.pool);
        }
        let Some(dispatch) = &mut self.dispatch else {
            return;
        };
        dispatch.abandon();
        let mut more = true;
        while more {
            more = dispatch.take_undone(&mut self.batch);
            for packet in self.batch.iter() {
                let (arrival, rss_hash) = (packet.arrival, packet.rss_hash);
                self.meter.note_undrained(arrival, rss_hash, now);
            }
            dispatch.done(&mut self.batch, &mut self.pool, &mut self.chain);
        }
        // Helpers count what they throw away, and then give the buffers back.
        let until = now + LONGEST_DRAIN;
        while !dispatch.is_quiet() && self.clock.now() < until {
            dispatch.collect(&mut self.pool, &mut self.chain, now);
            std::thread::yield_now();
        }
    }

    /// Whether what was received, if anything, has to go through the dispatcher: packets wait, here or
    /// with helpers, or helpers are idle and may be let go.
    #[inline]
    fn dispatches(&self, received: Received) -> bool {
        let Some(dispatch) = &self.dispatch else {
            return false;
        };
        received.waiting > 0 || !dispatch.is_quiet() || dispatch.has_helpers()
    }

    /// Looks up what was received, and what else has arrived meanwhile; keeps it in the own queue or
    /// hands it over; then processes a batch of the own queue. Returns the time after.
    fn dispatch(&mut self, received: &mut Received, now: Nanos) -> Nanos {
        let Some(dispatch) = &mut self.dispatch else {
            return now;
        };
        let (mut time, mut looked_up) = (now, 0);
        let start = self.config.start;
        loop {
            let packets = self.batch.len();
            let arrival = self.batch.first().map_or(time, |first| first.arrival);
            if packets > 0 {
                self.meter.note_batch(&self.batch);
                self.chain.look_up(&mut self.batch, time);
                let functions = self.batch.len();
                dispatch.distribute(&mut self.batch, &mut self.chain, time);
                let gone = functions - self.batch.len();
                if gone < packets {
                    // Those that the functions are not to see, and those lost for want of room.
                    self.queue.complete(&mut self.batch);
                    self.chain.run(&mut self.batch, time);
                    let unsent = self.queue.transmit(&mut self.batch);
                    let sent = self.clock.now();
                    let lost = (since(&self.chain, &mut self.lost), unsent);
                    self.meter.note_sent(&self.batch, packets - gone, lost, [time, sent]);
                }
                self.batch.release(&mut self.pool);
                looked_up += packets;
            }
            dispatch.collect(&mut self.pool, &mut self.chain, time);
            if received.waiting == 0 || looked_up >= MOST_RECEIVED || self.pool.available() == 0 {
                break;
            }
            let before = time;
            time = self.clock.now();
            if let Some(book) = &mut self.book {
                let part = Part::Received;
                book.note_part(part, (packets, true), start, [arrival, before, time]);
            }
            self.meter.note_part(time.saturating_sub(before), time);
            *received = receive(
                (&mut *self.queue, self.buckets.as_deref_mut()),
                time,
                &mut self.pool,
                &mut self.batch,
            );
            let full = || cause_of_full(&self.pool, Some(dispatch), &self.buckets);
            let span = [before.max(time), time];
            self.meter.note_arrivals(*received, span, full);
        }
        dispatch.decide(&self.chain, time);
        dispatch.flush(time);
        self.meter.window().auxiliary += dispatch.charge(time);
        // Without buffers nothing more can be received before something is processed.
        if dispatch.processes(received.waiting > 0 && self.pool.available() > 0) {
            let more = dispatch.take(&mut self.batch);
            self.from_queue = true;
            let packets = self.batch.len();
            if packets > 0 {
                if more {
                    self.meter.note_backlog(&self.batch, time);
                }
                let new = self.batch.iter().filter(|packet| packet.is_new()).count();
                let arrival = self.batch.first().map_or(time, |first| first.arrival);
                let began = self.clock.now();
                self.meter.note_part(began.saturating_sub(time), began);
                self.chain.prefetch_from(0, &self.batch);
                self.queue.complete(&mut self.batch);
                self.chain.run(&mut self.batch, began);
                let unsent = self.queue.transmit(&mut self.batch);
                time = self.clock.now();
                let lost = (since(&self.chain, &mut self.lost), unsent);
                self.meter.note_sent(&self.batch, packets, lost, [began, time]);
                if let Some(book) = &mut self.book {
                    let part = Part::Processed;
                    book.note_part(part, (packets, more), start, [arrival, began, time]);
                }
                // What a packet takes is not told by a turn in which others were split.
                if dispatch.parts().next().is_none() {
                    dispatch.learn(packets, new, time.saturating_sub(now));
                }
                if let Some(buckets) = &mut self.buckets {
                    buckets.note_batch(time.saturating_sub(began));
                }
                dispatch.done(&mut self.batch, &mut self.pool, &mut self.chain);
            }
            self.from_queue = false;
            if dispatch.parts().next().is_some() {
                time = self.process_parts(time, more);
            }
        }
        let Some(dispatch) = &mut self.dispatch else {
            return time;
        };
        dispatch.report(&mut self.meter.window().scaling);
        if time == now {
            // Nothing was received or processed: time goes on all the same.
            time = self.clock.now();
            self.meter.note_part(time.saturating_sub(now), time);
        }
        self.chain.expire(time);
        time
    }

    /// Runs packets of split flows through the chain's first functions and hands them to the helpers that
    /// go on with them. Returns the time after.
    fn process_parts(&mut self, mut time: Nanos, backlog: bool) -> Nanos {
        let Some(dispatch) = &mut self.dispatch else {
            return time;
        };
        for from in 1..self.chain.segments() {
            let batch = dispatch.part(from);
            let packets = batch.len();
            if packets == 0 {
                continue;
            }
            if backlog {
                self.meter.note_backlog(batch, time);
            }
            self.chain.prefetch_before(from, batch);
            if self.chain.needs_payload_before(from) {
                self.queue.complete(batch);
            }
            self.chain.run_before(from, batch, time);
            let gone = packets - batch.len();
            dispatch.pass_on(from, &mut self.pool, &mut self.chain);
            let began = std::mem::replace(&mut time, self.clock.now());
            dispatch.flush(time);
            let lost = since(&self.chain, &mut self.lost);
            self.meter.note_processed(packets, gone, lost, [began, time]);
            if let Some(buckets) = &mut self.buckets {
                buckets.note_batch(time.saturating_sub(began));
            }
        }
        time
    }

    /// Runs the batch, which is not empty, through the chain, sends it and measures. Returns the time
    /// after.
    #[inline]
    fn process(&mut self, received: Nanos, backlog: bool) -> Nanos {
        let packets = self.batch.len();
        let arrival = self.batch.first().map_or(received, |first| first.arrival);
        self.meter.note_batch(&self.batch);
        if backlog {
            // Only in a backlog does it matter who is in front.
            self.meter.note_backlog(&self.batch, received);
        }
        self.queue.complete(&mut self.batch);
        self.chain.process(&mut self.batch, received);
        let unsent = self.queue.transmit(&mut self.batch);
        let sent = self.clock.now();
        let lost = (since(&self.chain, &mut self.lost), unsent);
        self.meter.note_sent(&self.batch, packets, lost, [received, sent]);
        if let Some(buckets) = &mut self.buckets {
            buckets.note_batch(sent.saturating_sub(received));
        }
        if let Some(book) = &mut self.book {
            let start = self.config.start;
            book.note(packets, backlog, start, [arrival, received, sent]);
        }
        self.batch.release(&mut self.pool);
        self.size_batch();
        self.chain.expire(sent);
        sent
    }
}

/// What the chain has lost since `before`, which was counted.
#[inline]
pub(crate) fn since(chain: &Chain, before: &mut u64) -> u64 {
    let lost = chain.lost();
    lost - std::mem::replace(before, lost)
}

/// Why the ring is full, if its worker was at work: packets that are kept back have all buffers, or helpers
/// most, so that little can be received; or more came than the worker can do.
fn cause_of_full(pool: &BufferPool, dispatch: Option<&Dispatch>, buckets: &Option<Box<Buckets>>) -> Cause {
    let handed = dispatch.map_or(0, Dispatch::handed) as usize;
    if buckets.as_deref().is_some_and(Buckets::no_buffer) {
        Cause::Migration
    } else if 2 * handed > pool.capacity() {
        Cause::Waking
    } else {
        Cause::RingFull
    }
}

/// Receives from the port, and what was kept back for want of its RSS bucket.
#[inline]
fn receive(
    (queue, buckets): (&mut dyn PortQueue, Option<&mut Buckets>),
    now: Nanos,
    pool: &mut BufferPool,
    batch: &mut Batch,
) -> Received {
    match buckets {
        None => queue.receive(now, pool, batch),
        Some(buckets) => buckets.receive(queue, now, pool, batch),
    }
}
