//! Interface between a chain and the store that keeps its flow state externally (Redis).
//!
//! A flow's state ends with its [`PersistState`], the persistence status of the flow. The store accesses the state by
//! [`DurableFlow`]s. The pieces that can be stored ([`durable`](NetworkFunction::durable)) form a *row*: each function's
//! piece in turn, aligned to 8 bytes. A set of pieces is a `u16` with one bit for each.

use super::segment::{Cuts, Layout};
use super::stage::Stage;
use super::{Chain, InputPolicy};
use crate::batch::{Batch, Packet, Verdict};
use crate::flow_table::{FlowIndex, FlowTable};
use crate::function::{CompanionCandidates, MAX_CANDIDATES, NetworkFunction, UNSEEN};
use bytemuck::{Pod, Zeroable};
use std::ops::Range;
use std::sync::Arc;
use tailwater_net::{FlowKey, Nanos};
use tailwater_sdk::protocol::snapshots::{ExternalFlowInfo, FlowSnapshots};

/// Persistence status of a flow; all zero for a flow that has just been opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct PersistState {
    /// Request that queried the store for the flow; 0 if there was none.
    pub asked: u64,
    /// Request that must be acknowledged before a packet of the flow leaves.
    pub gate: u64,
    /// Request that holds the flow's latest update.
    pub updated_in: u64,
    /// Index of the update in that request.
    pub entry: u32,
    /// Incarnation of the store when the state was last written; 0 if never.
    pub incarnation: u32,
    /// Time of the last write, in milliseconds since the run's start.
    pub written: u32,
    /// Pieces restored from the store that their functions have not resumed yet.
    pub restored: u16,
    /// Bit map of the companion candidates that are taken.
    pub taken: u8,
    /// Turn of these candidates.
    pub turn: u8,
    /// Not 0 if a function has resumed a piece.
    pub took_up: u32,
    /// Not 0 if functions have companion candidates for the flow.
    pub wished: u16,
    /// RSS bucket of the flow. Set when the flow was first to be written, even if there was no room for that.
    pub bucket: u16,
}

/// Flow whose state is stored externally. It stays valid as long as the flow is in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurableFlow(FlowIndex);

impl DurableFlow {
    /// Index in the flow table.
    #[inline]
    pub fn index(self) -> u32 {
        self.0.index() as u32
    }
}

/// Function whose flow state is stored externally.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DurableFunction {
    /// Name of the function in its chain.
    pub name: String,
    /// Type of the function.
    pub kind: &'static str,
    /// Version of its state's format.
    pub version: u32,
    /// Range of its piece in a row.
    pub row: Range<usize>,
}

/// Bookkeeping of a chain's externally stored state.
pub(super) struct ExternalState {
    persist_state: Range<usize>,
    pieces: Vec<Piece>,
    generation_fields: Option<GenerationField>,
    functions: Vec<DurableFunction>,
    row_bytes: usize,
    /// Wall-clock time of the run's start.
    origin: Nanos,
    /// Flows of the store that expired since the list was last drained.
    ended: Vec<(FlowKey, u16)>,
    /// Buffer for the companion candidates of one function.
    candidate_keys: Vec<(u8, FlowKey)>,
    /// Packets that could not wait for the store, or not any longer.
    pub(super) lost_unavailable: u64,
}

/// Piece of a flow's state that belongs to one function.
#[derive(Debug)]
struct Piece {
    stage: usize,
    location: Location,
    row: Range<usize>,
}

/// Location of a piece.
#[derive(Debug)]
enum Location {
    /// Piece in the flow table.
    Local { version: usize, state: Range<usize> },
    /// Piece of a function in another process, which writes snapshots of it.
    Remote(Arc<FlowSnapshots>),
}

/// Size in bytes of a mark, which takes the place of a remote piece in a copied row.
const MARK: usize = size_of::<u64>();

impl Piece {
    /// Reads the piece's mark from a copied row.
    fn mark(&self, row: &[u8]) -> u64 {
        bytemuck::pod_read_unaligned(&row[self.row.start..self.row.start + MARK])
    }

    fn is_seen(&self, table: &mut FlowTable, flow: FlowIndex, generation: u64) -> bool {
        match &self.location {
            Location::Local { version, .. } => *table.word(flow, *version) != UNSEEN,
            Location::Remote(snapshots) => snapshots.is_of(flow.index() as u32, generation),
        }
    }
}

/// Location of the flows' generations, if functions run in other processes: the front of the state of a function of
/// this chain.
#[derive(Debug)]
struct GenerationField {
    stage: usize,
    state: Range<usize>,
}

