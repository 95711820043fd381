//! RSS buckets that move between dedicated workers: a worker's side.
//!
//! Every bucket has one holder, who alone looks up its flows. A move goes so:
//!
//! 1. The [server mapper's thread](super::server) writes the new bucket table, which holds for packets
//!    that arrive from some time on, and tells the old holder that time.
//! 2. The old holder goes on with packets that arrived before. When it has received all of them, and none
//!    of the bucket's flows has a packet in its queue, with a helper or waiting for a store, it sends the bucket's partition
//!    of the flow table through a ring to the new holder.
//! 3. The new holder receives packets that arrived since. Until it has the partition it keeps them back,
//!    in order; then they come first.
//!
//! So packets of a flow never overtake each other, and the flow's state is used by one core at a time:
//! what the old holder and its helpers did happened before it pushed the partition. In a chain without
//! a flow table there is no partition, but the same message keeps order.
//!
//! No two workers can wait for each other for ever, even when packets that are kept back have taken
//! all buffers: of the moves under way take the one with the earliest time. Packets that its old holder
//! keeps back are of moves no earlier, so they arrived after that time, and all that arrived before
//! them has been received; what is left to do needs no more buffers.

use super::dispatch::Dispatch;
use super::load::Account;
use crate::kept::Kept;
use crate::port::{PortQueue, Received};
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_chain::flow_table::Partition;
use tailwater_chain::parcel::{PacketStore, Parcel};
use tailwater_handover::ring::{Consumer, Producer};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::{BUCKETS, bucket_of};

/// What became of moves of buckets, as the workers saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketCounters {
    /// Buckets that came to a new holder.
    pub moved: u64,
    /// Packets kept back because their bucket was on its way.
    pub kept_back: u64,
    /// The longest time from when a new bucket table held until the new holder had the bucket.
    pub longest_move: Nanos,
}

impl BucketCounters {
    pub(crate) fn merge(&mut self, other: &BucketCounters) {
        self.moved += other.moved;
        self.kept_back += other.kept_back;
        self.longest_move = self.longest_move.max(other.longest_move);
    }
}

/// When packets were kept back, by bucket, in its last move. For all workers and helpers: a packet may
/// be processed on any of them. Only the bucket's new holder writes.
#[derive(Debug)]
pub(crate) struct KeptBack(Box<[Span; BUCKETS]>);

/// Nanoseconds on the run's clock. Who reads one of them before and the other after a change puts a late
/// packet down to the wrong cause, at worst.
#[derive(Debug)]
struct Span {
    /// When the first was kept back.
    since: AtomicU64,
    /// When the last one was gone on with; [`u64::MAX`] as long as the bucket is on its way.
    until: AtomicU64,
}

impl Default for KeptBack {
    fn default() -> Self {
        KeptBack(Box::new(std::array::from_fn(|_| Span {
            since: AtomicU64::new(0),
            until: AtomicU64::new(0),
        })))
    }
}

impl KeptBack {
    /// A packet of the bucket is kept back.
    fn keep(&self, bucket: u16, now: Nanos) {
        let span = &self.0[usize::from(bucket)];
        if span.until.load(Ordering::Relaxed) != u64::MAX {
            span.since.store(now.0, Ordering::Relaxed);
            span.until.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// A packet of the bucket, which has arrived, is gone on with.
    fn go_on(&self, bucket: u16, now: Nanos) {
        let span = &self.0[usize::from(bucket)];
        span.until.store(now.0, Ordering::Relaxed);
    }

    /// How long a packet was kept back that arrived at `arrival` and is done with at `sent`.
    pub(crate) fn of(&self, rss_hash: u32, arrival: Nanos, sent: Nanos) -> Nanos {
        let span = &self.0[usize::from(bucket_of(rss_hash))];
        let since = Nanos(span.since.load(Ordering::Relaxed));
        let until = Nanos(span.until.load(Ordering::Relaxed));
        until.min(sent).saturating_sub(since.max(arrival))
    }
}

/// What the server mapper did, for the report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ServerReport {
    /// Times the mapper was asked.
    pub decisions: u64,
    /// Of those, times it moved a bucket.
    pub moves: u64,
    /// Buckets that moved from one dedicated core to another.
    pub buckets_moved: u64,
    /// Packets kept back until their bucket had arrived.
    pub packets_kept_back: u64,
    /// The longest time from when a new bucket table held until the new core had the bucket, in
    /// microseconds.
    pub longest_move_us: f64,
}

/// What all workers and the mapper's thread share.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// Buckets whose move has been decided and that have not arrived.
    on_the_way: AtomicU32,
    /// Some worker has seen the end: nothing moves any more.
    ending: AtomicBool,
}

impl Moves {
    /// Announces moves of so many buckets. `false`, and nothing announced, if the run is ending.
    ///
    /// A worker that sees the end sets the flag and then reads the count; here it is the other way round.
    /// So either this sees the flag, or the worker sees the count and stays until the buckets have moved.
    pub(crate) fn announce(&self, buckets: u32) -> bool {
        self.on_the_way.fetch_add(buckets, Ordering::SeqCst);
        let ending = self.ending.load(Ordering::SeqCst);
        if ending {
            self.withdraw(buckets);
        }
        !ending
    }

