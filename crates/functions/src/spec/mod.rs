//! Chain specs: the YAML a user writes, validated and converted to types.
//!
//! [`ChainSpec::read`] is the only entry point. A spec that it returns can run as it is. Any problem is a [`SpecError`](tailwater_api::SpecError)
//! that names file, line, column, field, expected and found value. `docs/reference/chain-spec.md` describes every field.
//!
//! The text is parsed into a tree of located nodes (`yaml`). These are read field by field (`located`, `values`) into
//! the types of `chain` and `sequence`, and by the [kind](crate::kind) of each function into its configuration.

mod chain;
mod item;
mod rows;
mod sequence;
mod source;

pub use chain::{ChainSpec, Match};
pub use rows::Row;
pub use sequence::FunctionSpec;
pub(crate) use sequence::places;
pub use source::Source;

#[cfg(test)]
mod tests;
