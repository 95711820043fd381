//! Queue of one chain's packets from a shared port: pollers put packets in, one worker of the chain takes them out, and
//! their buffers go back the same way.
//!
//! A poller and a worker share a pair of rings, which they may use from one thread or from two. The ring to the worker
//! is bounded: what finds it full is lost, as in a NIC's ring, and takes nothing from other chains. Packets for a chain
//! with one worker pass in [lists](super::lists), within the same bound.

use super::lists::{self, List, ListConsumer, ListProducer};
use crate::device::Receiver;
use crate::kept_packets::RingKeeper;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_chain::batch::{Arrived, Batch, MAX_BATCH};
use tailwater_chain::buffer::{Buffer, BufferMemory, BufferPool};
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
    /// Lists to the worker, if all of the chain's packets are its own and need no other hash.
    lists: Option<ListProducer>,
    /// Single packets passed on since the beginning, modulo 2^64.
    singles: usize,
    /// Packets that found the ring full and are not counted at `missed` yet.
    lost: u64,
    /// Where the chain counts packets that never reached it.
    missed: Arc<AtomicU64>,
    /// Keeps packets that find the ring full, if the chain's are kept.
    keeper: Option<Box<RingKeeper>>,
    /// The chain uses the port's RSS key.
    has_hash: bool,
}

/// Worker's end: the queues from all pollers of the port.
#[derive(Debug)]
pub(crate) struct Inbox {
    from: Vec<From>,
    /// Index of the poller taken from first, and from which the next packet is taken.
    first: usize,
    next: usize,
    /// Packets that were promised, and not taken yet.
    promised: usize,
    /// Buffers that each poller's pool began with: a buffer goes back to its own.
    share: u32,
}

/// Queue from one poller.
#[derive(Debug)]
struct From {
    ring: Consumer<Delivered>,
    back: Producer<Buffer>,
    lists: Option<ListConsumer>,
    /// Single packets taken since the beginning, modulo 2^64.
    singles: usize,
    progress: Arc<Progress>,
    /// Packets of this ring that were promised, and not taken yet.
    promised: usize,
}

/// Connects one worker, which holds at most `held` buffers, with pollers by rings of `size` packets. `share` is the
/// number of buffers of `memory` with which each poller's pool began. `has_hash`: it uses the port's RSS key. `alone`:
/// its chain has no other worker.
pub(crate) fn connect(
    pollers: &[Arc<Progress>],
    (size, held): (usize, usize),
    (memory, share): (&BufferMemory, u32),
    missed: &Arc<AtomicU64>,
    (has_hash, alone): (bool, bool),
) -> (Vec<Outlet>, Inbox) {
    // All buffers that can be here or in a ring, so that a buffer that goes back always finds room: twice, since a
    // poller that delivers to a chain again after a while has yet to take back what came back meanwhile.
    let all = 2 * (pollers.len() * size.next_power_of_two() + held);
    let ends = pollers.iter().map(|progress| {
        let ((to, from), (give, back)) = (ring(size), ring(all));
        let (lists, of_lists) = (has_hash && alone).then(|| lists::connect(memory)).unzip();
        let outlet = Outlet {
            to,
            back,
            lists,
            singles: 0,
            lost: 0,
            missed: Arc::clone(missed),
            keeper: None,
            has_hash,
        };
        let from = From {
            ring: from,
            back: give,
            lists: of_lists,
            singles: 0,
            progress: Arc::clone(progress),
            promised: 0,
        };
        (outlet, from)
    });
    let (outlets, from) = ends.unzip();
    let inbox = Inbox {
        from,
        first: 0,
        next: 0,
        promised: 0,
        share,
    };
    (outlets, inbox)
}

impl Outlet {
    /// Keeps packets that find the ring full.
    pub(crate) fn keep_lost(&mut self, keeper: RingKeeper) {
        self.keeper = Some(Box::new(keeper));
    }

    /// Passes the packets at these places of the batch to the chain, and counts those that find its ring full as lost.
    /// Returns `false` if the chain has ended, and nobody counts the packets.
    #[inline]
    pub(crate) fn deliver(&mut self, batch: &mut Batch, places: &[u8], pool: &mut BufferPool) -> bool {
        // Its worker has panicked, and takes no more packets.
        if self.to.is_closed() {
            places
                .iter()
                .for_each(|place| pool.give(batch.move_out(*place).0.buffer));
            return false;
        }
        let mut rest = places;
        while !rest.is_empty()
            && let Some(mut list) = self.take_spare(1, pool)
        {
            let most = rest.len().min(list.room());
            let (first, others) = rest.split_at(self.free(most).min(most));
            batch.append_to(&mut list, first);
            pool.dismiss_all(first.len());
            if let Some(lists) = &mut self.lists {
                lists.send(list, self.singles);
            }
            rest = others;
        }
        if !rest.is_empty() {
            self.deliver_singly(batch, rest, pool);
        }
        true
    }

