//! Load statistics that workers publish for the server mapper.
//!
//! The worker counts in its own memory, and adds the counts to a *board* once per epoch. The mapper's thread reads the
//! board at any time. Neither waits for the other. The numbers on a board only grow, and a reader takes differences.
//! Flows are counted without storing them: within an epoch each flow sets one of 64 bits of its bucket, selected by its
//! hash. The number of bits set estimates the number of flows (linear counting), with sufficient accuracy up to some
//! 200 flows per bucket.

use crate::port::Received;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tailwater_measure::durations::{self, QUARTERS};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::{BUCKETS, bucket_of};

/// Bits for a bucket's flows in an epoch.
const BITS: usize = 64;

/// Fixed-point scale of published flow counts.
pub(crate) const FLOW: f64 = 256.0;

/// Published statistics of one worker. Only the worker writes, only the mapper's thread reads. Every number is useful
/// without the others, so no ordering is needed.
#[derive(Debug)]
pub(crate) struct LoadCounters {
    /// Packets received, by bucket.
    pub(crate) packets: Box<[AtomicU64; BUCKETS]>,
    /// Active flows, by bucket: summed over epochs, times [`FLOW`].
    pub(crate) flows: Box<[AtomicU64; BUCKETS]>,
    /// Packets received, and lost because the ring was full.
    pub(crate) received: AtomicU64,
    pub(crate) lost: AtomicU64,
    /// Nanoseconds spent on packets.
    pub(crate) busy: AtomicU64,
    /// Maximum ring fill level since the reader last reset it.
    pub(crate) longest_queue: AtomicU32,
    /// Longest delay of a packet in nanoseconds, since the reader last reset it.
    pub(crate) worst_delay: AtomicU64,
    /// Consecutive epochs in which the worker never drained its packets.
    pub(crate) behind: AtomicU32,
    /// Batches by duration.
    durations: Box<[AtomicU64; QUARTERS]>,
}

impl Default for LoadCounters {
    fn default() -> Self {
        let counts = || Box::new(std::array::from_fn(|_| AtomicU64::new(0)));
        LoadCounters {
            packets: counts(),
            flows: counts(),
            received: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            longest_queue: AtomicU32::new(0),
            worst_delay: AtomicU64::new(0),
            behind: AtomicU32::new(0),
            durations: Box::new(std::array::from_fn(|_| AtomicU64::new(0))),
        }
    }
}

