//! Packets of a batch on their way to another batch.

use super::{Arrived, Batch, MAX_BATCH, Slot};
use crate::buffer::BufferMemory;
use tailwater_net::Nanos;

/// Packets that leave a batch together, as they were received, for another batch of the same memory. It takes them
/// over without a step for each.
#[derive(Debug)]
pub struct Packets {
    /// Number of the pool whose buffers hold the packets.
    pool: u16,
    packets: Vec<Slot>,
    /// Packets from the front that were [taken](Packets::take).
    taken: usize,
}

impl Packets {
    /// Creates an empty list for packets in buffers of `memory`.
    pub fn new(memory: &BufferMemory) -> Packets {
        Packets {
            pool: memory.pool(),
            packets: Vec::with_capacity(MAX_BATCH),
            taken: 0,
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
    /// Exchanges the packets of a batch, all as they were received, for those of a list that none was taken from.
    /// Returns `false` and does nothing if the batch also holds other buffers, or has no room for the list's packets.
    ///
    /// # Panics
    /// If the list is for packets of another pool.
    #[inline]
    pub fn exchange(&mut self, list: &mut Packets) -> bool {
        assert!(list.pool == self.memory.pool(), "packets of another pool");
        let fits = list.taken == 0
            && list.packets.len() <= self.capacity
            && self.in_hand() == self.packets.len()
            // A list that is shorter would grow later.
            && list.packets.capacity() == self.packets.capacity();
        if fits {
            std::mem::swap(&mut list.packets, &mut self.packets);
        }
        fits
    }
}
