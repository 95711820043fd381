//! A flow table's state in another process: there the flows are looked up, here they are found by their
//! places.

use super::{BUCKETS, FlowIndex, FlowTable, NoCompanion, shift_for};
use crate::flow_memory::FlowMemory;
use crate::flow_table::{FlowCounters, IdleTimeouts, WhenFull};
use crate::region::CACHE_LINE;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tailwater_net::{FlowKey, Nanos};

/// Opens companions of flows, where the flows are looked up.
pub trait Companions: Send + std::fmt::Debug {
    /// Opens one for the flow of the packet at this place of the batch, as
    /// [`NewFlow::open_companion`](crate::function::NewFlow::open_companion) does. Gives its place in the flow table,
    /// and its birth.
    ///
    /// # Errors
    /// As there.
    fn open(&mut self, at: u16, key: &FlowKey, rss_hash: u32) -> Result<(u32, u64), NoCompanion>;
}

/// The shape of a flow table's mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorConfig {
    /// The flow table's capacity.
    pub capacity: usize,
    /// Bytes of state for a flow.
    pub state_bytes: usize,
}

impl MirrorConfig {
    /// Places for flows.
    pub fn places(&self) -> usize {
        BUCKETS << shift_for(self.capacity)
    }

    /// Bytes of the file in which they are.
    pub fn file_bytes(&self) -> usize {
        FlowMemory::file_bytes(self.places(), self.state_lines())
    }

    fn state_lines(&self) -> usize {
        self.state_bytes.div_ceil(CACHE_LINE)
    }
}

/// Makes a view of the flows in a file.
#[derive(Debug)]
pub struct Mirror {
    memory: Arc<FlowMemory>,
    config: MirrorConfig,
}

impl Mirror {
    /// The flows in `file`, which is zero at first.
    ///
    /// # Safety
    /// While a packet of a flow is processed here, nobody else touches the flow's part of the file; what was done
    /// before with the flow happened before.
    ///
    /// # Errors
    /// What the kernel says.
    pub unsafe fn open(file: &File, config: MirrorConfig) -> io::Result<Mirror> {
        let memory = FlowMemory::in_file(file, config.places(), config.state_lines())?;
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
            shift: shift_for(self.config.capacity),
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
            companions: Some(companions),
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
    pub(crate) fn mirrored(&mut self, place: u32, birth: u64, key: &FlowKey) -> FlowIndex {
        let flow = FlowIndex(place);
        assert!(self.handed, "a mirror");
        self.check(flow);
        if self.born(flow) != birth {
            self.begin(flow, birth, key);
        }
        flow
    }

    #[cold]
    fn begin(&mut self, flow: FlowIndex, birth: u64, key: &FlowKey) {
        // Whoever is killed in between leaves no flow there.
        self.set_born(flow, 0);
        // SAFETY: in range as checked; mirrored flows are this table's alone (`Mirror::open`).
        unsafe { self.memory.set_key(flow.place(), key) };
        self.whole_state(flow).fill(0);
        self.set_born(flow, birth);
    }

    /// When the flow at a place was opened; 0 if none was.
    #[inline]
    fn born(&self, flow: FlowIndex) -> u64 {
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
        Some(opened.map(|(place, birth)| self.mirrored(place, birth, key)))
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
