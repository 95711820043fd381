//! The flow table: one look-up a packet for the whole chain.
//!
//! A worker looks up a batch of flow keys and gets a flow index for each; the chain's functions
//! find their per-flow state by that index and never hash again. The table is cut into 512
//! partitions, one for each RSS bucket: only who holds a bucket's [`Partition`] may look up,
//! insert or expire there, and a bucket moves between workers by moving its `Partition`, a few
//! hundred bytes, while entries and state stay where they are.
//!
//! # Layout
//!
//! Each entry is one cache line: key, age, timer links. A key has a home place, and lies there
//! or in one of the next 31 places; the home's entry says in a bit map which of them hold its keys.
//! So a flow that is there is nearly always found in the first line touched, one that is not is
//! known from the first line alone, and nothing ever moves: an index stays true as long as the
//! flow lives. State is in a second region, in lines of its own, at the same index.

mod ageing;
mod companions;
mod config;
mod ended;
mod mirror;
mod partition;

pub use companions::NoCompanion;
pub use config::FlowTableConfig;
pub(crate) use ended::EndedFlows;
pub use mirror::{Companions, Mirror, MirrorConfig};
pub use partition::Partition;
use tailwater_api::{IdleTimeouts, WhenFull};

use crate::batch::{MAX_BATCH, Slot};
use crate::flow_memory::{FlowMemory, Links, PartitionLinks};
use crate::flow_wheel::Wheel;
use crate::function::Lifetimes;
use crate::region::CACHE_LINE;
use ageing::ticks;
use partition::PartitionParts;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tailwater_net::toeplitz::{BUCKETS, bucket_of};
use tailwater_net::{FlowKey, Nanos};

/// A nanosecond count shifted right by this is a tick: 65.5 µs. Ages are 32-bit tick counts, right
/// for flows idle for up to 39 hours.
const TICK_SHIFT: u32 = 16;

/// A flow's place in the table. Only a look-up makes one, so it is always in range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowIndex(u32);

impl FlowIndex {
    /// No flow.
    pub(crate) const NONE: FlowIndex = FlowIndex(u32::MAX);

    /// A flow of a table that is in another process.
    #[inline]
    pub(crate) fn of_another(place: u32) -> FlowIndex {
        FlowIndex(place)
    }

    #[inline]
    pub(crate) fn get(self) -> Option<u32> {
        (self != FlowIndex::NONE).then_some(self.0)
    }

    #[inline]
    pub(crate) fn place(self) -> usize {
        self.0 as usize
    }
}

/// What a flow table did, in flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounters {
    /// Flows entered.
    pub opened: u64,
    /// Flows forgotten because they were idle.
    pub expired: u64,
    /// Flows that made room for new ones.
    pub evicted: u64,
    /// How often a new flow found no place: once for each packet that tried.
    pub refused: u64,
}

/// Whose timer ends a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Timer {
    /// Its own.
    Own,
    /// That of the companion it lives and ends with.
    Companions,
}

/// A worker's view of the flow table: the partitions it holds.
#[derive(Debug)]
pub struct FlowTable {
    memory: Arc<FlowMemory>,
    partitions: Vec<Option<Partition>>,
    /// `log2` of the places in a partition.
    shift: u32,
    timeouts: IdleTimeouts,
    when_full: WhenFull,
    seed: u64,
    counters: FlowCounters,
    /// Where [`FlowTable::expire`] goes on, as a bucket.
    cursor: usize,
    /// Whether packets bring their flows with them.
    handed: bool,
    /// What of a flow's state a look-up fetches.
    fetched: Range<usize>,
    /// Whether flows are connections: both directions are found under one key.
    connections: bool,
    /// Who says how long flows are kept, and the bytes of their state that it is told.
    lifetimes: Option<(Arc<dyn Lifetimes>, Range<usize>)>,
    /// How often flows are looked at, in ticks, if somebody wants to, and those that are to be.
    look_every: Option<u32>,
    looked_at: Vec<FlowIndex>,
    /// Who opens companions, if the flows are another process's.
    companions: Option<Box<dyn Companions>>,
    /// The companion that was last opened there.
    last_companion: Option<FlowIndex>,
}

