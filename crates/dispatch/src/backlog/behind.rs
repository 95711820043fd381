//! The queue behind the local queue, for flows with too many packets.

use super::Backlog;
use crate::fairness::Fairness;
use crate::flow::OWN;
use tailwater_net::Nanos;

/// Number of batches of which one is of the queue behind, if both queues have packets: so that a flow there goes on, at
/// little cost to all others.
const ROUNDS: u32 = 32;
/// Excess of samples of one flow over those of all others from which on that flow may be a whale.
const SUSPICIOUS: u32 = 16;
/// Time between two looks for whales that found none.
const PAUSE: Nanos = Nanos::from_millis(10);

impl<F, P> Backlog<F, P> {
    /// Returns the index of the list *behind* the local queue. It holds the packets of flows that have too many queued:
    /// they are processed when no other packet waits, and else in one batch of 32. Such a flow is behind until none
    /// of its packets is queued. When [`receive`](Backlog::receive) returns this list, the caller first moves the
    /// packets of the [overtaken](Backlog::take_overtaken) flow there, if there is one.
    #[inline]
    pub fn behind(&self) -> usize {
        self.auxiliaries.len() + 2
    }

    /// Returns the index, one beyond all other lists, that stands for lost packets: their flow has more than its share
    /// of the buffers, of which few are left.
    #[inline]
    pub fn refusing(&self) -> usize {
        self.auxiliaries.len() + 3
    }

    /// Returns the flow whose queued packets are to be moved, in order, from the local queue to that behind.
    #[inline]
    pub fn take_overtaken(&mut self) -> Option<u16> {
        self.fairness.overtaken.take()
    }

    /// Returns the number of packets in the local queue and behind it.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.here.packets + self.fairness.behind.packets
    }

    /// Returns the list of the next batch to be processed here. If buckets are `leaving`, which takes until the last
    /// packet of theirs is done, every other batch is from behind.
    #[inline]
    pub fn next_list(&mut self, leaving: bool) -> usize {
        if self.fairness.behind.packets == 0 {
            return OWN;
        }
        self.fairness.round = (self.fairness.round + 1) % if leaving { 2 } else { ROUNDS };
        match self.here.packets == 0 || self.fairness.round == 0 {
            true => self.behind(),
            false => OWN,
        }
    }

    /// Counts a packet in whose flow has too many queued. Returns the list that it joins.
    #[cold]
    pub(super) fn receive_behind(&mut self, number: u16) -> usize {
        let flow = &mut self.flows[usize::from(number)];
        if self.fairness.is_excess(flow, self.inside) {
            self.fairness.others -= 1;
            return self.refusing();
        }
        let packets = u32::from(flow.queued);
        if !flow.is_behind() && 2 * packets <= self.here.packets {
            // It is one of several that have a burst.
            self.queue(number);
            return OWN;
        }
        if !flow.is_behind() {
            flow.set_behind(true);
            self.here.flows -= 1;
            self.here.packets -= packets;
            self.fairness.behind.flows += 1;
            self.fairness.behind.packets += packets;
            self.fairness.overtaken = Some(number);
        }
        flow.queued += 1;
        self.queued[usize::from(flow.at)].packets = flow.queued.into();
        self.bound += u32::from(flow.is_bound());
        self.fairness.behind.packets += 1;
        self.inside += 1;
        self.behind()
    }

    /// Takes a sample of the packets that a [single](Backlog::is_single) dispatcher processes straight from the port,
    /// while others wait: the hash of one packet's flow per batch.
    #[inline]
    pub fn sample(&mut self, hash: u32) {
        let Fairness { candidate, excess, .. } = &mut self.fairness;
        match (hash == *candidate, *excess) {
            (true, _) => *excess = (*excess + 1).min(2 * SUSPICIOUS),
            (false, 0) => (*candidate, *excess) = (hash, 1),
            (false, _) => *excess -= 1,
        }
    }

    /// Decides for a [single](Backlog::is_single) dispatcher without packets in the system whether it looks for whales:
    /// whether it receives into its local queue, instead of processing batches straight from the port, although nobody
    /// can take flows from it. That costs time, so it does when a *long* queue waits in the port, and most
    /// [samples](Backlog::sample) are of one flow.
    #[inline]
    pub fn looks_for_whales(&mut self, now: Nanos, is_long: bool) -> bool {
        let is_suspicious = self.fairness.excess >= SUSPICIOUS;
        self.fairness.looking = is_long && is_suspicious && now >= self.fairness.next_look;
        self.fairness.looking
    }

    /// Ends a look for whales that has found none: the local queue is full.
    #[inline]
    pub fn end_look(&mut self, now: Nanos) {
        if self.fairness.looking && self.fairness.behind.flows == 0 && self.here.packets >= self.share {
            self.fairness.looking = false;
            self.fairness.next_look = now + PAUSE;
        }
    }
}
