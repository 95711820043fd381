//! Snapshots of an isolated function's externally stored flow state. The function writes a snapshot of each flow for
//! its worker, and resumes from pieces that the worker restored.

use super::stage::Stage;
use crate::flow_table::{FlowIndex, FlowTable};
use crate::function::{DurableState, NetworkFunction, StateSlot, UNSEEN};
use tailwater_net::Nanos;
use tailwater_sdk::protocol::snapshots::FlowSnapshots;

/// Snapshot area of an isolated function's flows.
pub(super) struct Snapshotter {
    snapshots: FlowSnapshots,
    /// Wall-clock time of the run's start.
    origin: Nanos,
    /// Buffer for one piece.
    piece: Vec<u8>,
}

impl Snapshotter {
    /// Creates the snapshotter.
    ///
    /// # Panics
    /// If the snapshots' pieces differ in size from the function's state.
    pub(super) fn new(snapshots: FlowSnapshots, origin: Nanos, stage: &Stage) -> Snapshotter {
        let own = stage.slot.as_ref().map_or(0, |slot| slot.state.len());
        assert_eq!(own, snapshots.piece_bytes(), "snapshots of this function's state");
        Snapshotter {
            snapshots,
            origin,
            piece: vec![0; own],
        }
    }

    #[inline]
    pub(super) fn prefetch(&self, index: u32) {
        self.snapshots.prefetch(index);
    }

    /// Prepares a flow before the function sees it for the first time. Returns `true` if its state was restored, and
    /// the companion candidates that are taken with their turn.
    pub(super) fn show(
        &mut self,
        table: &mut FlowTable,
        flow: FlowIndex,
        (function, slot): (&mut dyn NetworkFunction, &StateSlot),
    ) -> (bool, Option<(u8, u8)>) {
        let info = self.snapshots.external_info(flow.index() as u32, &mut self.piece);
        if table.begin_opening(flow) {
            // A process was killed while it opened the flow: the state it left is invalid.
            table.state(flow, &slot.state).fill(0);
        }
        if info.restored {
            let state = table.state(flow, &slot.state);
            state.copy_from_slice(&self.piece);
            if let Some(durable) = function.durable() {
                durable.restore_durable(state, self.origin);
            }
        }
        (info.restored, Some((info.taken, info.turn)))
    }

    /// Writes the snapshots of a flow that the function has accepted, and of its companion. This precedes marking the
    /// flow as seen; after that, missing snapshots would go unnoticed.
    pub(super) fn opened(
        &mut self,
        table: &mut FlowTable,
        flow: FlowIndex,
        (function, slot): (&mut dyn NetworkFunction, &StateSlot),
    ) {
        let Some(durable) = function.durable() else { return };
        if let Some(companion) = table.take_last_companion() {
            self.reflect(table, companion, (durable, slot));
        }
        self.reflect(table, flow, (durable, slot));
    }

    /// Records that the function has refused the flow.
    pub(super) fn refused(&self, table: &mut FlowTable, flow: FlowIndex) {
        self.snapshots.refuse(flow.index() as u32);
        table.end_opening(flow);
    }

    /// Copies a flow's state to its snapshot.
    #[inline]
    fn reflect(&mut self, table: &mut FlowTable, flow: FlowIndex, (durable, slot): (&dyn DurableState, &StateSlot)) {
        self.piece.copy_from_slice(table.state(flow, &slot.state));
        durable.to_durable(&mut self.piece, self.origin);
        let generation = table.generation(flow);
        self.snapshots.publish(flow.index() as u32, generation, &self.piece);
    }

    /// Updates the snapshots of flows after a batch, as far as the function has seen them.
    #[inline]
    pub(super) fn processed(
        &mut self,
        table: &mut FlowTable,
        flows: impl Iterator<Item = FlowIndex>,
        stage: &mut Stage,
    ) {
        let (Some(durable), Some(slot)) = (stage.function.durable(), &stage.slot) else {
            return;
        };
        for flow in flows {
            if *table.word(flow, slot.version) != UNSEEN {
                self.reflect(table, flow, (durable, slot));
            }
        }
    }
}
