//! Replica of a flow table's state in another process. Flows are looked up in the original, and found by their indices
//! here.

use super::BUCKETS;
use super::FlowTable;
use super::partition::AllParts;
use super::shape::Shape;
use crate::flow_memory::{FlowMemory, shared_stride};
use crate::flow_table::index::FlowIndex;
use crate::flow_table::remote_companions::{Companions, NoCompanion};
use crate::flow_table::{FlowCounters, FlowTableMemory};
use crate::region::{CACHE_LINE, write_in_order};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tailwater_api::{IdleTimeouts, WhenFull};
use tailwater_net::{FlowKey, Nanos};
use tailwater_sdk::protocol::memory::Memory;

/// Configuration of a flow table's replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaConfig {
    /// Capacity of the flow table.
    pub capacity: usize,
    /// State of each flow in bytes.
    pub state_bytes: usize,
    /// `true` if each direction of a flow has its own slot: flows are connections, and the function with this state
    /// does not track them.
    pub directed: bool,
}

impl ReplicaConfig {
    /// Number of slots for flows.
    pub fn slots(&self) -> usize {
        self.shape().all_slots()
    }

    /// Size in bytes of the file that holds the slots.
    pub fn file_bytes(&self) -> usize {
        FlowMemory::file_bytes(self.slots(), self.state_bytes)
    }

    /// Reads the bytes `at` of a flow's state from a file of this configuration, even while its owner is writing them.
    /// Returns `false` if there is no flow of this generation at the index.
    pub fn read(&self, memory: &Memory, (index, generation): (u32, u64), (at, to): (usize, &mut [u8])) -> bool {
        let index = index as usize;
        if index >= self.slots() || at + to.len() > self.state_bytes {
            return false;
        }
        let mut halves = [[0; 4]; 2];
        for (half, from) in halves.iter_mut().zip(FlowMemory::generation_offsets()) {
            memory.read(index * CACHE_LINE + from, half);
        }
        let [high, low] = halves.map(|half| u64::from(u32::from_ne_bytes(half)));
        if generation == 0 || high << 32 | low != generation {
            return false;
        }
        let state = self.slots() * CACHE_LINE + index * shared_stride(self.state_bytes);
        memory.read(state + at, to);
        true
    }

    /// Writes a flow to a file of this configuration that no function has seen: its key, and the given parts of its
    /// state, each with its offset; the rest is zero. Returns `false` if there is no such index, or a part is beyond
    /// the state.
    pub fn write(
        &self,
        memory: &Memory,
        (index, generation): (u32, u64),
        key: &FlowKey,
        parts: &[(usize, &[u8])],
    ) -> bool {
        let index = index as usize;
        let fits = |(at, part): &(usize, &[u8])| at + part.len() <= self.state_bytes;
        if index >= self.slots() || !parts.iter().all(fits) {
            return false;
        }
        let entry = index * CACHE_LINE;
        memory.wipe(entry, CACHE_LINE);
        let words = key.words().map(u64::to_ne_bytes);
        memory.write(entry + FlowMemory::key_offset(), words.as_flattened());
        let stride = shared_stride(self.state_bytes);
        let state = self.slots() * CACHE_LINE + index * stride;
        memory.wipe(state, stride);
        parts.iter().for_each(|(at, part)| memory.write(state + at, part));
        let halves = [(generation >> 32) as u32, generation as u32];
        for (half, at) in halves.into_iter().zip(FlowMemory::generation_offsets()) {
            memory.write(entry + at, &half.to_ne_bytes());
        }
        true
    }

    fn shape(&self) -> Shape {
        let shape = Shape::new(self.capacity);
        if self.directed { shape.doubled() } else { shape }
    }
}

/// Replica of a flow table in memory that processes share.
#[derive(Debug)]
pub struct FlowTableReplica {
    memory: Arc<FlowMemory>,
    config: ReplicaConfig,
}

impl FlowTableReplica {
    /// Opens the flows in `memory`, which is zero at first.
    ///
    /// # Safety
    /// While this process handles a packet of a flow, nothing else accesses the flow's part of the memory. Earlier
    /// accesses to the flow happened before.
    ///
    /// # Errors
    /// If the memory is too short.
    pub unsafe fn open(memory: Memory, config: ReplicaConfig) -> io::Result<FlowTableReplica> {
        let memory = FlowMemory::shared(&Arc::new(memory), config.slots(), config.state_bytes)?;
        Ok(FlowTableReplica {
            memory: Arc::new(memory),
            config,
        })
    }

    /// Creates the table view, which opens companions through `companions`.
    pub(crate) fn table(self, companions: Box<dyn Companions>) -> FlowTable {
        FlowTable {
            fetched: 0..self.config.state_bytes,
            memory: self.memory,
            // The partitions are in the original.
            parts: Arc::new(AllParts::new(std::iter::empty())),
            partitions: (0..BUCKETS).map(|_| None).collect(),
            usable: Box::new([false; BUCKETS]),
            kept: Box::new([false; BUCKETS]),
            borrowed: None,
            shape: self.config.shape(),
            size: FlowTableMemory::new(self.config.capacity, self.config.state_bytes),
            timeouts: IdleTimeouts {
                tcp: Nanos::MAX,
                udp: Nanos::MAX,
                other: Nanos::MAX,
            },
            when_full: WhenFull::Refuse,
            seed: 0,
            counters: FlowCounters::default(),
            cursor: 0,
            handed: true,
            connections: false,
            lifetimes: None,
            timer_interval: None,
            looked_at: Vec::new(),
            companions: Some(companions),
            last_companion: None,
        }
    }
}

