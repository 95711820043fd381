//! What the agent asks of whatever cuts the cache, besides doing steps.

use tailwater_placement::on_demand::{Cache, CacheAllocator};

/// A class as it really is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name.
    pub name: String,
    /// Its ways, as bits.
    pub ways: u32,
    /// Threads in it.
    pub tasks: Vec<u32>,
}

/// What an instance uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of the cache that it holds now (CMT).
    pub occupancy: Option<u64>,
    /// Bytes from and to memory, counted from some time on (MBM).
    pub traffic: Option<u64>,
}

/// What can be done about a step that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There are no more classes: fewer must do.
    Classes,
    /// This thread has ended, or belongs to somebody else: the step goes without it.
    Task(u32),
    /// Anything else: busy, or somebody else has the ways now. It is tried again later.
    Later,
}

/// An error that tells what can be done about it.
pub trait Why: std::error::Error {
    /// What can be done.
    fn refused(&self) -> Refused;
}

/// What cuts a cache, and tells what it is cut into.
pub trait Cut: CacheAllocator<Error: Why> {
    /// The cache: ways and classes that others have now are not to be had.
    ///
    /// # Errors
    /// It cannot be read.
    fn cache(&mut self) -> Result<Cache, Self::Error>;

    /// The classes that were made, as they are now: somebody may have changed or removed them, threads may have ended.
    ///
    /// # Errors
    /// They cannot be read.
    fn classes(&mut self) -> Result<Vec<Found>, Self::Error>;

    /// What an instance uses whose threads are in a class, `alone` or with others; nothing where that is not counted.
    fn usage(&mut self, class: &str, instance: &str, tasks: &[u32], alone: bool) -> Usage;
}
