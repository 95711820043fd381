//! Layout of flow state that is stored externally (Redis).
//!
//! A flow's state ends with its [`PersistState`], the persistence status of the flow. The store accesses the state by
//! [`DurableFlow`]s. The pieces that can be stored ([`durable`](NetworkFunction::durable)) form a *row*: each
//! function's piece in turn, aligned to 8 bytes. A set of pieces is a `u16` with one bit for each.

use super::segment::{Cuts, Layout};
use super::stage::Stage;
use crate::flow_table::{FlowIndex, FlowTable};
use crate::function::{MAX_CANDIDATES, NetworkFunction, UNSEEN};
use bytemuck::{Pod, Zeroable};
use std::ops::Range;
use std::sync::Arc;
use tailwater_net::{FlowKey, Nanos};
use tailwater_sdk::protocol::snapshots::FlowSnapshots;

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
    /// Greatest update number of the values that were read from the store for the flow; 0 if there were none.
    pub base: u64,
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
    pub took_up: u16,
    /// Not 0 once the store has refused a change of the flow or its companion, since another instance has it: packets
    /// are not sent. With [`FORGET`](PersistState::FORGET) alone, what the store has of the flow is wrong.
    pub refused: u16,
    /// Not 0 if functions have companion candidates for the flow.
    pub wished: u16,
    /// RSS bucket of the flow. Set when the flow was first to be written, even if there was no room for that.
    pub bucket: u16,
}

impl PersistState {
    /// Number of a request that counts as answered from the start. Requests have greater ones.
    pub const ANSWERED: u64 = 1;
    /// The store refused a change of the flow.
    pub const REFUSED: u16 = 1;
    /// The store refused a change of the companion.
    pub const COMPANION_REFUSED: u16 = 2;
    /// The store has the flow with a companion that is another one's.
    pub const FORGET: u16 = 4;

    /// Returns `true` if the store's state is to be deleted when the flow ends here.
    fn is_ended_in_store(&self) -> bool {
        let is_ours = self.refused == 0 || self.refused & (Self::REFUSED | Self::FORGET) == Self::FORGET;
        self.incarnation != 0 && is_ours
    }
}

/// Flow whose state is stored externally. It stays valid as long as the flow is in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurableFlow(pub(super) FlowIndex);

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
    pub(super) pieces: Vec<Piece>,
    generation_fields: Option<GenerationField>,
    pub(super) functions: Vec<DurableFunction>,
    pub(super) row_bytes: usize,
    /// Pieces of functions that open companions.
    pub(super) paired: u16,
    /// Wall-clock time of the run's start.
    pub(super) origin: Nanos,
    /// Flows of the store that expired since the list was last drained.
    pub(super) ended: Vec<(FlowKey, u16)>,
    /// Buffer for the companion candidates of one function.
    pub(super) candidate_keys: Vec<(u8, FlowKey)>,
    /// Packets that could not wait for the store, or not any longer.
    pub(super) lost_unavailable: u64,
    /// Incarnation of the store, as this instance's client knows it.
    pub(super) incarnation: u32,
    /// A bucket has come back with flows that the store may lack.
    pub(super) is_behind: bool,
}

/// Piece of a flow's state that belongs to one function.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) stage: usize,
    pub(super) location: Location,
    pub(super) row: Range<usize>,
}

/// Location of a piece.
#[derive(Debug)]
pub(super) enum Location {
    /// Piece in the flow table.
    Local { version: usize, state: Range<usize> },
    /// Piece of a function in another process, which writes snapshots of it.
    Remote(Arc<FlowSnapshots>),
}

/// Size in bytes of a mark, which takes the place of a remote piece in a copied row.
pub(super) const MARK: usize = size_of::<u64>();

impl Piece {
    /// Reads the piece's mark from a copied row.
    pub(super) fn mark(&self, row: &[u8]) -> u64 {
        bytemuck::pod_read_unaligned(&row[self.row.start..self.row.start + MARK])
    }

