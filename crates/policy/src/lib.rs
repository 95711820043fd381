//! Scaling decisions: which flows go to which core, which RSS buckets move, and when.
//!
//! Code in this crate gets observations and the time as input, and returns decisions. It has no clock, thread,
//! randomness or I/O. The live data plane and the simulator run the same code, and tables and property tests cover each
//! policy.
//!
//! - [`core`]: one core's view of its own queue and its auxiliary cores, and the [`CoreMapper`](core::CoreMapper) that
//!   decides about them in microseconds;
//! - [`capacity`]: the capacity of a core, as frontiers and as files;
//! - [`tailwater`]: Tailwater's own core mapper;
//! - [`training`]: a mapper that moves nothing and measures a core's capacity;
//! - [`server`]: the state of a server's RSS buckets and cores, and the [`ServerMapper`](server::ServerMapper) that
//!   moves buckets about every second; Tailwater's server mapper, and the ingress mapper;
//! - [`broker`]: the state of a server's cores and chains, and the [`CoreBroker`](broker::CoreBroker) that lends
//!   auxiliary cores and divides dedicated ones;
//! - [`flows`]: the state of a rack's flows, and the [`FlowMapper`](flows::FlowMapper) that places single flows;
//! - [`isolation`]: the batch size of isolated functions;
//! - [`turns`]: turns of several chains on one core.
//!
//! NetBlaze, the other systems used for comparison, and the catalogue of policies by name are in `tailwater-baselines`.
//!
//! The algorithms come from the papers named in each module, or are Tailwater's own.

#![forbid(unsafe_code)]

pub mod broker;
pub mod capacity;
pub mod core;
pub mod flows;
pub mod isolation;
pub mod server;
pub mod tailwater;
pub mod training;
pub mod turns;
