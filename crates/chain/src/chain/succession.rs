//! A chain that takes the place of another one, with its functions and its flows.
//!
//! The functions that both have move at once, with all that they hold. Flows move bucket by bucket: before the first
//! packet of a bucket is looked up, and a bucket at a time between batches. So packets wait for few flows, and no
//! function ever sees a flow without its state, or a key that seems free and is not.

use super::Chain;
use super::flow_callbacks::report_flow_ends;
use super::stage::Stage;
use crate::batch::Batch;
use crate::flow_table::{EndedFlows, FlowTable};
use crate::function::{StateSlot, UNSEEN};
use std::ops::Range;
use tailwater_net::toeplitz::{BUCKETS, bucket_of};
use tailwater_net::{FlowKey, Nanos};

/// Bytes of a flow's state that stay, as a range in the old state, and their start in the new one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    from: Range<usize>,
    to: usize,
}

/// Rest of a chain that was succeeded.
pub(super) struct Predecessor {
    /// Functions that the successor does not have, and unused instances of the others, without state.
    stages: Vec<Stage>,
    table: FlowTable,
    pieces: Vec<Piece>,
    /// Buckets whose flows are still here, and the next to look at between batches.
    left: Box<[bool; BUCKETS]>,
    next: u16,
    /// Time of the last call.
    now: Nanos,
    /// States of a flow and its companion, as the successor has them, and their keys with the times of their last
    /// packets.
    states: Vec<u8>,
    flows: Vec<(FlowKey, u32)>,
}

impl Predecessor {
    /// Number of flows that are still here.
    pub(super) fn flows(&self) -> usize {
        self.table.flows()
    }

    /// Moves the flows of a bucket.
    fn move_bucket(&mut self, bucket: u16, table: &mut FlowTable, ends: &mut EndedFlows) {
        if !std::mem::take(&mut self.left[usize::from(bucket)]) {
            return;
        }
        let Predecessor {
            stages,
            table: old,
            pieces,
            now,
            states,
            flows,
            ..
        } = self;
        let bytes = table.state_bytes();
        while let Some(flow) = old.first_flow(bucket) {
            states.clear();
            flows.clear();
            old.take_flow(flow, |key, seen, state| {
                let start = states.len();
                states.resize(start + bytes, 0);
                for Piece { from, to } in pieces.iter() {
                    let to = start + to..start + to + from.len();
                    states[to].copy_from_slice(&state[from.clone()]);
                }
                flows.push((*key, seen));
                end_for(stages, key, state);
            });
            table.receive_flows(bucket, flows, states, *now, ends);
        }
    }

    /// Ends the run of the functions that are still here.
    fn finish(mut self) {
        for stage in &mut self.stages {
            if let Some(run_end) = stage.function.run_end() {
                run_end.drain();
                run_end.after_flow_ends();
            }
        }
    }
}

/// Reports the end of a flow to functions that the successor does not have.
fn end_for(stages: &mut [Stage], key: &FlowKey, state: &[u8]) {
    for Stage { function, slot, .. } in stages {
        let (Some(slot), Some(flow_ends)) = (slot, function.flow_ends()) else {
            continue;
        };
        for reversed in directions(slot) {
            if slot.seen_version(state, reversed) != UNSEEN {
                let key = if reversed { key.reversed() } else { *key };
                flow_ends.flow_ended(&key, &state[slot.state_of(reversed)]);
            }
        }
    }
}

/// Directions of a connection for which a function has state of its own.
fn directions(slot: &StateSlot) -> impl Iterator<Item = bool> + use<> {
    [false, true].into_iter().take(if slot.is_directed() { 2 } else { 1 })
}

/// Parts of the state of a function that stay, when its slot changes.
fn pieces(old: &StateSlot, new: &StateSlot) -> Vec<Piece> {
    directions(old)
        .flat_map(|reversed| {
            let (from, to) = (old.version_at(reversed), new.version_at(reversed));
            let version = Piece {
                from: from..from + size_of::<u32>(),
                to,
            };
            let state = Piece {
                from: old.state_of(reversed),
                to: new.state_of(reversed).start,
            };
            [version, state]
        })
        .collect()
}

impl Chain {
    /// Returns `true` if this chain, which has not processed a packet, can [succeed](Chain::succeed) another one: both
    /// find flows by the same keys, and neither has branches, isolated functions or external state.
    pub fn can_succeed(&self, old: &Chain) -> bool {
        let is_plain = |chain: &Chain| !chain.branches && !chain.isolated && chain.external_state.is_none();
        let has_same_keys = match (&self.table, &old.table) {
            (Some(new), Some(old)) => new.has_keys_of(old),
            _ => true,
        };
        is_plain(self) && is_plain(old) && has_same_keys && old.predecessor.is_none()
    }

    /// Takes the place of another chain, which has processed its last packet. The functions named `kept`, which both
    /// have, of the same factories, keep what they hold, and flows keep these functions' state. Other functions of the
    /// old chain are told the ends of the flows. Flows move little by little; until then, this chain holds both.
    ///
    /// # Panics
    /// If this chain [cannot succeed](Chain::can_succeed) the other one.
    pub fn succeed(&mut self, mut old: Chain, kept: &[String]) {
        assert!(self.can_succeed(&old), "flows have other keys");
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

    /// Moves the flows of one more bucket.
    #[cold]
    pub(super) fn claim_some(&mut self, now: Nanos) {
        let Some(predecessor) = &mut self.predecessor else {
            return;
        };
        predecessor.now = now;
        let next = (predecessor.next..BUCKETS as u16).find(|bucket| predecessor.left[usize::from(*bucket)]);
        match next {
            Some(bucket) => {
                predecessor.next = bucket;
                self.claim_bucket(bucket);
            }
            None => self.predecessor.take().into_iter().for_each(|rest| rest.finish()),
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
