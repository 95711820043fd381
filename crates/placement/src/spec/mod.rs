//! Specs of SLOs and clusters, and the state of a placement: YAML, checked and converted to types.
//!
//! Every error is a [`SpecError`](tailwater_api::SpecError) with file, line, column and field.
//! `docs/reference/placement-files.md` describes every field.

mod cluster;
mod fields;
mod profiles;
mod slos;
mod state;

pub use cluster::ClusterSpec;
pub use fields::{CHAIN_PROFILE, CLUSTER, HARDWARE, SERVERS, SLO, SLO_SET};
pub use profiles::{NoProfiles, Profiles};
pub use slos::SloSet;
pub use state::{KnownChain, State, StateSpec};
