//! Private caches, last-level cache and devices: the path of an access, with what it evicts.

use crate::cache::{Cache, Slot, Victim};
use crate::config::{LINE_BYTES, SocketConfig};

/// Level that served an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    L1,
    L2,
    Llc,
    Memory,
}

/// Line of a core: the core's number, that of a region, and the line's index among the region's simulated lines.
/// Workloads share no memory.
pub(crate) fn line(core: usize, region: usize, index: u64) -> u64 {
    (core as u64 + 1) << 56 | (region as u64) << 48 | index
}

fn core_of(line: u64) -> usize {
    (line >> 56) as usize - 1
}

/// Scrambles bits (the finalizer of splitmix64).
pub(crate) fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// Counts of one core's accesses and of its device queues, in simulated lines.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub l2_reads: u64,
    pub l2_hits: u64,
    pub llc_accesses: u64,
    pub llc_hits: u64,
    /// Lines that memory delivered to the core or to its transmitting device.
    pub memory_reads: u64,
    /// Lines of the core that were written back to memory.
    pub memory_writes: u64,
    pub dma_writes: u64,
    /// Received lines that updated a line in place.
    pub dma_write_hits: u64,
    pub dma_reads: u64,
    pub dma_read_hits: u64,
    /// Received lines that were evicted before the core read them.
    pub unread_evictions: u64,
    /// Lines of the core, other than unread packets, that devices evicted.
    pub evicted_by_devices: u64,
}

pub(crate) struct Hierarchy {
    l1: Vec<Cache>,
    l2: Vec<Cache>,
    llc: Cache,
    masks: Vec<u64>,
    device_mask: u64,
    is_inclusive: bool,
    /// Simulated lines of each core in the last-level cache.
    pub occupancy: Vec<u64>,
    pub traffic: Vec<Traffic>,
}

impl Hierarchy {
    pub fn new(config: &SocketConfig, cores: usize) -> Hierarchy {
        let cache = |bytes: u64, ways: usize| {
            let sets = bytes / LINE_BYTES / ways as u64 / config.sample;
            Cache::new(sets.max(1) as usize, ways)
        };
        let llc = config.llc;
        Hierarchy {
            l1: (0..cores).map(|_| cache(config.l1.bytes, config.l1.ways)).collect(),
            l2: (0..cores).map(|_| cache(config.l2.bytes, config.l2.ways)).collect(),
            llc: cache(llc.bytes, llc.ways),
            masks: (0..cores).map(|core| config.mask(core)).collect(),
            device_mask: SocketConfig::ways(llc.ways - llc.ddio_ways, llc.ddio_ways),
            is_inclusive: llc.is_inclusive,
            occupancy: vec![0; cores],
            traffic: vec![Traffic::default(); cores],
        }
    }

    /// Lines of the simulated part of the last-level cache.
    pub fn llc_lines(&self, ways: usize) -> u64 {
        (self.llc.sets() * ways) as u64
    }

    /// Set of a line. Consecutive lines fill all sets evenly, as memory in huge pages does; regions begin anywhere.
    fn set(cache: &Cache, line: u64) -> usize {
        ((line & 0xffff_ffff) + (mixed(line >> 48) >> 40)) as usize % cache.sets()
    }

    fn llc_set(&self, line: u64) -> usize {
        Self::set(&self.llc, line)
    }

    /// Reads or writes a line by a core.
    pub fn access(&mut self, core: usize, line: u64, is_write: bool) -> Level {
        let l1_set = Self::set(&self.l1[core], line);
        if let Some(slot) = self.l1[core].find(l1_set, line) {
            self.l1[core].touch(slot);
            if is_write {
                self.l1[core].set_dirty(slot);
            }
            return Level::L1;
        }
        let level = self.beyond_l1(core, line);
        let (_, victim) = self.l1[core].fill(l1_set, line, u64::MAX, is_write);
        if let Some(Victim {
            line, is_dirty: true, ..
        }) = victim
        {
            // The second level contains the lines of the first.
            let set = Self::set(&self.l2[core], line);
            if let Some(slot) = self.l2[core].find(set, line) {
                self.l2[core].set_dirty(slot);
            }
        }
        level
    }