impl FlowTable {
    /// Makes the memory and all [`BUCKETS`] partitions. Each worker then gets a table
    /// [on the same memory](FlowTable::sharing) and the partitions of its buckets.
    ///
    /// # Errors
    /// If there is not that much memory.
    pub fn create(config: &FlowTableConfig) -> io::Result<(FlowTable, Vec<Partition>)> {
        let shift = shift_for(config.capacity);
        let places = BUCKETS << shift;
        let state_lines = config.state_bytes.div_ceil(CACHE_LINE);
        let fetched = 0..state_lines * CACHE_LINE;
        let memory = Arc::new(FlowMemory::new(places, state_lines)?);
        let longest = ticks(config.timeouts.longest());
        let partitions = (0..BUCKETS as u16)
            .map(|bucket| {
                Partition(Box::new(PartitionParts {
                    memory: Arc::clone(&memory),
                    bucket,
                    wheel: Wheel::new(longest),
                    taken: vec![0; (1 << shift) / 64].into(),
                    live: 0,
                }))
            })
            .collect();
        let table = FlowTable {
            memory,
            partitions: (0..BUCKETS).map(|_| None).collect(),
            shift,
            timeouts: config.timeouts,
            when_full: config.when_full,
            seed: config.seed,
            counters: FlowCounters::default(),
            cursor: 0,
            handed: false,
            fetched,
            connections: false,
            lifetimes: None,
            look_every: None,
            looked_at: Vec::new(),
            companions: None,
            last_companion: None,
        };
        Ok((table, partitions))
    }

    /// Another view of the same memory, holding no partition.
    pub fn sharing(&self) -> FlowTable {
        FlowTable {
            memory: Arc::clone(&self.memory),
            partitions: (0..BUCKETS).map(|_| None).collect(),
            shift: self.shift,
            timeouts: self.timeouts,
            when_full: self.when_full,
            seed: self.seed,
            counters: FlowCounters::default(),
            cursor: 0,
            handed: false,
            fetched: self.fetched.clone(),
            connections: self.connections,
            lifetimes: self.lifetimes.clone(),
            look_every: self.look_every,
            looked_at: Vec::new(),
            companions: None,
            last_companion: None,
        }
    }

    /// Has look-ups find both directions of a connection as one flow, or not.
    pub(crate) fn of_connections(&mut self, connections: bool) {
        self.connections = connections;
    }

    /// A view that never holds a partition, for a core that is handed packets with their flows: it
    /// finds their state, and can neither look up nor open flows.
    ///
    /// # Safety
    /// While a packet is processed with this view, no other core touches the bytes of the flow's state
    /// that this one does, and what the core did that had them before happens before. The flow has
    /// a [number](FlowTable::set_active), so that it stays.
    pub unsafe fn of_handed_flows(&self) -> FlowTable {
        FlowTable {
            handed: true,
            ..self.sharing()
        }
    }

    /// Takes over a bucket.
    ///
    /// # Panics
    /// If the partition is of another table's memory.
    pub fn adopt(&mut self, partition: Partition) {
        let own = Arc::ptr_eq(&self.memory, &partition.0.memory);
        assert!(own, "a partition of another flow table");
        let bucket = usize::from(partition.0.bucket);
        self.partitions[bucket] = Some(partition);
    }

    /// Gives a bucket away. No packet of its flows may be in this worker's hands.
    pub fn release(&mut self, bucket: u16) -> Option<Partition> {
        self.partitions[usize::from(bucket) % BUCKETS].take()
    }

    /// What the table did so far.
    pub fn counters(&self) -> FlowCounters {
        self.counters
    }

