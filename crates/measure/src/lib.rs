//! Latency histograms and attribution of late packets, for real and for simulated packets.
//!
//! - [`histogram`]: every packet's latency, in constant memory.
//! - [`durations`]: a coarse histogram for other durations.
//! - [`attribution`]: one cause for each packet beyond its objective.
//! - [`report`]: latency section of a report.
//!
//! None of them has a clock.

#![forbid(unsafe_code)]

pub mod attribution;
pub mod durations;
pub mod histogram;
pub mod report;
