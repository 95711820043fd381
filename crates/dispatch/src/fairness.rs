//! Fairness between flows: one with too many queued packets does not delay others, and loses its own.

use crate::flow::Flow;
use tailwater_net::Nanos;
use tailwater_policy::core::{Load, QUEUES};

/// Number of packets that flows with too many may lose after a packet of a flow that has few. Alone, a flow harms
/// nobody, and loses none.
const LOSSES: u32 = 256;

/// Maximum number of flows in votes at a time. With more than half a flow's share each, there are seldom as many.
const VOTES: usize = 8;
/// Excess of a hash's packets over those of all others from which on they are taken for most of their bucket's, at most.
const SURE: u32 = 16;

/// Majority vote of Boyer and Moore over the hashes of the packets of a flow (here: an RSS bucket) with many packets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Vote {
    /// Number of the flow, if it has a vote.
    number: Option<u16>,
    /// Candidate, and the excess of its packets.
    pub(crate) hash: u32,
    excess: u32,
    /// Number of the candidate's packets in the queue behind. It stays the candidate while there are any.
    pub(crate) behind: u32,
}

impl Vote {
    /// Counts a packet.
    fn count(&mut self, hash: u32) {
        match (hash == self.hash, self.excess) {
            (true, excess) => self.excess = (excess + 1).min(2 * SURE),
            (false, 0) => (self.hash, self.excess) = (hash, 1),
            (false, excess) => self.excess = excess - 1,
        }
    }
}

/// Packets that are to be moved, in order, from the local queue to that behind: those of a flow (if buckets are the
/// unit, of a bucket) that have a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overtaken {
    /// Number of the flow.
    pub number: u16,
    /// Hash of the packets, or `None` for all.
    pub hash: Option<u32>,
}

impl Overtaken {
    /// Returns `true` if a packet is to be moved.
    #[inline]
    pub fn concerns(&self, number: u16, hash: u32) -> bool {
        number == self.number && self.hash.is_none_or(|its| its == hash)
    }
}

/// State of the queue behind the local queue.
#[derive(Debug)]
pub(crate) struct Fairness {
    pub(crate) behind: Load,
    /// Number of a flow's queued packets from which on further ones are behind.
    share: u32,
    /// Number of a flow's packets in the system from which on further ones are lost, once the packets of all flows are
    /// more than `scarce`.
    most: u32,
    scarce: u32,
    /// Packets that flows with too many may lose until a packet of another flow arrives: alone, a flow harms nobody.
    pub(crate) others: u32,
    /// Packets that were just put behind, and are yet to be moved.
    pub(crate) overtaken: Option<Overtaken>,
    votes: [Vote; VOTES],
    /// The last batch was taken from behind.
    pub(crate) is_serving_behind: bool,
    /// Batches taken from the local queue since the last from behind.
    pub(crate) round: u32,
    /// A single dispatcher receives, to find whales.
    pub(crate) looking: bool,
    /// Earliest time of its next look.
    pub(crate) next_look: Nanos,
    /// Hash of the flow that most of its packets may be of, and the excess of samples for it (the majority vote of
    /// Boyer and Moore).
    pub(crate) candidate: u32,
    pub(crate) excess: u32,
}

impl Fairness {
    /// Creates the state for `packets` buffers.
    pub(crate) fn new(packets: u32) -> Fairness {
        let most = (packets / QUEUES).max(2);
        Fairness {
            behind: Load::default(),
            share: most / 2,
            most,
            scarce: packets - packets / 4,
            others: 0,
            overtaken: None,
            votes: [Vote::default(); VOTES],
            is_serving_behind: false,
            round: 0,
            looking: false,
            next_look: Nanos::ZERO,
            candidate: 0,
            excess: 0,
        }
    }

    /// Returns `true` if a flow has so many packets that a vote begins or that the next may be behind or lost.
    #[inline]
    pub(crate) fn concerns<F>(&self, flow: &Flow<F>) -> bool {
        u32::from(flow.queued) + flow.in_flight() >= self.share / 2 || flow.is_behind()
    }

    /// Returns `true` if a flow has its share of packets in the local queue.
    #[inline]
    pub(crate) fn has_share<F>(&self, flow: &Flow<F>) -> bool {
        u32::from(flow.queued) >= self.share
    }

    /// Returns the vote of a flow.
    pub(crate) fn vote(&mut self, number: u16) -> Option<&mut Vote> {
        self.votes.iter_mut().find(|vote| vote.number == Some(number))
    }

    /// Counts a packet in the vote of its flow, which begins with it. Returns the flow's vote, or `None` if there are
    /// too many or there is no majority yet.
    pub(crate) fn count_vote<'f, F: 'f>(
        &mut self,
        number: u16,
        hash: u32,
        flow: impl Fn(u16) -> &'f Flow<F>,
    ) -> Option<Vote> {
        let its = self.votes.iter().position(|vote| vote.number == Some(number));
        let is_over = |vote: &Vote| vote.number.is_none_or(|other| !self.concerns(flow(other)));
        let at = its.or_else(|| self.votes.iter().position(is_over))?;
        let sure = (self.share / 4).clamp(1, SURE);
        let vote = &mut self.votes[at];
        if its.is_none() {
            *vote = Vote {
                number: Some(number),
                ..Vote::default()
            };
        }
        vote.count(hash);
        (vote.excess >= sure).then_some(*vote)
    }

    /// Ends a flow's vote.
    pub(crate) fn end_vote(&mut self, number: u16) {
        if let Some(vote) = self.vote(number) {
            vote.number = None;
        }
    }

    /// Notes a packet of a flow that has few, in a bucket that has many.
    #[inline]
    pub(crate) fn note_other(&mut self) {
        self.others = LOSSES;
    }

    /// Notes a packet of a flow, before it is counted in: others may not have too many while it comes.
    #[inline]
    pub(crate) fn note<F>(&mut self, flow: &Flow<F>) {
        if u32::from(flow.queued) + flow.in_flight() < self.share {
            self.others = LOSSES;
        }
    }

    /// Returns `true` if a flow has its share of the packets in the system, of which there are `inside`, and those of
    /// others need the rest.
    #[inline]
    pub(crate) fn is_excess<F>(&self, flow: &Flow<F>, inside: u32) -> bool {
        inside > self.scarce && flow.packets() >= self.most && self.others > 0
    }

    #[inline]
    pub(crate) fn is_looking(&self) -> bool {
        self.looking
    }
}
