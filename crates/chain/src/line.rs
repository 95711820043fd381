//! Packets that wait, in order.

use crate::batch::{Batch, Packet, Slot};
use std::collections::VecDeque;

/// Packets of one buffer pool that wait, the first that came in front. They keep their buffers and all that is
/// known of them.
#[derive(Debug)]
pub struct PacketLine {
    slots: VecDeque<Slot>,
}

impl PacketLine {
    /// A line with room for so many packets; beyond that, it allocates.
    pub fn with_room(packets: usize) -> PacketLine {
        PacketLine {
            slots: VecDeque::with_capacity(packets),
        }
    }

    /// Packets in the line.
    #[inline]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Takes the packets for which `waits` says so out of the batch; the others stay, in order. Returns how many
    /// wait.
    #[inline]
    pub fn take_from(&mut self, batch: &mut Batch, mut waits: impl FnMut(&Packet) -> bool) -> usize {
        let before = self.slots.len();
        let slots = batch.slots_mut_vec();
        self.slots.extend(slots.extract_if(.., |slot| waits(&slot.packet)));
        self.slots.len() - before
    }

    /// The last packets that joined the line.
    #[inline]
    pub fn last(&self, packets: usize) -> impl Iterator<Item = &Packet> {
        let from = self.slots.len() - packets.min(self.slots.len());
        self.slots.range(from..).map(|slot| &slot.packet)
    }

    /// Moves the first packets of the line to the end of the batch.
    ///
    /// # Panics
    /// If there are not so many, or the batch has no room for them.
    #[inline]
    pub fn give(&mut self, packets: usize, batch: &mut Batch) {
        assert!(packets <= batch.room(), "the batch is full");
        batch.slots_mut_vec().extend(self.slots.drain(..packets));
    }
}
