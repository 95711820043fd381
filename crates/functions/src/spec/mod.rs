//! Chain specs: the YAML a user writes, validated and converted to types.
//!
//! [`ChainSpec::read`] is the only entry point. A spec that it returns can run as it is. Any problem is a [`SpecError`]
//! that names file, line, column, field, expected and found value. `docs/reference/chain-spec.md` describes every field.
//!
//! The text is parsed into a tree of located nodes (`yaml`). These are read field by field (`located`, `values`) into
//! the types of `chain`, `sequence` and `functions`. A new function type is a file in `functions/` and a line in its
//! registry.

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
