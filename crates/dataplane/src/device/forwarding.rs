//! Forwarding rings between a device's workers, for packets whose RSS bucket belongs to another worker.

use crate::reta::{RetaHistory, RetaView};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_chain::batch::{Arrived, Batch};
use tailwater_chain::buffer::BufferPool;
use tailwater_handover::ring::{Consumer, Producer, ring};
use tailwater_net::Nanos;

/// Packet being forwarded to the worker that owns its bucket.
#[derive(Debug)]
pub(super) struct ForwardedPacket {
    packet: Arrived,
    /// Arrival time that determines the owner.
    arrival: Nanos,
    rss_hash: u32,
    /// Time between that and the device's timestamp, in nanoseconds.
    later: u32,
}

// The last field fits into padding.
const _: () = assert!(size_of::<ForwardedPacket>() == 40);

impl ForwardedPacket {
    /// A packet with device timestamp `time`. `arrival`, which is not later, determines the owner.
    #[inline]
    pub(super) fn new(packet: Arrived, arrival: Nanos, time: Nanos, rss_hash: u32) -> ForwardedPacket {
        let later = time.saturating_sub(arrival).0;
        ForwardedPacket {
            packet,
            arrival,
            rss_hash,
            later: u32::try_from(later).unwrap_or(u32::MAX),
        }
    }

    /// Arrival time by the device's timestamp.
    #[inline]
    fn time(&self) -> Nanos {
        self.arrival + Nanos(u64::from(self.later))
    }
}

/// Arrival time up to which a worker has forwarded all packets of others. Padded to its own cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Progress(AtomicU64);

/// Receiving end of the ring from one other worker.
#[derive(Debug)]
struct From {
    worker: usize,
    ring: Consumer<ForwardedPacket>,
    /// Next packet, popped ahead.
    next: Option<ForwardedPacket>,
    /// Packets ever taken. `seen` counts those present at the snapshot, `released` those that may be taken.
    taken: u64,
    seen: u64,
    released: u64,
    /// Arrival time up to which all packets have been taken, as of the last time the ring was empty.
    complete: Nanos,
}

impl From {
    fn there(&mut self) -> u64 {
        let size = self.ring.size();
        u64::from(self.next.is_some()) + self.ring.ready(size + 1) as u64
    }
}

/// One worker's ends of the rings to and from all others.
#[derive(Debug)]
pub(super) struct ForwardingRings {
    me: usize,
    reta: RetaView,
    /// Rings by worker. `None` for itself.
    to: Vec<Option<Producer<ForwardedPacket>>>,
    from: Vec<From>,
    /// Index of the worker taken from first.
    first: usize,
    progress: Arc<[Progress]>,
}

/// Connects `workers` workers with each other, through rings of `size` packets. A single worker gets `None`.
pub(super) fn connect(workers: u16, size: usize, history: &Arc<RetaHistory>) -> Vec<Option<Box<ForwardingRings>>> {
    if workers == 1 {
        return vec![None];
    }
    let workers = usize::from(workers);
    let progress: Arc<[Progress]> = (0..workers).map(|_| Progress::default()).collect();
    let mut among: Vec<Box<ForwardingRings>> = (0..workers)
        .map(|me| {
            Box::new(ForwardingRings {
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

impl ForwardingRings {
    /// Reads updates of the bucket table.
    #[inline]
    pub(super) fn refresh(&mut self, now: Nanos) {
        self.reta.refresh(now);
    }

    /// Returns the packet if its bucket is the worker's own. Otherwise forwards it, or counts it as lost if the ring is
    /// full.
    #[inline]
    pub(super) fn sort(
        &mut self,
        handed: ForwardedPacket,
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
        // A worker that has ended takes no more packets.
        let refused = match to.is_closed() {
            true => Some(handed),
            false => to.push(handed).err(),
        };
        if let Some(ForwardedPacket { packet, .. }) = refused {
            pool.admit(&packet.buffer);
            pool.give(packet.buffer);
            *lost += 1;
        }
        None
    }

    /// Takes a snapshot of the packets present.
    #[inline]
    pub(super) fn snapshot(&mut self) {
        for from in &mut self.from {
            from.seen = from.taken + from.there();
        }
    }

    /// Permits taking the packets present at the last call of [`snapshot`](ForwardingRings::snapshot).
    #[inline]
    pub(super) fn release(&mut self) {
        for from in &mut self.from {
            from.released = from.seen;
        }
    }

    /// Declares that all packets that arrived before `time`, as this worker sees it, have been forwarded.
    #[inline]
    pub(super) fn publish(&self, time: Nanos) {
        self.progress[self.me].0.store(time.0, Ordering::Release);
    }

    /// Takes released packets: up to the batch's room if `all` is set, or half of it otherwise. Returns the number of
    /// released packets left.
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
                let ForwardedPacket { packet, rss_hash, .. } = handed;
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

    /// Pops the next packet of each worker ahead.
    #[inline]
    pub(super) fn peek(&mut self) {
        for from in &mut self.from {
            if from.next.is_none() {
                // In this order: packets forwarded before the time was published are visible.
                let progress = self.progress[from.worker].0.load(Ordering::Acquire);
                from.next = from.ring.pop();
                if from.next.is_none() {
                    from.complete = Nanos(progress);
                }
            }
        }
    }

    /// Number of packets present and not taken.
    pub(super) fn waiting(&mut self) -> usize {
        self.from.iter_mut().map(|from| from.there() as usize).sum()
    }

    /// Returns `true` if all others have forwarded their last packet.
    pub(super) fn all_ended(&self) -> bool {
        let mut others = self.from.iter();
        others.all(|from| self.progress[from.worker].0.load(Ordering::Acquire) == u64::MAX)
    }

    /// Time before which all packets, as the others see it, have been taken.
    pub(super) fn received_before(&self) -> Nanos {
        let times = self.from.iter().map(|from| match &from.next {
            Some(next) => next.arrival,
            None => from.complete,
        });
        times.min().unwrap_or(Nanos::MAX)
    }

    /// Discards all packets present.
    pub(super) fn discard(&mut self, lost: &mut dyn FnMut(Nanos, u32)) {
        for from in &mut self.from {
            while let Some(handed) = from.next.take().or_else(|| from.ring.pop()) {
                lost(handed.time(), handed.rss_hash);
            }
        }
    }
}
