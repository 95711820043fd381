//! A function by itself, in a process that is handed packets which another one has looked up.

use super::imaging::Imaging;
use super::segment::Layout;
use super::{Chain, InputPolicy};
use crate::batch::{Batch, MAX_BATCH, Packet};
use crate::buffer::{Buffer, BufferMemory};
use crate::flow_table::{Companions, FlowIndex, Mirror};
use crate::function::{FlowStates, NetworkFunction, UNSEEN, Wishes};
use std::ops::Range;
use tailwater_api::Fate;
use tailwater_net::parse::Headers;
use tailwater_net::{FlowKey, Nanos};
use tailwater_sdk::host::find_headers;
use tailwater_sdk::program::{Made, TurnPacket, Work};
use tailwater_sdk::protocol::images::FlowImages;

/// A function by itself.
pub struct Alone {
    chain: Chain,
    /// Of the buffers in the memory, those at places below `next` at most. Nobody else has handles of them.
    batch: Batch,
    next: u16,
    notes: usize,
    /// Whether both directions of a connection have one place here, and two where they are looked up.
    connections: bool,
    /// The flows of the batch, if their state is kept outside.
    kept: Vec<FlowIndex>,
}

impl Alone {
    /// Bytes of state that functions need for a flow, with what is kept beside.
    pub fn state_bytes(functions: &[(String, Box<dyn NetworkFunction>)]) -> usize {
        Layout::between_others(functions).bytes
    }

    /// Where in these bytes the state of a function by itself is, which has so many.
    pub fn state_of(bytes: usize) -> Range<usize> {
        let named = [(String::new(), Box::new(OfBytes(bytes)) as Box<_>)];
        let slots = Layout::between_others(&named).slots.into_iter();
        slots.flatten().next().map_or(0..0, |slot| slot.state)
    }

    /// A function whose packets are in `memory`, of [`MAX_BATCH`] buffers, and whose flows are in `flows`, if it
    /// keeps state; companions are opened there.
    ///
    /// # Safety
    /// While the function [runs](Work::run), nobody else touches the memory.
    ///
    /// # Panics
    /// If the function keeps state and there are no flows.
    pub unsafe fn new(
        (name, function): (String, Box<dyn NetworkFunction>),
        memory: BufferMemory,
        flows: Option<(Mirror, Box<dyn Companions>)>,
    ) -> Alone {
        let notes = function.notes().len();
        let connections = function.tracks_connections();
        let table = flows.map(|(mirror, companions)| mirror.table(companions));
        let functions = vec![(name, function)];
        let layout = Layout::between_others(&functions);
        let input = InputPolicy {
            malformed: Fate::Drop,
            non_ip: Fate::Drop,
        };
        let mut chain = Chain::with_layout(functions, table, input, layout);
        chain.alone = true;
        Alone {
            chain,
            batch: Batch::of_memory(memory, MAX_BATCH),
            next: 0,
            notes,
            connections,
            kept: Vec::with_capacity(MAX_BATCH),
        }
    }

    /// Has the function show `images` of its flows, for who keeps their state outside, and go on with what comes
    /// from there. `origin` is the run's start, on the clock of the world.
    ///
    /// # Panics
    /// If they are not of its pieces of state.
    pub fn keeping(mut self, images: FlowImages, origin: Nanos) -> Alone {
        let stages = self.chain.stages.first();
        self.chain.imaging = stages.map(|stage| Box::new(Imaging::new(images, origin, stage)));
        self
    }

    /// The place here of a flow, and whether it is for what goes against the direction of its key.
    #[inline]
    fn place(&self, flow: u32) -> (u32, bool) {
        match self.connections {
            true => (flow >> 1, flow & 1 != 0),
            false => (flow, false),
        }
    }

    /// Shows what became of the flows of the batch.
    #[inline]
    fn reflect(&mut self) {
        let Chain {
            imaging, table, stages, ..
        } = &mut self.chain;
        if let (Some(imaging), Some(table), Some(stage)) = (imaging, table, stages.first()) {
            for flow in self.kept.drain(..) {
                imaging.processed(table, flow, stage);
            }
        }
    }
}

