//! What a chain tells of its flows' state to who keeps it outside, and takes from there.
//!
//! A flow's state ends with its [`Standing`]: what is known of it outside. Who keeps state asks for it by
//! [`KeptFlow`]s. The pieces that are worth keeping ([`durable`](NetworkFunction::durable)) travel together as a
//! *row*: each function's piece in turn, aligned to 8 bytes. A set of pieces is a `u16`, a bit for each.

use super::segment::{Cuts, Layout};
use super::stage::Stage;
use super::{Chain, InputPolicy};
use crate::batch::{Batch, Packet, Verdict};
use crate::flow_table::{FlowIndex, FlowTable};
use crate::function::{MAX_WISHES, NetworkFunction, UNSEEN, Wishes};
use bytemuck::{Pod, Zeroable};
use std::ops::Range;
use std::sync::Arc;
use tailwater_net::{FlowKey, Nanos};
use tailwater_sdk::protocol::images::{FlowImages, Offer};

/// How a flow stands with its state outside; all zero for a flow that has just been opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Standing {
    /// The request by which the flow was asked about; 0: it was not.
    pub asked: u64,
    /// The request that must be acknowledged before a packet of the flow leaves.
    pub gate: u64,
    /// The request that holds the flow's latest update.
    pub updated_in: u64,
    /// The update's place there.
    pub entry: u32,
    /// The store's incarnation when the state was last written; 0: never.
    pub incarnation: u32,
    /// When that was, in milliseconds since the run's start.
    pub written: u32,
    /// The pieces that came from outside and that their functions have not taken up yet.
    pub restored: u16,
    /// Which of the function's wishes are somebody's.
    pub taken: u8,
    /// The turn of these wishes.
    pub turn: u8,
    /// Not 0: a function has taken up a piece.
    pub took_up: u32,
    /// Not 0: functions wished something for the flow.
    pub wished: u16,
    /// The flow's RSS bucket, from when it was first to be written on, whether or not there was room for that.
    pub bucket: u16,
}

/// A flow, for who keeps its state. It stays valid as long as the flow is in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptFlow(FlowIndex);

impl KeptFlow {
    /// Its place in the flow table.
    #[inline]
    pub fn place(self) -> u32 {
        self.0.place() as u32
    }
}

/// A function whose flow state is kept outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptFunction {
    /// The function's name in its chain.
    pub name: String,
    /// Its kind.
    pub kind: &'static str,
    /// The version of its state's meaning.
    pub version: u32,
    /// Where in a row its piece is.
    pub row: Range<usize>,
}

/// What a chain knows about its state outside.
pub(super) struct Keep {
    standing: Range<usize>,
    pieces: Vec<Piece>,
    births: Option<Births>,
    functions: Vec<KeptFunction>,
    row_bytes: usize,
    /// The run's start, on the clock of the world.
    origin: Nanos,
    /// Flows that were idle for too long since somebody asked, of those that are known outside.
    ended: Vec<(FlowKey, u16)>,
    /// Room for what one function wishes.
    wished: Vec<(u8, FlowKey)>,
    /// Packets that could not wait for what is outside, or not any longer.
    pub(super) unkept: u64,
}

/// A function's piece of the state.
#[derive(Debug)]
struct Piece {
    stage: usize,
    lies: Lies,
    row: Range<usize>,
}

/// Where a piece is.
#[derive(Debug)]
enum Lies {
    /// In the flow table.
    Here { version: usize, state: Range<usize> },
    /// With a function in another process, which shows images of it.
    Elsewhere(Arc<FlowImages>),
}

/// Bytes of a mark in a copied row, in the place of a piece that is elsewhere.
const MARK: usize = size_of::<u64>();

impl Piece {
    /// The mark in a copied row.
    fn mark(&self, row: &[u8]) -> u64 {
        bytemuck::pod_read_unaligned(&row[self.row.start..self.row.start + MARK])
    }

    fn is_seen(&self, table: &mut FlowTable, flow: FlowIndex, birth: u64) -> bool {
        match &self.lies {
            Lies::Here { version, .. } => *table.word(flow, *version) != UNSEEN,
            Lies::Elsewhere(images) => images.is_of(flow.place() as u32, birth),
        }
    }
}

/// Where the flows' births are, if functions are in other processes: with a function of this chain, at the front of its
/// state.
#[derive(Debug)]
struct Births {
    stage: usize,
    state: Range<usize>,
}

