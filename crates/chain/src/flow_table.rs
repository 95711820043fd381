//! Flow table: one look-up for each packet serves the whole chain.
//!
//! A worker looks up a batch of flow keys and gets a flow index for each. The chain's functions find their per-flow
//! state by that index and never hash again. The table is split into 512 partitions, one for each RSS bucket. Only the
//! holder of a bucket's [`Partition`] may look up, insert or expire there. A bucket moves between workers by moving its
//! `Partition`, a few bytes, while entries and state stay in place. The holder can also lend a bucket to an auxiliary
//! core, and does not use it until no packet of the bucket is there any more.
//!
//! # Layout
//!
//! Each entry is one cache line: key, age, timer links. A key has a home slot, and is stored there or in one of the
//! next 31 slots; a bit map in the home entry marks the slots that hold its keys. A present flow is therefore nearly
//! always found in the first line touched, and absence is known from the first line alone. Entries never move: an index
//! stays valid as long as the flow lives. State is in a second region, at the same index.

mod ageing;
mod companions;
mod config;
pub(crate) mod ended;
pub(crate) mod index;
mod lending;
mod partition;
pub(crate) mod remote_companions;
mod replica;
mod shape;
mod succession;
mod tick;

use crate::batch::packet::Slot;
use crate::batch::size::MAX_BATCH;
use crate::function::lifetimes::Lifetimes;
pub use config::{FlowTableConfig, FlowTableMemory};
pub(crate) use ended::EndedFlows;
pub(crate) use index::FlowIndex;
pub use partition::Partition;
pub use remote_companions::{Companions, NoCompanion};
pub use replica::{FlowTableReplica, ReplicaConfig};

use crate::flow_memory::{FlowMemory, Links, PartitionLinks};
use crate::flow_wheel::Wheel;
use partition::{AllParts, PartitionParts};
use shape::Shape;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tailwater_api::{IdleTimeouts, WhenFull};
use tailwater_net::toeplitz::{BUCKETS, bucket_of};
use tailwater_net::{FlowKey, Nanos};
pub(crate) use tick::tick_of;
use tick::{TICK_SHIFT, ticks};

/// Counters of a flow table, in flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounters {
    /// Flows inserted.
    pub opened: u64,
    /// Flows removed because they were idle.
    pub expired: u64,
    /// Flows removed to make room for new ones.
    pub evicted: u64,
    /// New flows for which there was no slot, counted once for each packet that tried.
    pub refused: u64,
}

/// Timer that ends a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    /// Flow's own timer.
    Own,
    /// Timer of the companion it ends with.
    Companions,
}

/// Worker's view of the flow table, with the partitions it holds.
#[derive(Debug)]
pub struct FlowTable {
    memory: Arc<FlowMemory>,
    parts: Arc<AllParts>,
    partitions: Vec<Option<Partition>>,
    /// Buckets that this view may use now: those whose partitions it holds and has not lent, and those borrowed; or
    /// all, if buckets are lent to it and it holds none.
    usable: Box<[bool; BUCKETS]>,
    /// Buckets whose flows stay, because packets that were looked up are on another core.
    kept: Box<[bool; BUCKETS]>,
    /// Buckets of other views that this one uses now, if it may: with room for those of a batch.
    borrowed: Option<Vec<u16>>,
    shape: Shape,
    size: FlowTableMemory,
    timeouts: IdleTimeouts,
    when_full: WhenFull,
    seed: u64,
    counters: FlowCounters,
    /// Bucket at which [`FlowTable::expire`] continues.
    cursor: usize,
    /// `true` if flow indices arrive with the packets.
    handed: bool,
    /// Bytes of a flow's state that a look-up prefetches.
    fetched: Range<usize>,
    /// `true` if flows are connections: both directions are found under one key.
    connections: bool,
    /// Source of idle timeouts, with the range of state bytes it receives.
    lifetimes: Option<(Arc<dyn Lifetimes>, Range<usize>)>,
    /// Timer interval of flows in ticks, if a function has one, and the flows whose timer is due.
    timer_interval: Option<u32>,
    looked_at: Vec<FlowIndex>,
    /// Opens companions, if the flows belong to another process.
    companions: Option<Box<dyn Companions>>,
    /// Companion last opened there.
    last_companion: Option<FlowIndex>,
}

