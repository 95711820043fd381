//! A core's receive queue: packets that are on their way to it, in order.

use crate::traffic::Packet;

/// A packet, and when it is at the core's NIC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrived {
    pub at: u64,
    pub packet: Packet,
}

/// Packets in the order in which they reach the NIC. What has arrived by a time is in the ring; later
/// ones are on their way. What finds the ring full is lost, which is told when somebody looks: between
/// two looks nothing leaves the ring, so it comes to the same.
#[derive(Debug, Default)]
pub(crate) struct Fifo {
    packets: Vec<Arrived>,
    head: usize,
}

/// Taken packets are kept until there are so many, and half of all.
const SLACK: usize = 1024;

impl Fifo {
    #[inline]
    pub(crate) fn push(&mut self, packet: Arrived) {
        self.packets.push(packet);
    }

    /// How many are here and on their way.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.packets.len() - self.head
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.packets.len()
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<&Arrived> {
        self.packets.get(self.head)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arrived> {
        self.packets[self.head..].iter()
    }

    /// The first that have arrived by `now`, up to `most`.
    #[inline]
    pub(crate) fn arrived(&self, now: u64, most: usize) -> &[Arrived] {
        let packets = &self.packets[self.head..];
        let packets = &packets[..packets.len().min(most)];
        let count = packets
            .iter()
            .position(|packet| packet.at > now)
            .unwrap_or(packets.len());
        &packets[..count]
    }

    /// How many have arrived by `now`.
    #[inline]
    pub(crate) fn waiting(&self, now: u64) -> usize {
        let packets = &self.packets[self.head..];
        packets.partition_point(|packet| packet.at <= now)
    }

    /// Takes the first `count`.
    #[inline]
    pub(crate) fn take(&mut self, count: usize) {
        self.head += count;
        if self.head == self.packets.len() {
            self.packets.clear();
            self.head = 0;
        } else if self.head >= SLACK && 2 * self.head >= self.packets.len() {
            self.packets.drain(..self.head);
            self.head = 0;
        }
    }

    /// Throws away what has arrived by `now` and found `ring` packets waiting. Nothing was taken since
    /// the first of them arrived.
    #[inline]
    pub(crate) fn overflow(&mut self, now: u64, ring: usize, lost: impl FnMut(Arrived)) {
        let beyond = self.packets.get(self.head + ring);
        if beyond.is_some_and(|packet| packet.at <= now) {
            self.drop_beyond(now, ring, lost);
        }
    }

    #[cold]
    fn drop_beyond(&mut self, now: u64, ring: usize, lost: impl FnMut(Arrived)) {
        let range = self.head + ring..self.head + self.waiting(now);
        self.packets.drain(range).for_each(lost);
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

    #[test]
    fn taken_packets_are_given_back() {
        let mut fifo = fifo(&(0..10 * SLACK as u64).collect::<Vec<_>>());
        for _ in 0..8 * SLACK {
            fifo.take(1);
        }
        assert_eq!(fifo.first().map(|packet| packet.at), Some(8 * SLACK as u64));
        assert!(fifo.packets.len() <= 4 * SLACK);
        fifo.take(2 * SLACK);
        assert!(fifo.is_empty() && fifo.packets.is_empty());
    }
}
