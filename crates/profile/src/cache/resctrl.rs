//! Exclusive ways of the last-level cache for the measured core, through the kernel's `resctrl` (CAT).
//!
//! The core is assigned to a partition, and all other cores lose its ways. A task keeps the lines it already has in
//! ways that were taken from it, and still hits them. So when the partition shrinks, another core overwrites the
//! released ways.

use super::control::{CacheControl, CacheError, Method, ShareResult};
use super::geometry::{Caches, sharing};
use memmap2::MmapMut;
use std::hint::black_box;
use tailwater_dataplane::cores::pin_to;
use tailwater_net::Nanos;
use tailwater_resctrl::{Error, Level, Partition, PartitionRequest, Reading, Resctrl, Settings, WayChoice};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Number of writes over the cache that fill released ways, and the maximum size of the buffer.
const FILLED: u64 = 2;
const MOST_FILLED: u64 = 1 << 30;
/// Tolerated excess of occupancy over the share, in ways. The processor samples occupancy rather than counting lines.
const TOLERATED: f64 = 0.5;

/// Assigns ways of the cache to the measured core, until dropped.
#[derive(Debug)]
pub struct Partitioned {
    resctrl: Resctrl,
    core: usize,
    /// The kernel's id of the core's last-level cache.
    cache: u32,
    all_bytes: u64,
    ways: u32,
    least_ways: u32,
    most_ways: u32,
    way_bytes: u64,
    partition: Option<Partition>,
    /// Size of the partition, bytes.
    share: u64,
}

impl Partitioned {
    /// Prepares partitions of the last-level cache of `core`. Creates and removes one at once, so that errors show
    /// before anything is measured. The cache is unchanged until a share is set.
    ///
    /// # Errors
    /// There is no CAT, others leave room for fewer than two sizes, or the kernel refuses.
    pub fn new(core: usize, settings: Settings) -> Result<Partitioned, CacheError> {
        let number = u32::try_from(core).map_err(|_| CacheError::Unknown { core })?;
        let resctrl = Resctrl::open(settings)?;
        let info = resctrl.info().cache(Level::L3);
        let info = info.ok_or_else(|| Error::Unsupported {
            what: "ways of L3 caches (CAT)".to_owned(),
        })?;
        let (ways, least_ways) = (info.mask.count_ones(), info.min_ways.max(1));
        let caches = Caches::of(core).ok_or(CacheError::Unknown { core })?;
        let cache = resctrl.cache_of_core(number, Level::L3)?;
        // Workers in another resctrl group would use that group's ways on any core.
        resctrl.follows_cores()?;
        let partitioned = Partitioned {
            core,
            cache,
            all_bytes: caches.last_bytes,
            ways,
            least_ways,
            most_ways: resctrl.room(Level::L3, cache, true)?,
            way_bytes: caches.last_bytes / u64::from(ways.max(1)),
            partition: None,
            share: 0,
            resctrl,
        };
        // If there is no room, the error contains the kernel's message or the owner of the ways.
        partitioned.make(least_ways)?.release()?;
        match partitioned.most_ways > least_ways && partitioned.way_bytes > 0 {
            true => Ok(partitioned),
            false => Err(CacheError::NoChoice {
                ways: partitioned.most_ways,
            }),
        }
    }

    /// Returns the number of ways of the cache, and the maximum for a chain.
    pub fn ways(&self) -> [u32; 2] {
        [self.ways, self.most_ways]
    }

    fn make(&self, ways: u32) -> Result<Partition, Error> {
        let mut ask = PartitionRequest::exclusive(ways);
        ask.caches = vec![self.cache];
        ask.cores = vec![self.core as u32];
        self.resctrl.partition(&ask)
    }

    /// Resizes the partition. Returns `true` if ways were released.
    fn resize(&mut self, ways: u32) -> Result<bool, Error> {
        let Some(partition) = &self.partition else {
            self.partition = Some(self.make(ways)?);
            // The core had all ways until now.
            return Ok(true);
        };
        let mask = |partition: &Partition| {
            let ways = partition.ways()?;
            Ok::<u32, Error>(ways.get(&self.cache).copied().unwrap_or(0))
        };
        let before = mask(partition)?;
        partition.resize(WayChoice::Ways(ways))?;
        Ok(before & !mask(partition)? != 0)
    }

    /// Overwrites the other cores' ways from another core of the cache. If there is none, the chain's lines stay there
    /// until other programs displace them; occupancy shows them where it is counted.
    fn fill_others(&self) -> Result<(), CacheError> {
        let Some(other) = sharing(self.core).first().copied() else {
            return Ok(());
        };
        let bytes = (FILLED * self.all_bytes).min(MOST_FILLED) as usize;
        let fill = move || -> Result<(), CacheError> {
            pin_to(other)?;
            let mut memory = MmapMut::map_anon(bytes).map_err(|source| CacheError::System {
                what: "no memory to fill the cache",
                source,
            })?;
            // Untouched pages all map to the same zero page.
            let lines = memory.iter_mut().step_by(LINE);
            lines.for_each(|byte| *byte = black_box(1));
            Ok(())
        };
        let thread = std::thread::Builder::new().name("fill".to_owned());
        let thread = thread.spawn(fill).map_err(|source| CacheError::System {
            what: "cannot start a thread that fills the cache",
            source,
        })?;
        thread.join().map_err(|_| CacheError::Gone)?
    }

    /// Returns the current cache occupancy of the core's programs, bytes, where the processor counts it (CMT).
    fn occupied(&self) -> Result<Option<u64>, Error> {
        let (Some(partition), Some(_)) = (&self.partition, &self.resctrl.info().monitor) else {
            return Ok(None);
        };
        let usage = partition.usage()?;
        let occupancy = usage.get(&self.cache).and_then(|usage| usage.occupancy);
        Ok(match occupancy {
            Some(Reading::Bytes(bytes)) => Some(bytes),
            _ => None,
        })
    }
}

impl CacheControl for Partitioned {
    fn method(&self) -> Method {
        Method::Resctrl
    }

    fn most(&self) -> u64 {
        u64::from(self.most_ways) * self.way_bytes
    }

    fn unit(&self) -> u64 {
        self.way_bytes
    }

    fn least(&self) -> u64 {
        u64::from(self.least_ways) * self.way_bytes
    }

    fn set(&mut self, bytes: u64) -> Result<(), CacheError> {
        let ways = bytes / self.way_bytes;
        let ways = ways.clamp(u64::from(self.least_ways), u64::from(self.most_ways)) as u32;
        let gave_up = self.resize(ways)?;
        self.share = u64::from(ways) * self.way_bytes;
        match gave_up {
            true => self.fill_others(),
            false => Ok(()),
        }
    }

    fn held(&mut self, _: Nanos) -> Result<ShareResult, CacheError> {
        let occupied = self.occupied()?;
        let beyond = occupied.unwrap_or(0).saturating_sub(self.share);
        Ok(ShareResult {
            held: beyond as f64 <= TOLERATED * self.way_bytes as f64,
            misses: beyond as f64 / occupied.unwrap_or(0).max(1) as f64,
            occupied,
        })
    }
}
