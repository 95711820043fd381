//! Decisions only: which flows go to which core, which RSS buckets move, and when.
//!
//! Everything here is told what was observed, and the time, and says what is to be done. There is no
//! clock, thread, randomness or I/O in this crate, so the live data plane and the simulator run the
//! same code, and a policy is tested by tables and properties.
//!
//! - [`core`]: what one core sees of its own queue and of the cores that help it, and the
//!   [`CoreMapper`](core::CoreMapper) that decides about them in microseconds;
//! - [`capacity`]: what a core can process, as frontiers and as files;
//! - [`tailwater`]: our own core mapper;
//! - [`training`]: a mapper that moves nothing and learns a core's capacity;
//! - [`server`]: what is known of a server's RSS buckets and cores, and the
//!   [`ServerMapper`](server::ServerMapper) that moves buckets every second or so; our own server mapper, and
//!   NetBlaze's ingress mapper;
//! - [`flows`]: what is known of a rack's flows, and the [`FlowMapper`](flows::FlowMapper) that places
//!   them one by one;
//! - [`isolation`]: how many packets isolated functions process in a turn.
//!
//! The systems that these are compared with, and the policies by name, are in `tailwater-baselines`.
//!
//! The algorithms come from the papers named beside them, or are our own.

#![forbid(unsafe_code)]

pub mod capacity;
pub mod core;
pub mod flows;
pub mod isolation;
pub mod server;
pub mod tailwater;
pub mod training;
