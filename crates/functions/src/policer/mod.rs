//! `Policer`: token buckets for flows, prefixes or all packets, with one rate or two.

mod bucket;
mod function;
mod limits;

pub use bucket::{Meter, Rate};
pub use function::Policer;
pub use limits::{ExceedAction, Limit, MAX_LIMITS, PolicerRules, Scope};

#[cfg(test)]
mod tests;