    /// Whether this view holds a packet's bucket.
    pub(crate) fn holds(&self, rss_hash: u32) -> bool {
        self.partitions[usize::from(bucket_of(rss_hash))].is_some()
    }

    /// How many partitions this view holds.
    pub fn buckets(&self) -> usize {
        self.partitions.iter().flatten().count()
    }

    /// Flows in the partitions held.
    pub fn flows(&self) -> usize {
        self.partitions.iter().flatten().map(Partition::flows).sum()
    }

    /// Bytes of memory that the whole table (all workers' partitions) takes.
    pub fn memory_bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// Bytes of state that each flow has.
    pub(crate) fn state_bytes(&self) -> usize {
        self.memory.state_bytes()
    }

    /// These bytes of a flow's state.
    ///
    /// # Panics
    /// If there are not so many, or the flow is not in this table.
    #[inline]
    pub(crate) fn state(&mut self, flow: FlowIndex, bytes: &Range<usize>) -> &mut [u8] {
        self.check(flow);
        // SAFETY: the place is in range. This table holds its partition and the dispatcher keeps the
        // packets of flows that are elsewhere out of its chain, and out of those of its segments that
        // run elsewhere; or the flow was handed to it with the packet, for the segments whose bytes these
        // are ([`FlowTable::of_handed_flows`]). `&mut self` makes the reference the only one.
        unsafe { self.memory.state(flow.place(), bytes) }
    }

    /// Where these bytes of a flow's state are. Until the table is used again they are the caller's to touch, as if
    /// [`state`](FlowTable::state) had given them.
    ///
    /// # Panics
    /// As [`state`](FlowTable::state).
    #[inline]
    pub(crate) fn state_address(&mut self, flow: FlowIndex, bytes: &Range<usize>) -> *mut u8 {
        self.check(flow);
        self.memory.state_address(flow.place(), bytes)
    }

    /// All of a flow's state.
    pub(crate) fn whole_state(&mut self, flow: FlowIndex) -> &mut [u8] {
        self.state(flow, &(0..self.state_bytes()))
    }

    /// A number in a flow's state, at an offset that is a multiple of its size.
    ///
    /// # Panics
    /// As [`state`](FlowTable::state).
    #[inline]
    pub(crate) fn word(&mut self, flow: FlowIndex, at: usize) -> &mut u32 {
        bytemuck::from_bytes_mut(self.state(flow, &(at..at + size_of::<u32>())))
    }

    /// Has look-ups fetch these bytes of the flows' state, instead of all.
    pub(crate) fn fetch_at_look_up(&mut self, bytes: Range<usize>) {
        self.fetched = bytes;
    }

    /// Starts to fetch these bytes of a flow's state.
    #[inline]
    pub(crate) fn prefetch_state(&self, flow: FlowIndex, bytes: &Range<usize>) {
        self.memory.prefetch_state(flow.place(), bytes);
    }

    /// The key under which a packet's flow was looked up, whatever functions made of the packet.
    pub(crate) fn key(&self, flow: FlowIndex) -> FlowKey {
        self.check(flow);
        // SAFETY: in range as in `state`; keys of flows with packets are not written.
        unsafe { *self.memory.key(flow.place()) }
    }

    /// A packet may come from anywhere: not looked up, or looked up in another table.
    #[inline]
    fn check(&self, flow: FlowIndex) {
        let partition = self.partitions.get(flow.place() >> self.shift);
        let held = partition.is_some_and(|partition| partition.is_some() || self.handed);
        assert!(held, "the packet has no flow in this table");
    }

    #[inline]
    fn key_of(&self, flow: FlowIndex) -> &FlowKey {
        // SAFETY: as in `links`; keys are written only by `open`, which has `&mut self`.
        unsafe { self.memory.key(flow.place()) }
    }

