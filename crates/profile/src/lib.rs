//! Capacity of a chain on this machine, measured: the profile on which policies base their decisions.
//!
//! [`train_capacity`] runs a chain on one core in many short runs of the real data plane. It returns a
//! [`CapacityProfile`](tailwater_policy::capacity::CapacityProfile):
//!
//! - the *epoch frontier* (NetBlaze, arXiv 2305.01890, section 3.2): flows and packets that a core processes in one
//!   epoch, from a trace and from synthetic traffic;
//! - the *rates* that meet the latency objective, by flow count (section 3.3);
//! - the *splits*: capacity of two cores for one flow when the chain is cut between them, where that exceeds one
//!   core's;
//! - the *service costs*, by least squares over saturated runs, or over the batches of the traffic itself.
//!
//! [`cache_curve`] and [`load_curve`] measure the input of placement (ResQ, NSDI 2018, section 5.2): throughput over
//! cache, and latency over load with the highest rates that meet objectives. [`function_costs`] measures the cost per
//! packet of each function. [`profiles`] stores the results.
//!
//! The machine may be shared. Windows and epochs with CPU interference are excluded if others remain
//! ([`training`](tailwater_policy::training)). Runs of curves that had [`interference`] are measured again, or flagged.
//!
//! [`contention`] measures how much programs that share the machine slow each other down.
//!
//! [`fingerprint`] and [`machine`] identify the scope of a profile.

#![forbid(unsafe_code)]

mod batches;
pub mod cache;
pub mod contention;
mod costs;
pub mod curve;
mod detail;
mod error;
mod identity;
pub mod interference;
mod measurement_core;
mod pauses;
pub mod profiles;
mod sweep;
#[cfg(test)]
mod tests;
mod traffic;
mod train;

pub use batches::{interruptions, pace};
pub use error::TrainError;
pub use identity::{Fnv, fingerprint, machine};
pub use sweep::{SweepError, SweepOptions, cache_curve, function_costs, load_curve, uniform};
pub use train::{Depth, Step, TrainOptions, saturated_rate, train_capacity, train_costs, without_files};