impl FlowTable {
    /// Allocates the memory and all [`BUCKETS`] partitions. Each worker then gets a table [on the same
    /// memory](FlowTable::sharing) and the partitions of its buckets.
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub fn create(config: &FlowTableConfig) -> io::Result<(FlowTable, Vec<Partition>)> {
        let shape = Shape::new(config.capacity);
        let fetched = 0..config.state_bytes;
        let memory = Arc::new(FlowMemory::new(shape.all_slots(), config.state_bytes)?);
        let longest = ticks(config.timeouts.longest());
        let parts = (0..BUCKETS).map(|_| PartitionParts {
            wheel: Wheel::new(longest),
            taken: vec![0; shape.slots as usize / 64].into(),
            live: 0,
        });
        let parts = Arc::new(AllParts::new(parts));
        let partitions = (0..BUCKETS as u16).map(|bucket| Partition {
            all: Arc::clone(&parts),
            bucket,
        });
        let partitions = partitions.collect();
        let table = FlowTable {
            memory,
            parts,
            partitions: (0..BUCKETS).map(|_| None).collect(),
            usable: Box::new([false; BUCKETS]),
            kept: Box::new([false; BUCKETS]),
            borrowed: None,
            shape,
            size: FlowTableMemory::new(config.capacity, config.state_bytes),
            timeouts: config.timeouts,
            when_full: config.when_full,
            seed: config.seed,
            counters: FlowCounters::default(),
            cursor: 0,
            handed: false,
            fetched,
            connections: false,
            lifetimes: None,
            timer_interval: None,
            looked_at: Vec::new(),
            companions: None,
            last_companion: None,
        };
        Ok((table, partitions))
    }

    /// Creates another view of the same memory, which holds no partition.
    pub fn sharing(&self) -> FlowTable {
        FlowTable {
            memory: Arc::clone(&self.memory),
            parts: Arc::clone(&self.parts),
            partitions: (0..BUCKETS).map(|_| None).collect(),
            usable: Box::new([false; BUCKETS]),
            kept: Box::new([false; BUCKETS]),
            borrowed: None,
            shape: self.shape,
            size: self.size,
            timeouts: self.timeouts,
            when_full: self.when_full,
            seed: self.seed,
            counters: FlowCounters::default(),
            cursor: 0,
            handed: false,
            fetched: self.fetched.clone(),
            connections: self.connections,
            lifetimes: self.lifetimes.clone(),
            timer_interval: self.timer_interval,
            looked_at: Vec::new(),
            companions: None,
            last_companion: None,
        }
    }

    /// Sets whether look-ups find both directions of a connection as one flow.
    pub(crate) fn of_connections(&mut self, connections: bool) {
        self.connections = connections;
    }

    /// Creates a view that never holds a partition, for a core that receives packets with their flow indices. It finds
    /// their state and can neither look up nor open flows.
    ///
    /// # Safety
    /// While this view processes a packet, no other core accesses the bytes of the flow's state that it accesses, and
    /// earlier accesses of other cores happen before. The flow has an active number, so that
    /// it stays in the table.
    pub unsafe fn for_migrated_flows(&self) -> FlowTable {
        FlowTable {
            handed: true,
            ..self.sharing()
        }
    }

    /// Takes over a bucket.
    ///
    /// # Panics
    /// If the partition belongs to another table's memory.
    pub fn adopt(&mut self, partition: Partition) {
        let own = Arc::ptr_eq(&self.parts, &partition.all);
        assert!(own, "a partition of another flow table");
        let bucket = usize::from(partition.bucket);
        self.usable[bucket] = true;
        self.partitions[bucket] = Some(partition);
    }

    /// Releases a bucket. This worker must hold no packet of its flows.
    pub fn release(&mut self, bucket: u16) -> Option<Partition> {
        let bucket = usize::from(bucket) % BUCKETS;
        let partition = self.partitions[bucket].take();
        if partition.is_some() {
            self.usable[bucket] = false;
        }
        partition
    }

    /// Counters so far.
    pub fn counters(&self) -> FlowCounters {
        self.counters
    }

    /// Returns `true` if this view may use the packet's bucket.
    pub(crate) fn holds(&self, rss_hash: u32) -> bool {
        self.usable[usize::from(bucket_of(rss_hash))]
    }

    /// Returns `true` if this view may use the bucket.
    #[inline]
    pub(crate) fn is_usable(&self, bucket: u16) -> bool {
        self.usable[usize::from(bucket) % BUCKETS]
    }

    /// Number of partitions this view holds.
    pub fn buckets(&self) -> usize {
        self.partitions.iter().flatten().count()
    }

    /// Number of flows in these partitions, except lent ones.
    pub fn flows(&self) -> usize {
        (0..BUCKETS)
            .filter_map(|bucket| self.held(bucket))
            .map(|parts| parts.live as usize)
            .sum()
    }

