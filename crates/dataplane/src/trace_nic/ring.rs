//! Descriptor ring of a queue.

use tailwater_net::Nanos;

/// Packet in the descriptor ring.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrived {
    pub(super) arrival: Nanos,
    pub(super) index: u32,
    pub(super) lap: u32,
}

/// Descriptor ring: arrived packets in order, up to a fixed number.
#[derive(Debug)]
pub(super) struct Ring {
    slots: Box<[Arrived]>,
    /// Counts of packets ever added and taken. Their difference is the fill level.
    put: usize,
    taken: usize,
    pub(super) size: usize,
}

impl Ring {
    pub(super) fn new(size: usize) -> Ring {
        let size = size.clamp(1, 1 << 20);
        let slots = vec![Arrived::default(); size.next_power_of_two()].into();
        Ring {
            slots,
            put: 0,
            taken: 0,
            size,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.put.wrapping_sub(self.taken)
    }

    /// Adds a packet. The ring must hold fewer than its size.
    #[inline]
    pub(super) fn push(&mut self, packet: Arrived) {
        debug_assert!(self.len() < self.size);
        let mask = self.slots.len() - 1;
        self.slots[self.put & mask] = packet;
        self.put = self.put.wrapping_add(1);
    }

    /// Packets in the ring, in order.
    #[inline]
    pub(super) fn next(&self) -> impl Iterator<Item = &Arrived> {
        let mask = self.slots.len() - 1;
        (0..self.len()).map(move |i| &self.slots[self.taken.wrapping_add(i) & mask])
    }

    /// Oldest packet.
    #[inline]
    pub(super) fn first(&self) -> Option<&Arrived> {
        self.next().next()
    }

    /// Takes the oldest packet. The ring must not be empty.
    #[inline]
    pub(super) fn pop(&mut self) -> Arrived {
        debug_assert!(self.len() > 0);
        let packet = self.slots[self.taken & (self.slots.len() - 1)];
        self.taken = self.taken.wrapping_add(1);
        packet
    }
}
