//! Batches that pass to a chain's worker whole, as lists of packets, beside the ring of single packets.
//!
//! If all packets of a poller's batch belong to one chain with one worker, the list moves, not the packets. Both ways
//! together keep the order of arrival: a list states the number of single packets that went before it. A poller has a
//! few lists, which come back empty. While none is left, packets go singly.

use tailwater_chain::batch::Packets;
use tailwater_handover::ring::{Consumer, Producer, ring};

/// Lists of a poller, for all chains. Each has room for a batch.
pub(super) const LISTS: usize = 8;

/// List on its way to the worker.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) packets: Packets,
    /// Single packets that went before it, since the beginning and modulo 2^64.
    pub(super) after: usize,
}

/// List on its way back, empty, and the number of packets that it had.
type Returned = (Packets, usize);

/// Poller's end.
#[derive(Debug)]
pub(super) struct ListProducer {
    to: Producer<Sent>,
    back: Consumer<Returned>,
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

/// Connects a poller and a worker.
pub(super) fn connect() -> (ListProducer, ListConsumer) {
    let ((to, from), (give, back)) = (ring(LISTS), ring(LISTS));
    let producer = ListProducer {
        to,
        back,
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

    /// Passes a list of so many packets on, behind `after` single ones that the worker can see.
    #[inline]
    pub(super) fn send(&mut self, packets: Packets, after: usize) {
        self.on_the_way += packets.len();
        let refused = self.to.push(Sent { packets, after });
        debug_assert!(refused.is_ok(), "the ring has room for all lists");
    }

    /// Takes back lists.
    #[inline]
    pub(super) fn settle(&mut self, spare: &mut Vec<Packets>) {
        while let Some((packets, count)) = self.back.pop() {
            self.on_the_way -= count;
            spare.push(packets);
        }
    }

    /// Takes back the oldest list that the worker left, once it has ended.
    pub(super) fn take_back(&mut self) -> Option<Packets> {
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
