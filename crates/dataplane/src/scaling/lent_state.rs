//! External flow state on an auxiliary core: of the RSS buckets that one dispatcher lends it.
//!
//! The auxiliary core has a client of the store for each dispatcher. A lent bucket goes back only when the store has
//! answered all requests about its flows: until then the core withholds the receipt of the bucket's last packet. So the
//! next core's requests come behind those of this one, and no answer is about a bucket that this core does not have.
//! Receipts of earlier packets return at once, with their buffers.

use super::link::FromDispatcher;
use crate::durable::{DurableTurn, DurableWorker, KeeperCounters, ReturnBuffers};
use crate::port::PortSender;
use crate::worker::context::{CountedChain, WorkerContext};
use tailwater_chain::batch::{Batch, MAX_BATCH};
use tailwater_chain::parcel::Receipt;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::{BUCKETS, bucket_of};

/// Numbers that a dispatcher can assign: they have 16 bits.
const NUMBERS: usize = 1 << 16;

/// Receipts of packets of lent buckets.
#[derive(Debug)]
pub(super) struct LentReceipts {
    /// Bucket of each number that the dispatcher has assigned: the same while it has packets of the bucket in the
    /// system.
    buckets: Box<[u16]>,
    /// Last receipt of each bucket that is not free.
    last: Box<[Option<Receipt>]>,
    /// Buckets with a receipt.
    withheld: Vec<u16>,
    /// Receipts to be returned.
    ready: Vec<Receipt>,
}

impl LentReceipts {
    pub(super) fn new() -> LentReceipts {
        LentReceipts {
            buckets: vec![0; NUMBERS].into(),
            last: (0..BUCKETS).map(|_| None).collect(),
            withheld: Vec::with_capacity(BUCKETS),
            ready: Vec::with_capacity(MAX_BATCH * 2),
        }
    }

    /// Notes the buckets of received packets.
    fn note(&mut self, batch: &Batch) {
        for packet in batch.iter() {
            self.buckets[usize::from(packet.number())] = bucket_of(packet.rss_hash);
        }
    }

    /// Withholds the receipt of a packet that is done, and returns the bucket's last one.
    pub(super) fn withhold(&mut self, receipt: Receipt) {
        let bucket = self.buckets[usize::from(receipt.number())];
        match self.last[usize::from(bucket)].replace(receipt) {
            Some(before) => self.ready.push(before),
            None => self.withheld.push(bucket),
        }
    }

    /// Returns the receipts of buckets that are free.
    pub(super) fn return_free(&mut self, is_free: impl Fn(u16) -> bool) {
        let LentReceipts {
            last, withheld, ready, ..
        } = self;
        withheld.retain(|bucket| {
            let goes = is_free(*bucket);
            if goes {
                ready.extend(last[usize::from(*bucket)].take());
            }
            !goes
        });
    }

    /// Returns `true` if the core withholds a receipt of the bucket.
    fn has(&self, bucket: u16) -> bool {
        self.last[usize::from(bucket)].is_some()
    }

    fn push(&mut self, link: &mut FromDispatcher) {
        let (ready, pushed) = (self.ready.len(), link.receipts.push_all(&mut self.ready));
        assert!(pushed == ready, "a ring to a dispatcher is full");
    }
}

impl ReturnBuffers for LentReceipts {
    fn return_all(&mut self, batch: &mut Batch) {
        batch.return_buffers().for_each(|receipt| self.withhold(receipt));
    }
}

/// External flow state of the packets from one dispatcher.
pub(super) struct LentState {
    durable: DurableWorker,
    receipts: LentReceipts,
    /// No packet is processed any more.
    is_over: bool,
}

impl LentState {
    pub(super) fn new(durable: DurableWorker) -> LentState {
        LentState {
            durable,
            receipts: LentReceipts::new(),
            is_over: false,
        }
    }

