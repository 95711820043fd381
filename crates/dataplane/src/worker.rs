//! Worker: polls its queue, runs the chain to completion, measures.

use crate::attribution::Cause;
use crate::batches::{BatchRecord, TimedPart};
use crate::clock::Clock;
use crate::durable::{DurableWorker, WorkerTurn};
use crate::meter::Meter;
use crate::panics::catch_panic;
use crate::port::{PortQueue, Received};
use crate::report::ExternalReport;
use crate::scaling::buckets::Buckets;
use crate::scaling::dispatch::Dispatch;
use crate::telemetry::WindowSender;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tailwater_chain::batch::{Batch, MAX_BATCH};
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_dispatch::Iteration;
use tailwater_measure::histogram::LatencyHistogram;
use tailwater_net::Nanos;
use tailwater_state::counters::Counters;

/// Configuration of a worker, apart from its queue and chain.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Latency beyond which packets are late.
    pub slo: Nanos,
    /// Length of a measurement window.
    pub window: Nanos,
    /// Arrival of the first packet.
    pub start: Nanos,
    /// Maximum number of packets per batch.
    pub batch: usize,
}

/// Upper bound of the time after the end in which queued packets are still processed. That time is twice the SLO, but
/// never so long that a user who pressed Ctrl-C waits.
pub(crate) const LONGEST_DRAIN: Nanos = Nanos::from_millis(500);

/// Results of a worker that has ended.
pub(crate) struct Finished {
    /// Its instance of the chain, or of each of its parts.
    pub(crate) chains: Vec<Chain>,
    /// Packet counts of external functions.
    pub(crate) externals: Vec<ExternalReport>,
    /// Migration state, which can still accept buckets that arrive after the end.
    pub(crate) buckets: Option<Box<Buckets>>,
    /// Message of its panic, if it panicked.
    pub(crate) died: Option<String>,
    /// Counters of external flow state.
    pub(crate) state_counters: Option<(Counters, LatencyHistogram)>,
}

/// Worker, ready to run on the thread it is moved to.
pub struct Worker {
    queue: Box<dyn PortQueue>,
    chain: Chain,
    pool: BufferPool,
    batch: Batch,
    clock: Clock,
    config: WorkerConfig,
    meter: Meter,
    /// `None` if every packet is processed here.
    dispatch: Option<Box<Dispatch>>,
    /// `None` if RSS buckets do not migrate.
    buckets: Option<Box<Buckets>>,
    /// The batch is from the local queue.
    from_queue: bool,
    /// The chain's loss counter when it was last read.
    lost: u64,
    /// A function determines the batch size.
    sized: bool,
    /// Record of batches that go straight through, if requested.
    book: Option<Box<BatchRecord>>,
    /// `None` if there is no external flow state.
    durable: Option<Box<DurableWorker>>,
    /// Sleep time, once the worker has been idle as long. `None` if it never sleeps.
    naps: Option<Nanos>,
    /// Time of the last work.
    busy_at: Nanos,
}

