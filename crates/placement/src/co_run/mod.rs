//! Placement by predicted contention: instances share a NUMA node only if each SLO is met beside the others (SLOMO,
//! section 7.3).
//!
//! - [`predictor`]: the interface to a model of contention; [`slomo`] implements it by `tailwater-predict`;
//! - [`rates`]: rates of instances on the nodes of a plan, and SLOs that are not met;
//! - [`scheduler`]: the scheduler, one SLO after the other;
//! - [`conflict`]: why an SLO may not share a node, for people;
//! - [`shared`]: clusters whose caches are not partitioned.
//!
//! A node is the unit of contention: its cores share the last-level cache and the memory controllers.

pub mod conflict;
pub mod predictor;
pub mod rates;
pub mod scheduler;
pub mod shared;
pub mod slomo;
