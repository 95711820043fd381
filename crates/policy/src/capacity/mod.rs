//! Capacity of one core: measured, stored in readable files, queried on the data path.
//!
//! NetBlaze (section 3.2) observes that flow counts matter as well as packet counts: new flows need state, and each
//! active flow costs cache misses. So capacity is a function from flows to packets, and here it never grows with the
//! flows:
//!
//! - [`EpochFrontier`]: flows and packets that a core processes in one epoch (section 3.2);
//! - [`RateFrontier`]: for a flow count, the highest packet rate that still meets the latency objective (section 3.3,
//!   "Dedicated core count predictor");
//! - [`SplitProfile`]: packets of a single flow that two cores process in an epoch when the chain is cut between them
//!   (section 3.2, "Core re-mapping");
//! - [`ServiceCosts`] and [`DetailedCosts`]: core time per packet, for estimates and simulations;
//! - [`CapacityProfile`]: all of these for one chain, objective and machine, as a file.
//!
//! [`EpochFrontier::from_published`] and [`RateFrontier::from_published`] load the files that NetBlaze's authors
//! published.

mod detail;
mod epoch;
mod error;
mod parse;
mod profile;
mod published;
mod rate;
mod read;
mod split;
#[cfg(test)]
mod tests;

pub use detail::{DetailedCosts, MAX_PAUSED, MAX_PAUSES, MAX_PAUSES_PER_SECOND, MAX_WAKES, Pause, RECEIVE_BATCH, Wake};
pub use epoch::{EpochFrontier, MAX_FLOWS};
pub use error::ProfileError;
pub use parse::{MAX_BYTES, MAX_POINTS};
pub use profile::{CapacityProfile, MAX_NAME_BYTES, ServiceCosts};
pub use rate::RateFrontier;
pub use split::{MAX_SPLITS, SplitPoint, SplitProfile};
