//! Packets of a dispatching core: its own queue, and those exchanged with its auxiliary cores.

use super::offload_queue::OffloadQueue;
use super::queue::Queue;
use super::tree::NEVER;
use super::waiting::Waiting;
use tailwater_dispatch::OWN;
use tailwater_net::Nanos;

/// Lists of packets, by destination.
#[derive(Debug)]
pub(crate) struct PacketLists {
    own: Queue<Waiting>,
    /// By auxiliary core: its packets, including staged ones.
    pub offload_queues: Vec<OffloadQueue>,
    /// Auxiliary cores with packets, and those with staged packets, as bit maps.
    pub busy: u64,
    pub staging: u64,
    /// Packets staged for auxiliary cores or offloaded to them.
    pub away: u32,
    /// Time of the next receipt.
    pub receipt_at: u64,
}

impl PacketLists {
    pub fn new(auxiliaries: usize) -> PacketLists {
        PacketLists {
            own: Queue::default(),
            offload_queues: (0..auxiliaries).map(|_| OffloadQueue::default()).collect(),
            busy: 0,
            staging: 0,
            away: 0,
            receipt_at: NEVER,
        }
    }

    /// Returns `true` if the own queue is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// Returns the arrival time of the first packet in the own queue.
    pub fn oldest(&self) -> Option<Nanos> {
        let first = self.own.first()?;
        Some(Nanos(first.packet.arrival))
    }

    /// Appends a packet to a list.
    #[inline]
    pub fn push(&mut self, list: usize, waiting: Waiting) {
        match list {
            OWN => self.own.push(waiting),
            list => self.stage(list - 1, waiting),
        }
    }

    /// Stages a packet for an auxiliary core.
    #[inline]
    fn stage(&mut self, auxiliary: usize, waiting: Waiting) {
        self.away += 1;
        self.busy |= 1 << auxiliary;
        self.staging |= 1 << auxiliary;
        self.offload_queues[auxiliary].put(waiting);
    }

    /// Moves the own queue's packets to the lists that `list_of` returns for their flows' slots. Returns the number of
    /// those that left the queue.
    pub fn sort(&mut self, list_of: impl Fn(u16) -> usize) -> u64 {
        let mut own = std::mem::take(&mut self.own);
        let mut moved = 0;
        own.retain(|waiting| match list_of(waiting.slot) {
            OWN => true,
            list => {
                self.push(list, *waiting);
                moved += 1;
                false
            }
        });
        self.own = own;
        moved
    }

    /// Moves up to `most` packets from the own queue to a batch.
    pub fn take(&mut self, most: usize, batch: &mut Vec<Waiting>) {
        let count = most.min(self.own.len());
        batch.extend_from_slice(&self.own.as_slice()[..count]);
        self.own.take(count);
    }

    /// Removes the first `count` packets of an auxiliary core, whose receipts were processed. `is_idle` is set if it
    /// has no others.
    #[inline]
    pub fn forget(&mut self, auxiliary: usize, count: usize, is_idle: bool) {
        self.away -= count as u32;
        if is_idle {
            self.busy &= !(1 << auxiliary);
        }
        let queue = &mut self.offload_queues[auxiliary];
        queue.forget(count);
        self.receipt_at = self.receipt_at.min(queue.receipt_at());
    }
}
