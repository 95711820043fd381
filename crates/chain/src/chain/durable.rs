//! Interface between a chain and the store that keeps its flow state externally (Redis).

use super::Chain;
use super::external_state::{
    DurableFlow, DurableFunction, ExternalState, Location, MARK, PersistState, persist_state_range,
};
use super::input::InputPolicy;
use super::segment::{Cuts, Layout};
use super::stage::Stage;
use crate::batch::{Batch, Packet, Verdict};
use crate::flow_table::{EndedFlows, FlowTable};
use crate::function::{CompanionCandidates, NetworkFunction};
use tailwater_net::{FlowKey, Nanos};
use tailwater_sdk::protocol::snapshots::{ExternalFlowInfo, FlowSnapshots};

impl Chain {
    /// Same as [`new`](Chain::new), with externally stored flow state. The table is sized for
    /// [`state_bytes_with_persistence`](super::state_bytes_with_persistence). `origin` is the wall-clock time of the
    /// run's start.
    ///
    /// # Panics
    /// Same as [`new`](Chain::new).
    pub fn with_external_state(
        mut functions: Vec<(String, Box<dyn NetworkFunction>)>,
        table: Option<FlowTable>,
        input: InputPolicy,
        origin: Nanos,
    ) -> Chain {
        let layout = Layout::new(&functions, Cuts::NONE);
        let persist_state = persist_state_range(&layout);
        let room = table.as_ref().map_or(0, FlowTable::state_bytes);
        assert!(
            persist_state.end <= room,
            "the flow table has {room} bytes a flow, the chain needs {}",
            persist_state.end
        );
        let external = ExternalState::new(&mut functions, &layout, origin);
        let mut chain = Chain::with_layout(functions, table, input, layout);
        chain.ends = EndedFlows::new(room, true);
        chain.external_state = Some(Box::new(external));
        chain
    }

    /// Functions whose state is stored externally, and the size of a row in bytes; `None` if there are none.
    pub fn durable_functions(&self) -> Option<(Vec<DurableFunction>, usize)> {
        let external = self.external_state.as_ref()?;
        Some((external.functions.clone(), external.row_bytes))
    }

    /// Flow of a packet; `None` if it was not looked up.
    #[inline]
    pub fn durable_flow(&self, packet: &Packet) -> Option<DurableFlow> {
        packet.flow.get().map(|_| DurableFlow(packet.flow))
    }

    /// Returns the flow at index `index` if it still has this key. In an instance to which buckets are lent, its bucket
    /// must be.
    pub fn durable_flow_at(&self, index: u32, key: &FlowKey) -> Option<DurableFlow> {
        Some(DurableFlow(self.table.as_ref()?.known_at(index, key)?))
    }

    /// Returns the first flow at or after index `index`.
    pub fn next_durable_flow(&self, index: u32) -> Option<DurableFlow> {
        Some(DurableFlow(self.table.as_ref()?.next_from(index)?))
    }

    /// Companion of the flow.
    pub fn durable_companion(&self, flow: DurableFlow) -> Option<DurableFlow> {
        Some(DurableFlow(self.table.as_ref()?.companion(flow.0)?))
    }

    /// Key of the flow.
    pub fn durable_key(&self, flow: DurableFlow) -> FlowKey {
        self.durable_table().1.key(flow.0)
    }

    /// Idle timeout of the flow.
    pub fn durable_timeout(&self, flow: DurableFlow) -> Nanos {
        let table = self.durable_table().1;
        table.idle_timeout(&table.key(flow.0))
    }

    fn durable_table(&self) -> (&ExternalState, &FlowTable) {
        let parts = self.external_state.as_deref().zip(self.table.as_ref());
        parts.expect("called only for chains with external state")
    }

    fn durable_parts(&mut self) -> (&mut ExternalState, &mut FlowTable, &mut [Stage]) {
        let parts = self.external_state.as_deref_mut().zip(self.table.as_mut());
        let (external, table) = parts.expect("called only for chains with external state");
        (external, table, &mut self.stages)
    }

    /// Persistence status of the flow.
    ///
    /// # Panics
    /// If the chain does not store state externally, or the flow has left the table.
    #[inline]
    pub fn persist_state(&mut self, flow: DurableFlow) -> &mut PersistState {
        let (external, table, _) = self.durable_parts();
        external.persist_state(table, flow.0)
    }

    /// Holds the flow in the table until [`unpin`](Chain::unpin) has been called as often.
    #[inline]
    pub fn pin(&mut self, flow: DurableFlow) {
        let table = self.durable_parts().1;
        let held = table.active(flow.0).map_or(0, |held| held + 1);
        table.set_active(flow.0, Some(held));
    }

    /// Undoes one [`pin`](Chain::pin).
    #[inline]
    pub fn unpin(&mut self, flow: DurableFlow) {
        let table = self.durable_parts().1;
        let held = table.active(flow.0).and_then(|held| held.checked_sub(1));
        table.set_active(flow.0, held);
    }

