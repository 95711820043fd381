//! Lists of packets on their way to the only worker of a chain, beside the ring of single packets.
//!
//! A poller appends a chain's packets to a list, or exchanges its whole batch for an empty one. The worker exchanges
//! the list for its empty batch. So there is at most one step for each packet. Both ways together keep the order of
//! arrival: a list states the number of single packets that went before it.
//!
//! Each chain has a few lists, which come back without packets and bring returned buffers along. While none is left,
//! packets go singly.

use tailwater_chain::batch::{DEFAULT_BATCH, Packets};
use tailwater_chain::buffer::{BufferMemory, BufferPool};
use tailwater_handover::ring::{Consumer, Producer, ring};

/// Lists of a chain from each poller. Each has room for a worker's batch of the default size.
pub(super) const LISTS: usize = 8;

/// List of packets. It moves between threads as a pointer.
pub(super) type List = Box<Packets>;

/// List on its way to the worker.
#[derive(Debug)]
pub(super) struct Sent {
    packets: List,
    /// Single packets that went before it, since the beginning and modulo 2^64.
    after: usize,
}

/// List on its way back, empty, and the number of packets that it had.
type Returned = (List, usize);

/// Poller's end.
#[derive(Debug)]
pub(super) struct ListProducer {
    to: Producer<Sent>,
    back: Consumer<Returned>,
    /// Empty lists.
    spare: Vec<List>,
    /// Packets in lists that have not come back.
    on_the_way: usize,
}

/// Worker's end.
#[derive(Debug)]
pub(super) struct ListConsumer {
    /// The oldest list stays here until all of its packets are taken, for the poller to find if the worker ends.
    from: Consumer<Sent>,
    back: Producer<Returned>,
    /// The worker takes the packets of the oldest list singly.
    is_open: bool,
}

/// Connects a poller and a worker, for packets in buffers of `memory`.
pub(super) fn connect(memory: &BufferMemory) -> (ListProducer, ListConsumer) {
    let ((to, from), (give, back)) = (ring(LISTS), ring(LISTS));
    let spare = (0..LISTS).map(|_| Box::new(Packets::new(memory, DEFAULT_BATCH)));
    let producer = ListProducer {
        to,
        back,
        spare: spare.collect(),
        on_the_way: 0,
    };
    let consumer = ListConsumer {
        from,
        back: give,
        is_open: false,
    };
    (producer, consumer)
}

impl ListProducer {
    /// Packets in lists that have not come back.
    #[inline]
    pub(super) fn on_the_way(&self) -> usize {
        self.on_the_way
    }

    /// Takes an empty list, to [send](Self::send) it or to [put it back](Self::put_back).
    #[inline]
    pub(super) fn take_spare(&mut self) -> Option<List> {
        self.spare.pop()
    }

    /// Returns `true` without an empty list.
    #[inline]
    pub(super) fn is_exhausted(&self) -> bool {
        self.spare.is_empty()
    }

    /// Puts an empty list back.
    #[inline]
    pub(super) fn put_back(&mut self, list: List) {
        debug_assert!(list.size() == 0, "a list with packets");
        self.spare.push(list);
    }

    /// Number of empty lists.
    #[cfg(test)]
    pub(super) fn spare(&self) -> usize {
        self.spare.len()
    }

    /// Passes a list on, behind `after` single packets that the worker can see.
    #[inline]
    pub(super) fn send(&mut self, packets: List, after: usize) {
        self.on_the_way += packets.len();
        let refused = self.to.push(Sent { packets, after });
        debug_assert!(refused.is_ok(), "the ring has room for all lists");
    }

    /// Takes back lists, and the buffers that they bring along.
    #[inline]
    pub(super) fn settle(&mut self, pool: &mut BufferPool) {
        while let Some((mut packets, count)) = self.back.pop() {
            self.on_the_way -= count;
            packets.return_to(pool);
            self.spare.push(packets);
        }
    }

    /// Takes back the oldest list that the worker left, once it has ended.
    pub(super) fn take_back(&mut self) -> Option<List> {
        let Sent { packets, .. } = self.to.take_back()?;
        self.on_the_way -= packets.size();
        Some(packets)
    }
}

impl ListConsumer {
    /// Number of single packets to take before the next list, of `ready` ones that were found **before** this call and
    /// after `taken` others. 0 if a list is next.
    #[inline]
    pub(super) fn singles_before(&mut self, taken: usize, ready: usize) -> usize {
        match self.from.peek() {
            None => ready,
            Some(next) => ready.min(next.after.wrapping_sub(taken)),
        }
    }

    /// List that is next after `taken` single packets, if none of its packets was taken.
    #[inline]
    pub(super) fn next(&mut self, taken: usize) -> Option<&mut Packets> {
        let is_open = self.is_open;
        let next = self.from.peek().filter(|next| next.after == taken && !is_open)?;
        Some(&mut next.packets)
    }

    /// Sends the next list back, whose `count` packets were exchanged.
    #[inline]
    pub(super) fn finish_next(&mut self, count: usize) {
        if let Some(Sent { packets, .. }) = self.from.pop() {
            let refused = self.back.push((packets, count));
            debug_assert!(refused.is_ok(), "the ring has room for all lists");
        }
    }

    /// Opens the list that is next after `taken` single packets, to take its packets singly. Returns the number of
    /// those that are left, 0 if no list is next.
    #[inline]
    pub(super) fn open(&mut self, taken: usize) -> usize {
        match self.from.peek().filter(|next| next.after == taken) {
            None => 0,
            Some(next) => {
                self.is_open = true;
                next.packets.len()
            }
        }
    }

    /// List whose packets are taken singly.
    #[inline]
    pub(super) fn opened(&mut self) -> Option<&mut Packets> {
        if !self.is_open {
            return None;
        }
        Some(&mut self.from.peek()?.packets)
    }

    /// Sends the open list back, if all of its packets have been taken.
    #[inline]
    pub(super) fn close_taken(&mut self) {
        let Some(list) = self.opened().filter(|list| list.is_empty()) else {
            return;
        };
        let count = list.size();
        list.clear_taken();
        self.is_open = false;
        self.finish_next(count);
    }

    /// Returns `true` if a list waits.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        !self.from.is_empty()
    }
}
