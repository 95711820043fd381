//! Synthetic traffic: the same bytes for the same configuration, on every machine.
//!
//! - [`Aggregate`] imitates an Internet link, calibrated to measured traces: whales, minnows, connections that open and
//!   request hosts.
//! - [`Bursty`] imitates the aggregate of many users: Poisson arrivals of flows with heavy-tailed lengths, sent in
//!   trains of back-to-back packets.
//! - [`Mixed`] is the traffic of benchmarks as links have it: protocols in unpredictable order, connections that open and
//!   close, new flows, popular flows.
//! - [`Uniform`] is the steady stream of benchmarks: a fixed number of flows, one size, one rate.
//!
//! All are a [`PacketSource`](crate::PacketSource) whose times count from zero.
//!
//! A change that alters the bytes generated for a configuration must be announced in the changelog, because
//! measurements name their traffic by preset and seed.

mod aggregate;
mod bursty;
mod frame;
mod mixed;
mod mixture;
mod preset;
pub(crate) mod random;
mod statistics;
#[cfg(test)]
mod tests;
mod uniform;

pub use self::aggregate::{Aggregate, AggregateConfig, FlowArrivals, MinnowBursts, Stay, TrainClass};
pub use self::bursty::{Bursty, BurstyConfig, SizeRange};
pub use self::mixed::{FlowShares, Mixed, MixedConfig, Popularity, Senders, is_new_flow};
pub use self::mixture::{CAMPUS_FLOW_PACKETS, Mixture, Part};
pub use self::preset::{PRESETS, Preset, preset};
pub use self::random::HeavyTail;
pub use self::statistics::{Crowds, FlowClass, HugeFlows, LONG_TRAIN, TrafficStatistics, TrainStatistics};
pub use self::uniform::{FrameSize, Transport, Uniform, UniformConfig};
