//! Chain specs: the YAML a user writes, validated and converted to types.
//!
//! [`ChainSpec::read`] is the only entry point. A spec that it returns can run as it is. Any problem is a
//! [`SpecError`](tailwater_api::SpecError) that names file, line, column, field, expected and found value.
//! `docs/reference/chain-spec.md` describes every field.
//!
//! The document is read by [`tailwater_api::chain`]: its structure, and everything but the functions. The
//! [kind](crate::kind) of each function reads its configuration, and `resolver` checks the functions against each
//! other.

mod capped;
mod chain;
mod function;
mod resolver;
mod rows;
mod source;

pub use capped::CAP;
pub use chain::ChainSpec;
pub use function::FunctionSpec;
pub(crate) use function::places;
pub use rows::Row;
pub use source::Source;
pub use tailwater_api::chain::{Match, OnFailure};

#[cfg(test)]
mod tests;