    /// Pieces of functions that open companions: their state of a flow belongs to one companion.
    pub fn paired_pieces(&self) -> u16 {
        self.external_state.as_ref().map_or(0, |external| external.paired)
    }

    /// Ends the flow with its companion, unless one is [pinned](Chain::pin). Returns `true` if it has ended.
    pub fn end_durable_flow(&mut self, flow: DurableFlow, now: Nanos) -> bool {
        let Some(table) = &mut self.table else { return false };
        let companion = table.companion(flow.0);
        let mut both = [Some(flow.0), companion].into_iter().flatten();
        if both.any(|flow| table.active(flow).is_some()) {
            return false;
        }
        table.end_flow(flow.0, &mut self.ends);
        self.end_expired(now);
        true
    }

    /// Copies the flow's pieces as they are, before functions run. Functions in other processes that have not seen the
    /// flow are sent the store's data on it.
    #[inline]
    pub fn copy_row(&mut self, flow: DurableFlow, row: &mut [u8]) {
        let (external, table, stages) = self.durable_parts();
        let generation = external.generation(table, stages, flow.0);
        for (i, piece) in external.pieces.iter().enumerate() {
            match &piece.location {
                Location::Local { state, .. } => {
                    row[piece.row.clone()].copy_from_slice(table.state(flow.0, state));
                }
                Location::Remote(snapshots) => {
                    let index = flow.index();
                    if !snapshots.is_of(index, generation) {
                        let persist_state = *external.persist_state(table, flow.0);
                        let restored = persist_state.restored >> i & 1 != 0;
                        let (taken, turn) = (persist_state.taken, persist_state.turn);
                        snapshots.set_external_info(index, ExternalFlowInfo { restored, taken, turn });
                    }
                    let mark = snapshots.mark(index);
                    row[piece.row.start..piece.row.start + MARK].copy_from_slice(bytemuck::bytes_of(&mark));
                }
            }
        }
    }

    /// Returns the pieces that have changed since they were [copied](Chain::copy_row).
    #[inline]
    pub fn changed_pieces(&mut self, flow: DurableFlow, row: &[u8]) -> u16 {
        let (external, table, stages) = self.durable_parts();
        let generation = external.generation(table, stages, flow.0);
        let mut changed = 0;
        for (i, piece) in external.pieces.iter().enumerate() {
            let other = match &piece.location {
                Location::Local { state, .. } => row[piece.row.clone()] != *table.state(flow.0, state),
                Location::Remote(snapshots) => {
                    let (before, after) = (piece.mark(row), snapshots.mark(flow.index()));
                    if FlowSnapshots::was_refused(before, after) {
                        external.refused(table, flow.0);
                    }
                    FlowSnapshots::has_changed(before, after) && snapshots.is_of(flow.index(), generation)
                }
            };
            changed |= u16::from(other) << i;
        }
        changed
    }

    /// Returns the pieces that their functions have created or resumed.
    pub fn seen_pieces(&mut self, flow: DurableFlow) -> u16 {
        let (external, table, stages) = self.durable_parts();
        let generation = external.generation(table, stages, flow.0);
        let pieces = external.pieces.iter().enumerate();
        pieces.fold(0, |seen, (i, piece)| {
            seen | u16::from(piece.is_seen(table, flow.0, generation)) << i
        })
    }

    /// Copies the flow's pieces in their portable form. Pieces that a function in another process is writing, or was
    /// writing when it was killed, stay unchanged in the row.
    #[inline]
    pub fn durable_row(&mut self, flow: DurableFlow, row: &mut [u8]) {
        let (external, table, stages) = self.durable_parts();
        let generation = external.generation(table, stages, flow.0);
        for piece in &external.pieces {
            let part = &mut row[piece.row.clone()];
            match &piece.location {
                Location::Local { state, .. } => {
                    part.copy_from_slice(table.state(flow.0, state));
                    if let Some(durable) = stages[piece.stage].function.durable() {
                        durable.to_durable(part, external.origin);
                    }
                }
                Location::Remote(snapshots) => {
                    snapshots.copy(flow.index(), generation, part);
                }
            }
        }
    }

    /// Restores pieces from the store, except where a function has seen the flow already.
    pub fn restore(&mut self, flow: DurableFlow, pieces: u16, row: &[u8]) {
        let (external, table, stages) = self.durable_parts();
        let generation = external.generation(table, stages, flow.0);
        let (mut restored, mut took_up) = (0, false);
        for (i, piece) in external.pieces.iter().enumerate() {
            if pieces >> i & 1 == 0 || piece.is_seen(table, flow.0, generation) {
                continue;
            }
            let from = &row[piece.row.clone()];
            match &piece.location {
                Location::Local { state, .. } => {
                    let state = table.state(flow.0, state);
                    state.copy_from_slice(from);
                    if let Some(durable) = stages[piece.stage].function.durable() {
                        durable.restore_durable(state, external.origin);
                    }
                }
                Location::Remote(snapshots) => {
                    snapshots.put(flow.index(), from);
                    // The function resumes with the next packet, which is not visible here.
                    took_up = true;
                }
            }
            restored |= 1 << i;
        }
        let persist_state = external.persist_state(table, flow.0);
        persist_state.restored |= restored;
        persist_state.took_up |= u16::from(took_up);
    }

