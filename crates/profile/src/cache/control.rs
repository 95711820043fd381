//! Division of the cache: the interface, its results and its errors.

use std::fmt;
use tailwater_dataplane::cores::CoreError;
use tailwater_net::Nanos;

/// How a chain's share of the cache is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Another core holds the rest, and looks by the time of its own accesses whether it does: cache pirating
    /// (Eklov et al., ICPP 2011).
    Pirate,
    /// The processor's own partitioning, by the kernel's `resctrl`.
    Resctrl,
}

impl Method {
    /// All of them, by their names in files.
    pub const ALL: [(&'static str, Method); 2] = [("pirate", Method::Pirate), ("resctrl", Method::Resctrl)];
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Method::ALL.iter().find(|(_, method)| method == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

/// Gives chains shares of the last-level cache. Dropped, it gives back what it took.
pub trait CacheControl {
    /// How it does.
    fn method(&self) -> Method;

    /// The most that a chain can have, in bytes: a whole number of [units](Self::unit).
    fn most(&self) -> u64;

    /// Shares are whole numbers of so many bytes.
    fn unit(&self) -> u64;

    /// The least that a chain can have, in bytes: a whole number of units, one if nothing else is said.
    fn least(&self) -> u64 {
        self.unit()
    }

    /// From now on a chain on the measured core is to have `bytes`, rounded down to units, at least
    /// [`least`](Self::least) and at most [`most`](Self::most). Returns when that is so, or will not become so.
    ///
    /// # Errors
    /// If the cache cannot be divided.
    fn set(&mut self, bytes: u64) -> Result<(), CacheError>;

    /// What became of the share during the run of a chain that ended just now.
    ///
    /// # Errors
    /// If that cannot be told.
    fn held(&mut self, run: Nanos) -> Result<ShareResult, CacheError>;
}

/// What became of a share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShareResult {
    /// Whether the chain had what it was to have, and no more.
    pub held: bool,
    /// The share of the pirate's accesses that missed: what the chain took from it. Of a partition, the share of what
    /// the chain had in the cache that was beyond it: lines from before that nobody else had displaced.
    pub misses: f64,
    /// Bytes that the chain had in the cache; `None` where the processor does not count them.
    pub occupied: Option<u64>,
}

/// Why the cache cannot be divided.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The kernel does not tell of the cache.
    #[error("the kernel reports no last-level cache (/sys/devices/system/cpu/cpu{core}/cache)")]
    Unknown {
        /// The core that was to be measured.
        core: usize,
    },
    /// There is no core for the pirate.
    #[error(
        "no other core shares the last-level cache of core {core}: expected an available one, to occupy the rest of \
         the cache"
    )]
    Alone {
        /// The core that was to be measured.
        core: usize,
    },
    /// The kernel does not give ways of the cache.
    #[error(transparent)]
    Resctrl(#[from] tailwater_resctrl::Error),
    /// There is room for one size of partition only, which is no curve.
    #[error(
        "{ways} ways of the last-level cache are available to a chain: expected enough for at least two partition sizes"
    )]
    NoChoice {
        /// Ways that are free for it.
        ways: u32,
    },
    /// The pirate's core cannot be used.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// There is no memory, or no thread.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
    /// What is in the cache cannot be told from what is not.
    #[error(
        "the last-level cache cannot be measured here: {hit:.1} ns for a line in a quarter of it, {miss:.1} ns for \
         one in memory; expected memory at least {least} times slower than the cache"
    )]
    Blurred {
        /// Nanoseconds of an access to a quarter of the cache.
        hit: f64,
        /// Nanoseconds of an access beyond the cache.
        miss: f64,
        /// How much slower memory has to be.
        least: f64,
    },
    /// Others use the cache so much that nothing of it can be held.
    #[error("other programs use the last-level cache: not even {bytes} bytes stay in it while the chain is stopped")]
    Taken {
        /// The least that was tried.
        bytes: u64,
    },
    /// The pirate is gone.
    #[error("the thread that occupies the cache ended")]
    Gone,
    /// The caller said so.
    #[error("measuring was stopped")]
    Stopped,
}
