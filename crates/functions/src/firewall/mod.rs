//! `Firewall`: stateful firewall with rules between zones.

mod connection;
mod explain;
pub(crate) mod fragment;
mod function;
mod kind;
pub mod language;
mod options;
mod overlap;
mod rule_set;
mod rules;
mod shared_tables;
mod spec;
mod table;
mod tcp;
mod transfer;

pub use function::Firewall;
pub use kind::KIND;
pub use options::{Fragments, HalfOpen, Options, Timeouts};
pub use overlap::{ShadowedRules, shadowed};
pub use rule_set::RuleSetError;
pub use rules::{Action, MAX_RULES, MAX_ZONES, Rule, State, States, Zone, ZonePort};
pub use spec::FirewallConfig;
pub use table::FirewallTable;

#[cfg(test)]
mod tests;
