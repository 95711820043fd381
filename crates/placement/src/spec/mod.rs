//! Specs of SLOs and clusters, and the state of a placement: YAML, checked and turned into types.
//!
//! Whatever is wrong is a [`SpecError`](tailwater_api::SpecError) that names file, line, column and field.
//! `docs/placement.md` describes every field.

mod cluster;
mod profiles;
mod slos;
mod state;

pub use cluster::ClusterSpec;
pub use profiles::{NoProfiles, Profiles};
pub use slos::SloSet;
pub use state::{KnownChain, State, StateSpec};