/// The functions of a chain with state worth keeping, by their places, with where in a row their pieces are; and the
/// bytes of a row.
fn rows(functions: &mut [(String, Box<dyn NetworkFunction>)]) -> (Vec<(usize, KeptFunction)>, usize) {
    let (mut rows, mut row_bytes) = (Vec::new(), 0);
    for (stage, (name, function)) in functions.iter_mut().enumerate() {
        let kind = function.kind();
        let Some(version) = function.durable() else {
            continue;
        };
        let elsewhere = function.elsewhere().map(|elsewhere| elsewhere.piece_bytes());
        let bytes = elsewhere.unwrap_or_else(|| function.state_bytes());
        if bytes == 0 {
            continue;
        }
        let row = row_bytes..row_bytes + bytes;
        row_bytes = row.end.next_multiple_of(MARK);
        let name = name.clone();
        rows.push((
            stage,
            KeptFunction {
                name,
                kind,
                version,
                row,
            },
        ));
    }
    (rows, row_bytes)
}

/// The functions whose state a chain of these would keep outside, and the bytes of a row; `None` if there is none.
pub fn kept_functions(functions: &mut [(String, Box<dyn NetworkFunction>)]) -> Option<(Vec<KeptFunction>, usize)> {
    let (rows, row_bytes) = rows(functions);
    let functions: Vec<KeptFunction> = rows.into_iter().map(|(_, function)| function).collect();
    (!functions.is_empty()).then_some((functions, row_bytes))
}

impl Keep {
    /// Which of a stage's pieces it is.
    pub(super) fn piece_of(&self, stage: usize) -> Option<usize> {
        self.pieces.iter().position(|piece| piece.stage == stage)
    }

    fn standing<'t>(&self, table: &'t mut FlowTable, flow: FlowIndex) -> &'t mut Standing {
        bytemuck::from_bytes_mut(table.state(flow, &self.standing))
    }

    /// A flow's birth, for functions in other processes; 0 where there are none.
    #[inline]
    fn birth(&self, table: &mut FlowTable, stages: &mut [Stage], flow: FlowIndex) -> u64 {
        let Some(births) = &self.births else {
            return 0;
        };
        let state = table.state(flow, &births.state);
        let birth = bytemuck::pod_read_unaligned(&state[..size_of::<u64>()]);
        if birth != 0 {
            return birth;
        }
        let elsewhere = stages[births.stage].function.elsewhere();
        elsewhere.map_or(0, |elsewhere| elsewhere.birth(state, flow.place() as u32))
    }

    /// Before a function is shown a flow: whether a piece from outside waits for it, which is then no longer so; and
    /// what became of its wishes.
    pub(super) fn show(&self, stage: usize, table: &mut FlowTable, flow: FlowIndex) -> (bool, Option<(u8, u8)>) {
        let Some(piece) = self.piece_of(stage) else {
            return (false, None);
        };
        let standing = self.standing(table, flow);
        let waits = standing.restored >> piece & 1 != 0;
        standing.restored &= !(1 << piece);
        standing.took_up |= u32::from(waits);
        (waits, Some((standing.taken, standing.turn)))
    }

    /// A function refused a flow: its next packet asks again, with the next wishes.
    pub(super) fn refused(&self, table: &mut FlowTable, flow: FlowIndex) {
        let standing = self.standing(table, flow);
        if standing.wished != 0 {
            standing.asked = 0;
            standing.turn = standing.turn.wrapping_add(1);
        }
    }

    /// Notes flows that were idle for too long.
    pub(super) fn note_ended(&mut self, key: &FlowKey, state: &[u8]) {
        let standing: Standing = bytemuck::pod_read_unaligned(&state[self.standing.clone()]);
        if standing.incarnation != 0 && self.ended.len() < self.ended.capacity() {
            self.ended.push((*key, standing.bucket));
        }
    }
}

/// Bytes of flow state that these functions need together if it is kept outside.
pub fn kept_state_bytes(functions: &[(String, Box<dyn NetworkFunction>)]) -> usize {
    standing_in(&Layout::new(functions, Cuts::NONE)).end
}

/// Where the standing is: behind the functions' state.
fn standing_in(layout: &Layout) -> Range<usize> {
    let start = layout.bytes.next_multiple_of(8);
    start..start + size_of::<Standing>()
}