    /// Memory of the whole table, over all workers' partitions.
    pub fn memory(&self) -> FlowTableMemory {
        self.size
    }

    /// State of each flow in bytes.
    pub(crate) fn state_bytes(&self) -> usize {
        self.memory.state_bytes()
    }

    /// These bytes of a flow's state.
    ///
    /// # Panics
    /// If the bytes exceed the state, or the flow is not in this table.
    #[inline]
    pub(crate) fn state(&mut self, flow: FlowIndex, bytes: &Range<usize>) -> &mut [u8] {
        self.check(flow);
        // SAFETY: the slot is in range. Either this table holds its partition: then the dispatcher keeps packets of
        // offloaded flows out of its chain, or out of the segments that run on another core. Or the flow arrived with
        // the packet, for the segments to which these bytes belong ([`FlowTable::for_migrated_flows`]). `&mut self`
        // makes the reference the only one.
        unsafe { self.memory.state(flow.index(), bytes) }
    }

    /// Address of these bytes of a flow's state. Until the table is used again, the caller may access them as if
    /// [`state`](FlowTable::state) had returned them.
    ///
    /// # Panics
    /// Same as [`state`](FlowTable::state).
    #[inline]
    pub(crate) fn state_address(&mut self, flow: FlowIndex, bytes: &Range<usize>) -> *mut u8 {
        self.check(flow);
        self.memory.state_address(flow.index(), bytes)
    }

    /// Entire state of a flow.
    pub(crate) fn whole_state(&mut self, flow: FlowIndex) -> &mut [u8] {
        self.state(flow, &(0..self.state_bytes()))
    }

    /// 32-bit word of a flow's state, at an offset that is a multiple of its size.
    ///
    /// # Panics
    /// Same as [`state`](FlowTable::state).
    #[inline]
    pub(crate) fn word(&mut self, flow: FlowIndex, at: usize) -> &mut u32 {
        bytemuck::from_bytes_mut(self.state(flow, &(at..at + size_of::<u32>())))
    }

    /// Makes look-ups prefetch these bytes of the flows' state instead of all.
    pub(crate) fn fetch_at_look_up(&mut self, bytes: Range<usize>) {
        self.fetched = bytes;
    }

    /// Prefetches these bytes of a flow's state.
    #[inline]
    pub(crate) fn prefetch_state(&self, flow: FlowIndex, bytes: &Range<usize>) {
        self.memory.prefetch_state(flow.index(), bytes);
    }

    /// Key under which a packet's flow was looked up, before functions rewrote the packet.
    pub(crate) fn key(&self, flow: FlowIndex) -> FlowKey {
        self.check(flow);
        // SAFETY: in range as in `state`. Keys of flows with packets in the system are not written.
        unsafe { *self.memory.key(flow.index()) }
    }

    /// Rejects flows of packets that were not looked up, or were looked up in another table.
    #[inline]
    fn check(&self, flow: FlowIndex) {
        let usable = self.usable.get(self.shape.bucket(flow.0));
        if !usable.is_some_and(|usable| *usable || self.handed) {
            index::no_flow();
        }
    }

    #[inline]
    fn key_of(&self, flow: FlowIndex) -> &FlowKey {
        // SAFETY: as in `links`. Only `open` writes keys, and it has `&mut self`.
        unsafe { self.memory.key(flow.index()) }
    }

    #[inline]
    fn links(&self, flow: FlowIndex) -> &Links {
        // SAFETY: indices used in this module are slots of partitions that this table holds: `lookup` and
        // `open_companion` check the home slot, and all others are in the same partition. Shared, since `&self`
        // excludes `links_mut`.
        unsafe { self.memory.links(flow.index()) }
    }

    #[inline]
    fn links_mut(&mut self, flow: FlowIndex) -> &mut Links {
        // SAFETY: as in `links`; `&mut self` makes the reference the only one.
        unsafe { self.memory.links_mut(flow.index()) }
    }

    /// Partition that this view may use, with its flows' links.
    #[inline]
    fn partition(&mut self, bucket: usize) -> Option<(&mut PartitionParts, PartitionLinks<'_>)> {
        if !self.usable[bucket] {
            return None;
        }
        // SAFETY: this view may use the bucket, and `&mut self` is borrowed as long as the parts and the links.
        Some(unsafe {
            (
                self.parts.get_mut(bucket),
                self.memory.partition(bucket, self.shape.slots as usize),
            )
        })
    }