/// Returns the functions of a chain whose state can be stored, with their indices and the ranges of their pieces in a
/// row. Also returns the size of a row in bytes.
fn rows(functions: &mut [(String, Box<dyn NetworkFunction>)]) -> (Vec<(usize, DurableFunction)>, usize) {
    let (mut rows, mut row_bytes) = (Vec::new(), 0);
    for (stage, (name, function)) in functions.iter_mut().enumerate() {
        let kind = function.kind();
        let Some(version) = function.durable() else {
            continue;
        };
        let remote = function.remote_state().map(|remote| remote.piece_bytes());
        let bytes = remote.unwrap_or_else(|| function.state_bytes());
        if bytes == 0 {
            continue;
        }
        let row = row_bytes..row_bytes + bytes;
        row_bytes = row.end.next_multiple_of(MARK);
        let name = name.clone();
        rows.push((
            stage,
            DurableFunction {
                name,
                kind,
                version,
                row,
            },
        ));
    }
    (rows, row_bytes)
}

/// Returns the functions whose state a chain of these would store externally, and the size of a row in bytes; `None` if
/// there are none.
pub fn durable_functions(
    functions: &mut [(String, Box<dyn NetworkFunction>)],
) -> Option<(Vec<DurableFunction>, usize)> {
    let (rows, row_bytes) = rows(functions);
    let functions: Vec<DurableFunction> = rows.into_iter().map(|(_, function)| function).collect();
    (!functions.is_empty()).then_some((functions, row_bytes))
}

impl ExternalState {
    /// Index of a stage's piece.
    pub(super) fn piece_of(&self, stage: usize) -> Option<usize> {
        self.pieces.iter().position(|piece| piece.stage == stage)
    }

    fn persist_state<'t>(&self, table: &'t mut FlowTable, flow: FlowIndex) -> &'t mut PersistState {
        bytemuck::from_bytes_mut(table.state(flow, &self.persist_state))
    }

    /// Generation of a flow, for functions in other processes; 0 where there are none.
    #[inline]
    fn generation(&self, table: &mut FlowTable, stages: &mut [Stage], flow: FlowIndex) -> u64 {
        let Some(generation_fields) = &self.generation_fields else {
            return 0;
        };
        let state = table.state(flow, &generation_fields.state);
        let generation = bytemuck::pod_read_unaligned(&state[..size_of::<u64>()]);
        if generation != 0 {
            return generation;
        }
        let remote = stages[generation_fields.stage].function.remote_state();
        remote.map_or(0, |remote| remote.generation(state, flow.index() as u32))
    }

    /// Prepares a flow before a function sees it. Returns `true` if a restored piece was waiting, which no longer waits
    /// then, and the companion candidates that are taken with their turn.
    pub(super) fn show(&self, stage: usize, table: &mut FlowTable, flow: FlowIndex) -> (bool, Option<(u8, u8)>) {
        let Some(piece) = self.piece_of(stage) else {
            return (false, None);
        };
        let persist_state = self.persist_state(table, flow);
        let waits = persist_state.restored >> piece & 1 != 0;
        persist_state.restored &= !(1 << piece);
        persist_state.took_up |= u32::from(waits);
        (waits, Some((persist_state.taken, persist_state.turn)))
    }

    /// Records that a function refused a flow: its next packet queries the store again, with the next turn of
    /// candidates.
    pub(super) fn refused(&self, table: &mut FlowTable, flow: FlowIndex) {
        let persist_state = self.persist_state(table, flow);
        if persist_state.wished != 0 {
            persist_state.asked = 0;
            persist_state.turn = persist_state.turn.wrapping_add(1);
        }
    }

    /// Records an expired flow.
    pub(super) fn record_ended(&mut self, key: &FlowKey, state: &[u8]) {
        let persist_state: PersistState = bytemuck::pod_read_unaligned(&state[self.persist_state.clone()]);
        if persist_state.incarnation != 0 && self.ended.len() < self.ended.capacity() {
            self.ended.push((*key, persist_state.bucket));
        }
    }
}

/// Returns the size in bytes of the flow state that these functions need together, if it is stored externally.
pub fn state_bytes_with_persistence(functions: &[(String, Box<dyn NetworkFunction>)]) -> usize {
    persist_state_range(&Layout::new(functions, Cuts::NONE)).end
}

/// Range of the persistence status: behind the functions' state.
fn persist_state_range(layout: &Layout) -> Range<usize> {
    let start = layout.bytes.next_multiple_of(8);
    start..start + size_of::<PersistState>()
}

