//! What a chain can do on this machine, measured: the profile that policies go by.
//!
//! [`train_capacity`] runs a chain on one core in many short runs, each of them a run of the real data
//! plane, and puts together a [`CapacityProfile`](tailwater_policy::capacity::CapacityProfile):
//!
//! - the *epoch frontier* (NetBlaze, arXiv 2305.01890, section 3.2): flows and packets that a core
//!   processes in one epoch, from a trace and from synthetic traffic;
//! - the *rates* that meet the latency objective, by flow count (section 3.3);
//! - the *splits*: what two cores can do with one flow when the chain is cut between them, where that is
//!   more than one can with all of it;
//! - the *service costs*, by least squares over saturated runs, or over the batches of the traffic itself.
//!
//! [`cache_curve`] and [`load_curve`] measure what placement goes by (ResQ, NSDI 2018, section 5.2): throughput over
//! cache, and latency over load with the highest rates that keep promises; [`function_costs`], what a packet takes function by
//! function.
//! [`profiles`] keeps them.
//!
//! The machine may be shared: windows of a run in which the core was away are left out where there
//! are others, and so are such epochs ([`training`](tailwater_policy::training)).
//!
//! [`fingerprint`] and [`machine`] say what a profile holds for.

#![forbid(unsafe_code)]

mod batches;
pub mod cache;
mod costs;
pub mod curve;
mod detail;
mod identity;
mod lab;
mod pauses;
pub mod profiles;
mod sweep;
#[cfg(test)]
mod tests;
mod traffic;
mod train;

pub use batches::pace;
pub use identity::{Fnv, fingerprint, machine};
pub use sweep::{SweepError, SweepOptions, cache_curve, function_costs, load_curve, uniform};
pub use train::{Depth, Step, TrainError, TrainOptions, train_capacity, train_costs, without_files};
