//! Flows that another instance has taken up: the store refuses changes of them.
//!
//! A packet whose change is refused must not be sent, nor must later ones of its flow: another instance decides about
//! it. The flow ends here, so that its next packet finds the other instance's state.

use super::{Keeper, PacketAction, REFUSED};
use tailwater_chain::batch::Batch;
use tailwater_chain::chain::{Chain, DurableFlow, PersistState};
use tailwater_net::Nanos;

impl Keeper {
    /// Marks a flow and its companion as another instance's. Their packets are lost from now on, and they end when none
    /// of them waits; the next packet finds the other instance's state. If the flow was opened as the companion of the
    /// other (`joins`), the other one's state names what is not its own, and must not be found.
    #[cold]
    pub(super) fn refuse(&mut self, chain: &mut Chain, flow: DurableFlow, joins: bool) {
        chain.persist_state(flow).refused |= PersistState::REFUSED;
        if let Some(companion) = chain.durable_companion(flow) {
            let forget = if joins { PersistState::FORGET } else { 0 };
            chain.persist_state(companion).refused |= PersistState::COMPANION_REFUSED | forget;
        }
        self.end_later(chain, flow);
    }

    /// Notes a refused flow, to end it when it can.
    #[cold]
    pub(super) fn end_later(&mut self, chain: &Chain, flow: DurableFlow) {
        let entry = (flow.index(), chain.durable_key(flow));
        if self.refused.len() < REFUSED && !self.refused.contains(&entry) {
            self.refused.push(entry);
        }
    }

    /// Ends refused flows whose packets have all left.
    #[cold]
    pub(super) fn end_refused(&mut self, chain: &mut Chain, now: Nanos) {
        let commits = &self.commits;
        self.refused.retain(|(index, key)| {
            let Some(flow) = chain.durable_flow_at(*index, key) else {
                return false;
            };
            let gate = chain.persist_state(flow).gate;
            let companion = chain.durable_companion(flow);
            let other = companion.map_or(0, |companion| chain.persist_state(companion).gate);
            !commits.is_open(gate.max(other)) || !chain.end_durable_flow(flow, now)
        });
    }

    /// Removes packets of refused flows from a batch that has left a queue.
    #[cold]
    pub(super) fn lose_refused(&mut self, chain: &mut Chain, batch: &mut Batch, is_pinned: bool) {
        self.actions.clear();
        for packet in batch.iter() {
            let flow = chain.durable_flow(packet);
            let flow = flow.filter(|flow| chain.persist_state(*flow).refused != 0);
            if let (Some(flow), true) = (flow, is_pinned) {
                chain.unpin(flow);
            }
            self.actions.push(match flow {
                Some(_) => PacketAction::Lose,
                None => PacketAction::Run,
            });
        }
        let mut ways = self.actions.iter();
        self.counters.dropped += chain.drop_unavailable(batch, |_| ways.next() == Some(&PacketAction::Lose));
    }
}