    #[inline]
    fn links(&self, flow: FlowIndex) -> &Links {
        // SAFETY: indices used in this module are places of partitions that this table holds: a home
        // of one is checked in `lookup` and `open_companion`, all others are in the same partition.
        // Shared, since `&self` excludes `links_mut`.
        unsafe { self.memory.links(flow.place()) }
    }

    #[inline]
    fn links_mut(&mut self, flow: FlowIndex) -> &mut Links {
        // SAFETY: as in `links`; `&mut self` makes the reference the only one.
        unsafe { self.memory.links_mut(flow.place()) }
    }

    /// A partition held, with its flows' links.
    #[inline]
    fn partition(&mut self, bucket: usize) -> Option<(&mut PartitionParts, PartitionLinks<'_>)> {
        let partition = &mut *self.partitions[bucket].as_mut()?.0;
        // SAFETY: this table holds the partition, and `&mut self` lasts as long as the links.
        Some((partition, unsafe { self.memory.partition(bucket, 1 << self.shift) }))
    }

    /// The number that the flow has among those with packets in the system.
    #[inline]
    pub(crate) fn active(&self, flow: FlowIndex) -> Option<u16> {
        self.check(flow);
        self.links(flow).active.checked_sub(1)
    }

    /// Gives the flow a number below 65,535, or takes it away. A flow that has one stays in the table.
    #[inline]
    pub(crate) fn set_active(&mut self, flow: FlowIndex, number: Option<u16>) {
        self.check(flow);
        self.links_mut(flow).active = number.map_or(0, |number| number + 1);
    }

    /// Looks up the flow of every packet and opens those that are new. A packet whose flow finds
    /// no place, or whose bucket is another worker's, keeps [`FlowIndex::NONE`].
    #[inline]
    pub(crate) fn lookup(&mut self, slots: &mut [Slot], now: Nanos, ends: &mut EndedFlows) {
        match self.connections {
            true => self.lookup_by::<true>(slots, now, ends),
            false => self.lookup_by::<false>(slots, now, ends),
        }
    }

    /// Looks packets up by their keys or, with `CONNECTIONS`, by what both directions have in common.
    #[inline]
    fn lookup_by<const CONNECTIONS: bool>(&mut self, slots: &mut [Slot], now: Nanos, ends: &mut EndedFlows) {
        let mut homes = [0u32; MAX_BATCH];
        // First pass: where each key's home is; the line is on its way while the next is hashed.
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
        // Second pass: most flows are found at home. For the rest the lines to search are fetched.
        let now = now.0 >> TICK_SHIFT;
        let tick = now as u32;
        let mut unsettled = [0u16; MAX_BATCH];
        let mut waiting = 0;
        for (i, slot) in slots.iter_mut().enumerate() {
            let home = homes[i];
            if self.partitions[(home >> self.shift) as usize].is_none() {
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
        // Third pass: displaced and new flows, one by one and in order: a flow's second packet
        // finds what its first opened.
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
                self.memory.prefetch_state(flow.place(), &self.fetched);
            }
        }
    }

    /// The flow of that key, if it is in a partition held.
    pub(crate) fn known(&self, key: &FlowKey, bucket: u16) -> Option<FlowIndex> {
        self.partitions[usize::from(bucket)].as_ref()?;
        self.find(FlowIndex(self.home(key, bucket)), key)
    }

    /// Whether there is a flow of that key in a partition held.
    pub(crate) fn contains(&self, key: &FlowKey, bucket: u16) -> bool {
        self.known(key, bucket).is_some()
    }

    /// The flow at a place, if it is (still) that one.
    pub(crate) fn known_at(&self, place: u32, key: &FlowKey) -> Option<FlowIndex> {
        let partition = self.partitions.get((place >> self.shift) as usize)?;
        let taken = partition.as_ref()?.0.is_taken(place & self.mask());
        let flow = FlowIndex(place);
        (taken && self.key_of(flow) == key).then_some(flow)
    }

