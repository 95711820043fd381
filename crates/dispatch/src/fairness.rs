//! Fairness between flows: one with too many queued packets does not delay others, and loses its own.

use crate::flow::Flow;
use tailwater_net::Nanos;
use tailwater_policy::core::{Load, QUEUES};

/// Number of packets that flows with too many may lose after a packet of a flow that has few. Alone, a flow harms
/// nobody, and loses none.
const LOSSES: u32 = 256;

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
    /// Flow that was just put behind, whose packets are yet to be moved.
    pub(crate) overtaken: Option<u16>,
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
            round: 0,
            looking: false,
            next_look: Nanos::ZERO,
            candidate: 0,
            excess: 0,
        }
    }

    /// Returns `true` if a flow's next packet may be behind, or lost.
    #[inline]
    pub(crate) fn concerns<F>(&self, flow: &Flow<F>) -> bool {
        u32::from(flow.queued) >= self.share || flow.is_behind()
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
    pub(crate) fn behind_mut(&mut self) -> &mut Load {
        &mut self.behind
    }

    #[inline]
    pub(crate) fn is_looking(&self) -> bool {
        self.looking
    }
}
