//! Parts that every worker has, polling or auxiliary: a port to send to, clock, measurement, and a chain whose losses
//! are counted.

use super::config::WorkerConfig;
use crate::batches::{BatchRecord, TimedPart};
use crate::clock::Clock;
use crate::meter::{Counting, Meter};
use crate::port::{PortQueue, PortSender, Received};
use crate::telemetry::WindowSender;
use std::ops::{Deref, DerefMut};
use tailwater_chain::batch::Batch;
use tailwater_chain::chain::{Chain, FunctionTotals};
use tailwater_dispatch::Freshness;
use tailwater_net::Nanos;

/// Chain of a worker, with its loss counter when it was last read.
pub(crate) struct CountedChain {
    chain: Chain,
    lost: u64,
}

impl CountedChain {
    /// Counts losses of `chain` from now on.
    pub(crate) fn new(chain: Chain) -> CountedChain {
        CountedChain {
            lost: chain.lost(),
            chain,
        }
    }

    /// Packets lost since the last call.
    #[inline]
    pub(crate) fn newly_lost(&mut self) -> u64 {
        let lost = self.chain.lost();
        lost - std::mem::replace(&mut self.lost, lost)
    }

    /// Returns the chain.
    pub(crate) fn into_chain(self) -> Chain {
        self.chain
    }
}

impl Deref for CountedChain {
    type Target = Chain;

    #[inline]
    fn deref(&self) -> &Chain {
        &self.chain
    }
}

impl DerefMut for CountedChain {
    #[inline]
    fn deref_mut(&mut self) -> &mut Chain {
        &mut self.chain
    }
}

impl Counting for CountedChain {
    fn count(&self, counts: &mut Vec<u64>) {
        self.chain.count(counts);
    }

    fn count_functions(&self, totals: &mut Vec<FunctionTotals>) {
        self.chain.count_functions(totals);
    }

    fn flows(&self) -> u64 {
        Counting::flows(&self.chain)
    }
}

/// Port, clock and measurement of a worker.
pub(crate) struct WorkerContext<P: ?Sized> {
    pub(crate) port: Box<P>,
    pub(crate) clock: Clock,
    pub(crate) config: WorkerConfig,
    pub(crate) meter: Meter,
    /// Which packets are too late, if the worker may discard them.
    pub(crate) freshness: Option<Freshness>,
    /// Record of batch times, if requested.
    pub(crate) batch_record: Option<Box<BatchRecord>>,
}

/// Context of a worker that polls a port queue.
pub(crate) type QueueContext = WorkerContext<dyn PortQueue>;

impl QueueContext {
    /// Discards packets of those that wait in the port's ring that are too late, where that is cheaper than to receive
    /// them: they could not be in time even if `packets` packets, themselves included, took from now on until they are
    /// sent.
    #[inline]
    pub(crate) fn discard_waiting(&mut self, received: &mut Received, packets: usize, now: Nanos) {
        let Some(freshness) = &mut self.freshness else {
            return;
        };
        let batch = self.config.batch;
        if received.waiting <= batch {
            return;
        }
        let before = freshness.oldest_in_time(now, packets as u32);
        let (meter, mut discarded) = (&mut self.meter, 0);
        self.port.discard_before(before, batch, &mut |arrival, rss_hash| {
            meter.note_arrival(arrival);
            meter.note_too_late(arrival, rss_hash, now);
            discarded += 1;
        });
        freshness.discarded(discarded);
        received.waiting -= discarded;
    }
}

impl<P: PortSender + ?Sized> WorkerContext<P> {
    /// Context without a record of batch times.
    pub(crate) fn new(port: Box<P>, clock: Clock, config: WorkerConfig, telemetry: WindowSender) -> WorkerContext<P> {
        WorkerContext {
            meter: Meter::new(&config, telemetry),
            freshness: config.freshness(),
            port,
            clock,
            config,
            batch_record: None,
        }
    }

