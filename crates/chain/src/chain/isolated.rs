//! Isolated function, in a process that receives packets which another process has looked up.

use super::Chain;
use super::segment::Layout;
use super::snapshotter::Snapshotter;
use super::stopwatch::Stopwatch;
use crate::batch::{Batch, MAX_BATCH, Packet, Verdict};
use crate::buffer::{Buffer, BufferMemory};
use crate::chain::input::InputPolicy;
use crate::flow_table::{Companions, FlowIndex, FlowTableReplica, ReplicaConfig};
use crate::function::{
    CompanionCandidates, FlowStates, MAX_EXPLANATION, NetworkFunction, SHOWN_BEFORE, StateSlot, UNSEEN,
};
use std::ops::Range;
use tailwater_api::PacketAction;
use tailwater_net::parse::{Headers, parse};
use tailwater_net::{FlowKey, Nanos};
use tailwater_sdk::host::find_headers;
use tailwater_sdk::program::{TurnFunction, TurnPacket, TurnVerdict};
use tailwater_sdk::protocol::layout::FlowSlot;
use tailwater_sdk::protocol::memory::Memory;
use tailwater_sdk::protocol::snapshots::FlowSnapshots;

/// Isolated function as a chain of its own.
pub struct IsolatedChain {
    chain: Chain,
    /// Batch of the current packets. It holds only buffers with indices below `next`, and the only handles of them.
    batch: Batch,
    next: u16,
    counters: usize,
    /// `true` if both directions of a connection share one index here; they have two where they are looked up.
    connections: bool,
    /// Flows of the batch, if their state is stored externally.
    durable_flows: Vec<FlowIndex>,
    /// Watch that collects explanations; in the chain while it runs a batch with traced packets.
    watch: Option<Box<Stopwatch>>,
}

impl IsolatedChain {
    /// Size in bytes of the flow state that these functions need, including metadata.
    pub fn state_bytes(functions: &[(String, Box<dyn NetworkFunction>)]) -> usize {
        Layout::between_others(functions).bytes
    }

    /// Range within these bytes that holds the state of an isolated function with `bytes` bytes of state.
    pub fn state_of(bytes: usize) -> Range<usize> {
        let named = [(String::new(), Box::new(OfBytes(bytes)) as Box<_>)];
        let slots = Layout::between_others(&named).slots.into_iter();
        slots.flatten().next().map_or(0..0, |slot| slot.state)
    }

    /// Creates an isolated function whose packets are in `memory`, with [`MAX_BATCH`] buffers. If it has state, its
    /// flows are in `flows`, where companions are opened as well.
    ///
    /// # Safety
    /// While the function [runs](TurnFunction::run), nothing else accesses the memory.
    ///
    /// # Panics
    /// If the function has state and `flows` is `None`.
    pub unsafe fn new(
        (name, function): (String, Box<dyn NetworkFunction>),
        memory: BufferMemory,
        flows: Option<(FlowTableReplica, Box<dyn Companions>)>,
    ) -> IsolatedChain {
        let notes = function.counters().len();
        let connections = function.properties().tracks_connections;
        let table = flows.map(|(mirror, companions)| mirror.table(companions));
        let functions = vec![(name, function)];
        let layout = Layout::between_others(&functions);
        let input = InputPolicy {
            malformed: PacketAction::Drop,
            non_ip: PacketAction::Drop,
        };
        let mut chain = Chain::with_layout(functions, table, input, layout);
        chain.isolated = true;
        IsolatedChain {
            chain,
            batch: Batch::of_memory(memory, MAX_BATCH),
            next: 0,
            counters: notes,
            connections,
            durable_flows: Vec::with_capacity(MAX_BATCH),
            watch: None,
        }
    }

    /// Makes the function write snapshots of its flows to `snapshots`, for external storage, and resume from pieces
    /// restored there. `origin` is the wall-clock time of the run's start.
    ///
    /// # Panics
    /// If the snapshots' pieces differ in size from the function's state.
    pub fn with_snapshots(mut self, snapshots: FlowSnapshots, origin: Nanos) -> IsolatedChain {
        let stages = self.chain.stages.first();
        self.chain.snapshotter = stages.map(|stage| Box::new(Snapshotter::new(snapshots, origin, stage)));
        self
    }

