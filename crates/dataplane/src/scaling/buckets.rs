//! Migration of RSS buckets between dedicated workers: a worker's side.
//!
//! Every bucket has one owner, which alone looks up its flows. The steps of a move:
//!
//! 1. The [server mapper's thread](super::server) writes the new bucket table, which applies to packets from some
//!    arrival time on. It sends that time to the old owner.
//! 2. The old owner continues with packets that arrived before. It waits until it has received all of them, and no
//!    packet of the bucket is in its queue, on an auxiliary core or waiting for a store. Then it sends the bucket's
//!    partition of the flow table through a ring to the new owner.
//! 3. The new owner receives packets that arrived since. It buffers them in order until it has the partition, and
//!    processes them first.
//!
//! So packets of a flow never overtake each other, and one core at a time uses the flow's state: the writes of the old
//! owner and its auxiliary cores happened before it pushed the partition. In a chain without a flow table there is no
//! partition, but the same message preserves the order.
//!
//! Two workers cannot deadlock, even when buffered packets have taken all buffers. Consider the pending move with the
//! earliest time. Packets that its old owner buffers belong to moves that are no earlier, so they arrived after that
//! time. All that arrived before them has been received, and the remaining work needs no more buffers.

pub use super::counters::{BucketCounters, ServerReport};

use super::dispatch::Dispatch;
use super::load::Account;
use super::spans::BufferedSpans;
use crate::durable::DurableWorker;
use crate::port::{PortQueue, Received};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_chain::flow_table::Partition;
use tailwater_chain::parcel::{PacketStore, Parcel};
use tailwater_handover::ring::{Consumer, Producer};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::{BUCKETS, bucket_of};

/// State shared by all workers and the mapper's thread.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// Buckets whose move has been decided and that have not arrived.
    pending: AtomicU32,
    /// Set once a worker has reached the end: no further moves.
    ending: AtomicBool,
}

impl Moves {
    /// Announces moves of this number of buckets. Returns `false`, without announcing them, if the run is ending.
    ///
    /// A worker that reaches the end sets the flag and then reads the count. Here the order is reversed. So either this
    /// sees the flag, or the worker sees the count and stays until the buckets have moved.
    pub(crate) fn announce(&self, buckets: u32) -> bool {
        self.pending.fetch_add(buckets, Ordering::SeqCst);
        let ending = self.ending.load(Ordering::SeqCst);
        if ending {
            self.withdraw(buckets);
        }
        !ending
    }

    /// Removes moves that have been completed or cancelled from the count.
    pub(crate) fn withdraw(&self, buckets: u32) {
        self.pending.fetch_sub(buckets, Ordering::SeqCst);
    }

    /// Returns `true` if no bucket is migrating.
    pub(crate) fn is_done(&self) -> bool {
        self.pending.load(Ordering::SeqCst) == 0
    }

    /// Returns `true` if there will be no further moves.
    pub(crate) fn is_over(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }
}

/// Order to a bucket's owner to release it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReleaseOrder {
    pub(crate) bucket: u16,
    /// New owner.
    pub(crate) to: u16,
    /// Arrival time from which packets belong to the new owner.
    pub(crate) effective: Nanos,
}

/// Bucket in transit.
#[derive(Debug)]
pub(crate) struct BucketTransfer {
    bucket: u16,
    /// Its flows, or `None` in a chain without a flow table.
    partition: Option<Partition>,
    effective: Nanos,
}

/// Rings for buckets and orders to and from one worker.
#[derive(Debug)]
pub(crate) struct BucketLinks {
    pub(crate) orders: Consumer<ReleaseOrder>,
    /// Rings by worker. `None` for itself.
    pub(crate) to: Vec<Option<Producer<BucketTransfer>>>,
    pub(crate) from: Vec<Consumer<BucketTransfer>>,
}

/// Buckets of a worker.
#[derive(Debug)]
pub(crate) struct Buckets {
    owned: Box<[bool; BUCKETS]>,
    /// Number of buckets owned.
    owned_count: usize,
    moves: Arc<Moves>,
    links: BucketLinks,
    /// Orders to release buckets that are not carried out yet.
    leaving: Vec<ReleaseOrder>,
    /// Buffered packets of buckets that have not arrived, in order. Their numbers are their buckets.
    buffered: Vec<Parcel>,
    /// Packets of buckets that have arrived, to be processed before newly received ones.
    next: VecDeque<Parcel>,
    spans: Arc<BufferedSpans>,
    /// Buffered packets left no free buffer for reception.
    no_buffer: bool,
    /// Sleep time of a worker without buckets.
    rest: Option<Duration>,
    store: PacketStore,
    account: Account,
    counters: BucketCounters,
}

