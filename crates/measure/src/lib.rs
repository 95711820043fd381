//! Latencies counted, and lateness put down to causes: the same for packets that are processed and
//! for packets that are simulated.
//!
//! - [`histogram`]: every packet's latency, in constant memory;
//! - [`durations`]: the same for other times, coarsely;
//! - [`attribution`]: one cause for each packet beyond its objective;
//! - [`report`]: what is told of latencies.
//!
//! Neither has a clock of its own.

#![forbid(unsafe_code)]

pub mod attribution;
pub mod durations;
pub mod histogram;
pub mod report;
