//! Queue of one chain's packets from a shared port: pollers put packets in, one worker of the chain takes them out, and
//! their buffers go back the same way.
//!
//! A poller and a worker share a pair of rings, which they may use from one thread or from two. The ring to the worker
//! is bounded: what finds it full is lost, as in a NIC's ring, and takes nothing from other chains.

use crate::device::Receiver;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_chain::batch::{Arrived, MAX_BATCH};
use tailwater_chain::buffer::{Buffer, BufferPool};
use tailwater_handover::ring::{Consumer, Producer, ring};
use tailwater_net::Nanos;

/// Packet of a chain, with its arrival time.
#[derive(Debug)]
struct Delivered {
    packet: Arrived,
    arrival: Nanos,
}

// Half a cache line.
const _: () = assert!(size_of::<Delivered>() == 32);

/// Arrival time up to which a poller has delivered all packets, in a cache line pair of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Progress(AtomicU64);

impl Progress {
    /// Declares that all packets that arrived before `time` have been delivered.
    #[inline]
    pub(crate) fn publish(&self, time: Nanos) {
        self.0.store(time.0, Ordering::Release);
    }

    #[inline]
    fn read(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Acquire))
    }
}

/// Poller's end of a chain's queue.
#[derive(Debug)]
pub(crate) struct Outlet {
    to: Producer<Delivered>,
    back: Consumer<Buffer>,
    /// Packets that found the ring full and are not counted at `missed` yet.
    lost: u64,
    /// Where the chain counts packets that never reached it.
    missed: Arc<AtomicU64>,
    /// The chain uses the port's RSS key.
    has_hash: bool,
}

/// Worker's end: the queues from all pollers of the port.
#[derive(Debug)]
pub(crate) struct Inbox {
    from: Vec<From>,
    /// Index of the poller taken from first.
    first: usize,
    taken: Vec<Delivered>,
    arrivals: Vec<Nanos>,
    /// Buffers that each poller's pool began with: a buffer goes back to its own.
    share: u32,
}

/// Queue from one poller.
#[derive(Debug)]
struct From {
    ring: Consumer<Delivered>,
    back: Producer<Buffer>,
    progress: Arc<Progress>,
}

/// Connects one worker, which holds at most `held` buffers, with pollers by rings of `size` packets. `share` is the
/// number of buffers with which each poller's pool began.
pub(crate) fn connect(
    pollers: &[Arc<Progress>],
    (size, held): (usize, usize),
    share: u32,
    missed: &Arc<AtomicU64>,
    has_hash: bool,
) -> (Vec<Outlet>, Inbox) {
    // All buffers that can be here or in a ring, so that a buffer that goes back always finds room: twice, since a
    // poller that delivers to a chain again after a while has yet to take back what came back meanwhile.
    let all = 2 * (pollers.len() * size.next_power_of_two() + held);
    let ends = pollers.iter().map(|progress| {
        let ((to, from), (give, back)) = (ring(size), ring(all));
        let outlet = Outlet {
            to,
            back,
            lost: 0,
            missed: Arc::clone(missed),
            has_hash,
        };
        let from = From {
            ring: from,
            back: give,
            progress: Arc::clone(progress),
        };
        (outlet, from)
    });
    let (outlets, from) = ends.unzip();
    let inbox = Inbox {
        from,
        first: 0,
        taken: Vec::with_capacity(MAX_BATCH),
        arrivals: Vec::new(),
        share,
    };
    (outlets, inbox)
}

impl Outlet {
    /// Passes a packet to the chain, or counts it as lost if the chain's ring is full. Returns `false` if the chain has
    /// ended, and nobody counts the packet.
    #[inline]
    pub(crate) fn deliver(&mut self, packet: Arrived, arrival: Nanos, pool: &mut BufferPool) -> bool {
        // Its worker has panicked, and takes no more packets.
        if self.to.is_closed() {
            pool.give(packet.buffer);
            return false;
        }
        let packet = Arrived {
            hash: packet.hash.filter(|_| self.has_hash),
            ..packet
        };
        pool.dismiss(&packet.buffer);
        if let Err(Delivered { packet, .. }) = self.to.push(Delivered { packet, arrival }) {
            pool.admit(&packet.buffer);
            pool.give(packet.buffer);
            self.lost += 1;
        }
        true
    }

