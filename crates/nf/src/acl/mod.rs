//! Access control: ordered 5-tuple rules, first match decides.

pub mod rule;
pub use rule::{Action, Rule};
