//! Packets that a core exchanges with one of its auxiliary cores, in the order in which they were staged.
//!
//! In front are packets that are done but whose receipts the core has not processed. Next are offloaded packets, then
//! staged ones. Packets change state without being copied.

use super::queue::Queue;
use super::tree::NEVER;
use super::waiting::Waiting;

/// Packets between a core and one auxiliary core. See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct OffloadQueue {
    packets: Queue<Waiting>,
    /// Number of completed packets. Their `at` is the time of their receipt.
    done: usize,
    /// Number of completed or offloaded packets. The `at` of offloaded ones is the time of their arrival.
    handed: usize,
    /// Time that the auxiliary core took to wake up for these packets. The core learns it with the first receipt.
    pub woke: Option<u64>,
}

impl OffloadQueue {
    /// Stages a packet.
    #[inline]
    pub fn put(&mut self, waiting: Waiting) {
        self.packets.push(waiting);
    }

    /// Returns the number of packets that have neither left nor been lost: unfinished ones, and those that another core
    /// is to continue with.
    pub fn unfinished(&self) -> usize {
        let continued = self.packets.as_slice()[..self.done]
            .iter()
            .filter(|waiting| waiting.left > 0);
        self.packets.len() - self.done + continued.count()
    }

    /// Returns all packets.
    pub fn all(&self) -> impl Iterator<Item = &Waiting> {
        self.packets.as_slice().iter()
    }

    /// Returns the number of staged packets that are not offloaded yet.
    #[inline]
    pub fn put_down(&self) -> usize {
        self.packets.len() - self.handed
    }

    /// Offloads all staged packets. They arrive at `here`, but not before packets offloaded earlier.
    #[inline]
    pub fn hand_over(&mut self, here: u64) {
        let (before, put_down) = self.packets.as_mut_slice().split_at_mut(self.handed);
        let last = match self.handed > self.done {
            true => before.last().map_or(0, |last| last.at),
            false => 0,
        };
        for waiting in put_down {
            waiting.at = here.max(last);
        }
        self.handed = self.packets.len();
    }

    /// Returns `true` if the auxiliary core has unfinished packets.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.handed > self.done
    }

    /// Returns the arrival time of the first unfinished packet.
    #[inline]
    pub fn next(&self) -> u64 {
        match self.is_busy() {
            true => self.packets.get(self.done).map_or(NEVER, |first| first.at),
            false => NEVER,
        }
    }

    /// Returns the first unfinished packets that have arrived by `now`, up to `most`.
    #[inline]
    pub fn arrived(&self, now: u64, most: usize) -> &[Waiting] {
        let most = self.handed.min(self.done.saturating_add(most));
        let packets = &self.packets.as_slice()[self.done..most];
        let count = packets.iter().position(|packet| packet.at > now);
        &packets[..count.unwrap_or(packets.len())]
    }

    /// Returns `true` if more than `count` unfinished packets have arrived by `now`.
    #[inline]
    pub fn has_more(&self, now: u64, count: usize) -> bool {
        let next = self.done + count;
        let next = self.packets.get(next).filter(|_| next < self.handed);
        next.is_some_and(|packet| packet.at <= now)
    }

    /// Discards the first `count` unfinished packets: they continue on no other core.
    #[cold]
    pub fn discard(&mut self, count: usize) {
        for waiting in &mut self.packets.as_mut_slice()[self.done..self.done + count] {
            waiting.left = 0;
        }
    }

    /// Completes the first `count` packets. The core gets their receipts at `receipt_at`.
    #[inline]
    pub fn finish(&mut self, count: usize, receipt_at: u64) {
        let done = self.done + count;
        for waiting in &mut self.packets.as_mut_slice()[self.done..done] {
            waiting.at = receipt_at;
        }
        self.done = done;
    }

    /// Returns the time of the first receipt.
    #[inline]
    pub fn receipt_at(&self) -> u64 {
        match self.done {
            0 => NEVER,
            _ => self.packets.first().map_or(NEVER, |first| first.at),
        }
    }

    /// Returns the number of receipts by `now`.
    #[inline]
    pub fn receipts_due(&self, now: u64) -> usize {
        let done = &self.packets.as_slice()[..self.done];
        let count = done.iter().position(|packet| packet.at > now);
        count.unwrap_or(done.len())
    }

    /// Returns the packet with `before` packets in front of it.
    #[inline]
    pub fn get(&self, before: usize) -> Waiting {
        self.packets.as_slice()[before]
    }

    /// Removes the first `count` packets, which are done.
    #[inline]
    pub fn forget(&mut self, count: usize) {
        self.packets.take(count);
        self.done -= count;
        self.handed -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(lane: &mut OffloadQueue, slots: std::ops::Range<u16>) {
        for slot in slots {
            lane.put(Waiting {
                slot,
                at: 1,
                ..Waiting::default()
            });
        }
    }

    #[test]
    fn packets_are_put_down_handed_over_done_and_heard_of() {
        let mut lane = OffloadQueue::default();
        put(&mut lane, 0..3);
        assert_eq!((lane.put_down(), lane.next()), (3, NEVER));
        assert!(lane.arrived(100, 9).is_empty() && !lane.is_busy());
        lane.hand_over(20);
        put(&mut lane, 3..5);
        assert_eq!((lane.put_down(), lane.next()), (2, 20));
        // Later packets do not arrive sooner.
        lane.hand_over(10);
        put(&mut lane, 5..6);
        assert_eq!(lane.arrived(19, 9).len(), 0);
        assert_eq!((lane.arrived(20, 9).len(), lane.arrived(20, 2).len()), (5, 2));
        assert!(lane.has_more(20, 4) && !lane.has_more(20, 5) && !lane.has_more(19, 0));
        assert_eq!(lane.receipt_at(), NEVER);
        lane.finish(4, 50);
        assert_eq!((lane.receipt_at(), lane.next()), (50, 20));
        lane.finish(1, 60);
        assert_eq!((lane.next(), lane.is_busy()), (NEVER, false));
        assert_eq!(
            (lane.receipts_due(49), lane.receipts_due(50), lane.receipts_due(60)),
            (0, 4, 5)
        );
        assert_eq!((lane.get(0).slot, lane.get(3).slot), (0, 3));
        lane.forget(4);
        assert_eq!((lane.receipts_due(50), lane.get(0).slot, lane.receipt_at()), (0, 4, 60));
        // Completed packets delay no others.
        lane.hand_over(30);
        assert_eq!((lane.next(), lane.put_down()), (30, 0));
    }

    #[test]
    fn completed_packets_are_finished_unless_another_core_continues() {
        let mut lane = OffloadQueue::default();
        put(&mut lane, 0..2);
        lane.put(Waiting {
            left: 1,
            ..Waiting::default()
        });
        put(&mut lane, 3..4);
        lane.hand_over(10);
        put(&mut lane, 4..5);
        assert_eq!(lane.unfinished(), 5);
        lane.finish(3, 20);
        assert_eq!(lane.unfinished(), 3);
        lane.forget(2);
        assert_eq!(lane.unfinished(), 3);
    }

    /// Regression: a packet of a divided flow that was too late on an auxiliary core was lost there, and went on.
    #[test]
    fn a_discarded_packet_goes_on_to_no_other_core() {
        let mut lane = OffloadQueue::default();
        for left in [1, 2, 3] {
            lane.put(Waiting {
                left,
                ..Waiting::default()
            });
        }
        lane.hand_over(10);
        lane.finish(1, 20);
        lane.discard(1);
        lane.finish(2, 20);
        assert_eq!([0, 1, 2].map(|at| lane.get(at).left), [1, 0, 3]);
    }
}
