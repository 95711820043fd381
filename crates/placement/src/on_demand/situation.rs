//! Observations of a cache agent at a tick: the cache, and the instances on it.

use crate::cluster::MAX_WAYS;
use crate::slo::Curves;
use std::sync::Arc;
use tailwater_net::Nanos;

/// Maximum number of instances on a cache.
pub const MAX_INSTANCES: usize = 1024;

/// Cache that supports partitioning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Number of ways, up to [`MAX_WAYS`].
    pub ways: u16,
    /// Size of a way, bytes.
    pub way_bytes: u64,
    /// Bits of the ways that no class may have: those that NICs write into (DDIO), and those of all other programs.
    pub unusable: u32,
    /// Maximum number of classes, without the default class.
    pub classes: u16,
    /// Minimum number of ways of a class: 1, or 2 on some processors.
    pub least: u16,
}

impl Cache {
    /// Returns the ways that classes may have, as bits.
    pub fn usable(&self) -> u32 {
        let all = u32::MAX.checked_shr(u32::from(MAX_WAYS.saturating_sub(self.ways)));
        all.unwrap_or(0) & !self.unusable
    }
}

/// Parameters of the division. Delays are in ticks, except [`ask_again`](Self::ask_again). A tick should be several
/// times as long as the cache takes to refill: 100 ms or more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Cache to divide.
    pub cache: Cache,
    /// Consecutive late ticks before an instance gets more cache.
    pub patience: u32,
    /// Consecutive ticks of lower demand before an instance releases ways.
    pub give_up: u32,
    /// Consecutive late ticks before a request to the controller.
    pub ask_after: u32,
    /// Delay before an unanswered request is repeated.
    pub ask_again: Nanos,
    /// Maximum number of ways that change class in a tick. One way always may, since neighbours may have to shift to
    /// let it pass.
    pub moves: u16,
    /// Minimum spare capacity of an instance, relative to its load. Below it, the instance demands more ways.
    pub headroom: f64,
    /// Spare capacity that it then demands, relative to its load. It exceeds `headroom` by more than the load
    /// fluctuates.
    pub slack: f64,
    /// Negligible difference of throughput, latency or miss ratio. An instance that gains less from a way does not need
    /// it.
    pub gain: f64,
    /// Miss ratio below which misses do not cause lateness.
    pub few_misses: f64,
    /// Consecutive ticks on time, with a demand of at most [`least`](Cache::least) ways, before an instance returns to
    /// the shared class.
    pub rejoin: u32,
}

impl Config {
    /// Returns the default parameters for a cache.
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

/// Instance of a reserved SLO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Unique name.
    pub name: String,
    /// Number of its ways in the plan.
    pub ways: u16,
    /// Thread ids.
    pub tasks: Vec<u32>,
}

/// Instance of an on-demand SLO, with its observations in the last tick.
#[derive(Clone, Debug, PartialEq)]
pub struct Observed {
    /// Unique name.
    pub name: String,
    /// Thread ids.
    pub tasks: Vec<u32>,
    /// Latency at the percentile of the objective; `None` if no packet arrived.
    pub latency: Option<Nanos>,
    /// Latency objective.
    pub objective: Nanos,
    /// Packets per second that arrived for it, including policed and lost ones.
    pub offered: f64,
    /// Its occupancy of the cache in bytes (CMT), if known.
    pub occupancy: Option<u64>,
    /// Miss ratio of its cache references, if known.
    pub misses: Option<f64>,
    /// Curves of its chain on this machine, if measured.
    pub curves: Option<Arc<Curves>>,
    /// Current instances of its SLO, on all servers.
    pub instances: u16,
    /// Maximum number of instances of its SLO.
    pub most: u16,
}

/// Instances and ways of a cache at a tick.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// Current time.
    pub now: Nanos,
    /// Total ways of on-demand instances: their own and the leased ones ([`lease`](crate::lease)).
    pub ways: u16,
    /// Instances of reserved SLOs.
    pub reserved: &'a [Reserved],
    /// Instances of on-demand SLOs.
    pub on_demand: &'a [Observed],
}