impl Worker {
    /// Creates a worker that runs `chain` on packets that `queue` receives into buffers of `pool`.
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
            durable: None,
            naps: None,
            busy_at: Nanos::ZERO,
        }
    }

    /// Enables external flow state.
    pub(crate) fn with_keeper(mut self, keeper: tailwater_state::keeper::Keeper) -> Worker {
        let most = if self.sized { MAX_BATCH } else { self.config.batch };
        let kept = DurableWorker::new(keeper, &self.pool, most);
        self.durable = Some(Box::new(match &self.buckets {
            Some(_) => kept.of_moving_buckets(),
            None => kept,
        }));
        self
    }

    /// Lets the worker sleep for this time, once it has been idle as long.
    pub fn napping(mut self, naps: Option<Nanos>) -> Worker {
        self.naps = naps;
        self
    }

    /// Records batch times.
    pub(crate) fn noting(mut self, book: BatchRecord) -> Worker {
        self.book = Some(Box::new(book));
        self
    }

    /// Lets the worker offload flows to auxiliary cores.
    pub(crate) fn dispatching(mut self, dispatch: Dispatch) -> Worker {
        self.dispatch = Some(Box::new(dispatch));
        self
    }

    /// Lets RSS buckets migrate.
    pub(crate) fn moving(mut self, buckets: Buckets) -> Worker {
        self.meter.set_buffered_spans(buckets.spans());
        self.buckets = Some(Box::new(buckets));
        self
    }

    /// Runs until the port ends or `stop` returns `true`, then drains the queue. Returns the chain, for its counters.
    ///
    /// # Panics
    /// If a function panics.
    pub fn run(self, stop: impl Fn() -> bool) -> Chain {
        let Finished { chains, died, .. } = self.run_among_others(stop, &AtomicBool::new(false));
        let chain = chains.into_iter().next();
        chain
            .filter(|_| died.is_none())
            .unwrap_or_else(|| panic!("{}", died.unwrap_or_default()))
    }

    /// Like [`run`](Worker::run). If the worker panics, sets `failed` and counts its packets as lost.
    pub(crate) fn run_among_others(mut self, stop: impl Fn() -> bool, failed: &AtomicBool) -> Finished {
        let died = catch_panic(|| self.work(stop)).err();
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
            state_counters: self.durable.map(|kept| kept.finish(self.clock.now())),
        }
    }

    fn work(&mut self, stop: impl Fn() -> bool) {
        let mut now = self.clock.now();
        // Time of the last known progress. A worker that got its core only after the first arrival counts as preempted
        // since then.
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
                let kept = self.durable.as_deref_mut();
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
            let busy = if self.durable.is_some() {
                let after = self.process_durable(now, received.waiting > 0);
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
                // Before the start there are no gaps.
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
            // A busy loop needs one reading of the clock per turn.
            now = if busy { last } else { self.clock.now() };
        }
    }

    /// Like [`process`](Worker::process), with external flow state and packets that wait for it.
    fn process_durable(&mut self, now: Nanos, backlog: bool) -> Option<Nanos> {
        let kept = self.durable.as_mut()?;
        let mut turn = WorkerTurn {
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

    /// Sets the next batch's size to the one a function requires.
    #[inline]
    fn size_batch(&mut self) {
        if self.sized
            && let Some(packets) = self.chain.wanted_batch()
        {
            self.batch.limit(packets);
        }
    }

    /// Counts the packets that the panicked worker was processing, and all that wait for it, as lost.
    fn give_back(&mut self) {
        self.meter.on_panic();
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
        if let Some(batch) = self.durable.as_mut().and_then(|kept| kept.in_hand()) {
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
            // Packets about to be offloaded come back as lost.
            dispatch.abandon();
            dispatch.flush(now);
        }
        self.give_up(now);
    }

    /// Idle step of a worker. It polls again, or yields its core for a while: if no packet can arrive for some time
    /// because it has no RSS bucket, or none has arrived for so long that it may sleep. Returns the end time.
    #[inline]
    fn rest(&mut self, received: Received, now: Nanos) -> Nanos {
        let runs = !received.ended && now >= self.config.start;
        let rest = match &self.buckets {
            Some(buckets) if runs => buckets.rest(),
            _ => None,
        };
        let idle = now.saturating_sub(self.busy_at.max(self.config.start));
        let nap = self.naps.filter(|nap| runs && idle >= *nap);
        // Packets that wait for the store must not wait for the worker in addition.
        let quiet = self.durable.as_ref().is_none_or(|kept| kept.is_quiet());
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

    /// Returns `true` if all packets in the system are in the port's ring.
    fn is_quiet(&self) -> bool {
        let kept = self.durable.as_ref();
        kept.is_none_or(|kept| kept.is_quiet()) && self.dispatch.as_ref().is_none_or(|dispatch| dispatch.is_quiet())
    }

    /// Returns `true` if no migrating RSS bucket needs this worker.
    fn may_end(&self) -> bool {
        self.buckets.as_ref().is_none_or(|buckets| buckets.may_end())
    }

    /// Counts packets still in the ring, buffered, in the local queue or on auxiliary cores as lost.
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
        while let Some(batch) = self.durable.as_mut().and_then(|kept| kept.give_up()) {
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
        // Auxiliary cores count the packets they discard, and then return the buffers.
        let until = now + LONGEST_DRAIN;
        while !dispatch.is_quiet() && self.clock.now() < until {
            dispatch.collect(&mut self.pool, &mut self.chain, now);
            std::thread::yield_now();
        }
    }

    /// Returns `true` if received packets, if any, have to go through the dispatcher: packets wait here or on auxiliary
    /// cores, or auxiliary cores are idle and may be released.
    #[inline]
    fn dispatches(&self, received: Received) -> bool {
        let Some(dispatch) = &self.dispatch else {
            return false;
        };
        received.waiting > 0 || !dispatch.is_quiet() || dispatch.has_auxiliary_cores()
    }

    /// Looks up received packets, and those that have arrived meanwhile, and puts them into the local queue or offloads
    /// them. Then processes a batch of the local queue. Returns the end time.
    fn dispatch(&mut self, received: &mut Received, now: Nanos) -> Nanos {
        let Some(dispatch) = &mut self.dispatch else {
            return now;
        };
        let (mut time, mut iteration) = (now, Iteration::default());
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
                    // Packets that bypass the functions, and those lost for lack of resources.
                    self.queue.complete(&mut self.batch);
                    self.chain.run(&mut self.batch, time);
                    let unsent = self.queue.transmit(&mut self.batch);
                    let sent = self.clock.now();
                    let lost = (since(&self.chain, &mut self.lost), unsent);
                    self.meter.note_sent(&self.batch, packets - gone, lost, [time, sent]);
                }
                self.batch.release(&mut self.pool);
            }
            dispatch.collect(&mut self.pool, &mut self.chain, time);
            if !iteration.receives_again(packets, received.waiting > 0, self.pool.available() > 0) {
                break;
            }
            let before = time;
            time = self.clock.now();
            if let Some(book) = &mut self.book {
                let part = TimedPart::Received;
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
        // Without free buffers nothing more can be received before some packets are processed.
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
                    let part = TimedPart::Processed;
                    book.note_part(part, (packets, more), start, [arrival, began, time]);
                }
                // A turn in which other packets were split gives no per-packet cost.
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
            // No packet was received or processed, but time advances.
            time = self.clock.now();
            self.meter.note_part(time.saturating_sub(now), time);
        }
        self.chain.expire(time);
        time
    }

    /// Runs packets of split flows through the chain's first segments and offloads them to their auxiliary cores.
    /// Returns the end time.
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

    /// Runs the batch, which must not be empty, through the chain, sends it and measures. Returns the end time.
    #[inline]
    fn process(&mut self, received: Nanos, backlog: bool) -> Nanos {
        let packets = self.batch.len();
        let arrival = self.batch.first().map_or(received, |first| first.arrival);
        self.meter.note_batch(&self.batch);
        if backlog {
            // The flows in front matter only in a backlog.
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

/// Packets the chain has lost since `before`, which is updated.
#[inline]
pub(crate) fn since(chain: &Chain, before: &mut u64) -> u64 {
    let lost = chain.lost();
    lost - std::mem::replace(before, lost)
}

/// Cause of a full ring whose worker was running. Either buffered packets of migrating buckets hold all buffers, or
/// auxiliary cores hold most of them, so little can be received. Otherwise the load exceeds the worker's capacity.
fn cause_of_full(pool: &BufferPool, dispatch: Option<&Dispatch>, buckets: &Option<Box<Buckets>>) -> Cause {
    let handed = dispatch.map_or(0, Dispatch::offloaded) as usize;
    if buckets.as_deref().is_some_and(Buckets::no_buffer) {
        Cause::Migration
    } else if 2 * handed > pool.capacity() {
        Cause::Waking
    } else {
        Cause::RingFull
    }
}

/// Receives from the port, and packets buffered for a migrated RSS bucket.
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
