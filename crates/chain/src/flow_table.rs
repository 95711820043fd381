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
//! A key's hash is its home. An index has the first flow of each home; flows of one home form a list. There are two
//! homes for each flow of the table's capacity, so that nearly all are the first of theirs, and absence is nearly always
//! known from the index. It takes eight bytes a flow; records are dense, whatever the table's capacity, and hold state
//! and key side by side. A known flow's packet touches one line of the index, and one or two of the record. Records never
//! move: an index stays valid as long as the flow lives.

mod ageing;
mod companions;
mod config;
pub(crate) mod ended;
pub(crate) mod index;
mod lending;
mod look_up;
mod partition;
pub(crate) mod remote_companions;
mod replica;
mod shape;
mod succession;
mod tick;

use crate::function::lifetimes::Lifetimes;
pub use config::{FlowTableConfig, FlowTableMemory};
pub(crate) use ended::EndedFlows;
pub(crate) use index::FlowIndex;
pub use partition::Partition;
pub use remote_companions::{Companions, NoCompanion};
pub use replica::{FlowTableReplica, ReplicaConfig};

use crate::flow_memory::{FetchedLines, FlowMemory, Links, PartitionLinks};
use crate::flow_wheel::Wheel;
use partition::{AllParts, PartitionParts};
use shape::Shape;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tailwater_api::{IdleTimeouts, WhenFull};
use tailwater_net::FlowKey;
use tailwater_net::toeplitz::{BUCKETS, bucket_of};
use tick::ticks;

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
    /// Number of flows that must fit.
    capacity: usize,
    timeouts: IdleTimeouts,
    when_full: WhenFull,
    seed: u64,
    counters: FlowCounters,
    /// Bucket at which [`FlowTable::expire`] continues.
    cursor: usize,
    /// `true` if flow indices arrive with the packets.
    handed: bool,
    /// Cache lines of a flow's record that a look-up prefetches.
    fetched: FetchedLines,
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
        let memory = FlowMemory::new(shape.all_homes() + 1, shape.all_slots(), config.state_bytes)?;
        let memory = Arc::new(memory);
        let fetched = memory.layout().fetched(&(0..config.state_bytes));
        let longest = ticks(config.timeouts.longest());
        let parts = (0..BUCKETS).map(|_| PartitionParts::new(shape.slots, longest, memory.none()));
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
            capacity: config.capacity,
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
            capacity: self.capacity,
            timeouts: self.timeouts,
            when_full: self.when_full,
            seed: self.seed,
            counters: FlowCounters::default(),
            cursor: 0,
            handed: false,
            fetched: self.fetched,
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
        FlowTableMemory::new(self.capacity, self.state_bytes())
    }

    /// State of each flow in bytes.
    pub(crate) fn state_bytes(&self) -> usize {
        self.memory.layout().state_bytes
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
        self.fetched = self.memory.layout().fetched(&bytes);
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
        // SAFETY: as in `links`, or the index of no flow, whose key nothing writes. Only `open` writes keys, and it has
        // `&mut self`.
        unsafe { self.memory.key(flow.index()) }
    }

    #[inline]
    fn links(&self, flow: FlowIndex) -> &Links {
        // SAFETY: indices used in this module are slots of partitions that this table holds: `lookup` and
        // `open_companion` check the bucket, and homes' lists are within a partition. Shared, since `&self` excludes
        // `links_mut`.
        unsafe { self.memory.links(flow.index()) }
    }

    #[inline]
    fn links_mut(&mut self, flow: FlowIndex) -> &mut Links {
        // SAFETY: as in `links`; `&mut self` makes the reference the only one.
        unsafe { self.memory.links_mut(flow.index()) }
    }

    #[inline]
    fn last_seen(&self, flow: FlowIndex) -> u32 {
        // SAFETY: as in `links`.
        unsafe { self.memory.last_seen(flow.index()) }
    }

    /// Sets the tick of a flow's last packet.
    #[inline]
    fn see(&mut self, flow: FlowIndex, tick: u32) {
        // SAFETY: as in `links_mut`.
        unsafe { self.memory.set_last_seen(flow.index(), tick) };
    }

    /// Index of a home's first flow. This view may use the home's bucket.
    #[inline]
    fn head(&self, home: u32) -> u32 {
        // SAFETY: homes are computed by `home`, for buckets that this view may use: as in `links`. Or this is the home
        // without flows, which nothing writes.
        unsafe { self.memory.head(home as usize) }
    }

    fn set_head(&mut self, home: u32, index: u32) {
        // SAFETY: as in `head`; `&mut self` excludes other uses.
        unsafe { self.memory.set_head(home as usize, index) };
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

    /// Returns the flow with this key, if it is in a partition held.
    pub(crate) fn known(&self, key: &FlowKey, bucket: u16) -> Option<FlowIndex> {
        self.parts(bucket.into())?;
        self.find(self.home(key, bucket), key)
    }

    /// Returns `true` if a partition held has a flow with this key.
    pub(crate) fn contains(&self, key: &FlowKey, bucket: u16) -> bool {
        self.known(key, bucket).is_some()
    }

    /// Returns the flow in slot `index` if it still has this key.
    pub(crate) fn known_at(&self, index: u32, key: &FlowKey) -> Option<FlowIndex> {
        let bucket = self.shape.bucket(index);
        let taken = bucket < BUCKETS && self.held(bucket)?.is_taken(self.shape.slot(index));
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
            Some(FlowIndex(self.shape.first(bucket) + u32::from(slot)))
        })
    }

    /// RSS bucket of a flow.
    pub(crate) fn bucket(&self, flow: FlowIndex) -> u16 {
        self.shape.bucket(flow.0) as u16
    }

    /// First slot of a bucket.
    pub(crate) fn first_of(&self, bucket: u16) -> u32 {
        self.shape.first(bucket.into())
    }

    /// Inserts a new flow, with zeroed state, as the first of its home.
    fn open(&mut self, home: u32, key: &FlowKey, now: u64, ends: &mut EndedFlows, timer: Timer) -> Option<FlowIndex> {
        let bucket = self.shape.bucket_of_home(home);
        let mut free = self.take_slot(bucket);
        if free.is_none() && self.when_full == WhenFull::Evict && self.evict(home, now as u32, ends) {
            free = self.take_slot(bucket);
        }
        let Some(slot) = free else {
            self.counters.refused += 1;
            return None;
        };
        let flow = FlowIndex(self.shape.first(bucket) + u32::from(slot));
        let behind = self.head(home);
        self.set_head(home, flow.0);
        let links = self.links_mut(flow);
        links.chain = behind;
        links.companion = Links::NONE;
        links.active = 0;
        self.see(flow, now as u32);
        // SAFETY: in range as in `links`. The slot was free, so no packet of a flow there is in the system.
        unsafe { self.memory.set_key(flow.index(), key) };
        self.whole_state(flow).fill(0);
        let timeout = ticks(self.timeouts.of(key.protocol())).min(self.timer_period());
        let (partition, mut flows) = self.partition(bucket)?;
        match timer {
            Timer::Own => {
                partition.wheel.insert(&mut flows, slot, now + u64::from(timeout));
            }
            Timer::Companions => Wheel::leave_out(&mut flows, slot),
        }
        self.counters.opened += 1;
        Some(flow)
    }

    /// Takes a free slot of a partition: the one that a flow left last, whose lines are most likely cached, or one that
    /// no flow has had.
    fn take_slot(&mut self, bucket: usize) -> Option<u16> {
        let (shape, none) = (self.shape, self.memory.none());
        let (partition, mut flows) = self.partition(bucket)?;
        let slot = match partition.left {
            left if left != none => {
                let slot = shape.slot(left);
                partition.left = flows.at(slot).chain;
                slot
            }
            _ if partition.fresh < shape.slots => {
                partition.fresh += 1;
                (partition.fresh - 1) as u16
            }
            _ => return None,
        };
        partition.set_taken(slot, true);
        partition.live += 1;
        Some(slot)
    }
}

#[cfg(test)]
mod tests;
