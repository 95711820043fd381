//! Packets that a dispatcher has sent to this core: an auxiliary core, or another dedicated core that helps it.

use super::link::FromDispatcher;
use crate::batches::TimedPart;
use crate::port::PortSender;
use crate::worker::context::{CountedChain, WorkerContext};
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferMemory;
use tailwater_chain::chain::Chain;
use tailwater_chain::parcel::Parcel;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::bucket_of;
use tailwater_policy::core::Unit;

/// Ring from one dispatcher, with batches for its packets.
pub(super) struct Source {
    pub(super) link: FromDispatcher,
    /// Batches by the segment at which the packets continue: the first, unless their flow is split.
    batches: Vec<Batch>,
    /// Parcels on their way from the ring to the batch.
    parcels: Vec<Parcel>,
    /// Unit in which the dispatcher offloads packets.
    unit: Unit,
    /// Batches of lent buckets so far.
    turns: usize,
}

impl Source {
    /// For packets of the dispatcher's memory, in batches of at most `batch`, through a chain with this many segments.
    pub(super) fn new(
        (link, memory): (FromDispatcher, BufferMemory),
        unit: Unit,
        segments: usize,
        batch: usize,
    ) -> Source {
        Source {
            link,
            batches: (0..segments).map(|_| Batch::of_memory(memory.clone(), batch)).collect(),
            parcels: Vec::with_capacity(batch),
            unit,
            turns: 0,
        }
    }

    /// Processes a batch, or discards it if the dispatcher has given up. Returns the times at which this began and
    /// ended, or `None` if there is none.
    #[inline]
    pub(super) fn serve<P: PortSender + ?Sized>(
        &mut self,
        context: &mut WorkerContext<P>,
        chain: &mut CountedChain,
    ) -> Option<[Nanos; 2]> {
        let Source {
            link, batches, parcels, ..
        } = self;
        let waiting = link.parcels.ready(context.config.batch);
        if waiting == 0 {
            return None;
        }
        let now = context.clock.now();
        if link.is_abandoned() {
            self.discard(context, now);
            return Some([now; 2]);
        }
        // Data written by another core are fetched in three waves, each prefetched before it is read: the packets'
        // metadata, then their headers and their flows' state.
        link.parcels.pop_each(context.config.batch, |parcel| {
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
            chain.prefetch_from(from, batch);
        }
        // All packets of a flow enter at the same segment, so the order of the batches does not matter.
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
                chain.borrow(batch);
                // The core that holds the bucket cannot do it now. Each of them has its turn.
                self.turns = self.turns.wrapping_add(1);
                let bucket = bucket_of(batch.packet(self.turns % packets).rss_hash);
                chain.expire_lent(bucket, time);
            }
            let sent = context.pass(chain, batch, packets, time, run);
            let began = std::mem::replace(&mut time, sent);
            // Before the receipts, with which the dispatcher takes the buckets back.
            chain.return_borrowed();
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
        Some([now, time])
    }

    /// Counts a batch as lost.
    #[cold]
    fn discard<P: PortSender + ?Sized>(&mut self, context: &mut WorkerContext<P>, now: Nanos) {
        let Source { link, batches, .. } = self;
        let batch = &mut batches[0];
        link.parcels
            .pop_each(context.config.batch, |parcel| batch.add_parcel(&link.store, parcel));
        context.meter.note_undrained_batch(batch, now);
        link.receipts.push_from(&mut batch.return_buffers());
    }

    /// Counts the packets that the panicked core was processing as lost, and returns their buffers. Later ones will be
    /// discarded.
    pub(super) fn give_back<P: PortSender + ?Sized>(
        &mut self,
        context: &mut WorkerContext<P>,
        chain: &mut CountedChain,
    ) {
        let now = context.clock.now();
        let Source {
            link, batches, parcels, ..
        } = self;
        link.give_up();
        chain.return_borrowed();
        for parcel in parcels.drain(..) {
            batches[0].add_parcel(&link.store, parcel);
        }
        for batch in batches.iter_mut().filter(|batch| batch.in_hand() > 0) {
            // The first batch is the one that was being processed.
            let lost = chain.newly_lost();
            context.meter.note_unfinished(batch, lost, now);
            link.receipts.push_from(&mut batch.return_buffers());
        }
    }
}
