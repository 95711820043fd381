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
mod situation;

pub use allocation::{Allocation, CacheAllocator, Class, Kind, Step, steps};
pub use decide::OnDemand;
pub use relief::{Ask, AskKind, Policing};
pub use situation::{Cache, Config, MAX_INSTANCES, Observed, Reserved, Situation};

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
