//! Latency histograms and attribution of late packets, for real and for simulated packets; comparison of runs.
//!
//! - [`histogram`]: every packet's latency, in constant memory.
//! - [`durations`]: a coarse histogram for other durations.
//! - [`comparison`]: differences between measured runs, with confidence.
//! - [`attribution`]: one cause for each packet beyond its objective.
//! - [`report`]: latency section of a report.
//! - [`sign_test`]: comparison of paired measurements.
//! - [`verdict`](mod@verdict): verdict on an objective, and reasons for none.
//!
//! None of them has a clock.

#![forbid(unsafe_code)]

pub mod attribution;
pub mod comparison;
pub mod durations;
pub mod histogram;
pub mod report;
pub mod sign_test;
pub mod verdict;
