//! One cache, divided among the instances on it while their load changes: the server agent's loop (ResQ §5.3).
//!
//! Instances of reserved SLOs have the ways that the plan gave them, for as long as they run. Those of on-demand SLOs
//! have what is leased to the server, max-min fairly: **in ways**, each up to what it has a use for. That is read off
//! its curves for the load that it has now, or, where nothing was measured, off its occupancy and by trials. They
//! begin in one shared class; those that are late and miss in the cache get a class of their own, as long as there are
//! classes (CAT has 16 or fewer), and the others keep one with the sum of their shares.
//!
//! [`OnDemand::tick`] is told what was observed and the time, and says what the cache should be cut into
//! ([`Allocation`], plain data), what to ask the controller for, and which instances' input to police. One of it
//! for each cache, that is, for each NUMA node. No clock, no I/O.
//!
//! | module | what |
//! |---|---|
//! | [`mask`] | ways as masks, side by side |
//! | [`shares`](mod@shares) | max-min fair shares |
//! | [`allocation`] | the classes of a cache, the steps from one allocation to another, [`CacheAllocator`] |
//! | [`relief`] | what is asked of the controller, and policing |
//! | [`model`] | a server in a closed loop, to try this on |

pub mod allocation;
mod decide;
mod divide;
pub mod mask;
pub mod model;
pub mod relief;
pub mod shares;
mod situation;
mod want;

pub use allocation::{Allocation, CacheAllocator, Class, Kind, Step, steps};
pub use decide::OnDemand;
pub use relief::{Ask, AskKind, Policing};
pub use situation::{Cache, Config, MAX_INSTANCES, Observed, Reserved, Situation};

/// What an on-demand instance gets.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Its name.
    pub name: String,
    /// Its class; `None` if it is with everything else, as there are no classes or ways for on-demand instances.
    pub class: Option<String>,
    /// Ways that it has a use for.
    pub demand: f64,
    /// Ways that it is to get of them: what its class is to have, or its part of a shared one.
    pub share: f64,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What the cache is to be cut into. [`steps`] says how to get there.
    pub allocation: Allocation,
    /// What each on-demand instance gets, in the order of the situation. Masks follow shares by and by.
    pub shares: Vec<Share>,
    /// Ways that on-demand instances have a use for and do not get: what to ask the next lease for.
    pub short: u16,
    /// Ways that they have no use for: what may be given back.
    pub spare: u16,
    /// What the controller is asked for.
    pub asks: Vec<Ask>,
    /// Instances whose input is to be policed from now on, and how; for others nothing is policed.
    pub policing: Vec<Policing>,
    /// Reserved instances for which the cache has not enough ways next to each other: a plan that gives more than
    /// there is.
    pub refused: Vec<String>,
}
