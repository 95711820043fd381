//! Workers of a device among each other: packets whose RSS bucket is another worker's are handed over.

use crate::reta::{RetaHistory, RetaView};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_chain::batch::{Arrived, Batch};
use tailwater_chain::buffer::BufferPool;
use tailwater_handover::ring::{Consumer, Producer, ring};
use tailwater_net::Nanos;

/// A packet on its way to the worker that has its bucket.
#[derive(Debug)]
pub(super) struct Handed {
    packet: Arrived,
    /// By which it is this worker's.
    arrival: Nanos,
    rss_hash: u32,
    /// How much later it came, in nanoseconds, as its device says.
    later: u32,
}

// As large as it would be without the last field.
const _: () = assert!(size_of::<Handed>() == 40);

impl Handed {
    /// A packet that arrived at `time`, and is whose it is at `arrival`, before that.
    #[inline]
    pub(super) fn new(packet: Arrived, arrival: Nanos, time: Nanos, rss_hash: u32) -> Handed {
        let later = time.saturating_sub(arrival).0;
        Handed {
            packet,
            arrival,
            rss_hash,
            later: u32::try_from(later).unwrap_or(u32::MAX),
        }
    }

    /// When it arrived.
    #[inline]
    fn time(&self) -> Nanos {
        self.arrival + Nanos(u64::from(self.later))
    }
}

/// Up to which arrival time a worker has handed over what is others'. On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Progress(AtomicU64);

/// What one other worker hands over.
#[derive(Debug)]
struct From {
    worker: usize,
    ring: Consumer<Handed>,
    /// The one to be taken next.
    next: Option<Handed>,
    /// How many were ever taken, there at the snapshot, and may be taken.
    taken: u64,
    seen: u64,
    released: u64,
    /// Up to which arrival time everything was taken when nothing was there.
    complete: Nanos,
}

impl From {
    fn there(&mut self) -> u64 {
        let size = self.ring.size();
        u64::from(self.next.is_some()) + self.ring.ready(size + 1) as u64
    }
}

/// A worker's ends of the rings to and from all others.
#[derive(Debug)]
pub(super) struct Among {
    me: usize,
    reta: RetaView,
    /// By worker; none to itself.
    to: Vec<Option<Producer<Handed>>>,
    from: Vec<From>,
    /// Whose turn it is to be taken from first.
    first: usize,
    progress: Arc<[Progress]>,
}

/// Connects so many workers with each other, by rings for so many packets; nothing for one alone.
pub(super) fn connect(workers: u16, size: usize, history: &Arc<RetaHistory>) -> Vec<Option<Box<Among>>> {
    if workers == 1 {
        return vec![None];
    }
    let workers = usize::from(workers);
    let progress: Arc<[Progress]> = (0..workers).map(|_| Progress::default()).collect();
    let mut among: Vec<Box<Among>> = (0..workers)
        .map(|me| {
            Box::new(Among {
                me,
                reta: RetaView::new(Arc::clone(history)),
                to: Vec::with_capacity(workers),
                from: Vec::with_capacity(workers),
                first: 0,
                progress: Arc::clone(&progress),
            })
        })
        .collect();
    for from in 0..workers {
        for to in 0..workers {
            let ends = (from != to).then(|| ring(size));
            let (producer, consumer) = ends.unzip();
            among[from].to.push(producer);
            among[to].from.extend(consumer.map(|ring| From {
                worker: from,
                ring,
                next: None,
                taken: 0,
                seen: 0,
                released: 0,
                complete: Nanos::ZERO,
            }));
        }
    }
    among.into_iter().map(Some).collect()
}

impl Among {
    /// Learns of new bucket tables.
    #[inline]
    pub(super) fn refresh(&mut self, now: Nanos) {
        self.reta.refresh(now);
    }

