//! A chain that takes the place of another one, with its functions and its flows.
//!
//! The functions that both have move at once, with all that they hold. Flows move bucket by bucket: before the first
//! packet of a bucket is looked up, and a bucket at a time between batches. So packets wait for few flows, and no
//! function ever sees a flow without its state, or a key that seems free and is not.

use super::Chain;
use super::flow_callbacks::report_flow_ends;
use super::predecessor::{FlowShare, OldStages, Predecessor, pieces};
use super::stage::Stage;
use crate::batch::Batch;
use crate::flow_table::FlowTable;
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::{BUCKETS, bucket_of};

/// Flows that move between two batches, at least: with those of the bucket that exceeds this number.
const FLOWS_AT_A_TIME: usize = 32;

impl Chain {
    /// Returns `true` if this chain, which has not processed a packet, can [succeed](Chain::succeed) another one: both
    /// find flows by the same keys, and neither has branches, isolated functions or external state.
    pub fn can_succeed(&self, old: &Chain) -> bool {
        let has_same_keys = match (&self.table, &old.table) {
            (Some(new), Some(old)) => new.has_keys_of(old),
            _ => true,
        };
        self.is_plain() && old.is_plain() && has_same_keys
    }

    /// Returns `true` if it has no branches, isolated functions or external state.
    pub fn is_plain(&self) -> bool {
        let is_isolated = self.isolated || self.has_isolated_functions();
        !self.branches && !is_isolated && self.external_state.is_none()
    }

    /// Divides the flows of this chain, which has processed its last packet, among several successors.
    pub fn divide(mut self) -> DividedChain {
        // It may have succeeded another one a moment ago.
        self.claim_all();
        self.take_all_back();
        self.before_flows_move();
        DividedChain {
            is_plain: self.is_plain(),
            table: self.table.take(),
            stages: OldStages::new(std::mem::take(&mut self.stages)),
        }
    }

    /// Takes over the flows of RSS buckets that are now this chain's, before the first packet. The functions named
    /// `kept`, which the chains before had, too, of the same factories, keep flows' state. Other functions of these
    /// chains are told the ends of the flows. Flows move little by little; until then, this chain holds both. Without
    /// the same keys, or if one of the chains is not [plain](Chain::can_succeed), all flows end.
    pub fn succeed_to(&mut self, share: FlowShare, kept: &[String]) {
        if let Some(table) = self
            .table
            .as_ref()
            .filter(|table| self.is_plain() && share.suits(table))
        {
            let new = (&self.stages[..], table.state_bytes());
            self.predecessor = share.into_predecessor(new, kept).map(Box::new);
        }
    }

    /// Takes the place of another chain, which has processed its last packet. The functions named `kept`, which both
    /// have, of the same factories, keep what they hold, and flows keep these functions' state. Other functions of the
    /// old chain are told the ends of the flows. Flows move little by little; until then, this chain holds both.
    ///
    /// # Panics
    /// If this chain [cannot succeed](Chain::can_succeed) the other one.
    pub fn succeed(&mut self, mut old: Chain, kept: &[String]) {
        assert!(self.can_succeed(&old), "flows have other keys");
        // It may have succeeded a third one a moment ago.
        old.claim_all();
        let mut all = Vec::new();
        for name in kept {
            let named = |stage: &&mut Stage| stage.name == *name;
            let (own, its) = (self.stages.iter_mut().find(named), old.stages.iter_mut().find(named));
            let (Some(own), Some(its)) = (own, its) else {
                continue;
            };
            std::mem::swap(&mut own.function, &mut its.function);
            own.count_from_now();
            if let (Some(before), Some(slot)) = (its.slot.take(), &own.slot) {
                all.extend(pieces(&before, slot));
            }
        }
        let (Some(table), true) = (old.table.take(), self.table.is_some()) else {
            // Without flows in one of them, there is nothing to move.
            old.drain();
            return;
        };
        let bytes = self.table.as_ref().map_or(0, FlowTable::state_bytes);
        let stages = vec![OldStages::new(old.stages)];
        // Those kept have no state in the old stages any more.
        self.predecessor = Some(Box::new(Predecessor::new((stages, &[]), table, all, bytes)));
    }

    /// Moves the flows of the buckets of these packets.
    #[cold]
    pub(super) fn claim_flows_of(&mut self, batch: &Batch, now: Nanos) {
        if let Some(predecessor) = &mut self.predecessor {
            predecessor.now = now;
        }
        for packet in batch.iter() {
            self.claim_bucket(bucket_of(packet.rss_hash));
        }
    }

    /// Moves the flows of a bucket, if they are still the predecessor's.
    #[inline]
    pub(super) fn claim_bucket(&mut self, bucket: u16) {
        let (Some(predecessor), Some(table)) = (&mut self.predecessor, &mut self.table) else {
            return;
        };
        predecessor.move_bucket(bucket, table, &mut self.ends);
        report_flow_ends(&mut self.stages, &mut self.ends);
    }

    /// Moves the flows of further buckets, about as many as a batch has packets.
    #[cold]
    pub(super) fn claim_some(&mut self, now: Nanos) {
        let Some(predecessor) = &mut self.predecessor else {
            return;
        };
        predecessor.now = now;
        let before = predecessor.flows();
        while let Some(predecessor) = &mut self.predecessor
            && before - predecessor.flows() < FLOWS_AT_A_TIME
        {
            let next = (predecessor.next..BUCKETS as u16).find(|bucket| predecessor.left[usize::from(*bucket)]);
            let Some(bucket) = next else {
                drop(self.predecessor.take());
                return;
            };
            predecessor.next = bucket;
            self.claim_bucket(bucket);
        }
    }

    /// Moves all flows.
    pub(super) fn claim_all(&mut self) {
        while let Some(now) = self.predecessor.as_ref().map(|predecessor| predecessor.now) {
            self.claim_some(now);
        }
    }
}

/// Chain that has processed its last packet, and whose flows several others take over: each those of its RSS buckets.
/// A bucket has one owner at all times: this, then a share, then the chain that [takes it](Chain::succeed_to). Flows
/// that nobody takes end.
pub struct DividedChain {
    table: Option<FlowTable>,
    stages: Arc<OldStages>,
    is_plain: bool,
}

impl DividedChain {
    /// Takes the flows of the buckets for which `owns` returns `true`, and which nobody has taken before.
    pub fn share(&mut self, owns: impl Fn(u16) -> bool) -> FlowShare {
        let table = self.table.as_mut().map(|table| {
            let mut view = table.sharing();
            for bucket in (0..BUCKETS as u16).filter(|bucket| owns(*bucket)) {
                table
                    .release(bucket)
                    .into_iter()
                    .for_each(|partition| view.adopt(partition));
            }
            view
        });
        FlowShare::new(table, Arc::clone(&self.stages), self.is_plain)
    }
}

impl Drop for DividedChain {
    fn drop(&mut self) {
        drop(self.share(|_| true));
    }
}

#[cfg(test)]
mod tests;
