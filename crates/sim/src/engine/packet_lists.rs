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
    /// Packets of flows with too many of them.
    behind: Queue<Waiting>,
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
            behind: Queue::default(),
            offload_queues: (0..auxiliaries).map(|_| OffloadQueue::default()).collect(),
            busy: 0,
            staging: 0,
            away: 0,
            receipt_at: NEVER,
        }
    }

    /// Returns the list of packets behind the own queue.
    #[inline]
    fn behind(&self) -> usize {
        self.offload_queues.len() + 2
    }

    /// Returns `true` if the own queue is empty, but for flows with too many packets.
    #[inline]
    pub fn own_is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// Returns `true` if the own queue and that behind it are empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.behind.is_empty()
    }

    /// Returns the number of packets that have neither left nor been lost.
    pub fn unfinished(&self) -> usize {
        let away = self.offload_queues.iter().map(OffloadQueue::unfinished);
        self.own.len() + self.behind.len() + away.sum::<usize>()
    }

    /// Returns all packets, including completed ones without a receipt.
    pub fn all(&self) -> impl Iterator<Item = &Waiting> {
        let own = self.own.as_slice().iter().chain(self.behind.as_slice());
        own.chain(self.offload_queues.iter().flat_map(OffloadQueue::all))
    }

    /// Returns the arrival time of the first packet in the own queue and that behind it.
    pub fn oldest(&self) -> Option<Nanos> {
        let first = self.own.first().into_iter().chain(self.behind.first());
        first.map(|first| Nanos(first.packet.arrival)).min()
    }

    /// Appends a packet to a list.
    #[inline]
    pub fn push(&mut self, list: usize, waiting: Waiting) {
        match list {
            OWN => self.own.push(waiting),
            list if list == self.behind() => self.behind.push(waiting),
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

    /// Moves the packets of both queues of this core to the lists that `list_of` returns for their flows' slots, if it
    /// returns one. Returns the number of those that left.
    pub fn sort(&mut self, list_of: impl Fn(u16) -> Option<usize>) -> u64 {
        let behind = self.behind();
        let mut moved = 0;
        for own in [OWN, behind] {
            let mut queue = std::mem::take(self.queue(own));
            queue.retain(|waiting| match list_of(waiting.slot) {
                None => true,
                Some(list) => {
                    self.push(list, *waiting);
                    moved += 1;
                    false
                }
            });
            *self.queue(own) = queue;
        }
        moved
    }

    /// Moves packets from the own queue to that behind. Returns their number.
    pub fn overtake(&mut self, is_overtaken: impl Fn(&Waiting) -> bool) -> u32 {
        let PacketLists { own, behind, .. } = self;
        let mut moved = 0;
        own.retain(|waiting| {
            let stays = !is_overtaken(waiting);
            if !stays {
                behind.push(*waiting);
                moved += 1;
            }
            stays
        });
        moved
    }

    /// Returns one of this core's queues.
    fn queue(&mut self, list: usize) -> &mut Queue<Waiting> {
        match list {
            OWN => &mut self.own,
            _ => &mut self.behind,
        }
    }

    /// Moves up to `most` packets from one of this core's queues to a batch.
    pub fn take(&mut self, list: usize, most: usize, batch: &mut Vec<Waiting>) {
        let queue = self.queue(list);
        let count = most.min(queue.len());
        batch.extend_from_slice(&queue.as_slice()[..count]);
        queue.take(count);
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