    /// So many moves have been done, or will not be.
    pub(crate) fn withdraw(&self, buckets: u32) {
        self.on_the_way.fetch_sub(buckets, Ordering::SeqCst);
    }

    /// Whether nothing is on its way.
    pub(crate) fn is_done(&self) -> bool {
        self.on_the_way.load(Ordering::SeqCst) == 0
    }

    /// Whether nothing will move any more.
    pub(crate) fn is_over(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }
}

/// Tells a bucket's holder to let it go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) bucket: u16,
    /// To which worker.
    pub(crate) to: u16,
    /// Packets that arrive from then on are not the holder's.
    pub(crate) effective: Nanos,
}

/// A bucket on its way.
#[derive(Debug)]
pub(crate) struct Moving {
    bucket: u16,
    /// Its flows; `None` in a chain without a flow table.
    partition: Option<Partition>,
    effective: Nanos,
}

/// Through what buckets and orders go to and from one worker.
#[derive(Debug)]
pub(crate) struct BucketLinks {
    pub(crate) orders: Consumer<Order>,
    /// By worker; none to itself.
    pub(crate) to: Vec<Option<Producer<Moving>>>,
    pub(crate) from: Vec<Consumer<Moving>>,
}

/// The buckets of a worker.
#[derive(Debug)]
pub(crate) struct Buckets {
    held: Box<[bool; BUCKETS]>,
    /// How many.
    holds: usize,
    moves: Arc<Moves>,
    links: BucketLinks,
    /// Buckets that are to leave.
    leaving: Vec<Order>,
    /// Packets of buckets that have not arrived, in order, their buckets as numbers.
    kept_back: Vec<Parcel>,
    /// Packets of buckets that have arrived: to be processed before any that is received.
    next: VecDeque<Parcel>,
    kept: Arc<KeptBack>,
    /// Packets that are kept back left no buffer to receive with.
    no_buffer: bool,
    /// How long a worker without any bucket sleeps at a time.
    rest: Option<Duration>,
    store: PacketStore,
    account: Account,
    counters: BucketCounters,
}

impl Buckets {
    /// For a worker with buffers of `pool` that holds the buckets for which `held` says so.
    pub(crate) fn new(
        held: impl Fn(usize) -> bool,
        pool: &BufferPool,
        (moves, kept): (Arc<Moves>, Arc<KeptBack>),
        links: BucketLinks,
        account: Account,
        rest: Option<Duration>,
    ) -> Buckets {
        let held = Box::new(std::array::from_fn(held));
        Buckets {
            holds: held.iter().filter(|held| **held).count(),
            held,
            kept,
            no_buffer: false,
            rest,
            moves,
            links,
            leaving: Vec::with_capacity(BUCKETS),
            kept_back: Vec::with_capacity(pool.capacity()),
            next: VecDeque::with_capacity(pool.capacity()),
            store: PacketStore::new(pool),
            account,
            counters: BucketCounters::default(),
        }
    }