    /// The first flow from a place on that is in a partition held.
    pub(crate) fn next_from(&self, place: u32) -> Option<FlowIndex> {
        let first = (place >> self.shift) as usize;
        (first..BUCKETS).find_map(|bucket| {
            let from = match bucket == first {
                true => place & self.mask(),
                false => 0,
            };
            let near = self.partitions[bucket].as_ref()?.0.taken_from(from)?;
            Some(FlowIndex(((bucket as u32) << self.shift) | near))
        })
    }

    /// The RSS bucket that a flow is in.
    pub(crate) fn bucket(&self, flow: FlowIndex) -> u16 {
        (flow.0 >> self.shift) as u16
    }

    /// The first place of a bucket.
    pub(crate) fn first_of(&self, bucket: u16) -> u32 {
        u32::from(bucket) << self.shift
    }

    /// The home place of a key, as an index into the whole table.
    #[inline]
    fn home(&self, key: &FlowKey, bucket: u16) -> u32 {
        let low = key.hash(self.seed) as u32 & self.mask();
        (u32::from(bucket) << self.shift) | low
    }

    #[inline]
    fn mask(&self) -> u32 {
        (1 << self.shift) - 1
    }

    /// The place at `distance` from `home`, within the partition.
    #[inline]
    fn at(&self, home: u32, distance: u32) -> FlowIndex {
        let mask = self.mask();
        FlowIndex((home & !mask) | ((home + distance) & mask))
    }

    #[inline]
    fn prefetch_near(&self, home: u32, mut near: u32) {
        while near != 0 {
            self.memory.prefetch_entry(self.at(home, near.trailing_zeros()).place());
            near &= near - 1;
        }
    }

    #[inline]
    fn find(&self, home: FlowIndex, key: &FlowKey) -> Option<FlowIndex> {
        let mut near = self.links(home).near;
        while near != 0 {
            let place = self.at(home.0, near.trailing_zeros());
            if *self.key_of(place) == *key {
                return Some(place);
            }
            near &= near - 1;
        }
        None
    }

    /// Enters a new flow near its home; its state is zero.
    fn open(
        &mut self,
        home: FlowIndex,
        key: &FlowKey,
        now: u64,
        ends: &mut EndedFlows,
        timer: Timer,
    ) -> Option<FlowIndex> {
        let bucket = (home.0 >> self.shift) as usize;
        let mask = self.mask();
        let mut distance = self.partitions[bucket].as_ref()?.0.free_distance(home.0 & mask, mask);
        if distance.is_none() && self.when_full == WhenFull::Evict {
            distance = self.evict(home, now as u32, ends);
        }
        let Some(distance) = distance else {
            self.counters.refused += 1;
            return None;
        };
        let flow = self.at(home.0, distance);
        self.links_mut(home).near |= 1 << distance;
        // The place's own bit map belongs to the keys at home there, and stays.
        let links = self.links_mut(flow);
        links.last_seen = now as u32;
        links.companion = Links::NONE;
        links.distance = distance as u8;
        links.active = 0;
        // SAFETY: in range as in `links`; the place was free, so no packet of a flow there is anywhere.
        unsafe { self.memory.set_key(flow.place(), key) };
        self.whole_state(flow).fill(0);
        let timeout = ticks(self.timeouts.of(key.protocol())).min(self.look_again());
        let (partition, mut flows) = self.partition(bucket)?;
        let place = flow.0 & mask;
        partition.set_taken(place, true);
        partition.live += 1;
        match timer {
            Timer::Own => {
                partition.wheel.insert(&mut flows, place, now + u64::from(timeout));
            }
            Timer::Companions => Wheel::leave_out(&mut flows, place),
        }
        self.counters.opened += 1;
        Some(flow)
    }
}

/// `log2` of the places in a partition of a table for so many flows.
fn shift_for(capacity: usize) -> u32 {
    (2 * capacity).div_ceil(BUCKETS).max(64).next_power_of_two().ilog2()
}

#[cfg(test)]
mod tests;