    fn beyond_l1(&mut self, core: usize, line: u64) -> Level {
        self.traffic[core].l2_reads += 1;
        let l2_set = Self::set(&self.l2[core], line);
        if let Some(slot) = self.l2[core].find(l2_set, line) {
            self.l2[core].touch(slot);
            self.traffic[core].l2_hits += 1;
            return Level::L2;
        }
        self.traffic[core].llc_accesses += 1;
        let set = self.llc_set(line);
        let level = match self.llc.find(set, line) {
            Some(slot) => {
                self.llc.touch(slot);
                self.llc.set_read(slot);
                self.traffic[core].llc_hits += 1;
                Level::Llc
            }
            None => {
                self.traffic[core].memory_reads += 1;
                if self.is_inclusive {
                    self.fill_llc(set, line, self.masks[core], false, false);
                }
                Level::Memory
            }
        };
        let (_, victim) = self.l2[core].fill(l2_set, line, u64::MAX, false);
        if let Some(victim) = victim {
            self.leave_l2(core, victim);
        }
        level
    }

    /// Continues the way of a line that the second-level cache evicted.
    fn leave_l2(&mut self, core: usize, victim: Victim) {
        let set = Self::set(&self.l1[core], victim.line);
        let slot = self.l1[core].find(set, victim.line);
        let above = slot.and_then(|slot| self.l1[core].remove(slot));
        let is_dirty = victim.is_dirty || above.is_some_and(|above| above.is_dirty);
        let set = self.llc_set(victim.line);
        match self.llc.find(set, victim.line) {
            Some(slot) => {
                if is_dirty {
                    self.llc.set_dirty(slot);
                }
                if !self.is_inclusive {
                    self.llc.touch(slot);
                }
            }
            None if self.is_inclusive => self.write_back(victim.line, is_dirty),
            None => {
                self.fill_llc(set, victim.line, self.masks[core], is_dirty, false);
            }
        }
    }

    /// Puts a line into the last-level cache, for a core or a device.
    fn fill_llc(&mut self, set: usize, line: u64, mask: u64, is_dirty: bool, by_device: bool) -> Slot {
        let (slot, victim) = self.llc.fill(set, line, mask, is_dirty);
        self.occupancy[core_of(line)] += 1;
        if let Some(victim) = victim {
            let owner = core_of(victim.line);
            self.occupancy[owner] -= 1;
            if victim.is_unread {
                self.traffic[owner].unread_evictions += 1;
            } else if by_device {
                self.traffic[owner].evicted_by_devices += 1;
            }
            let mut is_dirty = victim.is_dirty;
            if self.is_inclusive {
                is_dirty |= self.drop_private(victim.line);
            }
            self.write_back(victim.line, is_dirty);
        }
        slot
    }

    fn write_back(&mut self, line: u64, is_dirty: bool) {
        self.traffic[core_of(line)].memory_writes += u64::from(is_dirty);
    }

    /// Removes a line from its core's private caches. Returns `true` if a copy was dirty.
    fn drop_private(&mut self, line: u64) -> bool {
        let core = core_of(line);
        let mut is_dirty = false;
        for cache in [&mut self.l1[core], &mut self.l2[core]] {
            let set = Self::set(cache, line);
            if let Some(slot) = cache.find(set, line) {
                is_dirty |= cache.remove(slot).is_some_and(|removed| removed.is_dirty);
            }
        }
        is_dirty
    }

    /// Writes a whole line by a device: in place if the last-level cache has it, else into one of the device's ways.
    /// Memory is not read.
    pub fn receive(&mut self, line: u64) {
        let core = core_of(line);
        self.traffic[core].dma_writes += 1;
        self.drop_private(line);
        let set = self.llc_set(line);
        let slot = match self.llc.find(set, line) {
            Some(slot) => {
                self.traffic[core].dma_write_hits += 1;
                self.llc.touch(slot);
                self.llc.set_dirty(slot);
                slot
            }
            None => self.fill_llc(set, line, self.device_mask, true, true),
        };
        self.llc.set_unread(slot);
    }

    /// Reads a line by a device, which allocates nothing.
    pub fn transmit(&mut self, line: u64) {
        let core = core_of(line);
        self.traffic[core].dma_reads += 1;
        let private = [&self.l1[core], &self.l2[core]];
        let is_private = private
            .iter()
            .any(|cache| cache.find(Self::set(cache, line), line).is_some());
        if is_private || self.llc.find(self.llc_set(line), line).is_some() {
            self.traffic[core].dma_read_hits += 1;
        } else {
            self.traffic[core].memory_reads += 1;
        }
    }

    pub fn reset(&mut self) {
        self.traffic.fill(Traffic::default());
    }
}