    /// Fills the batch with what was kept back of buckets that have arrived, then from the port; keeps
    /// back packets of buckets that have not. What was kept back and has not come up counts as waiting.
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
            self.kept.go_on(parcel.number(), now);
            batch.take_in(&self.store, parcel);
        }
        self.no_buffer = !self.kept_back.is_empty() && pool.available() == 0;
        // Should some be left, the batch is full: the port gives nothing that would overtake them.
        let before = batch.len();
        let mut received = queue.receive(now, pool, batch);
        let mut all_held = true;
        for packet in batch.iter().skip(before) {
            all_held &= self.held[self.account.packet(packet.rss_hash)];
        }
        self.account.received(&received, batch.len() - before);
        if !all_held {
            self.keep_back(batch, now);
        }
        received.waiting += self.next.len();
        received
    }

    #[cold]
    fn keep_back(&mut self, batch: &mut Batch, now: Nanos) {
        let (held, kept_back, kept) = (&self.held, &mut self.kept_back, &self.kept);
        let before = kept_back.len();
        batch.send_away(
            &self.store,
            |packet| {
                let bucket = bucket_of(packet.rss_hash);
                (!held[usize::from(bucket)]).then_some(bucket)
            },
            |parcel| {
                kept.keep(parcel.number(), now);
                kept_back.push(parcel);
            },
        );
        self.counters.kept_back += (kept_back.len() - before) as u64;
    }

    /// Whether packets that are kept back left no buffer to receive with.
    #[inline]
    pub(crate) fn no_buffer(&self) -> bool {
        self.no_buffer
    }

    /// How long the worker may sleep: it holds no bucket, and will get none before it is awake again.
    #[inline]
    pub(crate) fn rest(&self) -> Option<Duration> {
        let rest = self.rest.filter(|_| self.holds == 0)?;
        (self.kept_back.is_empty() && self.next.is_empty() && self.moves.is_done()).then_some(rest)
    }

    /// Which packets were kept back, of all workers.
    pub(crate) fn kept(&self) -> Arc<KeptBack> {
        Arc::clone(&self.kept)
    }

    /// Counts a batch that took so long.
    #[inline]
    pub(crate) fn note_batch(&mut self, took: Nanos) {
        self.account.batch(took);
    }

    /// Lets buckets go and takes others over, if any are on their way. For once a turn, when no packet
    /// is in the worker's hands but in the dispatcher's queue.
    #[inline]
    pub(crate) fn turn(
        &mut self,
        now: Nanos,
        queue: &dyn PortQueue,
        chain: &mut Chain,
        dispatch: Option<&Dispatch>,
        kept: Option<&mut Kept>,
    ) {
        let quiet = dispatch.is_none_or(Dispatch::is_quiet);
        self.account.turn(now, quiet);
        // Read again in the next turn: it may as well be old.
        if self.moves.on_the_way.load(Ordering::Relaxed) > 0 {
            self.move_buckets(now, queue, chain, dispatch, kept);
        }
    }

    #[cold]
    fn move_buckets(
        &mut self,
        now: Nanos,
        queue: &dyn PortQueue,
        chain: &mut Chain,
        dispatch: Option<&Dispatch>,
        mut kept: Option<&mut Kept>,
    ) {
        if self.adopt(now, chain)
            && let Some(kept) = &mut kept
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
            held,
            holds,
            ..
        } = self;
        leaving.retain(|order| {
            let Order { bucket, to, effective } = *order;
            let done = received_before >= effective
                && dispatch.is_none_or(|dispatch| dispatch.is_free_of(bucket))
                && kept.as_ref().is_none_or(|kept| kept.is_free_of(chain, bucket))
                && next.iter().all(|parcel| parcel.number() != bucket);
            let Some(Some(to)) = links.to.get_mut(usize::from(to)) else {
                unreachable!("buckets move between workers of the run");
            };
            // In a full ring there will be room in a later turn.
            if !done || to.room(1) == 0 {
                return true;
            }
            held[usize::from(bucket)] = false;
            *holds -= 1;
            if let Some(kept) = &mut kept {
                kept.release(chain, bucket);
            }
            let pushed = to.push(Moving {
                bucket,
                partition: chain.release(bucket),
                effective,
            });
            assert!(pushed.is_ok(), "there was room");
            false
        });
    }

    /// Takes over buckets that have arrived. Whether any had.
    fn adopt(&mut self, now: Nanos, chain: &mut Chain) -> bool {
        let before = self.holds;
        for from in &mut self.links.from {
            while let Some(moving) = from.pop() {
                let bucket = moving.bucket;
                if let Some(partition) = moving.partition {
                    chain.adopt(partition);
                }
                self.held[usize::from(bucket)] = true;
                self.holds += 1;
                let arrived = self.kept_back.extract_if(.., |parcel| parcel.number() == bucket);
                self.next.extend(arrived);
                self.counters.merge(&BucketCounters {
                    moved: 1,
                    kept_back: 0,
                    longest_move: now.saturating_sub(moving.effective),
                });
                self.moves.withdraw(1);
            }
        }
        self.holds > before
    }

    /// Adds what happened since the last call.
    pub(crate) fn report(&mut self, to: &mut BucketCounters) {
        to.merge(&std::mem::take(&mut self.counters));
    }

    /// Whether a worker whose port has ended may go: it keeps nothing back, and nobody waits for a bucket.
    /// From now on nothing else moves.
    pub(crate) fn may_end(&self) -> bool {
        self.moves.ending.store(true, Ordering::SeqCst);
        self.kept_back.is_empty() && self.next.is_empty() && self.moves.is_done()
    }

    /// Takes a batch of what is kept back, to be thrown away. Whether there was any.
    pub(crate) fn take_rest(&mut self, batch: &mut Batch) -> bool {
        let rest = self.next.drain(..).chain(self.kept_back.drain(..));
        self.next = rest.collect();
        while batch.room() > 0
            && let Some(parcel) = self.next.pop_front()
        {
            batch.take_in(&self.store, parcel);
        }
        !batch.is_empty()
    }

    /// Takes over what arrived after the worker's end, so that no flow is forgotten.
    pub(crate) fn finish(mut self, chain: &mut Chain) {
        self.adopt(Nanos::ZERO, chain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_kept_back_until_the_last_one_is_gone_on_with() {
        let kept = KeptBack::default();
        let of = |arrival, sent| kept.of(3, Nanos(arrival), Nanos(sent)).0;
        assert_eq!(of(10, 20), 0, "no move yet");
        kept.keep(3, Nanos(100));
        kept.keep(3, Nanos(130));
        // Before the bucket comes nobody knows for how long.
        assert_eq!([of(90, 150), of(120, 150)], [50, 30]);
        kept.go_on(3, Nanos(180));
        kept.go_on(3, Nanos(200));
        assert_eq!([of(90, 250), of(120, 250), of(200, 250)], [100, 80, 0]);
        kept.keep(3, Nanos(500));
        assert_eq!([of(210, 600), of(550, 600)], [100, 50], "the next move");
        assert_eq!(kept.of(4, Nanos(90), Nanos(600)), Nanos::ZERO);
    }
}
