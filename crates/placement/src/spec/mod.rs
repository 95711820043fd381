//! Specs of SLOs and clusters, and the state of a placement: YAML, checked and turned into types.
//!
//! Whatever is wrong is a [`SpecError`] that names file, line, column and field.
//! `docs/placement.md` describes every field.

mod cluster;
mod slos;
mod state;

use tailwater_nf::spec::SpecError;
use tailwater_nf::spec::document::Located;

pub use cluster::ClusterSpec;
pub use slos::SloSet;
pub use state::StateSpec;

/// A percentile of packets, as in chain specs.
fn percentile(node: &Located<'_>) -> Result<f64, SpecError> {
    const WHAT: &str = "a number above 0 and below 100, such as 99.9";
    match node.number(WHAT)? {
        percentile if percentile > 0.0 && percentile < 100.0 => Ok(percentile),
        _ => Err(node.expected(WHAT)),
    }
}
