//! Synthetic traffic: the same bytes for the same configuration, on every machine.
//!
//! [`Aggregate`] imitates a link of the Internet, calibrated to measured traces: whales, minnows,
//! connections that open and ask for hosts. [`Bursty`] imitates the aggregate of many users: flows come at random (Poisson), have
//! heavy-tailed lengths, and send in trains back to back. [`Uniform`] is the benchmark's steady
//! stream: so many flows, one size, one rate. All are a [`PacketSource`](crate::PacketSource)
//! whose times count from zero.
//!
//! A change that alters the bytes made for a configuration must be announced in the change
//! log: measurements name their traffic by preset and seed.

mod aggregate;
mod bursty;
mod frame;
mod mixture;
mod preset;
pub(crate) mod random;
#[cfg(test)]
mod tests;
mod uniform;

pub use self::aggregate::{Aggregate, AggregateConfig, FlowArrivals, MinnowBursts, Stay, TrainClass};
pub use self::bursty::{Bursty, BurstyConfig, SizeRange};
pub use self::mixture::{CAMPUS_FLOW_PACKETS, Mixture, Part};
pub use self::preset::{PRESETS, Preset, preset};
pub use self::random::HeavyTail;
pub use self::uniform::{FrameSize, Transport, Uniform, UniformConfig};
