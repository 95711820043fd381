//! Division of one cache among its instances with changing load: the server agent's loop (ResQ §5.3).
//!
//! Instances of reserved SLOs have the ways of the plan for as long as they run. Those of on-demand SLOs share the ways
//! leased to the server, max-min fairly **by ways**, each up to its demand. The demand follows from the instance's
//! curves and its current load. If nothing was measured, it follows from its occupancy and from trials. Instances begin
//! in one shared class. Those that are late because of cache misses get a class of their own, as long as there are
//! classes (CAT has 16 or fewer). The others share a class with the sum of their shares.
//!
//! [`OnDemand::tick`] gets the observations and the time. It returns the allocation of the cache ([`Allocation`], plain
//! data), requests to the controller, and the instances whose input is to be policed. There is one [`OnDemand`] per
//! cache, that is, per NUMA node. It has no clock and does no I/O.
//!
//! | module | contents |
//! |---|---|
//! | [`mask`] | ways as masks, side by side |
//! | [`shares`](mod@shares) | max-min fair shares |
//! | [`allocation`] | the classes of a cache, the steps from one allocation to another, [`CacheAllocator`] |
//! | [`relief`] | requests to the controller, and policing |
//! | [`model`] | model of a server in a closed loop, for tests |

pub mod allocation;
mod decide;
mod demand;
mod divide;
pub mod mask;
pub mod model;
pub mod relief;
pub mod shares;

pub use allocation::{Allocation, CacheAllocator, Class, Kind, Step, steps};
pub use decide::OnDemand;
pub use relief::{Ask, AskKind, Policing};

use crate::cluster::MAX_WAYS;
use crate::slo::Curves;
use std::sync::Arc;
use tailwater_net::Nanos;

/// Maximum number of instances on a cache.
pub const MAX_INSTANCES: usize = 1024;

/// Cache that can be partitioned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Total number of ways, up to [`MAX_WAYS`].
    pub ways: u16,
    /// Bytes per way.
    pub way_bytes: u64,
    /// Ways not available to classes: those that NICs write into (DDIO), and those of everything else.
    pub unusable: u32,
    /// Number of classes, without the one for everything else.
    pub classes: u16,
    /// Minimum number of ways of a class: 1, and 2 on some processors.
    pub least: u16,
}

impl Cache {
    /// Returns the ways available to classes, as bits.
    pub fn usable(&self) -> u32 {
        let all = u32::MAX.checked_shr(u32::from(MAX_WAYS.saturating_sub(self.ways)));
        all.unwrap_or(0) & !self.unusable
    }
}

/// Parameters of the division. Times are in ticks. The time between two ticks should be several times that of refilling
/// the cache: 100 ms or more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Cache to divide.
    pub cache: Cache,
    /// Consecutive ticks in which an instance must be late before it is treated as late.
    pub patience: u32,
    /// Consecutive ticks in which an instance must need less before it gives up ways.
    pub give_up: u32,
    /// Consecutive ticks in which an instance must be late before a request goes to the controller.
    pub ask_after: u32,
    /// Time after which an unanswered request is repeated.
    pub ask_again: Nanos,
    /// Maximum number of ways that change hands in a tick. One way can always change, even if neighbours have to shift
    /// for it.
    pub moves: u16,
    /// Relative margin above its load that an instance must always be able to process. Below it, its demand rises.
    pub headroom: f64,
    /// Relative margin that its demand then provides. It exceeds `headroom` by more than the fluctuation of the load.
    pub slack: f64,
    /// Relative change of throughput, latency or references that is ignored. An instance that gains less from a way
    /// does not need it.
    pub gain: f64,
    /// Share of missing references below which misses are not the cause of lateness.
    pub few_misses: f64,
    /// Ticks on time and with the minimum demand after which an instance returns to the shared class.
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
    /// Number of ways in the plan.
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
    /// Latency at the SLO's percentile, or `None` without packets.
    pub latency: Option<Nanos>,
    /// Latency objective.
    pub objective: Nanos,
    /// Offered packets per second, including policed and lost ones.
    pub offered: f64,
    /// Bytes of the cache that it occupies (CMT), if known.
    pub occupancy: Option<u64>,
    /// Share of its references to the cache that missed, if known.
    pub misses: Option<f64>,
    /// Curves of its chain on this machine, if measured.
    pub curves: Option<Arc<Curves>>,
    /// Current number of instances of its SLO, on all servers.
    pub instances: u16,
    /// Maximum number of instances of its SLO.
    pub most: u16,
}

/// Input of a tick: the instances on a cache.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// Current time.
    pub now: Nanos,
    /// Ways for all on-demand instances together: their own, and leased ones ([`lease`](crate::lease)).
    pub ways: u16,
    /// Instances of reserved SLOs.
    pub reserved: &'a [Reserved],
    /// Instances of on-demand SLOs.
    pub on_demand: &'a [Observed],
}

/// Share of an on-demand instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Name of the instance.
    pub name: String,
    /// Its class, or `None` if it is in the default class, because there are no classes or ways for on-demand
    /// instances.
    pub class: Option<String>,
    /// Number of ways that it can use.
    pub demand: f64,
    /// Number of ways assigned to it: those of its class, or its part of a shared one.
    pub share: f64,
}

/// Result of a tick.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Allocation of the cache. [`steps`] returns the steps to it.
    pub allocation: Allocation,
    /// Share of each on-demand instance, in the order of the situation. Masks approach the shares gradually.
    pub shares: Vec<Share>,
    /// Ways that on-demand instances lack, to be requested with the next lease.
    pub short: u16,
    /// Ways that they do not need, which can be given back.
    pub spare: u16,
    /// Requests to the controller.
    pub asks: Vec<Ask>,
    /// Policing of instances' input from now on. Other instances are not policed.
    pub policing: Vec<Policing>,
    /// Reserved instances for which there are not enough adjacent ways: the plan assigns more than exists.
    pub refused: Vec<String>,
}
