//! What a cache agent is told at a tick: the cache, and what is on it.

use crate::cluster::MAX_WAYS;
use crate::slo::Curves;
use std::sync::Arc;
use tailwater_net::Nanos;

/// The most instances on a cache.
pub const MAX_INSTANCES: usize = 1024;

/// A cache that can be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// All of its ways, up to [`MAX_WAYS`].
    pub ways: u16,
    /// Bytes of a way.
    pub way_bytes: u64,
    /// Ways that no class may have: those that NICs write into (DDIO), and those of everything else.
    pub unusable: u32,
    /// Classes that it can be cut into, without the one for everything else.
    pub classes: u16,
    /// The fewest ways of a class: 1, and 2 on some processors.
    pub least: u16,
}

impl Cache {
    /// The ways that classes may have, as bits.
    pub fn usable(&self) -> u32 {
        let all = u32::MAX.checked_shr(u32::from(MAX_WAYS.saturating_sub(self.ways)));
        all.unwrap_or(0) & !self.unusable
    }
}

/// What there is to divide, and how patiently. Times are in ticks; the time between two should be some
/// times what the cache takes to be filled anew: 100 ms or more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// The cache.
    pub cache: Cache,
    /// Ticks in a row in which an instance must be late before anything is done about it.
    pub patience: u32,
    /// Ticks in a row in which an instance must need less before it gives ways up.
    pub give_up: u32,
    /// Ticks in a row in which an instance must be late before the controller is asked.
    pub ask_after: u32,
    /// The time after which an ask that was not answered is repeated.
    pub ask_again: Nanos,
    /// Ways that may change hands in a tick. As neighbours may have to shift for a way to pass them, one way is always
    /// allowed to.
    pub moves: u16,
    /// The part above its load that an instance must always be able to take: it asks for more ways below.
    pub headroom: f64,
    /// The part above its load that it then asks for; above `headroom` by more than the load fluctuates.
    pub slack: f64,
    /// A part of throughput, of latency or of references that does not count: who gains less from a way does
    /// not need it.
    pub gain: f64,
    /// The part of references below which misses are no cause of lateness.
    pub few_misses: f64,
    /// Ticks on time, with no more than the least use of cache, after which an instance goes back to the shared class.
    pub rejoin: u32,
}

impl Config {
    /// Ours, for a cache.
    pub fn new(cache: Cache) -> Self {
        Config {
            cache,
            patience: 2,
            give_up: 8,
            ask_after: 6,
            ask_again: Nanos::from_secs(10),
            moves: 4,
            headroom: 0.05,
            slack: 0.15,
            gain: 0.01,
            few_misses: 0.05,
            rejoin: 60,
        }
    }
}

/// An instance of a reserved SLO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Its name, different from all others'.
    pub name: String,
    /// Its ways, by the plan.
    pub ways: u16,
    /// Its threads.
    pub tasks: Vec<u32>,
}

/// An instance of an on-demand SLO, and what was seen of it in the last tick.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// Its name, different from all others'.
    pub name: String,
    /// Its threads.
    pub tasks: Vec<u32>,
    /// Its latency, the percentile that was promised; `None` if no packet came.
    pub latency: Option<Nanos>,
    /// What was promised.
    pub objective: Nanos,
    /// Packets per second that came for it, those that were policed or lost included.
    pub offered: f64,
    /// Bytes of the cache that it holds (CMT), if that is known.
    pub occupancy: Option<u64>,
    /// The part of its references to the cache that missed, if that is known.
    pub misses: Option<f64>,
    /// What was measured of its chain on this machine, if anything.
    pub curves: Option<Arc<Curves>>,
    /// Instances that its SLO has now, on all servers.
    pub instances: u16,
    /// Instances that its SLO may have.
    pub most: u16,
}

/// What is on a cache at a tick.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// Now.
    pub now: Nanos,
    /// Ways that on-demand instances may have together: what belongs to them, and what is leased
    /// ([`lease`](crate::lease)).
    pub ways: u16,
    /// Instances of reserved SLOs.
    pub reserved: &'a [Reserved],
    /// Instances of on-demand SLOs.
    pub on_demand: &'a [Observed],
}
