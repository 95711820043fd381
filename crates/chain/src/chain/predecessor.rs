//! Rest of a chain that another one has succeeded.

use super::stage::Stage;
use crate::flow_table::{EndedFlows, FlowTable};
use crate::function::{StateSlot, UNSEEN};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use tailwater_net::toeplitz::BUCKETS;
use tailwater_net::{FlowKey, Nanos};

/// Bytes of a flow's state that stay, as a range in the old state, and their start in the new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    from: Range<usize>,
    to: usize,
}

/// Functions of a chain that has ended, which may have several successors. The last one that leaves them ends their
/// run.
pub(super) struct OldStages(Mutex<Vec<Stage>>);

impl OldStages {
    pub(super) fn new(stages: Vec<Stage>) -> Arc<OldStages> {
        Arc::new(OldStages(Mutex::new(stages)))
    }

    /// Calls `f` with the functions. Successors do so once for each bucket, not for packets.
    fn with<R>(&self, f: impl FnOnce(&mut [Stage]) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Parts of the state that stay with functions of a successor: those named `kept`.
    fn pieces(&self, new: &[Stage], kept: &[String]) -> Vec<Piece> {
        self.with(|stages| {
            let both = kept.iter().filter_map(|name| {
                let named = |stage: &&Stage| stage.name == *name;
                let (old, new) = (stages.iter().find(named)?, new.iter().find(named)?);
                Some(pieces(old.slot.as_ref()?, new.slot.as_ref()?))
            });
            both.flatten().collect()
        })
    }
}

impl Drop for OldStages {
    fn drop(&mut self) {
        for stage in self.0.get_mut().unwrap_or_else(PoisonError::into_inner) {
            if let Some(run_end) = stage.function.run_end() {
                run_end.drain();
                run_end.after_flow_ends();
            }
        }
    }
}

/// Flows of some RSS buckets of chains that have ended, for one of their successors. Flows that it does not take end.
pub struct FlowShare {
    /// View of the old flow table, with the partitions of these buckets; `None` without flows.
    table: Option<FlowTable>,
    /// Functions of each of the chains. All have the same.
    stages: Vec<Arc<OldStages>>,
    /// The chains have no branches, isolated functions or external state.
    is_plain: bool,
}

impl FlowShare {
    pub(super) fn new(table: Option<FlowTable>, stages: Arc<OldStages>, is_plain: bool) -> FlowShare {
        FlowShare {
            table,
            stages: vec![stages],
            is_plain,
        }
    }

    /// Returns `true` if a chain that is plain, and finds flows as `table` does, can have these.
    pub(super) fn suits(&self, table: &FlowTable) -> bool {
        self.is_plain && self.table.as_ref().is_none_or(|old| table.has_keys_of(old))
    }

    /// Adds the share of another of the chains, which has other buckets of the same flow table.
    pub fn merge(&mut self, mut other: FlowShare) {
        self.is_plain &= other.is_plain;
        self.stages.append(&mut other.stages);
        match (&mut self.table, &mut other.table) {
            (Some(own), Some(others)) => {
                for bucket in 0..BUCKETS as u16 {
                    others
                        .release(bucket)
                        .into_iter()
                        .for_each(|partition| own.adopt(partition));
                }
            }
            (own @ None, others) => *own = others.take(),
            (Some(_), None) => {}
        }
    }

    /// The rest of the chains for a successor with these functions and this state of a flow, which keeps the functions
    /// named `kept`. `None` without flows.
    pub(super) fn into_predecessor(mut self, (new, bytes): (&[Stage], usize), kept: &[String]) -> Option<Predecessor> {
        let table = self.table.take()?;
        let stages = std::mem::take(&mut self.stages);
        let all = stages.first().map(|first| first.pieces(new, kept)).unwrap_or_default();
        Some(Predecessor::new((stages, kept), table, all, bytes))
    }
}

impl Drop for FlowShare {
    fn drop(&mut self) {
        let (Some(table), Some(stages)) = (&mut self.table, self.stages.first()) else {
            return;
        };
        stages.with(|stages| {
            for bucket in 0..BUCKETS as u16 {
                while let Some(flow) = table.first_flow(bucket) {
                    table.take_flow(flow, |key, _, state| end_for(stages, &[], key, state));
                }
            }
        });
    }
}

/// Rest of a chain that was succeeded, or of several, whose buckets are now those of one.
pub(super) struct Predecessor {
    /// Functions that the successor does not have, and instances of the others that it does not use.
    stages: Vec<Arc<OldStages>>,
    /// Names of the functions whose state passes: no flow ends there.
    kept: Vec<String>,
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
    /// Rest of chains with these functions, of which some stay. `bytes` is the state that the successor has for a flow.
    pub(super) fn new(
        (stages, kept): (Vec<Arc<OldStages>>, &[String]),
        table: FlowTable,
        pieces: Vec<Piece>,
        bytes: usize,
    ) -> Predecessor {
        Predecessor {
            left: Box::new(std::array::from_fn(|bucket| table.first_flow(bucket as u16).is_some())),
            stages,
            kept: kept.to_vec(),
            table,
            pieces,
            next: 0,
            now: Nanos::ZERO,
            states: Vec::with_capacity(2 * bytes),
            flows: Vec::with_capacity(2),
        }
    }

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
            kept,
            table: old,
            pieces,
            now,
            states,
            flows,
            ..
        } = self;
        let bytes = table.state_bytes();
        let Some(first) = stages.first() else {
            return;
        };
        first.with(|stages| {
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
                    end_for(stages, kept, key, state);
                });
                table.receive_flows(bucket, flows, states, *now, ends);
            }
        });
    }
}

/// Reports the end of a flow to functions that the successor does not have: all but those `kept`.
fn end_for(stages: &mut [Stage], kept: &[String], key: &FlowKey, state: &[u8]) {
    for Stage {
        name, function, slot, ..
    } in stages
    {
        if kept.contains(name) {
            continue;
        }
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