    /// Passes packets on in the ring.
    fn deliver_singly(&mut self, batch: &mut Batch, places: &[u8], pool: &mut BufferPool) {
        let (free, mut delivered) = (self.free(places.len()), 0);
        for place in places {
            if delivered >= free {
                self.lose(batch, *place, pool);
                continue;
            }
            let (packet, arrival) = batch.move_out(*place);
            let packet = Arrived {
                hash: packet.hash.filter(|_| self.has_hash),
                ..packet
            };
            let refused = self.to.put(Delivered { packet, arrival });
            debug_assert!(refused.is_ok(), "there is room");
            delivered += 1;
        }
        self.singles = self.singles.wrapping_add(delivered);
        pool.dismiss_all(delivered);
        self.to.flush();
    }

    /// Counts a packet that finds the ring full, and keeps it if such packets are kept.
    #[cold]
    fn lose(&mut self, batch: &mut Batch, place: u8, pool: &mut BufferPool) {
        if let Some(keeper) = &mut self.keeper {
            let at = usize::from(place);
            keeper.lost(batch.packet(at).arrival, batch.frame(at));
        }
        pool.give(batch.move_out(place).0.buffer);
        self.lost += 1;
    }

    /// Counts packets that the port lost, and that could only be the chain's, as found its ring full. Returns `false`
    /// if the chain has ended.
    #[cold]
    pub(crate) fn lose_unreceived(&mut self, packets: u64) -> bool {
        let has_ended = self.to.is_closed();
        self.lost += if has_ended { 0 } else { packets };
        !has_ended
    }

    /// Takes an empty list, if there is one and so many further packets may wait for the worker.
    #[inline]
    fn take_spare(&mut self, wanted: usize, pool: &mut BufferPool) -> Option<List> {
        if self.free(wanted) < wanted || self.lists.as_ref().is_some_and(ListProducer::is_exhausted) {
            // Those that have come back since the last time.
            self.lists.as_mut()?.settle(pool);
            if self.free(wanted) < wanted {
                return None;
            }
        }
        self.lists.as_mut()?.take_spare()
    }

    /// Passes all packets of a batch to the chain, as a list. Returns `false`, and does nothing, if they have to be
    /// [delivered](Self::deliver) one by one.
    #[inline]
    pub(crate) fn deliver_all(&mut self, batch: &mut Batch, pool: &mut BufferPool) -> bool {
        let count = batch.len();
        if self.lists.is_none() || self.to.is_closed() {
            return false;
        }
        let Some(mut list) = self.take_spare(count, pool) else {
            return false;
        };
        let Some(lists) = &mut self.lists else {
            return false;
        };
        let moved = batch.move_to(&mut list);
        if moved {
            pool.dismiss_all(count);
            lists.send(list, self.singles);
        } else {
            lists.put_back(list);
        }
        moved
    }

    /// Packets in lists that have not come back.
    #[inline]
    fn on_the_way(&self) -> usize {
        self.lists.as_ref().map_or(0, ListProducer::on_the_way)
    }

    /// Number of further packets that may wait for the worker. Reads its counter only if `wanted` seem to be too many.
    #[inline]
    fn free(&mut self, wanted: usize) -> usize {
        let others = self.on_the_way();
        self.to.room(others + wanted).saturating_sub(others)
    }

    /// Takes back buffers and lists, and reports losses. Returns the number of packets that are lost because the worker
    /// has ended, and that nobody else counts.
    #[inline]
    pub(crate) fn settle(&mut self, pool: &mut BufferPool) -> u64 {
        if let Some(lists) = &mut self.lists {
            lists.settle(pool);
        }
        loop {
            let ready = self.back.ready(MAX_BATCH);
            pool.admit_all(ready);
            self.back.pop_each(ready, |buffer| pool.give(buffer));
            if ready < MAX_BATCH {
                break;
            }
        }
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
        let mut take = |buffer: Buffer| {
            pool.admit(&buffer);
            pool.give(buffer);
            rest += 1;
        };
        while let Some(Delivered { packet, .. }) = self.to.take_back() {
            take(packet.buffer);
        }
        while let Some(lists) = &mut self.lists
            && let Some(mut list) = lists.take_back()
        {
            while let Some((packet, _)) = list.take() {
                take(packet.buffer);
            }
            list.clear_taken();
            lists.put_back(list);
        }
        rest
    }

    /// Room in the ring, up to `wanted` packets. A worker that has ended takes any number.
    pub(crate) fn room(&mut self, wanted: usize) -> usize {
        match self.to.is_closed() {
            true => wanted,
            false => self.free(wanted),
        }
    }

    /// Returns `true` if the worker has ended. What is [settled](Self::settle) after that is the last.
    pub(crate) fn is_over(&self) -> bool {
        self.to.is_closed()
    }
}