impl Chain {
    /// As [`new`](Chain::new), with flow state that is kept outside; the table is for [`kept_state_bytes`]. `origin`
    /// is the run's start, on the clock of the world.
    ///
    /// # Panics
    /// As [`new`](Chain::new).
    pub fn keeping(
        mut functions: Vec<(String, Box<dyn NetworkFunction>)>,
        table: Option<FlowTable>,
        input: InputPolicy,
        origin: Nanos,
    ) -> Chain {
        /// Flows that end in the turns between two looks at them: a turn ends 64, with their companions.
        const ENDED: usize = 1024;
        let layout = Layout::new(&functions, Cuts::NONE);
        let standing = standing_in(&layout);
        let room = table.as_ref().map_or(0, FlowTable::state_bytes);
        assert!(
            standing.end <= room,
            "the flow table has {room} bytes a flow, the chain needs {}",
            standing.end
        );
        let (rows, row_bytes) = rows(&mut functions);
        let mut births = None;
        let parts = functions.iter_mut().zip(&layout.slots).enumerate();
        let images: Vec<Option<Arc<FlowImages>>> = parts
            .map(|(stage, ((_, function), slot))| {
                let elsewhere = function.elsewhere()?;
                if let (None, Some(slot)) = (&births, slot) {
                    let state = slot.state.clone();
                    births = Some(Births { stage, state });
                }
                elsewhere.images()
            })
            .collect();
        let mut pieces = Vec::new();
        for (stage, KeptFunction { row, .. }) in &rows {
            let lies = match (&images[*stage], &layout.slots[*stage]) {
                (Some(images), _) => Lies::Elsewhere(Arc::clone(images)),
                (None, Some(slot)) => Lies::Here {
                    version: slot.version,
                    state: slot.state.clone(),
                },
                (None, None) => unreachable!("a function in another process shows images"),
            };
            let (stage, row) = (*stage, row.clone());
            pieces.push(Piece { stage, lies, row });
        }
        let keep = Keep {
            standing,
            pieces,
            births,
            functions: rows.into_iter().map(|(_, function)| function).collect(),
            row_bytes,
            origin,
            ended: Vec::with_capacity(ENDED),
            wished: Vec::with_capacity(MAX_WISHES),
            unkept: 0,
        };
        let mut chain = Chain::with_cuts(functions, table, input, Cuts::NONE);
        chain.ends = crate::flow_table::EndedFlows::new(room, true);
        chain.keep = Some(Box::new(keep));
        chain
    }

    /// The functions whose state is kept outside, and the bytes of a row; `None` if none is.
    pub fn kept_functions(&self) -> Option<(Vec<KeptFunction>, usize)> {
        let keep = self.keep.as_ref()?;
        Some((keep.functions.clone(), keep.row_bytes))
    }

    /// A packet's flow; `None` if it was not looked up.
    #[inline]
    pub fn kept_flow(&self, packet: &Packet) -> Option<KeptFlow> {
        packet.flow.get().map(|_| KeptFlow(packet.flow))
    }

    /// The flow at a place, if it is (still) that one.
    pub fn kept_flow_at(&self, place: u32, key: &FlowKey) -> Option<KeptFlow> {
        Some(KeptFlow(self.table.as_ref()?.known_at(place, key)?))
    }

    /// The first flow from a place on.
    pub fn next_kept_flow(&self, place: u32) -> Option<KeptFlow> {
        Some(KeptFlow(self.table.as_ref()?.next_from(place)?))
    }

    /// The flow that lives and ends with this one.
    pub fn kept_companion(&self, flow: KeptFlow) -> Option<KeptFlow> {
        Some(KeptFlow(self.table.as_ref()?.companion(flow.0)?))
    }

    /// The flow's key.
    pub fn kept_key(&self, flow: KeptFlow) -> FlowKey {
        self.kept_table().1.key(flow.0)
    }

    /// How long the flow may be idle.
    pub fn kept_timeout(&self, flow: KeptFlow) -> Nanos {
        let table = self.kept_table().1;
        table.idle_timeout(&table.key(flow.0))
    }

    fn kept_table(&self) -> (&Keep, &FlowTable) {
        let parts = self.keep.as_deref().zip(self.table.as_ref());
        parts.expect("only chains that keep state are asked")
    }

    fn kept_parts(&mut self) -> (&mut Keep, &mut FlowTable, &mut [Stage]) {
        let parts = self.keep.as_deref_mut().zip(self.table.as_mut());
        let (keep, table) = parts.expect("only chains that keep state are asked");
        (keep, table, &mut self.stages)
    }