impl FlowTable {
    /// Returns the flow at an index of a replica, opened with this generation and key. If the slot held another flow or
    /// none, its state is zeroed.
    ///
    /// # Panics
    /// If there is no such index, or the table is no replica.
    #[inline]
    pub(crate) fn replica_flow(&mut self, index: u32, generation: u64, key: impl FnOnce() -> FlowKey) -> FlowIndex {
        let flow = FlowIndex(index);
        assert!(self.handed, "a mirror");
        self.check(flow);
        if self.generation(flow) != generation {
            self.begin(flow, generation, &key());
        }
        flow
    }

    #[cold]
    fn begin(&mut self, flow: FlowIndex, generation: u64, key: &FlowKey) {
        // If the process is killed before the end, the slot holds no flow.
        self.set_generation(flow, 0);
        write_in_order();
        // SAFETY: in range as checked. Flows of a replica belong to this table only (`FlowTableReplica::open`).
        unsafe { self.memory.set_key(flow.index(), key) };
        self.whole_state(flow).fill(0);
        self.links_mut(flow).near = 0;
        write_in_order();
        self.set_generation(flow, generation);
    }

    /// Marks a flow of a replica as being opened by a function. Returns `true` if it was marked already and not
    /// [unmarked](FlowTable::end_opening): the process that opened it was killed.
    pub(crate) fn begin_opening(&mut self, flow: FlowIndex) -> bool {
        // Free for this use, since a replica has no look-ups.
        std::mem::replace(&mut self.links_mut(flow).near, 1) != 0
    }

    /// Removes the mark of [`begin_opening`](FlowTable::begin_opening).
    pub(crate) fn end_opening(&mut self, flow: FlowIndex) {
        self.links_mut(flow).near = 0;
    }

    /// Generation of the flow at an index; 0 if there is none.
    #[inline]
    pub(crate) fn generation(&self, flow: FlowIndex) -> u64 {
        let links = self.links(flow);
        u64::from(links.next) << 32 | u64::from(links.previous)
    }

    fn set_generation(&mut self, flow: FlowIndex, generation: u64) {
        let links = self.links_mut(flow);
        (links.next, links.previous) = ((generation >> 32) as u32, generation as u32);
    }

    /// Removes a flow of a replica, if it has this generation. `each` receives its key and state first.
    pub(crate) fn end_replica_flow(
        &mut self,
        index: u32,
        generation: u64,
        state: &Range<usize>,
        each: impl FnOnce(&FlowKey, &[u8]),
    ) {
        let flow = FlowIndex(index);
        assert!(self.handed, "a mirror");
        self.check(flow);
        if generation != 0 && self.generation(flow) == generation {
            let key = self.key(flow);
            each(&key, self.state(flow, state));
            self.set_generation(flow, 0);
        }
    }

    /// Prefetches a flow of a replica.
    #[inline]
    pub(crate) fn prefetch_replica_flow(&self, index: u32) {
        self.memory.prefetch_entry(index as usize);
        self.memory.prefetch_state(index as usize, &self.fetched);
    }

    /// Opens a companion in the process that looks flows up. Returns `None` if that is this process.
    pub(crate) fn request_companion(
        &mut self,
        at: u16,
        key: &FlowKey,
        rss_hash: u32,
    ) -> Option<Result<FlowIndex, NoCompanion>> {
        let opened = self.companions.as_mut()?.open(at, key, rss_hash);
        Some(self.record_companion(opened, key))
    }

    /// Same as [`request_companion`](FlowTable::request_companion), for a flow that may exist.
    pub(crate) fn request_companion_rejoin(
        &mut self,
        at: u16,
        key: &FlowKey,
        rss_hash: u32,
    ) -> Option<Result<FlowIndex, NoCompanion>> {
        let joined = self.companions.as_mut()?.rejoin(at, key, rss_hash);
        Some(self.record_companion(joined, key))
    }

    fn record_companion(
        &mut self,
        opened: Result<(u32, u64), NoCompanion>,
        key: &FlowKey,
    ) -> Result<FlowIndex, NoCompanion> {
        let (index, generation) = opened?;
        let companion = self.replica_flow(index, generation, || *key);
        self.last_companion = Some(companion);
        Ok(companion)
    }

    /// Takes the companion that was opened last.
    pub(crate) fn take_last_companion(&mut self) -> Option<FlowIndex> {
        self.last_companion.take()
    }

    /// Returns `true` if no flow has the key in the process that looks flows up; `None` if that is this process.
    pub(crate) fn is_free_remotely(&self, key: &FlowKey, bucket: u16) -> Option<bool> {
        Some(self.companions.as_ref()?.is_free(key, bucket))
    }

    /// Same as [`open_companion`](FlowTable::open_companion), for a process that was stopped after its first request
    /// and may repeat it: the existing companion is then returned.
    pub(crate) fn reopen_companion(
        &mut self,
        flow: FlowIndex,
        key: &FlowKey,
        bucket: u16,
        now: Nanos,
        ends: &mut super::EndedFlows,
    ) -> Result<(FlowIndex, bool), NoCompanion> {
        match self.open_companion(flow, key, bucket, now, ends) {
            Ok(companion) => Ok((companion, true)),
            Err(NoCompanion::HasOne) => {
                let companion = FlowIndex(self.links(flow).companion);
                match self.key_of(companion) == key {
                    true => Ok((companion, false)),
                    // The process tries its keys in the same order as before, and reaches this one.
                    false => Err(NoCompanion::Taken),
                }
            }
            Err(error) => Err(error),
        }
    }
}