    pub(super) fn is_seen(&self, table: &mut FlowTable, flow: FlowIndex, generation: u64) -> bool {
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
        let Some(version) = function.durable().map(|durable| durable.format_version()) else {
            continue;
        };
        let remote = function.remote().map(|remote| remote.piece_bytes());
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
    /// Creates the bookkeeping for the functions of a chain with this layout. `origin` is the wall-clock time of the
    /// run's start.
    ///
    /// # Panics
    /// If a function that can be stored has neither state here nor snapshots.
    pub(super) fn new(
        functions: &mut [(String, Box<dyn NetworkFunction>)],
        layout: &Layout,
        origin: Nanos,
    ) -> ExternalState {
        /// Capacity for flows that expire before the list is drained: each call expires 64, with their companions.
        const ENDED: usize = 1024;
        let (rows, row_bytes) = rows(functions);
        let mut generation_fields = None;
        let parts = functions.iter().zip(&layout.slots).enumerate();
        let snapshots: Vec<Option<Arc<FlowSnapshots>>> = parts
            .map(|(stage, ((_, function), slot))| {
                let remote = function.remote()?;
                if let (None, Some(slot)) = (&generation_fields, slot) {
                    let state = slot.state.clone();
                    generation_fields = Some(GenerationField { stage, state });
                }
                remote.snapshots()
            })
            .collect();
        let pieces = rows.iter().map(|(stage, DurableFunction { row, .. })| Piece {
            stage: *stage,
            location: match (&snapshots[*stage], &layout.slots[*stage]) {
                (Some(snapshots), _) => Location::Remote(Arc::clone(snapshots)),
                (None, Some(slot)) => Location::Local {
                    version: slot.version,
                    state: slot.state.clone(),
                },
                (None, None) => unreachable!("an isolated function provides snapshots"),
            },
            row: row.clone(),
        });
        let opens = rows.iter().map(|(stage, _)| {
            let function = &mut functions[*stage].1;
            match function.remote() {
                Some(remote) => remote.opens_companions(),
                None => function.properties().opens_companions,
            }
        });
        let paired = opens.enumerate().fold(0, |all, (i, opens)| all | u16::from(opens) << i);
        ExternalState {
            paired,
            persist_state: persist_state_range(layout),
            pieces: pieces.collect(),
            generation_fields,
            functions: rows.into_iter().map(|(_, function)| function).collect(),
            row_bytes,
            origin,
            ended: Vec::with_capacity(ENDED),
            candidate_keys: Vec::with_capacity(MAX_CANDIDATES),
            lost_unavailable: 0,
            incarnation: 1,
            is_behind: false,
        }
    }

    /// Index of a stage's piece.
    pub(super) fn piece_of(&self, stage: usize) -> Option<usize> {
        self.pieces.iter().position(|piece| piece.stage == stage)
    }

    pub(super) fn persist_state<'t>(&self, table: &'t mut FlowTable, flow: FlowIndex) -> &'t mut PersistState {
        bytemuck::from_bytes_mut(table.state(flow, &self.persist_state))
    }

    /// Generation of a flow, for functions in other processes; 0 where there are none.
    #[inline]
    pub(super) fn generation(&self, table: &mut FlowTable, stages: &[Stage], flow: FlowIndex) -> u64 {
        let Some(generation_fields) = &self.generation_fields else {
            return 0;
        };
        let state = table.state(flow, &generation_fields.state);
        let generation = bytemuck::pod_read_unaligned(&state[..size_of::<u64>()]);
        if generation != 0 {
            return generation;
        }
        let remote = stages[generation_fields.stage].function.remote();
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
        persist_state.took_up |= u16::from(waits);
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
        if persist_state.is_ended_in_store() && self.ended.len() < self.ended.capacity() {
            self.ended.push((*key, persist_state.bucket));
        }
    }
}

/// Returns the size in bytes of the flow state that these functions need together, if it is stored externally.
pub fn state_bytes_with_persistence(functions: &[(String, Box<dyn NetworkFunction>)]) -> usize {
    persist_state_range(&Layout::new(functions, Cuts::NONE)).end
}

/// Range of the persistence status: behind the functions' state.
pub(super) fn persist_state_range(layout: &Layout) -> Range<usize> {
    let start = layout.bytes.next_multiple_of(8);
    start..start + size_of::<PersistState>()
}