impl Chain {
    /// Same as [`new`](Chain::new), with externally stored flow state. The table is sized for [`state_bytes_with_persistence`];
    /// `origin` is the wall-clock time of the run's start.
    ///
    /// # Panics
    /// Same as [`new`](Chain::new).
    pub fn with_external_state(
        mut functions: Vec<(String, Box<dyn NetworkFunction>)>,
        table: Option<FlowTable>,
        input: InputPolicy,
        origin: Nanos,
    ) -> Chain {
        /// Capacity for flows that expire before the list is drained: each call expires 64, with their companions.
        const ENDED: usize = 1024;
        let layout = Layout::new(&functions, Cuts::NONE);
        let persist_state = persist_state_range(&layout);
        let room = table.as_ref().map_or(0, FlowTable::state_bytes);
        assert!(
            persist_state.end <= room,
            "the flow table has {room} bytes a flow, the chain needs {}",
            persist_state.end
        );
        let (rows, row_bytes) = rows(&mut functions);
        let mut generation_fields = None;
        let parts = functions.iter_mut().zip(&layout.slots).enumerate();
        let snapshots: Vec<Option<Arc<FlowSnapshots>>> = parts
            .map(|(stage, ((_, function), slot))| {
                let remote = function.remote_state()?;
                if let (None, Some(slot)) = (&generation_fields, slot) {
                    let state = slot.state.clone();
                    generation_fields = Some(GenerationField { stage, state });
                }
                remote.snapshots()
            })
            .collect();
        let mut pieces = Vec::new();
        for (stage, DurableFunction { row, .. }) in &rows {
            let lies = match (&snapshots[*stage], &layout.slots[*stage]) {
                (Some(snapshots), _) => Location::Remote(Arc::clone(snapshots)),
                (None, Some(slot)) => Location::Local {
                    version: slot.version,
                    state: slot.state.clone(),
                },
                (None, None) => unreachable!("an isolated function provides snapshots"),
            };
            let (stage, row) = (*stage, row.clone());
            pieces.push(Piece {
                stage,
                location: lies,
                row,
            });
        }
        let external = ExternalState {
            persist_state,
            pieces,
            generation_fields,
            functions: rows.into_iter().map(|(_, function)| function).collect(),
            row_bytes,
            origin,
            ended: Vec::with_capacity(ENDED),
            candidate_keys: Vec::with_capacity(MAX_CANDIDATES),
            lost_unavailable: 0,
        };
        let mut chain = Chain::with_cuts(functions, table, input, Cuts::NONE);
        chain.ends = crate::flow_table::EndedFlows::new(room, true);
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

    /// Returns the flow at index `index` if it still has this key.
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
                    stages[piece.stage].function.to_durable(part, external.origin);
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
                    let function = &mut stages[piece.stage].function;
                    function.restore_durable(state, external.origin);
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
        persist_state.took_up |= u32::from(took_up);
    }

    /// Collects the companion candidates for the packet's flow, each with the function's piece and its number, in
    /// `candidates`. Returns `false` if they cannot be determined now; the packet must not run then.
    pub fn companion_candidates(&mut self, packet: &Packet, candidates: &mut Vec<(u8, u8, FlowKey)>) -> bool {
        let (external, table, stages) = self.durable_parts();
        let mut turn = external.persist_state(table, packet.flow).turn;
        let mut keys = std::mem::take(&mut external.candidate_keys);
        let mut failed = false;
        for (i, piece) in external.pieces.iter().enumerate() {
            let function = &stages[piece.stage].function;
            keys.clear();
            let mut collected = CompanionCandidates {
                table,
                keys: &mut keys,
                failed: false,
            };
            turn = function.companion_candidates(packet, turn, &mut collected);
            failed |= collected.failed;
            candidates.extend(keys.iter().map(|&(number, key)| (i as u8, number, key)));
        }
        external.candidate_keys = keys;
        let persist_state = external.persist_state(table, packet.flow);
        persist_state.turn = turn;
        persist_state.wished = u16::from(!candidates.is_empty());
        !failed
    }

    /// Takes an expired flow that is in the store, with its RSS bucket.
    pub fn next_ended(&mut self) -> Option<(FlowKey, u16)> {
        self.external_state.as_mut()?.ended.pop()
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

    /// Clears references of a bucket's flows to requests of this instance, all of which have been answered. The bucket
    /// moves to an instance with its own request numbers, where requests up to `answered` have been answered.
    pub fn forget_requests(&mut self, bucket: u16, answered: u64) {
        let (external, table, _) = self.durable_parts();
        let mut index = table.first_of(bucket);
        while let Some(flow) = table.next_from(index).filter(|flow| table.bucket(*flow) == bucket) {
            let persist_state = external.persist_state(table, flow);
            persist_state.asked = persist_state.asked.min(answered);
            (persist_state.gate, persist_state.updated_in, persist_state.entry) = (0, 0, 0);
            index = flow.index() as u32 + 1;
        }
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