    /// Gives the packet back if its bucket is the worker's own; else hands it over, or has lost it.
    #[inline]
    pub(super) fn sort(
        &mut self,
        handed: Handed,
        bucket: u16,
        pool: &mut BufferPool,
        lost: &mut u64,
    ) -> Option<Arrived> {
        let owner = usize::from(self.reta.queue_of(bucket, handed.arrival));
        let Some(Some(to)) = self.to.get_mut(owner) else {
            debug_assert!(owner == self.me);
            return Some(handed.packet);
        };
        pool.dismiss(&handed.packet.buffer);
        // A worker that has gone takes nothing any more.
        let refused = match to.is_closed() {
            true => Some(handed),
            false => to.push(handed).err(),
        };
        if let Some(Handed { packet, .. }) = refused {
            pool.admit(&packet.buffer);
            pool.give(packet.buffer);
            *lost += 1;
        }
        None
    }

    /// Notes what is there.
    #[inline]
    pub(super) fn look(&mut self) {
        for from in &mut self.from {
            from.seen = from.taken + from.there();
        }
    }

    /// What was there when [`look`](Among::look) was called may be taken.
    #[inline]
    pub(super) fn release(&mut self) {
        for from in &mut self.from {
            from.released = from.seen;
        }
    }

    /// Everything that arrived before then, as this worker sees it, has been handed over.
    #[inline]
    pub(super) fn publish(&self, time: Nanos) {
        self.progress[self.me].0.store(time.0, Ordering::Release);
    }

    /// Takes what may be taken: `all` that the batch has room for, or as much as fills half of it. Returns how
    /// many packets are left.
    #[inline]
    pub(super) fn take(&mut self, pool: &mut BufferPool, batch: &mut Batch, all: bool) -> usize {
        let room = batch.room();
        let mut most = if all { room } else { room.div_ceil(2) }.min(pool.available());
        let (others, first) = (self.from.len(), self.first);
        let mut left = 0;
        for i in 0..others {
            let from = &mut self.from[(first + i) % others];
            while most > 0 && from.taken < from.released {
                let Some(handed) = from.next.take().or_else(|| from.ring.pop()) else {
                    break;
                };
                let time = handed.time();
                let Handed { packet, rss_hash, .. } = handed;
                pool.admit(&packet.buffer);
                batch.receive(packet, time, rss_hash);
                from.taken += 1;
                most -= 1;
            }
            left += (from.released - from.taken) as usize;
        }
        self.first = (first + 1) % others;
        left
    }

    /// Finds out what comes next of each worker.
    #[inline]
    pub(super) fn peek(&mut self) {
        for from in &mut self.from {
            if from.next.is_none() {
                // In this order: what was handed over before the time was published is there.
                let progress = self.progress[from.worker].0.load(Ordering::Acquire);
                from.next = from.ring.pop();
                if from.next.is_none() {
                    from.complete = Nanos(progress);
                }
            }
        }
    }

    /// How many packets are there that were not taken.
    pub(super) fn waiting(&mut self) -> usize {
        self.from.iter_mut().map(|from| from.there() as usize).sum()
    }

    /// Whether all others have handed over their last.
    pub(super) fn all_ended(&self) -> bool {
        let mut others = self.from.iter();
        others.all(|from| self.progress[from.worker].0.load(Ordering::Acquire) == u64::MAX)
    }

    /// Everything that arrived before then, as the others see it, has been taken.
    pub(super) fn received_before(&self) -> Nanos {
        let times = self.from.iter().map(|from| match &from.next {
            Some(next) => next.arrival,
            None => from.complete,
        });
        times.min().unwrap_or(Nanos::MAX)
    }

    /// Takes everything that is there, to be lost.
    pub(super) fn discard(&mut self, lost: &mut dyn FnMut(Nanos, u32)) {
        for from in &mut self.from {
            while let Some(handed) = from.next.take().or_else(|| from.ring.pop()) {
                lost(handed.time(), handed.rss_hash);
            }
        }
    }
}
