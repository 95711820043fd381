//! `Policer`: token buckets for flows, prefixes or all packets, with one rate or two.

mod bucket;
mod function;
mod kind;
mod limits;
mod spec;

pub use bucket::{Meter, Rate};
pub use function::Policer;
pub use kind::KIND;
pub use limits::{ExceedAction, Limit, MAX_LIMITS, PolicerRules, Scope};
pub use spec::PolicerConfig;
pub(crate) use spec::{CODE_POINT_OR_COPY, code_point};

#[cfg(test)]
mod tests;
