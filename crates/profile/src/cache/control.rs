//! Division of the cache: interface, results and errors.

use std::fmt;
use tailwater_dataplane::cores::CoreError;
use tailwater_net::Nanos;

/// Method of setting a chain's share of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Cache pirating (Eklov et al., ICPP 2011): another core holds the rest of the cache. It verifies this by the time
    /// of its own accesses.
    Pirate,
    /// Partitioning by the processor, through the kernel's `resctrl`.
    Resctrl,
}

impl Method {
    /// All methods, by their names in files.
    pub const ALL: [(&'static str, Method); 2] = [("pirate", Method::Pirate), ("resctrl", Method::Resctrl)];
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Method::ALL.iter().find(|(_, method)| method == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

/// Controller of a chain's share of the last-level cache. Dropping it releases the cache.
pub trait CacheControl {
    /// Returns the method of division.
    fn method(&self) -> Method;

    /// Returns the largest share of a chain, in bytes: a whole number of [units](Self::unit).
    fn most(&self) -> u64;

    /// Returns `true` if dividing the cache keeps another core busy, which may lower the measured core's clock.
    fn is_busy(&self) -> bool {
        self.method() == Method::Pirate
    }

    /// Returns the granularity of shares, in bytes.
    fn unit(&self) -> u64;

    /// Returns the smallest share of a chain, in bytes: a whole number of units, by default one.
    fn least(&self) -> u64 {
        self.unit()
    }

    /// Sets the share of a chain on the measured core to `bytes`, rounded down to units, at least
    /// [`least`](Self::least) and at most [`most`](Self::most). Returns once the share is in force, or cannot be
    /// reached.
    ///
    /// # Errors
    /// If the cache cannot be divided.
    fn set(&mut self, bytes: u64) -> Result<(), CacheError>;

    /// Returns the result for the share during the run of a chain that has just ended, with its length.
    ///
    /// # Errors
    /// If the result cannot be measured.
    fn held(&mut self, run: Nanos) -> Result<ShareResult, CacheError>;
}

/// Result for a share during a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShareResult {
    /// `true` if the chain had its share of the cache, and no more.
    pub held: bool,
    /// Degree to which the chain exceeded its share. For the pirate, its miss ratio: the chain evicted these lines. For
    /// a partition, the fraction of the chain's occupancy beyond its share: older lines that nobody else has displaced.
    pub misses: f64,
    /// Bytes that the chain had in the cache; `None` if the processor does not count them.
    pub occupied: Option<u64>,
}

/// Reason why the cache cannot be divided.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The kernel reports no last-level cache for the core.
    #[error("the kernel reports no last-level cache (/sys/devices/system/cpu/cpu{core}/cache)")]
    Unknown {
        /// Core to be measured.
        core: usize,
    },
    /// There is no core for the pirate.
    #[error(
        "no other core shares the last-level cache of core {core}: expected an available one, to occupy the rest of \
         the cache"
    )]
    Alone {
        /// Core to be measured.
        core: usize,
    },
    /// The kernel does not assign ways of the cache.
    #[error(transparent)]
    Resctrl(#[from] tailwater_resctrl::Error),
    /// There is room for only one partition size, which makes no curve.
    #[error(
        "{ways} ways of the last-level cache are available to a chain: expected enough for at least two partition sizes"
    )]
    NoChoice {
        /// Ways available to the chain.
        ways: u32,
    },
    /// The pirate's core cannot be used.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// Memory or a thread could not be allocated.
    #[error("{what}: {source}")]
    System {
        /// Operation that failed.
        what: &'static str,
        /// Error of the system.
        source: std::io::Error,
    },
    /// Cache hits cannot be distinguished from misses.
    #[error(
        "the last-level cache cannot be measured here: {hit:.1} ns for a line in a quarter of it, {miss:.1} ns for \
         one in memory; expected memory at least {least} times slower than the cache"
    )]
    Blurred {
        /// Time of an access to a quarter of the cache, in nanoseconds.
        hit: f64,
        /// Time of an access beyond the cache, in nanoseconds.
        miss: f64,
        /// Required ratio of `miss` to `hit`.
        least: f64,
    },
    /// Other programs use the cache so much that no part of it can be held.
    #[error("other programs use the last-level cache: not even {bytes} bytes stay in it while the chain is stopped")]
    Taken {
        /// Smallest size that was tried, in bytes.
        bytes: u64,
    },
    /// The thread that holds the cache has ended.
    #[error("the thread that occupies the cache ended")]
    Gone,
    /// The caller stopped the measurement.
    #[error("measuring was stopped")]
    Stopped,
}