/// A function of which nothing counts but that it has so many bytes of state.
struct OfBytes(usize);

impl NetworkFunction for OfBytes {
    fn kind(&self) -> &'static str {
        "OfBytes"
    }

    fn state_bytes(&self) -> usize {
        self.0
    }

    fn process(&mut self, _: &mut Batch, _: &mut FlowStates<'_>) {}
}

impl Work for Alone {
    fn wishes(&self, (key, rss_hash): (FlowKey, u32), turn: u8, keys: &mut Vec<(u8, FlowKey)>) -> u8 {
        let (Some(table), Some(stage)) = (&self.chain.table, self.chain.stages.first()) else {
            return turn;
        };
        let packet = Packet::of_flow(key, rss_hash);
        let mut wish = Wishes {
            table,
            keys,
            failed: false,
        };
        stage.function.wishes(&packet, turn, &mut wish)
    }

    #[inline]
    fn prefetch(&self, flow: u32, at: u16, start: u16) {
        self.batch.memory().prefetch(at.into(), start.into());
        if let Some(table) = &self.chain.table {
            table.prefetch_mirrored(self.place(flow).0);
        }
        if let Some(imaging) = &self.chain.imaging {
            imaging.prefetch(flow);
        }
    }

    /// # Panics
    /// If its place is not behind the last one's, the frame is beyond its buffer, or the flow beyond the table.
    #[inline(always)]
    fn put<const CHANGED: bool>(&mut self, packet: &TurnPacket, known: impl Fn(&mut Headers)) -> bool {
        let at = packet.at;
        assert!(
            at >= self.next && usize::from(at) < MAX_BATCH,
            "packets in the order of their places"
        );
        // The only handle: the batch has none of a place from `next` on, and gives none away.
        let buffer = Buffer::from_parts(at.into(), self.batch.memory().pool());
        let connections = self.connections;
        let (flow, reversed) = match packet.flow {
            None => (FlowIndex::NONE, false),
            Some((place, birth)) => {
                let (place, reversed) = self.place(place);
                let flow = match &mut self.chain.table {
                    Some(table) => table.mirrored(place, birth, || {
                        let mut headers = Headers::default();
                        known(&mut headers);
                        match connections {
                            true => headers.key.of_connection().0,
                            false => headers.key,
                        }
                    }),
                    None => FlowIndex::of_another(place),
                };
                (flow, reversed)
            }
        };
        // In place: what is written in parts and then read as a whole is slow.
        let put = self
            .batch
            .put(buffer, packet, (flow, reversed), |frame, headers| match CHANGED {
                false => {
                    known(headers);
                    true
                }
                true => find_headers(frame, headers),
            });
        if put {
            self.next = at + 1;
            if self.chain.imaging.is_some() && packet.flow.is_some() {
                self.kept.push(flow);
            }
        }
        put
    }

    #[inline]
    fn run(&mut self, now: Nanos, each: impl FnMut(u16, Made)) {
        self.chain.run(&mut self.batch, now);
        self.reflect();
        self.batch.take_all(each);
        self.next = 0;
    }

    /// # Panics
    /// If the flow is beyond the table.
    fn end_flow(&mut self, place: u32, birth: u64) {
        let (place, _) = self.place(place);
        let (Some(table), Some(stage)) = (&mut self.chain.table, self.chain.stages.first_mut()) else {
            return;
        };
        let (function, slot) = (&mut stage.function, &stage.slot);
        let whole = 0..table.state_bytes();
        table.end_mirrored(place, birth, &whole, |key, state| {
            if let Some(slot) = slot
                && function.wants_flow_ends()
                && slot.seen_version(state, false) != UNSEEN
            {
                function.flow_ended(key, &state[slot.state.clone()]);
            }
        });
    }

    fn finish(&mut self) {
        for stage in &mut self.chain.stages {
            stage.function.finish();
        }
    }

    fn notes(&self) -> impl Iterator<Item = u64> {
        let counts = self.chain.stages.iter();
        let counts = counts.flat_map(|stage| stage.function.note_counts().iter().copied());
        counts.take(self.notes)
    }
}