    /// Local index of a flow, and `true` for packets against the direction of its key.
    #[inline]
    fn index(&self, flow: u32) -> (u32, bool) {
        match self.connections {
            true => (flow >> 1, flow & 1 != 0),
            false => (flow, false),
        }
    }

    /// Updates the snapshots of the batch's flows.
    #[inline]
    fn reflect(&mut self) {
        let Chain {
            snapshotter,
            table,
            stages,
            ..
        } = &mut self.chain;
        if let (Some(snapshotter), Some(table), Some(stage)) = (snapshotter, table, stages.first_mut()) {
            snapshotter.processed(table, self.durable_flows.drain(..), stage);
        }
    }
}

/// Location of an isolated function's state in the memory that its processes share.
#[derive(Clone, Debug)]
pub struct IsolatedState {
    config: ReplicaConfig,
    slot: StateSlot,
}

impl IsolatedState {
    /// State of `bytes` bytes in a replica of this configuration; `None` if it has less room, or there is no state.
    pub fn new(config: ReplicaConfig, bytes: usize) -> Option<IsolatedState> {
        let named = [(String::new(), Box::new(OfBytes(bytes)) as Box<_>)];
        let layout = Layout::between_others(&named);
        let slot = layout.slots.into_iter().flatten().next()?;
        (layout.bytes <= config.state_bytes).then_some(IsolatedState { config, slot })
    }

    /// Copies the state of the flow of this index and generation. Returns `false` if the function has not accepted it.
    pub fn read(&self, memory: &Memory, flow: (u32, u64), to: &mut [u8]) -> bool {
        let mut version = [0; size_of::<u32>()];
        let is_there = self.config.read(memory, flow, (self.slot.version, &mut version))
            && self.config.read(memory, flow, (self.slot.state.start, to));
        is_there && u32::from_ne_bytes(version) != UNSEEN
    }

    /// Writes a flow that the function has accepted in another process, and is presented again with its next packet.
    /// Returns `false` if there is no such index.
    pub fn write(&self, memory: &Memory, flow: (u32, u64), key: &FlowKey, state: &[u8]) -> bool {
        let version = SHOWN_BEFORE.to_ne_bytes();
        let parts = [(self.slot.version, &version[..]), (self.slot.state.start, state)];
        self.config.write(memory, flow, key, &parts)
    }
}

/// Placeholder function of which only the state size counts.
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

impl TurnFunction for IsolatedChain {
    fn companion_candidates(&mut self, key: FlowKey, rss_hash: u32, turn: u8, keys: &mut Vec<(u8, FlowKey)>) -> u8 {
        let (Some(table), Some(stage)) = (&self.chain.table, self.chain.stages.first_mut()) else {
            return turn;
        };
        let Some(durable) = stage.function.durable() else {
            return turn;
        };
        let packet = Packet::of_flow(key, rss_hash);
        let mut candidates = CompanionCandidates {
            table,
            keys,
            failed: false,
        };
        durable.companion_candidates(&packet, turn, &mut candidates)
    }

    #[inline]
    fn prefetch(&self, flow: u32, at: u16, start: u16) {
        self.batch.memory().prefetch(at.into(), start.into());
        if let Some(table) = &self.chain.table {
            table.prefetch_replica_flow(self.index(flow).0);
        }
        if let Some(snapshotter) = &self.chain.snapshotter {
            snapshotter.prefetch(flow);
        }
    }

