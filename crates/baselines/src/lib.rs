//! Policies of the systems that Tailwater and NetBlaze are compared with, and NetBlaze's own.
//!
//! | policy | moves | every | to |
//! |---|---|---|---|
//! | [`StaticRss`] | nothing | | |
//! | [`RssPlusPlus`] | RSS buckets | 0.1 to 1 s | balance the cores' load |
//! | [`Metron`] | halves of a core's traffic class | 0.5 s | stop losses |
//! | [`Quadrant`] | flows | 50 ms | keep the estimated p99 latency below the objective |
//! | [`QuadrantMetron`] | Metron's classes | 50 ms | stop losses |
//! | [`Dyssect`] | shards and flows | 100 ms | keep each core's load below a bound from the median latency |
//!
//! The first three map RSS buckets and are [server mappers](tailwater_policy::server::ServerMapper). The others place
//! flows and are [flow mappers](tailwater_policy::flows::FlowMapper). On one server without a table of flows,
//! [`ByBucket`] lets them decide about RSS buckets instead. Each module lists what its paper states, what is not
//! published, and what was chosen here.
//!
//! - [`netblaze`]: NetBlaze's core and server mappers;
//! - [`QuadrantBroker`]: Quadrant's signals as a [core broker](tailwater_policy::broker);
//! - [`QuadrantScaling`]: Quadrant's scaling of a [rack](tailwater_placement::rack);
//! - [`schedulers`]: schedulers that Tailwater's placement is compared with;
//! - [`catalog`]: all policies by name, including Tailwater's.
//!
//! Policies implement the traits of `tailwater-policy`, schedulers those of `tailwater-placement`. Neither of these
//! crates imports this one.

#![forbid(unsafe_code)]

mod by_bucket;
mod by_core;
pub mod catalog;
mod classes;
mod dyssect;
mod metron;
pub mod netblaze;
mod quadrant;
mod quadrant_broker;
mod quadrant_metron;
mod quadrant_rack;
mod rss_plus_plus;
pub mod schedulers;
mod static_rss;
#[cfg(test)]
mod tests;

pub use by_bucket::{ByBucket, LIFETIME};
pub use dyssect::{Dyssect, DyssectConfig};
pub use metron::{Metron, MetronConfig};
pub use quadrant::{LatencySignal, Quadrant, QuadrantConfig, shed_rate};
pub use quadrant_broker::QuadrantBroker;
pub use quadrant_metron::QuadrantMetron;
pub use quadrant_rack::{QuadrantFlows, QuadrantScaling};
pub use rss_plus_plus::{RssPlusPlus, RssPlusPlusConfig};
pub use static_rss::StaticRss;
