//! Rest of a chain that another one has succeeded.

use super::stage::Stage;
use crate::flow_table::{EndedFlows, FlowTable};
use crate::function::{StateSlot, UNSEEN};
use std::ops::Range;
use tailwater_net::toeplitz::BUCKETS;
use tailwater_net::{FlowKey, Nanos};

/// Bytes of a flow's state that stay, as a range in the old state, and their start in the new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    from: Range<usize>,
    to: usize,
}

/// Rest of a chain that was succeeded.
pub(super) struct Predecessor {
    /// Functions that the successor does not have, and unused instances of the others, without state.
    pub(super) stages: Vec<Stage>,
    pub(super) table: FlowTable,
    pub(super) pieces: Vec<Piece>,
    /// Buckets whose flows are still here, and the next to look at between batches.
    pub(super) left: Box<[bool; BUCKETS]>,
    pub(super) next: u16,
    /// Time of the last call.
    pub(super) now: Nanos,
    /// States of a flow and its companion, as the successor has them, and their keys with the times of their last
    /// packets.
    pub(super) states: Vec<u8>,
    pub(super) flows: Vec<(FlowKey, u32)>,
}

impl Predecessor {
    /// Number of flows that are still here.
    pub(super) fn flows(&self) -> usize {
        self.table.flows()
    }

    /// Moves the flows of a bucket.
    pub(super) fn move_bucket(&mut self, bucket: u16, table: &mut FlowTable, ends: &mut EndedFlows) {
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
    pub(super) fn finish(mut self) {
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
pub(super) fn pieces(old: &StateSlot, new: &StateSlot) -> Vec<Piece> {
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