    /// Returns how many of the first packets of a batch are discarded before it is processed from `now` on, since they
    /// are too late, and counts them as lost. `is_waiting` is set if other packets wait behind the batch.
    #[inline]
    pub(crate) fn too_late(&mut self, batch: &Batch, is_waiting: bool, now: Nanos) -> usize {
        let Some(freshness) = &mut self.freshness else {
            return 0;
        };
        let arrivals = (0..batch.len()).map(|at| batch.packet(at).arrival);
        let late = freshness.too_late(now, is_waiting, arrivals);
        self.note_too_late(batch, late, now);
        late
    }

    /// Same as [`too_late`](WorkerContext::too_late) for received packets that are to be processed later, while other
    /// packets wait.
    #[inline]
    pub(crate) fn too_late_to_queue(&mut self, batch: &Batch, now: Nanos) -> usize {
        let Some(freshness) = &self.freshness else {
            return 0;
        };
        let late = freshness.too_late_to_queue(now, batch.iter().map(|packet| packet.arrival));
        self.note_too_late(batch, late, now);
        late
    }

    /// Counts the first `late` packets of a batch as lost.
    fn note_too_late(&mut self, batch: &Batch, late: usize, now: Nanos) {
        for (at, packet) in batch.iter().take(late).enumerate() {
            let cause = self.meter.note_too_late(packet.arrival, packet.rss_hash, now);
            if self.meter.keeps_packets() {
                self.meter.keep_too_late(batch, at, cause, now);
            }
        }
    }

    /// Notes that the rest of a batch took from `began` to `sent`, while other packets waited.
    #[inline]
    pub(crate) fn learn(&mut self, packets: usize, began: Nanos, sent: Nanos) {
        if let Some(freshness) = &mut self.freshness {
            freshness.processed(packets, sent.saturating_sub(began));
        }
    }

    /// Runs a batch of `packets` packets through the chain by `run`, which begins at `began`, and sends it. Returns the
    /// end time.
    #[inline]
    pub(crate) fn pass(
        &mut self,
        chain: &mut CountedChain,
        batch: &mut Batch,
        packets: usize,
        began: Nanos,
        run: impl FnOnce(&mut Chain, &mut Batch, Nanos),
    ) -> Nanos {
        self.port.complete(batch);
        run(chain, batch, began);
        self.send(chain, batch, packets, began)
    }

    /// Same as [`pass`](WorkerContext::pass) for packets without RSS hashes, which the chain does not read. Late
    /// packets are attributed by a hash of their flow's key. `backlog` is set if other packets wait.
    #[inline]
    pub(crate) fn pass_unhashed(
        &mut self,
        chain: &mut CountedChain,
        batch: &mut Batch,
        (packets, backlog): (usize, bool),
        began: Nanos,
    ) -> Nanos {
        self.port.complete(batch);
        chain.look_up(batch, began);
        batch.hash_flow_keys();
        if backlog {
            self.meter.note_backlog(batch, began);
        }
        chain.run(batch, began);
        self.send(chain, batch, packets, began)
    }

    /// Sends the rest of `packets` packets that the chain has processed since `began`, and measures, if there were any.
    /// Returns the end time.
    #[inline]
    pub(crate) fn send(&mut self, chain: &mut CountedChain, batch: &mut Batch, packets: usize, began: Nanos) -> Nanos {
        if self.meter.keeps_packets() {
            let now = self.clock.now();
            self.meter.remember(batch, [began, now]);
        }
        let unsent = self.port.transmit(batch);
        let sent = self.clock.now();
        let lost = (chain.newly_lost(), unsent);
        if packets > 0 {
            self.meter.note_sent(batch, packets, lost, [began, sent]);
        }
        sent
    }

    /// Records the times of a part of the work on a batch, if requested: arrival of its first packet, begin and end.
    /// `backlog` is set if other packets were queued behind it.
    #[inline]
    pub(crate) fn record(&mut self, part: TimedPart, (packets, backlog): (usize, bool), times: [Nanos; 3]) {
        if let Some(record) = &mut self.batch_record {
            record.note(part, (packets, backlog), self.config.start, times);
        }
    }

    /// Sends the last window, with the counts of `chain`, and publishes the record of batch times.
    pub(crate) fn finish(self, chain: &impl Counting) {
        if let Some(record) = self.batch_record {
            record.close();
        }
        self.meter.finish(chain);
    }
}