    /// Parts of a partition that this view may use.
    #[inline]
    fn parts(&self, bucket: usize) -> Option<&PartitionParts> {
        // SAFETY: this view may use the bucket. Only `partition` changes the parts, and it has `&mut self`.
        self.usable[bucket].then(|| unsafe { self.parts.get(bucket) })
    }

    /// Parts of a partition that this view holds and has not lent.
    fn held(&self, bucket: usize) -> Option<&PartitionParts> {
        self.partitions[bucket].as_ref()?;
        self.parts(bucket)
    }

    /// Number of the flow among those with packets in the system.
    #[inline]
    pub(crate) fn active(&self, flow: FlowIndex) -> Option<u16> {
        self.check(flow);
        self.links(flow).active.checked_sub(1)
    }

    /// Sets the flow's active number (below 65,535) or removes it. A flow with an active number stays in the table.
    #[inline]
    pub(crate) fn set_active(&mut self, flow: FlowIndex, number: Option<u16>) {
        self.check(flow);
        self.links_mut(flow).active = number.map_or(0, |number| number + 1);
    }

    /// Looks up the flow of every packet and opens new flows. A packet keeps [`FlowIndex::NONE`] if there is no slot
    /// for its flow or its bucket belongs to another worker.
    #[inline]
    pub(crate) fn lookup(&mut self, slots: &mut [Slot], now: Nanos, ends: &mut EndedFlows) {
        match self.connections {
            true => self.lookup_by::<true>(slots, now, ends),
            false => self.lookup_by::<false>(slots, now, ends),
        }
    }

    /// Looks packets up by their keys or, with `CONNECTIONS`, by a key common to both directions.
    #[inline]
    fn lookup_by<const CONNECTIONS: bool>(&mut self, slots: &mut [Slot], now: Nanos, ends: &mut EndedFlows) {
        let mut homes = [0u32; MAX_BATCH];
        // First pass: computes each key's home and prefetches its line while the next key is hashed.
        for (slot, home) in slots.iter_mut().zip(&mut homes) {
            slot.packet.flow = FlowIndex::NONE;
            let bucket = bucket_of(slot.packet.rss_hash);
            let key = &slot.packet.headers.key;
            let reversed;
            (*home, reversed) = match CONNECTIONS {
                true => {
                    let (key, reversed) = key.of_connection();
                    (self.home(&key, bucket), reversed)
                }
                false => (self.home(key, bucket), false),
            };
            slot.packet.set_reversed(reversed);
            self.memory.prefetch_entry(*home as usize);
        }
        // Second pass: most flows are found at home. For the rest, the lines to search are prefetched.
        let now = now.0 >> TICK_SHIFT;
        let tick = now as u32;
        let mut unsettled = [0u16; MAX_BATCH];
        let mut waiting = 0;
        for (i, slot) in slots.iter_mut().enumerate() {
            let home = homes[i];
            if !self.usable[usize::from(bucket_of(slot.packet.rss_hash))] {
                continue;
            }
            let near = self.links(FlowIndex(home)).near;
            let there = self.key_of(FlowIndex(home));
            let key = &slot.packet.headers.key;
            let is_it = || match CONNECTIONS {
                true => *there == key.of_connection().0,
                false => there == key,
            };
            if near & 1 != 0 && is_it() {
                slot.packet.flow = FlowIndex(home);
                self.memory.prefetch_state(home as usize, &self.fetched);
                self.links_mut(FlowIndex(home)).last_seen = tick;
            } else {
                self.prefetch_near(home, near & !1);
                unsettled[waiting] = i as u16;
                waiting += 1;
            }
        }
        // Third pass: displaced and new flows, one by one and in order, so that a flow's second packet finds the flow
        // that its first packet opened.
        for &i in &unsettled[..waiting] {
            let packet = &mut slots[usize::from(i)].packet;
            let home = FlowIndex(homes[usize::from(i)]);
            let key = match CONNECTIONS {
                true => packet.headers.key.of_connection().0,
                false => packet.headers.key,
            };
            let found = self.find(home, &key);
            let flow = found.or_else(|| self.open(home, &key, now, ends, Timer::Own));
            if let Some(flow) = flow {
                packet.flow = flow;
                packet.set_new(found.is_none());
                self.links_mut(flow).last_seen = tick;
                self.memory.prefetch_state(flow.index(), &self.fetched);
            }
        }
    }

    /// Returns the flow with this key, if it is in a partition held.
    pub(crate) fn known(&self, key: &FlowKey, bucket: u16) -> Option<FlowIndex> {
        self.parts(bucket.into())?;
        self.find(FlowIndex(self.home(key, bucket)), key)
    }