    /// Takes back buffers, and reports losses. Returns the number of packets that are lost because the worker has
    /// ended, and that nobody else counts.
    #[inline]
    pub(crate) fn settle(&mut self, pool: &mut BufferPool) -> u64 {
        while self.back.pop_each(MAX_BATCH, |buffer| {
            pool.admit(&buffer);
            pool.give(buffer);
        }) == MAX_BATCH
        {}
        if self.lost > 0 {
            self.missed.fetch_add(std::mem::take(&mut self.lost), Ordering::Relaxed);
        }
        match self.to.is_closed() {
            false => 0,
            true => self.take_rest(pool),
        }
    }

    /// Takes back what the worker left when it ended.
    #[cold]
    fn take_rest(&mut self, pool: &mut BufferPool) -> u64 {
        let mut rest = self.missed.swap(0, Ordering::Relaxed);
        while let Some(Delivered { packet, .. }) = self.to.take_back() {
            pool.admit(&packet.buffer);
            pool.give(packet.buffer);
            rest += 1;
        }
        rest
    }

    /// Room in the ring, up to `wanted` packets. A worker that has ended takes any number.
    pub(crate) fn room(&mut self, wanted: usize) -> usize {
        match self.to.is_closed() {
            true => wanted,
            false => self.to.room(wanted),
        }
    }

    /// Returns `true` if the worker has ended. What is [settled](Self::settle) after that is the last.
    pub(crate) fn is_over(&self) -> bool {
        self.to.is_closed()
    }
}

impl Inbox {
    /// Sends buffers back to their pollers.
    #[inline]
    fn give_back(&mut self, pool: &mut BufferPool) {
        if let [only] = &mut self.from[..] {
            let mut returned = pool.take_all_returned();
            only.back.push_from(&mut returned);
            debug_assert!(returned.len() == 0, "the ring has room for all buffers");
            return;
        }
        while let Some(buffer) = pool.take_returned() {
            let last = self.from.len() - 1;
            let poller = ((buffer.index() / self.share) as usize).min(last);
            let refused = self.from[poller].back.push(buffer);
            debug_assert!(refused.is_ok(), "the ring has room for all buffers");
        }
    }
}

impl Receiver for Inbox {
    #[inline]
    fn receive(&mut self, pool: &mut BufferPool, most: usize) -> usize {
        self.give_back(pool);
        self.taken.clear();
        let (pollers, most) = (self.from.len(), most.min(MAX_BATCH));
        for i in 0..pollers {
            let ring = &mut self.from[(self.first + i) % pollers].ring;
            let taken = &mut self.taken;
            ring.pop_each(most - taken.len(), |delivered| {
                pool.admit(&delivered.packet.buffer);
                taken.push(delivered);
            });
        }
        self.first = if self.first + 1 < pollers { self.first + 1 } else { 0 };
        self.arrivals.clear();
        self.arrivals
            .extend(self.taken.iter().map(|delivered| delivered.arrival));
        self.taken.len()
    }

    #[inline]
    fn packets(&mut self) -> impl ExactSizeIterator<Item = Arrived> {
        self.taken.drain(..).map(|delivered| delivered.packet)
    }

    #[inline]
    fn arrivals(&mut self, _: [Nanos; 2], into: &mut Vec<Nanos>) -> bool {
        // The port's own times, or bounds of them.
        std::mem::swap(&mut self.arrivals, into);
        true
    }

    fn ring(&self) -> usize {
        self.from.iter().map(|from| from.ring.size()).sum()
    }

    #[inline]
    fn complete_until(&self, now: Nanos) -> Nanos {
        let times = self.from.iter().map(|from| from.progress.read());
        times.min().unwrap_or(now).min(now)
    }

    fn discard(&mut self, lost: &mut dyn FnMut(Nanos, u32)) -> u64 {
        let (share, last, mut count) = (self.share, self.from.len() - 1, 0);
        for poller in 0..self.from.len() {
            while let Some(Delivered { packet, arrival }) = self.from[poller].ring.pop() {
                lost(arrival, packet.hash.unwrap_or(0));
                count += 1;
                let owner = ((packet.buffer.index() / share) as usize).min(last);
                let refused = self.from[owner].back.push(packet.buffer);
                debug_assert!(refused.is_ok(), "the ring has room for all buffers");
            }
        }
        count
    }

    fn reclaim(&mut self, pool: &mut BufferPool) {
        self.give_back(pool);
    }
}

#[cfg(test)]
mod tests;
