//! A chain that takes the place of another one, with its functions and its flows.
//!
//! The functions that both have move at once, with all that they hold. Flows move bucket by bucket: before the first
//! packet of a bucket is looked up, and a bucket at a time between batches. So packets wait for few flows, and no
//! function ever sees a flow without its state, or a key that seems free and is not.

use super::Chain;
use super::flow_callbacks::report_flow_ends;
use super::predecessor::{Predecessor, pieces};
use super::stage::Stage;
use crate::batch::Batch;
use crate::flow_table::FlowTable;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::{BUCKETS, bucket_of};

/// Flows that move between two batches, at least: with those of the bucket that exceeds this number.
const FLOWS_AT_A_TIME: usize = 32;

impl Chain {
    /// Returns `true` if this chain, which has not processed a packet, can [succeed](Chain::succeed) another one: both
    /// find flows by the same keys, and neither has branches, isolated functions or external state.
    pub fn can_succeed(&self, old: &Chain) -> bool {
        let is_isolated = |chain: &Chain| chain.isolated || chain.has_isolated_functions();
        let is_plain = |chain: &Chain| !chain.branches && !is_isolated(chain) && chain.external_state.is_none();
        let has_same_keys = match (&self.table, &old.table) {
            (Some(new), Some(old)) => new.has_keys_of(old),
            _ => true,
        };
        is_plain(self) && is_plain(old) && has_same_keys
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
        let left: Vec<bool> = (0..BUCKETS as u16)
            .map(|bucket| {
                old.table
                    .as_ref()
                    .is_some_and(|table| table.first_flow(bucket).is_some())
            })
            .collect();
        let (Some(table), true) = (old.table.take(), self.table.is_some()) else {
            // Without flows in one of them, there is nothing to move.
            old.drain();
            return;
        };
        let bytes = self.table.as_ref().map_or(0, FlowTable::state_bytes);
        self.predecessor = Some(Box::new(Predecessor {
            stages: old.stages,
            table,
            pieces: all,
            left: left.try_into().unwrap_or_else(|_| unreachable!("one for each bucket")),
            next: 0,
            now: Nanos::ZERO,
            states: Vec::with_capacity(2 * bytes),
            flows: Vec::with_capacity(2),
        }));
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
                self.predecessor.take().into_iter().for_each(|rest| rest.finish());
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

#[cfg(test)]
mod tests;
