//! Access control by ordered 5-tuple rules. The first match decides.

mod address;
pub mod classbench;
pub mod classifier;
mod dispatch;
pub mod function;
pub mod generate;
mod kind;
mod limits;
pub mod linear;
pub(crate) mod naming;
pub mod rule;
pub(crate) mod rule_list;
mod rule_sets;
mod service;
pub mod shadow;
pub(crate) mod shadowed_rules;
mod spec;

pub use classifier::Classifier;
pub use function::{Acl, AclRules, AclTable};
pub use kind::KIND;
pub use rule::{Action, Rule};
pub use spec::AclConfig;
