//! The queue behind the local queue, for flows with too many packets.

use super::Backlog;
use crate::fairness::{Fairness, Overtaken, Vote};
use crate::flow::OWN;
use tailwater_handover::owner::Placement;
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
    /// of its packets is queued. Of a bucket, only the packets of one flow are behind if most are of that flow: those
    /// that have its hash. When [`receive`](Backlog::receive) returns this list, the caller first moves the
    /// [overtaken](Backlog::take_overtaken) packets there, if there are any.
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

    /// Returns the packets that are to be moved, in order, from the local queue to that behind. The caller reports
    /// their number by [`overtook`](Backlog::overtook) before the next packet.
    #[inline]
    pub fn take_overtaken(&mut self) -> Option<Overtaken> {
        self.fairness.overtaken.take()
    }

    /// Counts packets of the local queue that were moved to that behind.
    pub fn overtook(&mut self, number: u16, packets: u32) {
        self.here.packets -= packets;
        self.fairness.behind.packets += packets;
        let mut behind = u32::from(self.flow(number).queued);
        if let Some(vote) = self.fairness.vote(number).filter(|vote| vote.behind > 0) {
            vote.behind += packets;
            behind = vote.behind;
        }
        let is_all = behind == u32::from(self.flow(number).queued);
        self.here.flows -= u32::from(is_all);
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
        self.fairness.is_serving_behind = false;
        if self.fairness.behind.packets == 0 {
            return OWN;
        }
        self.fairness.round = (self.fairness.round + 1) % if leaving { 2 } else { ROUNDS };
        self.fairness.is_serving_behind = self.here.packets == 0 || self.fairness.round == 0;
        match self.fairness.is_serving_behind {
            true => self.behind(),
            false => OWN,
        }
    }

    /// Counts a packet in if it is behind or lost: its flow or bucket has many. Returns the list that it joins, or
    /// `None` for that of any other packet.
    #[cold]
    pub(super) fn receive_of_many(&mut self, number: u16, hash: u32) -> Option<usize> {
        if self.flows[usize::from(number)].is_joining() {
            // Its packets are parked, however many there are.
            let is_excess = self.fairness.is_excess(&self.flows[usize::from(number)], self.inside);
            self.fairness.others -= u32::from(is_excess);
            return is_excess.then(|| self.refusing());
        }
        let vote = self.vote_of(number, hash);
        let flow = &mut self.flows[usize::from(number)];
        if vote.is_some_and(|vote| vote.hash != hash) {
            // Its flow has few.
            self.fairness.note_other();
            let is_all_behind = flow.queued > 0 && vote.is_some_and(|vote| vote.behind == u32::from(flow.queued));
            self.here.flows += u32::from(is_all_behind);
            return None;
        }
        if self.fairness.is_excess(flow, self.inside) {
            self.fairness.others -= 1;
            return Some(self.refusing());
        }
        if matches!(flow.placement(), Placement::Auxiliary(_)) {
            return None;
        }
        if !flow.is_behind() {
            let is_one_of_several = 2 * u32::from(flow.queued) <= self.here.packets;
            if !self.fairness.has_share(flow) || is_one_of_several {
                return None;
            }
            flow.set_behind(true);
            self.fairness.behind.flows += 1;
            let hash = vote.map(|vote| vote.hash);
            self.fairness.overtaken = Some(Overtaken { number, hash });
        }
        if vote.is_some()
            && let Some(vote) = self.fairness.vote(number)
        {
            vote.behind += 1;
        }
        flow.queued += 1;
        self.queued[usize::from(flow.at)].packets = flow.queued.into();
        self.bound += u32::from(flow.is_bound());
        self.fairness.behind.packets += 1;
        self.inside += 1;
        Some(self.behind())
    }

    /// Counts a packet in the vote of its flow or bucket. Returns the vote if most packets have one hash, or `None` if
    /// not, or if all packets are behind.
    fn vote_of(&mut self, number: u16, hash: u32) -> Option<Vote> {
        let flow = &mut self.flows[usize::from(number)];
        if flow.is_behind() {
            return self.fairness.vote(number).filter(|vote| vote.behind > 0).copied();
        }
        flow.set_voted(true);
        let flows = &self.flows;
        self.fairness
            .count_vote(number, hash, |other| &flows[usize::from(other)])
    }

    /// Counts a packet out of one of the two queues, of a flow or bucket with packets in the queue behind.
    #[cold]
    pub(super) fn leave_beside_behind(&mut self, number: u16) {
        let flow = &mut self.flows[usize::from(number)];
        let left = u32::from(flow.queued);
        let is_serving_behind = self.fairness.is_serving_behind;
        let behind = match self.fairness.vote(number).filter(|vote| vote.behind > 0) {
            // All of its packets are behind.
            None => left,
            Some(vote) if is_serving_behind || vote.behind > left => {
                vote.behind -= 1;
                vote.behind
            }
            Some(vote) => {
                self.here.packets -= 1;
                self.here.flows -= u32::from(vote.behind == left);
                return;
            }
        };
        self.fairness.behind.packets -= 1;
        if behind == 0 {
            self.fairness.behind.flows -= 1;
            flow.set_behind(false);
        }
    }

    /// Counts all packets of a flow or bucket out of both queues.
    pub(super) fn leave_all(&mut self, number: u16) {
        let flow = &mut self.flows[usize::from(number)];
        let mut here = u32::from(flow.queued);
        if flow.is_behind() {
            let vote = self.fairness.vote(number).filter(|vote| vote.behind > 0);
            let behind = vote.map_or(here, |vote| std::mem::take(&mut vote.behind));
            self.fairness.behind.flows -= 1;
            self.fairness.behind.packets -= behind;
            flow.set_behind(false);
            here -= behind;
        }
        self.here.flows -= u32::from(here > 0);
        self.here.packets -= here;
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
