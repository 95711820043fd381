//! Placement of SLOs on a cluster: admission, the servers of their instances, and their cache partitions (ResQ).
//!
//! This crate only decides: no I/O, no clock, no threads. It turns profiles, SLOs and servers into plans. Every plan
//! can be checked against its curves.
//!
//! - [`curve`], [`slo`]: measurements of a chain, and service-level objectives;
//! - [`cluster`]: servers, their cores and ways of cache;
//! - [`demand`], [`choices`](mod@choices): the resources for an SLO: number and sizes of instances;
//! - [`plan`], [`check`](mod@check): the placement of instances, and its independent check;
//! - [`schedule`]: the scheduler interface; [`tailwater`] is Tailwater's scheduler, ResQ's is in `tailwater-baselines`;
//! - [`consolidate`](mod@consolidate): SLOs placed again together, on fewer servers;
//! - [`reconcile`](mod@reconcile): from an earlier placement and the wanted SLOs to a plan;
//! - `spec`, with the feature of that name: YAML specs, and the stored state;
//! - `milp`, with the feature of that name: plans with the fewest servers, by HiGHS;
//! - [`admit`](mod@admit): answers to SLOs: admission, or a reason and an alternative; changes, lost servers;
//! - [`migrate`]: from one plan to another while all SLOs are met;
//! - [`progress`]: a partly completed migration;
//! - [`on_demand`]: division of a server's cache among on-demand instances with changing load; [`lease`]: the resources
//!   that a server divides on its own, and for how long;
//! - [`improve`]: the decision if another plan justifies its moves;
//! - [`policing`]: policing rates of the instances of an SLO with a cap;
//! - [`bound`]: a lower bound on the number of servers;
//! - [`co_run`]: placement by predicted contention;
//! - [`core_shares`]: chains that share the cores of one server; [`rack`]: instances on all servers of a rack;
//! - [`contention`]: a model of instances that share a cache without isolation;
//! - [`published`]: the curves and mixes of ResQ's evaluation.

#![forbid(unsafe_code)]

pub mod admit;
pub mod bound;
pub mod check;
pub mod choices;
pub mod cluster;
pub mod co_run;
pub mod consolidate;
pub mod contention;
pub mod core_shares;
pub mod curve;
pub mod demand;
pub mod improve;
pub mod lease;
pub mod migrate;
#[cfg(feature = "milp")]
pub mod milp;
pub mod on_demand;
pub mod plan;
pub mod policing;
pub mod progress;
pub mod published;
pub mod rack;
pub mod reconcile;
mod request;
pub mod schedule;
pub mod slo;
#[cfg(feature = "spec")]
pub mod spec;
pub mod tailwater;