/// Adds to a counter that has no other writer.
#[inline]
fn add(to: &AtomicU64, more: u64) {
    to.store(to.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

/// Batch durations at some time, to take the difference between two times.
#[derive(Clone, Debug)]
pub(crate) struct Durations(Box<[u64; QUARTERS]>);

impl Default for Durations {
    fn default() -> Self {
        Durations(Box::new([0; QUARTERS]))
    }
}

impl Durations {
    /// 99th percentile of the batches since the last call, rounded to a quarter octave. Zero if there are none.
    pub(crate) fn p99(&mut self, board: &LoadCounters) -> Nanos {
        let mut new = [0; QUARTERS];
        for ((new, before), now) in new.iter_mut().zip(&mut *self.0).zip(&*board.durations) {
            let now = now.load(Ordering::Relaxed);
            *new = now - std::mem::replace(before, now);
        }
        durations::p99(new.into_iter())
    }
}

/// Counts of a bucket in the current epoch.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// One bit per flow. Flows may share a bit.
    seen: u64,
    packets: u64,
}

/// Worker's side.
#[derive(Debug)]
pub(crate) struct Account {
    board: Arc<LoadCounters>,
    counts: Box<[Count; BUCKETS]>,
    /// Buckets with packets in the epoch. Entries beyond `count` are arbitrary. The length is the next power of two
    /// that exceeds the number of buckets, so no index needs a check.
    touched: Box<[u16; 2 * BUCKETS]>,
    count: usize,
    /// Estimated flows for a number of bits set, times [`FLOW`].
    flows_of: Box<[u64; BITS + 1]>,
    epoch: Nanos,
    /// End of the epoch.
    next: Nanos,
    received: u64,
    lost: u64,
    busy: Nanos,
    longest_queue: usize,
    worst_delay: Nanos,
    /// Packets in the ring at the last poll.
    waiting: usize,
    /// The worker drained all its packets at some time in the epoch.
    was_through: bool,
    behind: u32,
}

impl Account {
    /// Creates an account that is published on `board` at each end of an epoch.
    pub(crate) fn new(board: Arc<LoadCounters>, epoch: Nanos) -> Account {
        let flows = |bits: usize| {
            // With all bits set the estimate is unbounded. This gives more than with all but one.
            let unset = (BITS as f64 - bits as f64).max(0.5);
            (BITS as f64 * (BITS as f64 / unset).ln() * FLOW) as u64
        };
        Account {
            board,
            counts: Box::new([Count::default(); BUCKETS]),
            touched: Box::new([0; 2 * BUCKETS]),
            count: 0,
            flows_of: Box::new(std::array::from_fn(flows)),
            epoch: epoch.max(Nanos(1)),
            next: Nanos::ZERO,
            received: 0,
            lost: 0,
            busy: Nanos::ZERO,
            longest_queue: 0,
            worst_delay: Nanos::ZERO,
            waiting: 0,
            was_through: false,
            behind: 0,
        }
    }

    /// Counts a received packet. Returns its bucket.
    #[inline]
    pub(crate) fn packet(&mut self, rss_hash: u32) -> usize {
        let bucket = usize::from(bucket_of(rss_hash));
        let count = &mut self.counts[bucket];
        // Each bucket is listed once. Written without a branch, which would be unpredictable.
        self.touched[self.count % (2 * BUCKETS)] = bucket as u16;
        self.count += usize::from(count.seen == 0);
        // The low bits of all flows in a bucket are the same.
        count.seen |= 1 << (rss_hash as usize / BUCKETS % BITS);
        count.packets += 1;
        bucket
    }

    /// Counts the result of a poll.
    #[inline]
    pub(crate) fn received(&mut self, received: &Received, packets: usize) {
        self.received += packets as u64;
        self.lost += received.lost_ring_full;
        self.longest_queue = self.longest_queue.max(received.waiting);
        self.waiting = received.waiting;
    }

    /// Counts a batch processed from `began` to `end`. Its first packet, which has waited longest, arrived at
    /// `arrival`.
    #[inline]
    pub(crate) fn batch(&mut self, [arrival, began, end]: [Nanos; 3]) {
        let took = end.saturating_sub(began);
        self.busy += took;
        self.worst_delay = self.worst_delay.max(end.saturating_sub(arrival));
        add(&self.board.durations[durations::quarter(took)], 1);
    }

    /// Records a turn of the worker's loop. `quiet` is set if no packets wait outside the ring. Publishes at an epoch's
    /// end.
    #[inline]
    pub(crate) fn turn(&mut self, now: Nanos, quiet: bool) {
        self.was_through |= quiet && self.waiting == 0;
        if now >= self.next {
            self.publish(now);
        }
    }

    #[cold]
    fn publish(&mut self, now: Nanos) {
        self.next = now + self.epoch;
        let board = &*self.board;
        for &bucket in &self.touched[..self.count] {
            let bucket = usize::from(bucket);
            let Count { seen, packets } = std::mem::take(&mut self.counts[bucket]);
            add(&board.packets[bucket], packets);
            add(&board.flows[bucket], self.flows_of[seen.count_ones() as usize]);
        }
        self.count = 0;
        add(&board.received, std::mem::take(&mut self.received));
        add(&board.lost, std::mem::take(&mut self.lost));
        add(&board.busy, std::mem::take(&mut self.busy).0);
        let longest = std::mem::take(&mut self.longest_queue);
        board.longest_queue.fetch_max(longest as u32, Ordering::Relaxed);
        let worst = std::mem::take(&mut self.worst_delay);
        board.worst_delay.fetch_max(worst.0, Ordering::Relaxed);
        self.behind = match std::mem::take(&mut self.was_through) {
            true => 0,
            false => self.behind + 1,
        };
        board.behind.store(self.behind, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_and_flows_are_published_by_bucket() {
        let board = Arc::new(LoadCounters::default());
        let mut account = Account::new(Arc::clone(&board), Nanos(100));
        account.turn(Nanos(0), true);
        // Twenty flows of five packets in bucket 3, one of one packet in each other bucket.
        for packet in 0..100u32 {
            let flow = packet % 20;
            assert_eq!(account.packet(flow << 9 | 3), 3);
        }
        for bucket in (0..BUCKETS as u32).filter(|bucket| *bucket != 3) {
            account.packet(bucket);
        }
        let received = Received {
            lost_ring_full: 7,
            waiting: 9,
            ..Received::default()
        };
        account.received(&received, 100 + BUCKETS - 1);
        account.batch([Nanos(10), Nanos(30), Nanos(50)]);
        account.batch([Nanos(45), Nanos(50), Nanos(80)]);
        account.turn(Nanos(99), true);
        assert_eq!(board.received.load(Ordering::Relaxed), 0, "not yet");
        account.turn(Nanos(100), true);
        let packets = |bucket: usize| board.packets[bucket].load(Ordering::Relaxed);
        let flows = |bucket: usize| board.flows[bucket].load(Ordering::Relaxed) as f64 / FLOW;
        assert_eq!((packets(3), packets(4), packets(511)), (100, 1, 1));
        assert!((18.0..30.0).contains(&flows(3)), "{}", flows(3));
        assert!((1.0..1.05).contains(&flows(4)), "{}", flows(4));
        assert_eq!(board.lost.load(Ordering::Relaxed), 7);
        assert_eq!(board.longest_queue.load(Ordering::Relaxed), 9);
        assert_eq!(board.worst_delay.load(Ordering::Relaxed), 40, "with its wait");
        assert_eq!(board.busy.load(Ordering::Relaxed), 50);
        assert_eq!(board.behind.load(Ordering::Relaxed), 1, "nine waited");
        account.turn(Nanos(200), true);
        assert_eq!(packets(3), 100, "nothing is published twice");
        assert_eq!(board.behind.load(Ordering::Relaxed), 2);
        account.received(&Received::default(), 0);
        account.turn(Nanos(300), true);
        assert_eq!(board.behind.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn batches_have_a_99th_percentile() {
        let board = Arc::new(LoadCounters::default());
        let mut account = Account::new(Arc::clone(&board), Nanos(100));
        let mut durations = Durations::default();
        assert_eq!(durations.p99(&board), Nanos::ZERO);
        (0..985).for_each(|_| account.batch([Nanos(500), Nanos(500), Nanos(1500)]));
        (0..15).for_each(|_| account.batch([Nanos(500), Nanos(500), Nanos(50_500)]));
        let p99 = durations.p99(&board).0;
        assert!((50_000..60_000).contains(&p99), "{p99}");
        // Only batches since the last call.
        account.batch([Nanos(500), Nanos(500), Nanos(1500)]);
        let p99 = durations.p99(&board).0;
        assert!((1000..1280).contains(&p99), "{p99}");
    }
}
