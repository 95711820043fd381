//! Ordered queue of waiting packets.

use crate::batch::{Batch, Packet, Slot};
use std::collections::VecDeque;

/// Waiting packets of one buffer pool, oldest first. They keep their buffers and metadata.
#[derive(Debug)]
pub struct PacketLine {
    slots: VecDeque<Slot>,
}

impl PacketLine {
    /// Creates a queue with room for `packets` packets; beyond that, it allocates.
    pub fn with_room(packets: usize) -> PacketLine {
        PacketLine {
            slots: VecDeque::with_capacity(packets),
        }
    }

    /// Returns the number of packets in the queue.
    #[inline]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns `true` if the queue is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Moves the packets for which `waits` returns `true` out of the batch; the others stay, in order. Returns the
    /// number of packets moved.
    #[inline]
    pub fn take_from(&mut self, batch: &mut Batch, mut waits: impl FnMut(&Packet) -> bool) -> usize {
        let before = self.slots.len();
        let slots = batch.slots_mut_vec();
        self.slots.extend(slots.extract_if(.., |slot| waits(&slot.packet)));
        self.slots.len() - before
    }

    /// Iterates over the last `packets` packets in the queue.
    #[inline]
    pub fn last(&self, packets: usize) -> impl Iterator<Item = &Packet> {
        let from = self.slots.len() - packets.min(self.slots.len());
        self.slots.range(from..).map(|slot| &slot.packet)
    }

    /// Moves the first `packets` packets of the queue to the end of the batch.
    ///
    /// # Panics
    /// If the queue has fewer packets, or the batch has too little room.
    #[inline]
    pub fn give(&mut self, packets: usize, batch: &mut Batch) {
        assert!(packets <= batch.room(), "the batch is full");
        batch.slots_mut_vec().extend(self.slots.drain(..packets));
    }
}
