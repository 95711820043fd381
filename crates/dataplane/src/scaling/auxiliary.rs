//! Auxiliary worker: sleeps until a dispatcher offloads packets to it, runs them through its instance of the chain, and
//! returns the buffers.
//!
//! It has a loop of its own. A [polling worker](crate::worker::Processing) measures against its port queue: it counts
//! what has arrived and what is lost, sees a gap between turns as preemption, and ends by a deadline after the last
//! arrival. An auxiliary worker has no such queue, is off its core on purpose until a dispatcher wakes it, serves
//! several dispatchers in turn, and ends when all have closed their rings. Both share the context, the run of a batch
//! through the chain with its accounting, and the end of a run.

use super::link::FromDispatcher;
use super::spans::BufferedSpans;
use crate::batches::{BatchRecord, TimedPart};
use crate::clock::Clock;
use crate::panics::run_or_fail;
use crate::port::PortSender;
use crate::telemetry::WindowSender;
use crate::worker::config::WorkerConfig;
use crate::worker::context::{CountedChain, WorkerContext};
use crate::worker::finished::Finished;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferMemory;
use tailwater_chain::chain::Chain;
use tailwater_chain::parcel::Parcel;
use tailwater_handover::park::Sleeper;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::bucket_of;
use tailwater_policy::core::Unit;

/// Maximum sleep time, which bounds the cost of a lost wake-up.
const LONGEST_SLEEP: Duration = Duration::from_millis(10);

/// Ring from one dispatcher, with batches for its packets.
struct Source {
    link: FromDispatcher,
    /// Batches by the segment at which the packets continue: the first, unless their flow is split.
    batches: Vec<Batch>,
    /// Parcels on their way from the ring to the batch.
    parcels: Vec<Parcel>,
}

/// Auxiliary worker's ends of the links: rings from its dispatchers, access to their packets' memory, and the parking
/// handle.
pub(crate) struct AuxiliaryEnds {
    pub(crate) links: Vec<(FromDispatcher, BufferMemory)>,
    pub(crate) sleeper: Sleeper,
    /// Unit in which dispatchers offload packets.
    pub(crate) unit: Unit,
}

/// Auxiliary worker, ready to run on the thread it is moved to.
pub(crate) struct AuxiliaryWorker {
    sources: Vec<Source>,
    chain: CountedChain,
    sleeper: Sleeper,
    unit: Unit,
    /// Batches of lent buckets so far.
    turns: usize,
    context: WorkerContext<dyn PortSender>,
}

impl AuxiliaryWorker {
    /// Creates an auxiliary worker that runs packets from `ends` through `chain` and sends them to `port`.
    pub(crate) fn new(
        ends: AuxiliaryEnds,
        chain: Chain,
        port: Box<dyn PortSender>,
        clock: Clock,
        config: &WorkerConfig,
        telemetry: WindowSender,
    ) -> AuxiliaryWorker {
        let batches = |memory: BufferMemory| {
            let batch = |_| Batch::of_memory(memory.clone(), config.batch);
            (0..chain.segments()).map(batch).collect()
        };
        let source = |(link, memory)| Source {
            link,
            batches: batches(memory),
            parcels: Vec::with_capacity(config.batch),
        };
        AuxiliaryWorker {
            sources: ends.links.into_iter().map(source).collect(),
            sleeper: ends.sleeper,
            unit: ends.unit,
            turns: 0,
            chain: CountedChain::new(chain),
            context: WorkerContext::new(port, clock, config.clone(), telemetry),
        }
    }

    /// Records batch times.
    pub(crate) fn note(&mut self, record: BatchRecord) {
        self.context.batch_record = Some(Box::new(record));
    }

    /// Enables migration of RSS buckets between the dispatchers: sets the record of buffered packets.
    pub(crate) fn set_buffered_spans(&mut self, spans: Arc<BufferedSpans>) {
        self.context.meter.set_buffered_spans(spans);
    }

    /// Runs until every dispatcher has closed its ring. If the worker panics, sets `failed` and returns all packets it
    /// has or still receives unprocessed, counted as lost.
    pub(crate) fn run(mut self, failed: &AtomicBool) -> Finished {
        let died = run_or_fail(|| self.work(), failed);
        if died.is_some() {
            self.give_back();
            self.work();
        }
        self.context.finish(&self.chain);
        Finished {
            chains: vec![self.chain.into_chain()],
            died,
            ..Finished::default()
        }
    }