    /// Returns `true` if a partition held has a flow with this key.
    pub(crate) fn contains(&self, key: &FlowKey, bucket: u16) -> bool {
        self.known(key, bucket).is_some()
    }

    /// Returns the flow in slot `index` if it still has this key. If buckets are lent to this view, that of the slot
    /// must be.
    pub(crate) fn known_at(&self, index: u32, key: &FlowKey) -> Option<FlowIndex> {
        let bucket = self.shape.bucket(index);
        let taken = bucket < BUCKETS && self.parts(bucket)?.is_taken(self.shape.slot(index));
        let flow = FlowIndex(index);
        (taken && self.key_of(flow) == key).then_some(flow)
    }

    /// Returns the first flow at or after slot `index` that is in a partition held.
    pub(crate) fn next_from(&self, index: u32) -> Option<FlowIndex> {
        let first = self.shape.bucket(index);
        (first..BUCKETS).find_map(|bucket| {
            let from = match bucket == first {
                true => self.shape.slot(index),
                false => 0,
            };
            let slot = self.held(bucket)?.taken_from(from)?;
            Some(FlowIndex(self.shape.first(bucket) + slot))
        })
    }

    /// RSS bucket of a flow.
    pub(crate) fn bucket(&self, flow: FlowIndex) -> u16 {
        self.shape.bucket(flow.0) as u16
    }

    /// RSS bucket of the flow in slot `index`.
    pub(crate) fn bucket_at(&self, index: u32) -> u16 {
        self.shape.bucket(index) as u16
    }

    /// First slot of a bucket.
    pub(crate) fn first_of(&self, bucket: u16) -> u32 {
        self.shape.first(bucket.into())
    }

    /// Home slot of a key, as an index into the whole table.
    #[inline]
    fn home(&self, key: &FlowKey, bucket: u16) -> u32 {
        self.shape.home(key.hash(self.seed), bucket)
    }

    /// Slot at `distance` from `home`, within the partition.
    #[inline]
    fn at(&self, home: u32, distance: u32) -> FlowIndex {
        FlowIndex(self.shape.after(home, distance))
    }

    #[inline]
    fn prefetch_near(&self, home: u32, mut near: u32) {
        while near != 0 {
            self.memory.prefetch_entry(self.at(home, near.trailing_zeros()).index());
            near &= near - 1;
        }
    }

    #[inline]
    fn find(&self, home: FlowIndex, key: &FlowKey) -> Option<FlowIndex> {
        let mut near = self.links(home).near;
        while near != 0 {
            let index = self.at(home.0, near.trailing_zeros());
            if *self.key_of(index) == *key {
                return Some(index);
            }
            near &= near - 1;
        }
        None
    }

    /// Inserts a new flow, with zeroed state, near its home slot.
    fn open(
        &mut self,
        home: FlowIndex,
        key: &FlowKey,
        now: u64,
        ends: &mut EndedFlows,
        timer: Timer,
    ) -> Option<FlowIndex> {
        let bucket = self.shape.bucket(home.0);
        let mut distance = self.parts(bucket)?.free_distance(self.shape.slot(home.0));
        if distance.is_none() && self.when_full == WhenFull::Evict {
            distance = self.evict(home, now as u32, ends);
        }
        let Some(distance) = distance else {
            self.counters.refused += 1;
            return None;
        };
        let flow = self.at(home.0, distance);
        self.links_mut(home).near |= 1 << distance;
        // The slot's bit map belongs to the keys whose home it is, and stays.
        let links = self.links_mut(flow);
        links.last_seen = now as u32;
        links.companion = Links::NONE;
        links.distance = distance as u8;
        links.active = 0;
        // SAFETY: in range as in `links`. The slot was free, so no packet of a flow there is in the system.
        unsafe { self.memory.set_key(flow.index(), key) };
        self.whole_state(flow).fill(0);
        let timeout = ticks(self.timeouts.of(key.protocol())).min(self.timer_period());
        let index = self.shape.slot(flow.0);
        let (partition, mut flows) = self.partition(bucket)?;
        partition.set_taken(index, true);
        partition.live += 1;
        match timer {
            Timer::Own => {
                partition.wheel.insert(&mut flows, index, now + u64::from(timeout));
            }
            Timer::Companions => Wheel::leave_out(&mut flows, index),
        }
        self.counters.opened += 1;
        Some(flow)
    }
}

#[cfg(test)]
mod tests;