    /// How the flow stands.
    ///
    /// # Panics
    /// If the chain keeps no state, or the flow is not here any more.
    #[inline]
    pub fn standing(&mut self, flow: KeptFlow) -> &mut Standing {
        let (keep, table, _) = self.kept_parts();
        keep.standing(table, flow.0)
    }

    /// Keeps the flow in the table until it is [let go](Chain::let_go) as often.
    #[inline]
    pub fn hold(&mut self, flow: KeptFlow) {
        let table = self.kept_parts().1;
        let held = table.active(flow.0).map_or(0, |held| held + 1);
        table.set_active(flow.0, Some(held));
    }

    /// Takes back one [`hold`](Chain::hold).
    #[inline]
    pub fn let_go(&mut self, flow: KeptFlow) {
        let table = self.kept_parts().1;
        let held = table.active(flow.0).and_then(|held| held.checked_sub(1));
        table.set_active(flow.0, held);
    }

    /// Copies the flow's pieces as they are, before functions run; those that are in other processes and have not seen
    /// the flow are told what is known of it outside.
    #[inline]
    pub fn copy_row(&mut self, flow: KeptFlow, row: &mut [u8]) {
        let (keep, table, stages) = self.kept_parts();
        let birth = keep.birth(table, stages, flow.0);
        for (i, piece) in keep.pieces.iter().enumerate() {
            match &piece.lies {
                Lies::Here { state, .. } => {
                    row[piece.row.clone()].copy_from_slice(table.state(flow.0, state));
                }
                Lies::Elsewhere(images) => {
                    let place = flow.place();
                    if !images.is_of(place, birth) {
                        let standing = *keep.standing(table, flow.0);
                        let restored = standing.restored >> i & 1 != 0;
                        let (taken, turn) = (standing.taken, standing.turn);
                        images.tell(place, Offer { restored, taken, turn });
                    }
                    let mark = images.mark(place);
                    row[piece.row.start..piece.row.start + MARK].copy_from_slice(bytemuck::bytes_of(&mark));
                }
            }
        }
    }

    /// The pieces that are no longer as they were [copied](Chain::copy_row).
    #[inline]
    pub fn changed(&mut self, flow: KeptFlow, row: &[u8]) -> u16 {
        let (keep, table, stages) = self.kept_parts();
        let birth = keep.birth(table, stages, flow.0);
        let mut changed = 0;
        for (i, piece) in keep.pieces.iter().enumerate() {
            let other = match &piece.lies {
                Lies::Here { state, .. } => row[piece.row.clone()] != *table.state(flow.0, state),
                Lies::Elsewhere(images) => {
                    let (before, after) = (piece.mark(row), images.mark(flow.place()));
                    if FlowImages::was_refused(before, after) {
                        keep.refused(table, flow.0);
                    }
                    FlowImages::is_another(before, after) && images.is_of(flow.place(), birth)
                }
            };
            changed |= u16::from(other) << i;
        }
        changed
    }

    /// The pieces that their functions have made, or taken up.
    pub fn seen_pieces(&mut self, flow: KeptFlow) -> u16 {
        let (keep, table, stages) = self.kept_parts();
        let birth = keep.birth(table, stages, flow.0);
        let pieces = keep.pieces.iter().enumerate();
        pieces.fold(0, |seen, (i, piece)| {
            seen | u16::from(piece.is_seen(table, flow.0, birth)) << i
        })
    }

    /// Copies the flow's pieces as they mean something elsewhere. What a function in another process is writing, or was
    /// writing when it was killed, stays as it is in the row.
    #[inline]
    pub fn durable_row(&mut self, flow: KeptFlow, row: &mut [u8]) {
        let (keep, table, stages) = self.kept_parts();
        let birth = keep.birth(table, stages, flow.0);
        for piece in &keep.pieces {
            let part = &mut row[piece.row.clone()];
            match &piece.lies {
                Lies::Here { state, .. } => {
                    part.copy_from_slice(table.state(flow.0, state));
                    stages[piece.stage].function.to_durable(part, keep.origin);
                }
                Lies::Elsewhere(images) => {
                    images.copy(flow.place(), birth, part);
                }
            }
        }
    }