    fn work(&mut self) {
        loop {
            // In this order: items pushed before a ring was closed are popped.
            let closed = self.sources.iter().all(|source| source.link.parcels.is_closed());
            let mut busy = false;
            for i in 0..self.sources.len() {
                busy |= self.serve(i);
            }
            if busy {
                continue;
            }
            if closed {
                break;
            }
            self.context.meter.idle();
            let parcels = || self.sources.iter().map(|source| &source.link.parcels);
            // One closed ring is no reason to stay awake: the others may stay open for long.
            let ready = || parcels().any(|ring| !ring.is_empty()) || parcels().all(|ring| ring.is_closed());
            self.sources.iter().for_each(|source| source.link.await_call());
            let called = self.sleeper.wait(LONGEST_SLEEP, ready);
            let now = self.context.clock.now();
            // With several dispatchers, the first call is the one that ended the sleep.
            let calls = self.sources.iter().filter_map(|source| source.link.called());
            if called && let Some(first) = calls.min() {
                self.context.meter.woke(now.saturating_sub(first), now);
                self.sources.iter().for_each(|source| source.link.woke(now));
            }
            self.context.meter.roll(now, &self.chain);
        }
    }

    /// Counts packets that the panicked worker was processing as lost. It processes no more.
    fn give_back(&mut self) {
        self.context.meter.on_panic();
        let now = self.context.clock.now();
        for source in &mut self.sources {
            let Source { link, batches, parcels } = source;
            link.give_up();
            for parcel in parcels.drain(..) {
                batches[0].add_parcel(&link.store, parcel);
            }
            for batch in batches.iter_mut().filter(|batch| batch.in_hand() > 0) {
                // The first batch is the one that was being processed.
                let lost = self.chain.newly_lost();
                self.context.meter.note_unfinished(batch, lost, now);
                link.receipts.push_from(&mut batch.return_buffers());
            }
        }
    }

    /// Processes a batch of one dispatcher's packets, if there are any.
    #[inline]
    fn serve(&mut self, i: usize) -> bool {
        let Source { link, batches, parcels } = &mut self.sources[i];
        let waiting = link.parcels.ready(self.context.config.batch);
        if waiting == 0 {
            return false;
        }
        let now = self.context.clock.now();
        if link.is_abandoned() {
            return self.discard(i, now);
        }
        // Data written by another core are fetched in three waves, each prefetched before it is read: the packets'
        // metadata, then their headers and their flows' state.
        link.parcels.pop_each(self.context.config.batch, |parcel| {
            link.store.prefetch(&parcel);
            parcels.push(parcel);
        });
        let popped = parcels.len();
        for parcel in parcels.drain(..) {
            batches[link.store.segment(&parcel)].add_parcel(&link.store, parcel);
        }
        // Packets of lent buckets come without their flows, unless they were split.
        let unit = self.unit;
        let lent = |from: usize| unit == Unit::Bucket && from == 0;
        for (from, batch) in batches.iter().enumerate().filter(|(from, _)| !lent(*from)) {
            self.chain.prefetch_from(from, batch);
        }
        // All packets of a flow enter at the same segment, so the order of the batches does not matter.
        let (context, chain) = (&mut self.context, &mut self.chain);
        let mut time = now;
        for (from, batch) in batches.iter_mut().enumerate() {
            let late = context.too_late(batch, waiting > popped, time);
            if late > 0 {
                link.receipts.push_from(&mut batch.take_first(late));
            }
            let packets = batch.len();
            if packets == 0 {
                continue;
            }
            let arrival = batch.first().map_or(time, |first| first.arrival);
            if waiting > popped {
                context.meter.note_backlog(batch, time);
            }
            let run = |chain: &mut Chain, batch: &mut Batch, began| match lent(from) {
                true => chain.process(batch, began),
                false => chain.run_from(from, batch, began),
            };
            if lent(from) {
                // The core that holds the bucket cannot do it now. Each of them has its turn.
                self.turns = self.turns.wrapping_add(1);
                let bucket = bucket_of(batch.packet(self.turns % packets).rss_hash);
                chain.expire_lent(bucket, time);
            }
            let sent = context.pass(chain, batch, packets, time, run);
            let began = std::mem::replace(&mut time, sent);
            if waiting > popped {
                context.learn(packets, began, sent);
            }
            if from == 0 {
                let times = [arrival, began, sent];
                context.record(TimedPart::Helped, (packets, waiting > popped), times);
            }
            let pushed = link.receipts.push_from(&mut batch.return_buffers());
            assert!(pushed == packets, "a ring to a dispatcher is full");
        }
        context.meter.roll(time, chain);
        true
    }

    /// Counts a batch as lost.
    #[cold]
    fn discard(&mut self, i: usize, now: Nanos) -> bool {
        let Source { link, batches, .. } = &mut self.sources[i];
        let batch = &mut batches[0];
        link.parcels.pop_each(self.context.config.batch, |parcel| {
            batch.add_parcel(&link.store, parcel)
        });
        self.context.meter.note_undrained_batch(batch, now);
        link.receipts.push_from(&mut batch.return_buffers());
        true
    }
}
