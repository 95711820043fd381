//! Control of a chain's share of the last-level cache during measurements, and this machine's caches.

mod geometry;
mod pirate;
mod resctrl;

pub use geometry::{Caches, sharing};
pub use pirate::Pirate;
pub use resctrl::Partitioned;

use std::fmt;
use tailwater_dataplane::cores::CoreError;
use tailwater_net::Nanos;

/// Method of limiting a chain's share of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Another core occupies the rest, and checks by its access times that it does: cache pirating (Eklov et al., ICPP
    /// 2011).
    Pirate,
    /// The processor's cache partitioning, through the kernel's `resctrl`.
    Resctrl,
}

impl Method {
    /// All methods, with their names in files.
    pub const ALL: [(&'static str, Method); 2] = [("pirate", Method::Pirate), ("resctrl", Method::Resctrl)];
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Method::ALL.iter().find(|(_, method)| method == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

/// Limits a chain's share of the last-level cache. Releases it when dropped.
pub trait CacheControl {
    /// Returns the method.
    fn method(&self) -> Method;

    /// Returns the maximum share, in bytes: a multiple of the [unit](Self::unit).
    fn most(&self) -> u64;

    /// Returns the unit of shares, in bytes.
    fn unit(&self) -> u64;

    /// Returns the minimum share, in bytes: a multiple of the unit, by default one unit.
    fn least(&self) -> u64 {
        self.unit()
    }

    /// Sets the share of the chain on the measured core to `bytes`, rounded down to units and limited to
    /// [`least`](Self::least) and [`most`](Self::most). Returns once that is in effect, or cannot take effect.
    ///
    /// # Errors
    /// The cache cannot be divided.
    fn set(&mut self, bytes: u64) -> Result<(), CacheError>;

    /// Returns the result of the share during the run that has just ended.
    ///
    /// # Errors
    /// The result cannot be determined.
    fn held(&mut self, run: Nanos) -> Result<ShareResult, CacheError>;
}

/// Result of a share during a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShareResult {
    /// `true` if the chain had its share and no more.
    pub held: bool,
    /// Miss ratio of the pirate, that is, the cache that the chain took from it. For a partition, the part of the
    /// chain's occupancy that exceeded the share: earlier lines that nobody has displaced.
    pub misses: f64,
    /// Bytes that the chain occupied; `None` where the processor does not count them.
    pub occupied: Option<u64>,
}

/// Reasons for which the cache cannot be divided.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The kernel does not describe the cache.
    #[error("the kernel tells of no last-level cache (/sys/devices/system/cpu/cpu{core}/cache)")]
    Unknown {
        /// The core to be measured.
        core: usize,
    },
    /// There is no core for the pirate.
    #[error(
        "no other core shares the last-level cache of core {core}: expected one that may be used \
         beside it, to hold what the chain is not to have"
    )]
    Alone {
        /// The core to be measured.
        core: usize,
    },
    /// The kernel does not assign ways of the cache.
    #[error(transparent)]
    Resctrl(#[from] tailwater_resctrl::Error),
    /// There is room for only one size of partition, which is no curve.
    #[error(
        "others leave {ways} ways of the last-level cache to a chain: expected room for two sizes of partitions at least"
    )]
    NoChoice {
        /// Ways available to it.
        ways: u32,
    },
    /// The pirate's core cannot be used.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// Memory or a thread could not be allocated.
    #[error("{what}: {source}")]
    System {
        /// The failed operation.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// Hits and misses cannot be distinguished by their latency.
    #[error(
        "the last-level cache cannot be measured here: {hit:.1} ns for a line in a quarter of it, {miss:.1} ns for \
         one in memory; expected a memory that takes at least {least} times as long"
    )]
    Blurred {
        /// Access latency within a quarter of the cache, nanoseconds.
        hit: f64,
        /// Access latency beyond the cache, nanoseconds.
        miss: f64,
        /// Required ratio of memory latency to cache latency.
        least: f64,
    },
    /// Other programs use the cache so much that no part of it can be held.
    #[error("others use the last-level cache: not even {bytes} bytes stay in it while nothing else runs here")]
    Taken {
        /// The smallest size that was tried.
        bytes: u64,
    },
    /// The pirate thread has ended.
    #[error("the thread that holds the cache ended")]
    Gone,
    /// The caller stopped it.
    #[error("measuring was stopped")]
    Stopped,
}
