//! A flow table's state in another process: there the flows are looked up, here they are found by their
//! places.

use super::{BUCKETS, FlowIndex, FlowTable, NoCompanion, shift_for};
use crate::flow_memory::FlowMemory;
use crate::flow_table::FlowCounters;
use crate::region::{CACHE_LINE, write_in_order};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tailwater_api::{IdleTimeouts, WhenFull};
use tailwater_net::{FlowKey, Nanos};
use tailwater_sdk::protocol::memory::Memory;

/// Opens companions of flows, where the flows are looked up.
pub trait Companions: Send + std::fmt::Debug {
    /// Opens one for the flow of the packet at this place of the batch, as
    /// [`NewFlow::open_companion`](crate::function::NewFlow::open_companion) does. Gives its place in the flow table,
    /// and its birth.
    ///
    /// # Errors
    /// As there.
    fn open(&mut self, at: u16, key: &FlowKey, rss_hash: u32) -> Result<(u32, u64), NoCompanion>;

    /// As [`open`](Companions::open); a flow of that key that the function has not seen becomes the companion, as
    /// [`NewFlow::rejoin_companion`](crate::function::NewFlow::rejoin_companion) does it.
    ///
    /// # Errors
    /// As there.
    fn rejoin(&mut self, at: u16, key: &FlowKey, rss_hash: u32) -> Result<(u32, u64), NoCompanion>;

    /// Whether no flow has the key, in its RSS bucket.
    fn is_free(&self, key: &FlowKey, bucket: u16) -> bool;
}

/// The shape of a flow table's mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorConfig {
    /// The flow table's capacity.
    pub capacity: usize,
    /// Bytes of state for a flow.
    pub state_bytes: usize,
    /// Whether each direction of a flow has a place of its own: flows are connections, and the function whose state this
    /// is does not track them.
    pub directed: bool,
}

impl MirrorConfig {
    /// Places for flows.
    pub fn places(&self) -> usize {
        (BUCKETS << shift_for(self.capacity)) << u32::from(self.directed)
    }

    /// Bytes of the file whose memory they are in.
    pub fn file_bytes(&self) -> usize {
        FlowMemory::file_bytes(self.places(), self.state_lines())
    }

    /// The bytes `at` of the state of the flow at a place, in a file of this shape, if it is the one of this birth: as whoever
    /// has the flow left them, or is writing them just now. `false`: there is no such flow.
    pub fn read(&self, memory: &Memory, (place, birth): (u32, u64), (at, to): (usize, &mut [u8])) -> bool {
        let place = place as usize;
        if place >= self.places() || at + to.len() > self.state_bytes {
            return false;
        }
        let mut halves = [[0; 4]; 2];
        for (half, from) in halves.iter_mut().zip(FlowMemory::births()) {
            memory.read(place * CACHE_LINE + from, half);
        }
        let [high, low] = halves.map(|half| u64::from(u32::from_ne_bytes(half)));
        if birth == 0 || high << 32 | low != birth {
            return false;
        }
        let state = (self.places() + place * self.state_lines()) * CACHE_LINE;
        memory.read(state + at, to);
        true
    }

    fn state_lines(&self) -> usize {
        self.state_bytes.div_ceil(CACHE_LINE)
    }
}

/// Makes a view of the flows in memory that processes share.
#[derive(Debug)]
pub struct Mirror {
    memory: Arc<FlowMemory>,
    config: MirrorConfig,
}

impl Mirror {
    /// The flows in `memory`, which is zero at first.
    ///
    /// # Safety
    /// While a packet of a flow is processed here, nobody else touches the flow's part of the memory; what was done
    /// before with the flow happened before.
    ///
    /// # Errors
    /// There is not enough of it.
    pub unsafe fn open(memory: Memory, config: MirrorConfig) -> io::Result<Mirror> {
        let memory = FlowMemory::shared(&Arc::new(memory), config.places(), config.state_lines())?;
        Ok(Mirror {
            memory: Arc::new(memory),
            config,
        })
    }

    /// The view, in which companions are opened so.
    pub(crate) fn table(self, companions: Box<dyn Companions>) -> FlowTable {
        FlowTable {
            fetched: 0..self.config.state_bytes,
            memory: self.memory,
            partitions: (0..BUCKETS).map(|_| None).collect(),
            shift: shift_for(self.config.capacity) + u32::from(self.config.directed),
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
            look_every: None,
            looked_at: Vec::new(),
            companions: Some(companions),
            last_companion: None,
        }
    }
}

