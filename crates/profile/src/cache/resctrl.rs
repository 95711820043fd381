//! Ways of the last-level cache for the measured core alone, by the kernel's `resctrl` (CAT).
//!
//! What runs on the core is in the partition, and on all other cores everything goes without its ways. A task keeps
//! lines that it has in ways that were taken from it, and hits them: when ways are given up, another core fills them.

use super::control::{CacheControl, CacheError, Held, Method};
use super::geometry::{Caches, sharing};
use memmap2::MmapMut;
use std::hint::black_box;
use tailwater_dataplane::cores::pin_to;
use tailwater_net::Nanos;
use tailwater_resctrl::{Ask, Error, Level, Partition, Place, Reading, Resctrl, Settings};

/// Bytes of a cache line.
const LINE: usize = 64;
/// So many times the cache is written to fill ways that were given up, and so much at most.
const FILLED: u64 = 2;
const MOST_FILLED: u64 = 1 << 30;
/// The part of a way by which occupancy may be beyond the share: the processor counts samples, not lines.
const TOLERATED: f64 = 0.5;

/// Gives the chain ways of the cache. They are its core's until this is dropped.
#[derive(Debug)]
pub struct Partitioned {
    resctrl: Resctrl,
    core: usize,
    /// Its last-level cache, as the kernel numbers it.
    cache: u32,
    all_bytes: u64,
    ways: u32,
    least_ways: u32,
    most_ways: u32,
    way_bytes: u64,
    partition: Option<Partition>,
    /// Bytes of the partition.
    share: u64,
}

impl Partitioned {
    /// Ways of the last-level cache of `core`. A partition is made and removed again at once, so that what does not
    /// work shows before anything is measured; after that the cache is as it was, until a share is set.
    ///
    /// # Errors
    /// If there is no CAT, or others have so much of it that not two sizes can be had, or the kernel refuses.
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
        // Workers that the kernel has in another group have that one's ways, whatever core they run on.
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
        // Where there is no room the kernel's words, or who has it, are in the error.
        partitioned.make(least_ways)?.release()?;
        match partitioned.most_ways > least_ways && partitioned.way_bytes > 0 {
            true => Ok(partitioned),
            false => Err(CacheError::NoChoice {
                ways: partitioned.most_ways,
            }),
        }
    }

    /// Ways of the cache, and how many of them a chain can have at most.
    pub fn ways(&self) -> [u32; 2] {
        [self.ways, self.most_ways]
    }

    fn make(&self, ways: u32) -> Result<Partition, Error> {
        let mut ask = Ask::alone(ways);
        ask.caches = vec![self.cache];
        ask.cores = vec![self.core as u32];
        self.resctrl.partition(&ask)
    }

    /// Has this or these ways; whether some were given up.
    fn resize(&mut self, ways: u32) -> Result<bool, Error> {
        let Some(partition) = &self.partition else {
            self.partition = Some(self.make(ways)?);
            // The core had all of them until now.
            return Ok(true);
        };
        let mask = |partition: &Partition| {
            let ways = partition.ways()?;
            Ok::<u32, Error>(ways.get(&self.cache).copied().unwrap_or(0))
        };
        let before = mask(partition)?;
        partition.resize(Place::Ways(ways))?;
        Ok(before & !mask(partition)? != 0)
    }

    /// Fills the ways of everybody else from another core under the cache. Without one, what the chain left there
    /// stays until others come; occupancy shows it where it is counted.
    fn fill_others(&self) -> Result<(), CacheError> {
        let Some(other) = sharing(self.core).first().copied() else {
            return Ok(());
        };
        let bytes = (FILLED * self.all_bytes).min(MOST_FILLED) as usize;
        let fill = move || -> Result<(), CacheError> {
            pin_to(other)?;
            let mut memory = MmapMut::map_anon(bytes).map_err(|source| CacheError::System {
                what: "no memory to fill the cache with",
                source,
            })?;
            // Pages that were never written are all the same lines.
            let lines = memory.iter_mut().step_by(LINE);
            lines.for_each(|byte| *byte = black_box(1));
            Ok(())
        };
        let thread = std::thread::Builder::new().name("fill".to_owned());
        let thread = thread.spawn(fill).map_err(|source| CacheError::System {
            what: "a thread that fills the cache cannot be started",
            source,
        })?;
        thread.join().map_err(|_| CacheError::Gone)?
    }

    /// What the core's programs have in the cache now, where the processor counts it (CMT).
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

    fn held(&mut self, _: Nanos) -> Result<Held, CacheError> {
        let occupied = self.occupied()?;
        let beyond = occupied.unwrap_or(0).saturating_sub(self.share);
        Ok(Held {
            held: beyond as f64 <= TOLERATED * self.way_bytes as f64,
            misses: beyond as f64 / occupied.unwrap_or(0).max(1) as f64,
            occupied,
        })
    }
}
