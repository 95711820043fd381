//! Receive queue of a core: packets that are on their way to it, in order.

use super::queue::Queue;
use crate::traffic::Packet;

/// Packet with its arrival time at the core's NIC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub at: u64,
    pub packet: Packet,
}

/// Packets in the order in which they reach the NIC. Those that have arrived by a given time are in the ring, later
/// ones are on their way. Packets that find the ring full are lost. The loss is detected at the next access, which is
/// equivalent, since nothing leaves the ring between two accesses.
#[derive(Debug, Default)]
pub(crate) struct Fifo(Queue<Arrived>);

impl Fifo {
    #[inline]
    pub(crate) fn push(&mut self, packet: Arrived) {
        self.0.push(packet);
    }

    /// Returns the number of packets, arrived or on their way.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<&Arrived> {
        self.0.first()
    }

    /// Returns an iterator over all packets.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arrived> {
        self.0.as_slice().iter()
    }

    /// Returns the first packets that have arrived by `now`, up to `most`.
    #[inline]
    pub(crate) fn arrived(&self, now: u64, most: usize) -> &[Arrived] {
        let packets = self.0.as_slice();
        let packets = &packets[..packets.len().min(most)];
        let count = packets
            .iter()
            .position(|packet| packet.at > now)
            .unwrap_or(packets.len());
        &packets[..count]
    }

    /// Returns `true` if more than `count` packets have arrived by `now`.
    #[inline]
    pub(crate) fn has_more(&self, now: u64, count: usize) -> bool {
        self.0.get(count).is_some_and(|packet| packet.at <= now)
    }

    /// Returns the number of packets that have arrived by `now`.
    #[inline]
    pub(crate) fn waiting(&self, now: u64) -> usize {
        self.0.as_slice().partition_point(|packet| packet.at <= now)
    }

    /// Removes the first `count` packets.
    #[inline]
    pub(crate) fn take(&mut self, count: usize) {
        self.0.take(count);
    }

    /// Drops packets that have arrived by `now` and found `ring` packets waiting. Nothing was taken since the first of
    /// them arrived.
    #[inline]
    pub(crate) fn overflow(&mut self, now: u64, ring: usize, lost: impl FnMut(Arrived)) {
        if self.has_more(now, ring) {
            self.drop_beyond(now, ring, lost);
        }
    }

    #[cold]
    fn drop_beyond(&mut self, now: u64, ring: usize, lost: impl FnMut(Arrived)) {
        let waiting = self.waiting(now);
        self.0.cut(ring..waiting).for_each(lost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fifo(times: &[u64]) -> Fifo {
        let mut fifo = Fifo::default();
        for &at in times {
            let packet = Packet::default();
            fifo.push(Arrived { at, packet });
        }
        fifo
    }

    #[test]
    fn only_what_has_arrived_is_there() {
        let fifo = fifo(&[1, 2, 2, 5]);
        assert_eq!(fifo.arrived(0, 9).len(), 0);
        assert_eq!(fifo.arrived(2, 9).len(), 3);
        assert_eq!(fifo.arrived(2, 2).len(), 2);
        assert_eq!((fifo.waiting(4), fifo.waiting(5)), (3, 4));
    }

    #[test]
    fn what_finds_the_ring_full_is_lost_and_what_comes_later_is_not() {
        let mut fifo = fifo(&[1, 2, 3, 4, 9]);
        let mut lost = Vec::new();
        fifo.overflow(4, 2, |packet| lost.push(packet.at));
        assert_eq!(lost, [3, 4]);
        let left: Vec<u64> = fifo.iter().map(|packet| packet.at).collect();
        assert_eq!(left, [1, 2, 9]);
        fifo.take(2);
        fifo.overflow(9, 2, |_| unreachable!("there is room"));
        assert_eq!(fifo.len(), 1);
    }
}