impl From {
    /// Promises up to `most` packets, which are taken singly.
    #[inline]
    fn promise(&mut self, most: usize) -> usize {
        let ready = self.ring.ready(most);
        let Some(lists) = &mut self.lists else {
            return ready.min(most);
        };
        // Singles first: a list that was sent before one of them is seen now.
        if lists.opened().is_none() {
            let before = lists.singles_before(self.singles, ready).min(most);
            self.singles = self.singles.wrapping_add(before);
            if before > 0 {
                return before;
            }
        }
        lists.open(self.singles).min(most)
    }

    /// Returns `true` if a packet waits that is taken singly, in front of any list.
    #[inline]
    fn singles_are_next(&mut self) -> bool {
        let Some(lists) = &mut self.lists else {
            return false;
        };
        lists.next(self.singles).is_none() && (lists.is_waiting() || !self.ring.is_empty())
    }

    /// Takes one packet.
    fn pop(&mut self) -> Option<(Arrived, Nanos)> {
        if self.promise(1) == 0 {
            return None;
        }
        let Some(list) = self.lists.as_mut().and_then(ListConsumer::opened) else {
            let Delivered { packet, arrival } = self.ring.pop()?;
            return Some((packet, arrival));
        };
        let packet = list.take();
        self.lists.iter_mut().for_each(ListConsumer::close_taken);
        packet
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

/// Packets that were promised. Their slots go back to the pollers at its end.
struct Promised<'i>(&'i mut Inbox);

impl Iterator for Promised<'_> {
    /// With the port's own arrival time, or a bound of it.
    type Item = (Arrived, Option<Nanos>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let Inbox {
            from, next, promised, ..
        } = &mut *self.0;
        if *promised == 0 {
            return None;
        }
        while from[*next].promised == 0 {
            *next = if *next + 1 < from.len() { *next + 1 } else { 0 };
        }
        let from = &mut from[*next];
        *promised -= 1;
        from.promised -= 1;
        if let Some(list) = from.lists.as_mut().and_then(ListConsumer::opened) {
            return list.take().map(|(packet, arrival)| (packet, Some(arrival)));
        }
        let Delivered { packet, arrival } = from.ring.take()?;
        Some((packet, Some(arrival)))
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.promised, Some(self.0.promised))
    }
}

impl ExactSizeIterator for Promised<'_> {}

impl Drop for Promised<'_> {
    #[inline]
    fn drop(&mut self) {
        for from in &mut self.0.from {
            from.ring.release();
            if let Some(lists) = &mut from.lists {
                lists.close_taken();
            }
        }
    }
}

impl Receiver for Inbox {
    #[inline]
    fn receive(&mut self, pool: &mut BufferPool, most: usize) -> usize {
        self.give_back(pool);
        debug_assert!(self.promised == 0, "packets that were promised are taken before others");
        let (pollers, mut left) = (self.from.len(), most.min(MAX_BATCH));
        self.next = self.first;
        for i in 0..pollers {
            let from = &mut self.from[(self.first + i) % pollers];
            from.promised = from.promise(left);
            left -= from.promised;
            self.promised += from.promised;
        }
        self.first = if self.first + 1 < pollers { self.first + 1 } else { 0 };
        pool.admit_all(self.promised);
        self.promised
    }

    #[inline]
    fn receive_whole(&mut self, pool: &mut BufferPool, most: usize, batch: &mut Batch) -> Option<usize> {
        let (pollers, mut count) = (self.from.len(), 0);
        // Else single packets would wait for as long as others send lists.
        if pollers > 1 && self.from[self.first].singles_are_next() {
            return None;
        }
        for i in 0..pollers {
            let From { lists, singles, .. } = &mut self.from[(self.first + i) % pollers];
            let Some(lists) = lists else {
                continue;
            };
            while let Some(list) = lists.next(*singles) {
                let packets = list.len();
                if count + packets > most || !batch.add_all(list) {
                    break;
                }
                if pollers == 1 {
                    // All buffers are its own.
                    list.take_along(pool);
                }
                lists.finish_next(packets);
                count += packets;
                if count == most {
                    break;
                }
            }
        }
        if count == 0 {
            return None;
        }
        if pool.has_returned() {
            self.give_back(pool);
        }
        pool.admit_all(count);
        self.first = if self.first + 1 < pollers { self.first + 1 } else { 0 };
        Some(count)
    }

    #[inline]
    fn has_more(&self) -> bool {
        let waits = |from: &From| {
            let lists = from.lists.as_ref();
            lists.is_some_and(|lists| lists.is_waiting() || !from.ring.is_empty())
        };
        self.from.iter().any(waits)
    }

    #[inline]
    fn packets(&mut self) -> impl ExactSizeIterator<Item = (Arrived, Option<Nanos>)> {
        Promised(self)
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
            while let Some((packet, arrival)) = self.from[poller].pop() {
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
