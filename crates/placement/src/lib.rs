//! Which SLOs fit on a cluster, and where their instances run with how much of the caches (ResQ).
//!
//! Decisions only: no I/O, no clock, no threads. Profiles, SLOs and servers go in, plans come out, and every plan
//! can be checked against the curves that it was made of.
//!
//! - [`curve`], [`slo`]: what was measured of a chain, what is promised;
//! - [`cluster`]: servers, their cores and ways of cache;
//! - [`demand`], [`choices`](mod@choices): what an SLO takes: how many instances, of which sizes;
//! - [`plan`], [`check`](mod@check): what runs where, and whether that keeps all promises;
//! - [`schedule`]: what a scheduler is; [`tailwater`] is ours, others are in `tailwater-baselines`;
//! - [`reconcile`](mod@reconcile): from what was placed and what is wanted now to a plan;
//! - `spec`, with the feature of that name: YAML in, and the state that is kept;
//! - `milp`, with the feature of that name: plans with the fewest servers, by HiGHS;
//! - [`admit`](mod@admit): answers to SLOs: admitted, or why not and what would fit; changes, lost servers;
//! - [`migrate`]: from one plan to another without breaking a promise on the way;
//! - [`progress`]: a migration of which a part is done;
//! - [`on_demand`]: a server's cache, divided among on-demand instances while their load changes; [`lease`]: what the
//!   controller lets a server divide by itself, and for how long;
//! - [`improve`]: whether another plan is worth its moves;
//! - [`policing`]: which rates instances are policed at, of an SLO with a cap;
//! - [`bound`]: fewer servers than this cannot do;
//! - [`contention`]: a model of instances that share a cache;
//! - [`published`]: the curves and mixes of ResQ's evaluation.

#![forbid(unsafe_code)]

pub mod admit;
pub mod bound;
pub mod check;
pub mod choices;
pub mod cluster;
pub mod contention;
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
pub mod reconcile;
mod request;
pub mod schedule;
pub mod slo;
#[cfg(feature = "spec")]
pub mod spec;
pub mod tailwater;