    /// Collects the companion candidates for the packet's flow, each with the function's piece and its number, in
    /// `candidates`. Returns `false` if they cannot be determined now; the packet must not run then.
    pub fn companion_candidates(&mut self, packet: &Packet, candidates: &mut Vec<(u8, u8, FlowKey)>) -> bool {
        let (external, table, stages) = self.durable_parts();
        let mut turn = external.persist_state(table, packet.flow).turn;
        let mut keys = std::mem::take(&mut external.candidate_keys);
        let mut failed = false;
        for (i, piece) in external.pieces.iter().enumerate() {
            let Some(durable) = stages[piece.stage].function.durable() else {
                continue;
            };
            keys.clear();
            let mut collected = CompanionCandidates {
                table,
                keys: &mut keys,
                failed: false,
            };
            turn = durable.companion_candidates(packet, turn, &mut collected);
            failed |= collected.failed;
            candidates.extend(keys.iter().map(|&(number, key)| (i as u8, number, key)));
        }
        external.candidate_keys = keys;
        let persist_state = external.persist_state(table, packet.flow);
        persist_state.turn = turn;
        persist_state.wished = u16::from(!candidates.is_empty());
        !failed
    }

    /// Takes an expired flow that is in the store, with its RSS bucket, of those in buckets for which `is_own` returns
    /// `true`.
    pub fn next_ended(&mut self, is_own: impl Fn(u16) -> bool) -> Option<(FlowKey, u16)> {
        let ended = &mut self.external_state.as_mut()?.ended;
        let last = ended.iter().rposition(|(_, bucket)| is_own(*bucket))?;
        Some(ended.swap_remove(last))
    }

    /// Returns `true` if an expired flow of the bucket has yet to be [taken](Chain::next_ended).
    pub fn has_ended(&self, bucket: u16) -> bool {
        let external = self.external_state.as_ref();
        external.is_some_and(|external| external.ended.iter().any(|(_, of)| *of == bucket))
    }

    /// RSS bucket of the flow.
    #[inline]
    pub fn durable_bucket(&self, flow: DurableFlow) -> u16 {
        self.durable_table().1.bucket(flow.0)
    }

    /// Clears references of a bucket's flows to requests, all of which have been answered: the bucket moves to an
    /// instance whose requests have their own numbers, or has come from one.
    pub fn forget_requests(&mut self, bucket: u16) {
        let (external, table, _) = self.durable_parts();
        let mut index = table.first_of(bucket);
        while let Some(flow) = table.next_from(index).filter(|flow| table.bucket(*flow) == bucket) {
            let persist_state = external.persist_state(table, flow);
            persist_state.asked = persist_state.asked.min(PersistState::ANSWERED);
            (persist_state.gate, persist_state.updated_in, persist_state.entry) = (0, 0, 0);
            let written_in = persist_state.incarnation;
            external.is_behind |= written_in != 0 && written_in != external.incarnation;
            index = flow.index() as u32 + 1;
        }
    }

    /// Sets the incarnation of the store, as this instance's client knows it.
    pub fn set_incarnation(&mut self, incarnation: u32) {
        if let Some(external) = &mut self.external_state {
            external.incarnation = incarnation;
        }
    }

    /// Returns `true`, once, if a bucket has come back from another core with flows that the store may lack: that core
    /// had no room for their changes, or the store has lost them meanwhile.
    #[inline]
    pub fn take_behind(&mut self) -> bool {
        let external = self.external_state.as_mut();
        external.is_some_and(|external| std::mem::take(&mut external.is_behind))
    }

    /// RSS bucket of the flow at index `index`.
    pub fn durable_bucket_at(&self, index: u32) -> u16 {
        self.durable_table().1.bucket_at(index)
    }

    /// Removes a flow that has been opened and written again from the list of [expired flows](Chain::next_ended).
    #[inline]
    pub fn remove_ended(&mut self, key: &FlowKey) {
        if let Some(external) = &mut self.external_state
            && !external.ended.is_empty()
        {
            external.ended.retain(|(ended, _)| ended != key);
        }
    }

    /// Removes packets from the batch and counts them as lost because the store is unavailable. Returns their number.
    pub fn drop_unavailable(&mut self, batch: &mut Batch, mut lose: impl FnMut(&Packet) -> bool) -> u64 {
        for packet in batch.iter_mut() {
            if lose(packet) {
                packet.verdict = Verdict::Drop(0);
            }
        }
        let mut lost = 0;
        batch.compact(|_, _| lost += 1);
        self.lost += lost;
        if let Some(external) = &mut self.external_state {
            external.lost_unavailable += lost;
        }
        lost
    }
}