    /// Returns `true` while buckets or packets wait for the store.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        !self.is_over && (!self.receipts.withheld.is_empty() || !self.durable.is_quiet())
    }

    /// Runs the first part of a turn: packets whose wait is over leave or continue. Returns the end time.
    pub(super) fn resume<P: PortSender + ?Sized>(
        &mut self,
        context: &mut WorkerContext<P>,
        chain: &mut CountedChain,
        now: Nanos,
    ) -> Nanos {
        let (durable, mut turn) = self.turn(context, chain);
        turn.resume(durable, now)
    }

    /// Notes the buckets of packets that have come, before they are processed or taken out of the batch.
    pub(super) fn note(&mut self, batch: &Batch) {
        self.receipts.note(batch);
    }

    /// Returns the first `count` packets of a batch, which are lost.
    pub(super) fn take_first(&mut self, batch: &mut Batch, count: usize) {
        let receipts = &mut self.receipts;
        batch.take_first(count).for_each(|receipt| receipts.withhold(receipt));
    }

    /// Processes a batch. Returns the end time.
    pub(super) fn process<P: PortSender + ?Sized>(
        &mut self,
        context: &mut WorkerContext<P>,
        chain: &mut CountedChain,
        batch: &mut Batch,
        time: Nanos,
    ) -> Nanos {
        let (durable, mut turn) = self.turn(context, chain);
        turn.process(durable, batch, time).0
    }

    /// Runs the last part of a turn. Flows of the bucket `expiring`, of which a packet has come in this turn, may
    /// expire. Returns the end time.
    pub(super) fn end<P: PortSender + ?Sized>(
        &mut self,
        context: &mut WorkerContext<P>,
        chain: &mut CountedChain,
        link: &mut FromDispatcher,
        (expiring, time): (Option<u16>, Nanos),
    ) -> Nanos {
        let (durable, mut turn) = self.turn(context, chain);
        let time = turn.end(durable, time);
        if let Some(bucket) = expiring {
            chain.expire_lent(bucket, time);
        }
        let LentState { durable, receipts, .. } = self;
        durable.send(chain, time, |bucket| receipts.has(bucket));
        receipts.return_free(|bucket| durable.is_free_of(chain, bucket));
        receipts.push(link);
        time
    }

    /// Counts all packets that wait as lost, and returns all receipts: no packet is processed any more.
    #[cold]
    pub(super) fn give_up<P: PortSender + ?Sized>(
        &mut self,
        context: &mut WorkerContext<P>,
        chain: &mut CountedChain,
        link: &mut FromDispatcher,
        now: Nanos,
    ) {
        let LentState {
            durable,
            receipts,
            is_over,
        } = self;
        if std::mem::replace(is_over, true) {
            return;
        }
        if let Some(batch) = durable.in_hand() {
            context.meter.note_unfinished(batch, chain.newly_lost(), now);
            receipts.ready.extend(batch.return_buffers());
        }
        while let Some(batch) = durable.give_up() {
            context.meter.note_undrained_batch(batch, now);
            receipts.ready.extend(batch.return_buffers());
        }
        receipts.return_free(|_| true);
        receipts.push(link);
    }

    /// Results, after the last turn.
    pub(super) fn finish(self, now: Nanos) -> KeeperCounters {
        self.durable.finish(now)
    }

    #[inline]
    fn turn<'t, P: PortSender + ?Sized>(
        &'t mut self,
        context: &'t mut WorkerContext<P>,
        chain: &'t mut CountedChain,
    ) -> (&'t mut DurableWorker, DurableTurn<'t, P, LentReceipts>) {
        let buffers = &mut self.receipts;
        (
            &mut self.durable,
            DurableTurn {
                context,
                chain,
                buffers,
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_chain::buffer::BufferPool;

    /// Packets of buckets 1, 2, 1 and 3, whose numbers are 10, 20, 10 and 30.
    fn receipts(pool: &mut BufferPool) -> (LentReceipts, Batch) {
        let mut batch = Batch::new(pool, 4);
        for bucket in [1, 2, 1, 3] {
            assert!(batch.push(pool, &[0; 20], Nanos::ZERO, bucket));
        }
        let store = tailwater_chain::parcel::PacketStore::new(pool);
        let mut parcels = Vec::new();
        batch.offload(
            &store,
            |packet| Some(10 * packet.rss_hash as u16),
            |parcel| parcels.push(parcel),
        );
        parcels.into_iter().for_each(|parcel| batch.add_parcel(&store, parcel));
        let mut receipts = LentReceipts::new();
        receipts.note(&batch);
        (receipts, batch)
    }

    fn ready(receipts: &mut LentReceipts, pool: &mut BufferPool) -> Vec<u16> {
        let ready = receipts.ready.drain(..);
        let numbers = ready.map(|receipt| {
            let number = receipt.number();
            pool.give(receipt.into_buffer());
            number
        });
        numbers.collect()
    }

    #[test]
    fn the_last_receipt_of_a_bucket_waits_until_the_bucket_is_free() {
        let mut pool = BufferPool::new(4, 64).unwrap();
        let (mut receipts, mut batch) = receipts(&mut pool);
        receipts.return_all(&mut batch);
        // The first packet of bucket 1.
        assert_eq!(ready(&mut receipts, &mut pool), [10]);
        receipts.return_free(|bucket| bucket == 2);
        assert_eq!(ready(&mut receipts, &mut pool), [20]);
        assert!(receipts.has(1) && !receipts.has(2) && receipts.has(3));
        receipts.return_free(|_| false);
        assert_eq!(ready(&mut receipts, &mut pool), [0; 0]);
        receipts.return_free(|_| true);
        assert_eq!(ready(&mut receipts, &mut pool), [10, 30]);
        assert_eq!(pool.available(), 4);
    }
}
