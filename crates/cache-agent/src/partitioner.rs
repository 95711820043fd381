//! Interface of the agent to a cache, beyond executing steps.

use tailwater_placement::on_demand::{Cache, CacheAllocator};

/// Actual state of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Name.
    pub name: String,
    /// Ways, as bits.
    pub ways: u32,
    /// Thread ids.
    pub tasks: Vec<u32>,
}

/// Resource usage of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of the cache that it occupies now (CMT).
    pub occupancy: Option<u64>,
    /// Bytes from and to memory, counted from some time on (MBM).
    pub traffic: Option<u64>,
}

/// Possible reactions to a refused step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There are no more classes: use fewer.
    Classes,
    /// This thread has ended, or belongs to another program: repeat the step without it.
    Task(u32),
    /// Any other reason: the resource is busy, or another program has the ways now. Retry later.
    Later,
}

/// Error that classifies the possible reactions.
pub trait ClassifiedError: std::error::Error {
    /// Returns the possible reaction.
    fn refused(&self) -> Refused;
}

/// Mechanism that partitions a cache and reports its partitions.
pub trait CachePartitioner: CacheAllocator<Error: ClassifiedError> {
    /// Returns the cache, without ways and classes that other programs use now.
    ///
    /// # Errors
    /// The cache cannot be read.
    fn cache(&mut self) -> Result<Cache, Self::Error>;

    /// Returns the current state of the created classes. Other programs may have changed or removed them, and threads
    /// may have ended.
    ///
    /// # Errors
    /// The classes cannot be read.
    fn classes(&mut self) -> Result<Vec<Found>, Self::Error>;

    /// Returns the usage of an instance whose threads are in a class, `alone` or with others. Unsupported counters are
    /// `None`.
    fn usage(&mut self, class: &str, instance: &str, tasks: &[u32], alone: bool) -> Usage;
}