    /// Puts pieces from outside in their places, except where a function has seen the flow already.
    pub fn restore(&mut self, flow: KeptFlow, pieces: u16, row: &[u8]) {
        let (keep, table, stages) = self.kept_parts();
        let birth = keep.birth(table, stages, flow.0);
        let (mut restored, mut took_up) = (0, false);
        for (i, piece) in keep.pieces.iter().enumerate() {
            if pieces >> i & 1 == 0 || piece.is_seen(table, flow.0, birth) {
                continue;
            }
            let from = &row[piece.row.clone()];
            match &piece.lies {
                Lies::Here { state, .. } => {
                    let state = table.state(flow.0, state);
                    state.copy_from_slice(from);
                    let function = &mut stages[piece.stage].function;
                    function.take_durable(state, keep.origin);
                }
                Lies::Elsewhere(images) => {
                    images.put(flow.place(), from);
                    // It will, with the next packet: nobody here sees that.
                    took_up = true;
                }
            }
            restored |= 1 << i;
        }
        let standing = keep.standing(table, flow.0);
        standing.restored |= restored;
        standing.took_up |= u32::from(took_up);
    }

    /// What functions wish to open for the packet's flow, each with the piece of the function and its number, in
    /// `wishes`. `false`: it cannot be known now, and the packet is not to be run.
    pub fn wishes(&mut self, packet: &Packet, wishes: &mut Vec<(u8, u8, FlowKey)>) -> bool {
        let (keep, table, stages) = self.kept_parts();
        let mut turn = keep.standing(table, packet.flow).turn;
        let mut keys = std::mem::take(&mut keep.wished);
        let mut failed = false;
        for (i, piece) in keep.pieces.iter().enumerate() {
            let function = &stages[piece.stage].function;
            keys.clear();
            let mut wish = Wishes {
                table,
                keys: &mut keys,
                failed: false,
            };
            turn = function.wishes(packet, turn, &mut wish);
            failed |= wish.failed;
            wishes.extend(keys.iter().map(|&(number, key)| (i as u8, number, key)));
        }
        keep.wished = keys;
        let standing = keep.standing(table, packet.flow);
        standing.turn = turn;
        standing.wished = u16::from(!wishes.is_empty());
        !failed
    }

    /// Hands over a flow that was idle for too long, if it was known outside, with its RSS bucket.
    pub fn next_ended(&mut self) -> Option<(FlowKey, u16)> {
        self.keep.as_mut()?.ended.pop()
    }

    /// Whether a flow of the bucket is still to be [handed over](Chain::next_ended).
    pub fn has_ended(&self, bucket: u16) -> bool {
        let keep = self.keep.as_ref();
        keep.is_some_and(|keep| keep.ended.iter().any(|(_, of)| *of == bucket))
    }

    /// The flow's RSS bucket.
    #[inline]
    pub fn kept_bucket(&self, flow: KeptFlow) -> u16 {
        self.kept_table().1.bucket(flow.0)
    }

    /// Has nothing of a bucket's flows wait for requests of this instance any more, all of which have been answered:
    /// the bucket goes to another one, whose requests have other numbers. From `answered` on a request has been answered
    /// there.
    pub fn forget_requests(&mut self, bucket: u16, answered: u64) {
        let (keep, table, _) = self.kept_parts();
        let mut place = table.first_of(bucket);
        while let Some(flow) = table.next_from(place).filter(|flow| table.bucket(*flow) == bucket) {
            let standing = keep.standing(table, flow);
            standing.asked = standing.asked.min(answered);
            (standing.gate, standing.updated_in, standing.entry) = (0, 0, 0);
            place = flow.place() as u32 + 1;
        }
    }

    /// A flow that is here again, and written again, is not to be forgotten any more: it is no longer
    /// [handed over](Chain::next_ended).
    #[inline]
    pub fn not_ended(&mut self, key: &FlowKey) {
        if let Some(keep) = &mut self.keep
            && !keep.ended.is_empty()
        {
            keep.ended.retain(|(ended, _)| ended != key);
        }
    }

    /// Takes packets out of the batch, as lost for want of what is outside. Returns how many.
    pub fn lose_unkept(&mut self, batch: &mut Batch, mut lose: impl FnMut(&Packet) -> bool) -> u64 {
        for packet in batch.iter_mut() {
            if lose(packet) {
                packet.verdict = Verdict::Drop(0);
            }
        }
        let mut lost = 0;
        batch.compact(|_, _| lost += 1);
        self.lost += lost;
        if let Some(keep) = &mut self.keep {
            keep.unkept += lost;
        }
        lost
    }
}
