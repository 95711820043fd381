//! Part of the last-level cache that a chain's core has.

/// Kind of a class of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheClass {
    /// Ways that the core has reserved for the promises of its chains.
    Reserved,
    /// Ways for this core alone, as long as its chains need them.
    Isolated,
    /// Ways that cores without a promise share.
    Shared,
    /// None: the core has the ways of everything else on the machine.
    None,
}

/// Part of the last-level cache that a chain's core has. The chains of a core share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheWays {
    /// Kind of its class.
    pub class: CacheClass,
    /// Ways of the class; 0 without one.
    pub ways: u16,
    /// Number of cores that have the class; 0 without one.
    pub cores: u16,
    /// Reason for which the cache does not suffice: one line, possibly empty.
    pub reason: String,
}
