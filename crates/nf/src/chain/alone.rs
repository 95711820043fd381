//! A function by itself, in a process that is handed packets which another one has looked up.

use super::segment::Layout;
use super::{Chain, InputPolicy};
use crate::batch::{Batch, Incoming, MAX_BATCH};
use crate::buffer::{Buffer, BufferMemory, BufferPool};
use crate::flow_table::{Companions, FlowIndex, Mirror};
use crate::function::{NetworkFunction, UNSEEN};
use crate::spec::Fate;
use tailwater_net::parse::{Fragment, Network, parse};
use tailwater_net::{FlowKey, Nanos};

/// A packet for a function by itself.
#[derive(Clone, Copy, Debug)]
pub struct AlonePacket {
    /// Its place in the batch, and its buffer's in the memory.
    pub at: u16,
    /// Where in its buffer the frame starts, and its length.
    pub place: [u16; 2],
    /// When it arrived.
    pub arrival: Nanos,
    /// Its RSS hash.
    pub rss_hash: u32,
    /// Its flow's place in the flow table, the flow's birth there, and its key as it came to the chain.
    pub flow: Option<(u32, u64, FlowKey)>,
    /// Whether a function in front rekeyed the flow.
    pub rekeyed: bool,
}

/// What a function made of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// It goes on.
    Forward {
        /// Where in its buffer the frame starts, and its length.
        place: [u16; 2],
        /// Whether the function, or one in front, rekeyed the flow.
        rekeyed: bool,
    },
    /// It is dropped, for this reason.
    Drop(u8),
}

/// A function by itself.
pub struct Alone {
    chain: Chain,
    batch: Batch,
    /// By place in the memory, those of which no packet is in the batch.
    buffers: Vec<Option<Buffer>>,
    notes: usize,
}

impl Alone {
    /// Bytes of state that functions need for a flow, with what is kept beside.
    pub fn state_bytes(functions: &[(String, Box<dyn NetworkFunction>)]) -> usize {
        Layout::between_others(functions).bytes
    }

    /// A function whose packets are in `memory`, of [`MAX_BATCH`] buffers, and whose flows are in `flows`, if it
    /// keeps state; companions are opened there.
    ///
    /// # Safety
    /// While the function [runs](Alone::run), nobody else touches the memory.
    ///
    /// # Panics
    /// If the function keeps state and there are no flows.
    pub unsafe fn new(
        (name, function): (String, Box<dyn NetworkFunction>),
        memory: BufferMemory,
        flows: Option<(Mirror, Box<dyn Companions>)>,
    ) -> Alone {
        let notes = function.notes().len();
        let table = flows.map(|(mirror, companions)| mirror.table(companions));
        let functions = vec![(name, function)];
        let layout = Layout::between_others(&functions);
        let input = InputPolicy {
            malformed: Fate::Drop,
            non_ip: Fate::Drop,
        };
        let mut chain = Chain::with_layout(functions, table, input, layout);
        chain.alone = true;
        let mut pool = BufferPool::lent(memory.clone(), MAX_BATCH);
        // SAFETY: each index once, and nobody else makes handles of this memory's number; the caller's word that
        // nobody else touches the bytes.
        let claim = |index| Some(unsafe { pool.claim(index) });
        Alone {
            chain,
            buffers: (0..MAX_BATCH as u32).map(claim).collect(),
            batch: Batch::of_memory(memory, MAX_BATCH),
            notes,
        }
    }

    /// Starts to fetch a flow's state.
    #[inline]
    pub fn prefetch(&self, flow: u32) {
        if let Some(table) = &self.chain.table {
            table.prefetch_mirrored(flow);
        }
    }

    /// Puts a packet into the next batch; `false`, with nothing changed, if it is no well-formed IP, which the
    /// functions in front should have made it.
    ///
    /// # Panics
    /// If there is one of this place already, the frame is beyond its buffer, or the flow beyond the table.
    #[inline]
    pub fn put(&mut self, packet: &AlonePacket) -> bool {
        let at = usize::from(packet.at);
        let Some(buffer) = self.buffers[at].take() else {
            panic!("two packets in one place");
        };
        let [start, length] = packet.place;
        let bytes = self.batch.memory().bytes(&buffer);
        let frame = &bytes[usize::from(start)..][..usize::from(length)];
        let mut headers = match parse(frame) {
            Ok(headers) if headers.network != Network::NotIp => headers,
            _ => {
                self.buffers[at] = Some(buffer);
                return false;
            }
        };
        if headers.fragment != Fragment::Whole {
            headers.key = headers.key.of_fragment();
        }
        let incoming = Incoming {
            length: usize::from(length),
            arrival: packet.arrival,
            rss_hash: packet.rss_hash,
            rest: 0,
        };
        let flow = packet
            .flow
            .map(|(place, birth, key)| match &mut self.chain.table {
                Some(table) => table.mirrored(place, birth, &key),
                None => FlowIndex::of_another(place),
            });
        let taken = self.batch.put(buffer, &incoming, start);
        taken.headers = headers;
        taken.flow = flow.unwrap_or(FlowIndex::NONE);
        taken.set_rekeyed(packet.rekeyed);
        taken.number = packet.at;
        true
    }

    /// Runs the batch, and tells what became of each packet, by its place.
    #[inline]
    pub fn run(&mut self, now: Nanos, mut each: impl FnMut(u16, Made)) {
        self.chain.run(&mut self.batch, now);
        let buffers = &mut self.buffers;
        self.batch.take_all(|buffer, packet| {
            let at = buffer.index();
            buffers[at as usize] = Some(buffer);
            let fate = match packet {
                Ok(packet) => Made::Forward {
                    place: [packet.start() as u16, packet.length() as u16],
                    rekeyed: packet.is_rekeyed(),
                },
                Err((_, reason)) => Made::Drop(reason),
            };
            each(at as u16, fate);
        });
    }

    /// A flow has ended.
    ///
    /// # Panics
    /// If the flow is beyond the table.
    pub fn end_flow(&mut self, place: u32, birth: u64) {
        let (Some(table), Some(stage)) = (&mut self.chain.table, self.chain.stages.first_mut())
        else {
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

    /// The last packet has passed.
    pub fn finish(&mut self) {
        for stage in &mut self.chain.stages {
            stage.function.finish();
        }
    }

    /// What the function counts of packets that pass.
    pub fn notes(&self) -> impl Iterator<Item = u64> {
        let counts = self.chain.stages.iter();
        let counts = counts.flat_map(|stage| stage.function.note_counts().iter().copied());
        counts.take(self.notes)
    }
}
