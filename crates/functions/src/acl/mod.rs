//! Access control by ordered 5-tuple rules. The first match decides.

mod address;
pub mod classbench;
pub mod classifier;
mod dispatch;
pub mod function;
pub mod generate;
pub mod linear;
pub mod rule;
mod rule_sets;
mod service;
pub mod shadow;

pub use classifier::Classifier;
pub use function::{Acl, AclRules, AclTable};
pub use rule::{Action, Rule};
