//! Chain specs: the YAML a user writes, checked and turned into types.
//!
//! [`ChainSpec::read`] is the one door: what it returns can be run as it is, and whatever is
//! wrong is a [`SpecError`] that names file, line, column, field, what was expected and what
//! was found. `docs/chain-spec.md` describes every field.
//!
//! Text becomes a tree of located nodes (`yaml`), which is read field by field (`located`,
//! `values`) into the types of `chain`, `sequence` and `functions`. A new function kind is a file in
//! `functions/` and a line in its registry.

mod chain;
mod functions;
mod rows;
mod sequence;
mod source;

pub use chain::{ChainSpec, Match};
#[cfg(test)]
pub(crate) use functions::load_ids_rules;
pub use functions::{
    AclConfig, BranchConfig, Changes, ClassifierConfig, DnsGuardConfig, ExternalConfig, FirewallConfig,
    ForeignFunction, ForwardConfig, FunctionConfig, IdsConfig, IpForwardConfig, LibraryConfig, MirrorConfig, Missing,
    NatConfig, OwnFunction, ProgramConfig, Target, TunnelConfig, UpfConfig, WanOptimizerConfig,
};
pub use rows::Row;
pub use sequence::FunctionSpec;
pub(crate) use sequence::places;
pub use source::Source;

#[cfg(test)]
mod tests;