    /// Adds a packet to the batch.
    ///
    /// # Panics
    /// If its index is not above the last one's, the frame exceeds its buffer, or the flow is beyond the table.
    #[inline(always)]
    fn put<const CHANGED: bool>(&mut self, packet: &TurnPacket, known: impl Fn(&mut Headers)) -> bool {
        let at = packet.at;
        assert!(
            at >= self.next && usize::from(at) < MAX_BATCH,
            "packets in the order of their indices"
        );
        // This is the only handle: the batch holds none at or above `next`, and moves none out.
        let buffer = Buffer::from_parts(at.into(), self.batch.memory().pool());
        let connections = self.connections;
        let (flow, reversed) = match packet.flow {
            None => (FlowIndex::NONE, false),
            Some(FlowSlot { flow, generation }) => {
                let (index, reversed) = self.index(flow);
                let flow = match &mut self.chain.table {
                    Some(table) => table.replica_flow(index, generation, || {
                        let mut headers = Headers::default();
                        known(&mut headers);
                        match connections {
                            true => headers.key.of_connection().0,
                            false => headers.key,
                        }
                    }),
                    None => FlowIndex::of_another(index),
                };
                (flow, reversed)
            }
        };
        // Built in place: reading as a whole a value just written in parts is slow.
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
            if self.chain.snapshotter.is_some() && packet.flow.is_some() {
                self.durable_flows.push(flow);
            }
        }
        put
    }

    #[inline]
    fn run(&mut self, now: Nanos, each: impl FnMut(u16, TurnVerdict)) {
        self.chain.run(&mut self.batch, now);
        self.reflect();
        self.batch.take_all(each);
        self.next = 0;
    }

    fn inspect_non_ip(&mut self, packet: &TurnPacket) -> Option<u8> {
        let buffer = Buffer::from_parts(packet.at.into(), self.batch.memory().pool());
        let nowhere = (FlowIndex::NONE, false);
        let put = self.batch.put(buffer, packet, nowhere, |frame, headers| {
            parse(frame).is_ok_and(|parsed| {
                *headers = parsed;
                true
            })
        });
        let mut dropped = None;
        if put {
            let (packet, frame) = self.batch.packet_mut(0);
            let mut stages = self.chain.stages.iter_mut();
            dropped = stages.find_map(|stage| match stage.function.inspect_non_ip(packet, frame) {
                Verdict::Drop(reason) => Some(reason),
                _ => None,
            });
        }
        self.batch.take_all(|_, _| {});
        dropped
    }

    fn before_explanation(&mut self, at: u16) {
        if self.chain.stopwatch.is_none() {
            let stages = self.chain.stages.len();
            let mut watch = self
                .watch
                .take()
                .unwrap_or_else(|| Box::new(Stopwatch::collecting(stages)));
            watch.forget_collected();
            self.chain.stopwatch = Some(watch);
        }
        let mut packets = 0..self.batch.len();
        if let Some(i) = packets.find(|i| self.batch.buffer_index(*i) == u32::from(at)) {
            self.batch.packet_mut(i).0.set_traced();
        }
    }

    fn explain(&mut self, at: u16, text: &mut [u8; MAX_EXPLANATION]) -> bool {
        // Batches without traced packets run without the watch.
        self.watch = self.chain.stopwatch.take().or(self.watch.take());
        let watch = self.watch.as_mut();
        let Some(explanation) = watch.and_then(|watch| watch.collected(at.into())) else {
            return false;
        };
        let bytes = explanation.as_str().as_bytes();
        text[..bytes.len()].copy_from_slice(bytes);
        !bytes.is_empty()
    }

    /// Ends a flow.
    ///
    /// # Panics
    /// If the flow is beyond the table.
    fn end_flow(&mut self, index: u32, generation: u64) {
        let (index, _) = self.index(index);
        let (Some(table), Some(stage)) = (&mut self.chain.table, self.chain.stages.first_mut()) else {
            return;
        };
        let (function, slot) = (&mut stage.function, &stage.slot);
        let whole = 0..table.state_bytes();
        table.end_replica_flow(index, generation, &whole, |key, state| {
            if let Some(slot) = slot
                && let Some(flow_ends) = function.flow_ends()
                && slot.seen_version(state, false) != UNSEEN
            {
                flow_ends.flow_ended(key, &state[slot.state.clone()]);
            }
        });
    }

    fn drain(&mut self) {
        for stage in &mut self.chain.stages {
            if let Some(run_end) = stage.function.run_end() {
                run_end.drain();
            }
        }
    }

    fn counters(&self) -> impl Iterator<Item = u64> {
        let counts = self.chain.stages.iter();
        let counts = counts.flat_map(|stage| stage.function.counter_values().iter().copied());
        counts.take(self.counters)
    }
}
