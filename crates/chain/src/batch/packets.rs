//! Packets of a batch on their way to another batch.

use super::{Arrived, Batch, Slot};
use crate::buffer::{BufferMemory, BufferPool};
use tailwater_net::Nanos;

/// List of packets that leave a batch, as they were received, for another batch of the same memory. On its way back,
/// without packets, it carries buffers that their user has returned.
#[derive(Debug)]
pub struct Packets {
    /// Number of the pool whose buffers hold the packets.
    pool: u16,
    packets: Vec<Slot>,
    /// Packets from the front that were [taken](Packets::take).
    taken: usize,
    /// Returned buffers.
    returned: Vec<u32>,
}

impl Packets {
    /// Creates an empty list for up to `capacity` packets in buffers of `memory`.
    pub fn new(memory: &BufferMemory, capacity: usize) -> Packets {
        Packets {
            pool: memory.pool(),
            packets: Vec::with_capacity(capacity),
            taken: 0,
            returned: Vec::with_capacity(capacity),
        }
    }

    /// Returns the number of packets that the list came with.
    #[inline]
    pub fn size(&self) -> usize {
        self.packets.len()
    }

    /// Returns the number of packets left.
    #[inline]
    pub fn len(&self) -> usize {
        self.packets.len() - self.taken
    }

    /// Returns `true` if no packet is left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of packets that still fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.packets.capacity() - self.packets.len()
    }

    /// Takes the first packet that is left out, with its arrival time.
    #[inline]
    pub fn take(&mut self) -> Option<(Arrived, Nanos)> {
        let slot = self.packets.get_mut(self.taken)?;
        self.taken += 1;
        Some(slot.take_arrived())
    }

    /// Forgets the packets that were taken.
    #[inline]
    pub fn clear_taken(&mut self) {
        debug_assert!(self.is_empty(), "packets are left");
        self.packets.clear();
        self.taken = 0;
    }

    /// Takes along buffers that were returned to `pool`, a pool of [lent](BufferPool::lent) buffers, as many as fit.
    ///
    /// # Panics
    /// If the list is for buffers of another pool.
    #[inline]
    pub fn take_along(&mut self, pool: &mut BufferPool) {
        assert!(self.pool == pool.memory().pool(), "buffers of another pool");
        pool.move_returned(&mut self.returned);
    }

    /// Passes the buffers that the list took along to `pool`, another one of the same memory.
    ///
    /// # Panics
    /// If the list is for buffers of another pool.
    #[inline]
    pub fn return_to(&mut self, pool: &mut BufferPool) {
        assert!(self.pool == pool.memory().pool(), "buffers of another pool");
        pool.take_over(&mut self.returned);
    }
}

impl Slot {
    /// Moves the packet out, as it was received, with its arrival time. The frame must be complete.
    #[inline]
    pub(super) fn take_arrived(&mut self) -> (Arrived, Nanos) {
        let packet = &self.packet;
        debug_assert!(packet.rest == 0, "an incomplete frame");
        let arrived = Arrived {
            start: packet.start,
            length: packet.length,
            hash: Some(packet.rss_hash),
            entry: packet.entry,
            buffer: self.buffer.lend(),
        };
        (arrived, self.packet.arrival)
    }
}

impl Batch {
    /// Moves the packets at these places, as they were received, to the end of a list with [room](Packets::room) for
    /// them. [Leave them out](Batch::remove_moved) before anything else uses the batch. All frames must be complete.
    ///
    /// # Panics
    /// If the list is for packets of another pool, a packet has been moved already, or there is no such place.
    #[inline]
    pub fn append_to(&mut self, list: &mut Packets, places: &[u8]) {
        debug_assert!(places.len() <= list.room(), "a list without room");
        let (before, last) = (list.packets.len(), places.iter().copied().fold(0, u8::max));
        let is_inside = places.is_empty() || usize::from(last) < self.packets.len();
        assert!(is_inside, "a place beyond the batch");
        list.packets.extend(places.iter().map(|place| {
            let slot = &self.packets[usize::from(*place)];
            // Nothing panics before the end of the loop that follows.
            // SAFETY: the reference is valid for reads, and a slot has no destructor. The handle of the buffer that is
            // left in the batch becomes one that reaches no memory, below.
            unsafe { std::ptr::read(slot) }
        }));
        // After the copies: the compiler would copy each by way of the stack otherwise.
        let moved = places.iter().all(|place| {
            let buffer = self.packets[usize::from(*place)].buffer.lend();
            buffer.is_of(list.pool)
        });
        if !moved {
            list.packets.truncate(before);
            panic!("a buffer of another pool");
        }
    }

    /// Same for one packet. Returns it with its arrival time.
    #[inline]
    pub fn move_out(&mut self, place: u8) -> (Arrived, Nanos) {
        self.packets[usize::from(place)].take_arrived()
    }

    /// Removes the `count` packets that have been moved. The others stay, in order.
    #[inline]
    pub fn remove_moved(&mut self, count: usize) {
        debug_assert!(count == self.packets.iter().filter(|slot| slot.buffer.is_lent()).count());
        if count == self.packets.len() {
            self.packets.clear();
        } else {
            self.packets.retain(|slot| !slot.buffer.is_lent());
        }
    }

    /// Moves all packets of a batch, as they were received, to an empty list. Returns `false` and does nothing if the
    /// batch also holds other buffers, or the list has no room for the packets. Lists and batches of the same capacity
    /// take no step for each packet.
    ///
    /// # Panics
    /// If the list is for packets of another pool.
    #[inline]
    pub fn move_to(&mut self, list: &mut Packets) -> bool {
        assert!(list.pool == self.memory.pool(), "packets of another pool");
        let fits = list.packets.is_empty()
            && self.packets.len() <= list.packets.capacity()
            && self.in_hand() == self.packets.len();
        if fits {
            move_all(&mut self.packets, &mut list.packets);
        }
        fits
    }

    /// Adds all packets of a list of which none was taken. Returns `false` and does nothing if they do not fit. An
    /// empty batch and a list of the same capacity take no step for each packet.
    ///
    /// # Panics
    /// If the list is for packets of another pool.
    #[inline]
    pub fn add_all(&mut self, list: &mut Packets) -> bool {
        assert!(list.pool == self.memory.pool(), "packets of another pool");
        let fits = list.taken == 0 && list.packets.len() <= self.room();
        if fits {
            move_all(&mut list.packets, &mut self.packets);
        }
        fits
    }
}

/// Moves all packets behind those in `to`, which has room for them.
#[inline]
fn move_all(from: &mut Vec<Slot>, to: &mut Vec<Slot>) {
    // One that is shorter would grow later.
    if to.is_empty() && from.capacity() == to.capacity() {
        std::mem::swap(from, to);
    } else {
        to.append(from);
    }
}