impl FlowTable {
    /// The flow at a place of a mirrored table, which was opened with this birth and key. If another one, or none,
    /// was there before, its state is zero.
    ///
    /// # Panics
    /// If there is no such place, or the table is no mirror.
    #[inline]
    pub(crate) fn mirrored(&mut self, place: u32, birth: u64, key: impl FnOnce() -> FlowKey) -> FlowIndex {
        let flow = FlowIndex(place);
        assert!(self.handed, "a mirror");
        self.check(flow);
        if self.born(flow) != birth {
            self.begin(flow, birth, &key());
        }
        flow
    }

    #[cold]
    fn begin(&mut self, flow: FlowIndex, birth: u64, key: &FlowKey) {
        // Whoever is killed in between leaves no flow there.
        self.set_born(flow, 0);
        write_in_order();
        // SAFETY: in range as checked; mirrored flows are this table's alone (`Mirror::open`).
        unsafe { self.memory.set_key(flow.place(), key) };
        self.whole_state(flow).fill(0);
        self.links_mut(flow).near = 0;
        write_in_order();
        self.set_born(flow, birth);
    }

    /// Notes that a function begins with a flow of a mirrored table. Whether one had begun and did not
    /// [end](FlowTable::end_opening): its process was killed.
    pub(crate) fn begin_opening(&mut self, flow: FlowIndex) -> bool {
        // Nobody looks up here.
        std::mem::replace(&mut self.links_mut(flow).near, 1) != 0
    }

    /// The function is through with it.
    pub(crate) fn end_opening(&mut self, flow: FlowIndex) {
        self.links_mut(flow).near = 0;
    }

    /// When the flow at a place was opened; 0 if none was.
    #[inline]
    pub(crate) fn born(&self, flow: FlowIndex) -> u64 {
        let links = self.links(flow);
        u64::from(links.next) << 32 | u64::from(links.previous)
    }

    fn set_born(&mut self, flow: FlowIndex, birth: u64) {
        let links = self.links_mut(flow);
        (links.next, links.previous) = ((birth >> 32) as u32, birth as u32);
    }

    /// Forgets a flow of a mirrored table, if it is the one of this birth. `each` gets its key and state first.
    pub(crate) fn end_mirrored(
        &mut self,
        place: u32,
        birth: u64,
        state: &Range<usize>,
        each: impl FnOnce(&FlowKey, &[u8]),
    ) {
        let flow = FlowIndex(place);
        assert!(self.handed, "a mirror");
        self.check(flow);
        if birth != 0 && self.born(flow) == birth {
            let key = self.key(flow);
            each(&key, self.state(flow, state));
            self.set_born(flow, 0);
        }
    }

    /// Starts to fetch a flow of a mirrored table.
    #[inline]
    pub(crate) fn prefetch_mirrored(&self, place: u32) {
        self.memory.prefetch_entry(place as usize);
        self.memory.prefetch_state(place as usize, &self.fetched);
    }

    /// Has a companion opened where the flows are looked up; `None` if that is here.
    pub(crate) fn ask_for_companion(
        &mut self,
        at: u16,
        key: &FlowKey,
        rss_hash: u32,
    ) -> Option<Result<FlowIndex, NoCompanion>> {
        let opened = self.companions.as_mut()?.open(at, key, rss_hash);
        Some(self.note_companion(opened, key))
    }

    /// As [`ask_for_companion`](FlowTable::ask_for_companion), for a flow that may be there.
    pub(crate) fn ask_to_rejoin_companion(
        &mut self,
        at: u16,
        key: &FlowKey,
        rss_hash: u32,
    ) -> Option<Result<FlowIndex, NoCompanion>> {
        let joined = self.companions.as_mut()?.rejoin(at, key, rss_hash);
        Some(self.note_companion(joined, key))
    }

    fn note_companion(
        &mut self,
        opened: Result<(u32, u64), NoCompanion>,
        key: &FlowKey,
    ) -> Result<FlowIndex, NoCompanion> {
        let (place, birth) = opened?;
        let companion = self.mirrored(place, birth, || *key);
        self.last_companion = Some(companion);
        Ok(companion)
    }

    /// The companion that was opened last of all, once.
    pub(crate) fn take_last_companion(&mut self) -> Option<FlowIndex> {
        self.last_companion.take()
    }

    /// Whether no flow has the key where the flows are looked up; `None` if that is here.
    pub(crate) fn is_free_elsewhere(&self, key: &FlowKey, bucket: u16) -> Option<bool> {
        Some(self.companions.as_ref()?.is_free(key, bucket))
    }

    /// As [`open_companion`](FlowTable::open_companion), for a process that may ask a second time, since it was
    /// stopped after the first: then the companion is the one that it has.
    pub(crate) fn open_companion_again(
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
                    // The process tries its keys in the same order as before, and comes to it.
                    false => Err(NoCompanion::Taken),
                }
            }
            Err(error) => Err(error),
        }
    }
}