impl Buckets {
    /// For a worker with buffers of `pool` that owns the buckets for which `held` returns `true`.
    pub(crate) fn new(
        held: impl Fn(usize) -> bool,
        pool: &BufferPool,
        (moves, kept): (Arc<Moves>, Arc<BufferedSpans>),
        links: BucketLinks,
        account: Account,
        rest: Option<Duration>,
    ) -> Buckets {
        let held = Box::new(std::array::from_fn(held));
        Buckets {
            owned_count: held.iter().filter(|held| **held).count(),
            owned: held,
            spans: kept,
            no_buffer: false,
            rest,
            moves,
            links,
            leaving: Vec::with_capacity(BUCKETS),
            buffered: Vec::with_capacity(pool.capacity()),
            next: VecDeque::with_capacity(pool.capacity()),
            store: PacketStore::new(pool),
            account,
            counters: BucketCounters::default(),
        }
    }

    /// Fills the batch with buffered packets of buckets that have arrived, then from the port. Buffers packets of
    /// buckets that have not arrived. Buffered packets that are ready but do not fit count as waiting.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        queue: &mut dyn PortQueue,
        now: Nanos,
        pool: &mut BufferPool,
        batch: &mut Batch,
    ) -> Received {
        while batch.room() > 0
            && let Some(parcel) = self.next.pop_front()
        {
            self.spans.end(parcel.number(), now);
            batch.add_parcel(&self.store, parcel);
        }
        self.no_buffer = !self.buffered.is_empty() && pool.available() == 0;
        // If some are left, the batch is full, so the port cannot add packets that overtake them.
        let before = batch.len();
        let mut received = queue.receive(now, pool, batch);
        let mut all_held = true;
        for packet in batch.iter().skip(before) {
            all_held &= self.owned[self.account.packet(packet.rss_hash)];
        }
        self.account.received(&received, batch.len() - before);
        if !all_held {
            self.buffer(batch, now);
        }
        received.waiting += self.next.len();
        received
    }

    #[cold]
    fn buffer(&mut self, batch: &mut Batch, now: Nanos) {
        let (held, kept_back, kept) = (&self.owned, &mut self.buffered, &self.spans);
        let before = kept_back.len();
        batch.offload(
            &self.store,
            |packet| {
                let bucket = bucket_of(packet.rss_hash);
                (!held[usize::from(bucket)]).then_some(bucket)
            },
            |parcel| {
                kept.start(parcel.number(), now);
                kept_back.push(parcel);
            },
        );
        self.counters.buffered += (kept_back.len() - before) as u64;
    }

    /// Returns `true` if buffered packets left no free buffer for reception.
    #[inline]
    pub(crate) fn no_buffer(&self) -> bool {
        self.no_buffer
    }

    /// Time the worker may sleep, if it owns no bucket and will get none before it is awake again.
    #[inline]
    pub(crate) fn rest(&self) -> Option<Duration> {
        let rest = self.rest.filter(|_| self.owned_count == 0)?;
        (self.buffered.is_empty() && self.next.is_empty() && self.moves.is_done()).then_some(rest)
    }

    /// Returns `true` if this worker owns buckets, none of them is leaving, and no packet waits for one to arrive. One
    /// without buckets leaves its core to other programs.
    pub(crate) fn is_settled(&self) -> bool {
        self.owned_count > 0 && !self.is_leaving() && self.next.is_empty() && self.buffered.is_empty()
    }

    /// Record of buffered packets, shared by all workers.
    pub(crate) fn spans(&self) -> Arc<BufferedSpans> {
        Arc::clone(&self.spans)
    }

    /// Counts a batch: the arrival of its first packet, its start and its end.
    #[inline]
    pub(crate) fn note_batch(&mut self, times: [Nanos; 3]) {
        self.account.batch(times);
    }

    /// Returns `true` if buckets are to be released that are still in use.
    #[inline]
    pub(crate) fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Releases and accepts buckets, if any are migrating. Call it once per turn, when all packets the worker holds are
    /// in the dispatcher's queue.
    #[inline]
    pub(crate) fn turn(
        &mut self,
        now: Nanos,
        queue: &dyn PortQueue,
        chain: &mut Chain,
        dispatch: Option<&Dispatch>,
        durable: Option<&mut DurableWorker>,
    ) {
        let quiet = dispatch.is_none_or(Dispatch::has_no_backlog);
        self.account.turn(now, quiet);
        // A stale value is fine: the next turn reads it again.
        if self.moves.pending.load(Ordering::Relaxed) > 0 {
            self.move_buckets(now, queue, chain, dispatch, durable);
        }
    }

    #[cold]
    fn move_buckets(
        &mut self,
        now: Nanos,
        queue: &dyn PortQueue,
        chain: &mut Chain,
        dispatch: Option<&Dispatch>,
        mut durable: Option<&mut DurableWorker>,
    ) {
        if self.adopt(now, chain)
            && let Some(kept) = &mut durable
        {
            kept.adopt();
        }
        while let Some(order) = self.links.orders.pop() {
            self.leaving.push(order);
        }
        if self.leaving.is_empty() {
            return;
        }
        let received_before = queue.received_before();
        let Buckets {
            leaving,
            next,
            links,
            owned: held,
            owned_count: holds,
            ..
        } = self;
        leaving.retain(|order| {
            let ReleaseOrder { bucket, to, effective } = *order;
            let done = received_before >= effective
                && dispatch.is_none_or(|dispatch| dispatch.is_free_of(bucket))
                && durable.as_ref().is_none_or(|kept| kept.is_free_of(chain, bucket))
                && next.iter().all(|parcel| parcel.number() != bucket);
            let Some(Some(to)) = links.to.get_mut(usize::from(to)) else {
                unreachable!("buckets move between workers of the run");
            };
            // A full ring will have room in a later turn.
            if !done || to.room(1) == 0 {
                return true;
            }
            held[usize::from(bucket)] = false;
            *holds -= 1;
            if let Some(kept) = &mut durable {
                kept.release(chain, bucket);
            }
            let pushed = to.push(BucketTransfer {
                bucket,
                partition: chain.release(bucket),
                effective,
            });
            assert!(pushed.is_ok(), "there was room");
            false
        });
    }

    /// Accepts buckets that have arrived. Returns `true` if there were any.
    fn adopt(&mut self, now: Nanos, chain: &mut Chain) -> bool {
        let before = self.owned_count;
        for from in &mut self.links.from {
            while let Some(moving) = from.pop() {
                let bucket = moving.bucket;
                if let Some(partition) = moving.partition {
                    chain.adopt(partition);
                }
                self.owned[usize::from(bucket)] = true;
                self.owned_count += 1;
                let arrived = self.buffered.extract_if(.., |parcel| parcel.number() == bucket);
                self.next.extend(arrived);
                self.counters.merge(&BucketCounters {
                    moved: 1,
                    buffered: 0,
                    longest_move: now.saturating_sub(moving.effective),
                });
                self.moves.withdraw(1);
            }
        }
        self.owned_count > before
    }

    /// Adds the counts since the last call.
    pub(crate) fn report(&mut self, to: &mut BucketCounters) {
        to.merge(&std::mem::take(&mut self.counters));
    }

    /// Returns `true` if a worker whose port has ended may end: it buffers no packet, and no bucket is in migration.
    /// From now on there are no further moves.
    pub(crate) fn may_end(&self) -> bool {
        self.moves.ending.store(true, Ordering::SeqCst);
        self.buffered.is_empty() && self.next.is_empty() && self.moves.is_done()
    }

    /// Moves buffered packets into the batch, to be discarded. Returns `true` if there were any.
    pub(crate) fn take_rest(&mut self, batch: &mut Batch) -> bool {
        let rest = self.next.drain(..).chain(self.buffered.drain(..));
        self.next = rest.collect();
        while batch.room() > 0
            && let Some(parcel) = self.next.pop_front()
        {
            batch.add_parcel(&self.store, parcel);
        }
        !batch.is_empty()
    }

    /// Accepts buckets that arrived after the worker's end, so no flow is forgotten.
    pub(crate) fn finish(mut self, chain: &mut Chain) {
        self.adopt(Nanos::ZERO, chain);
    }
}
