//! `Firewall`: stateful firewall with rules between zones.

mod connection;
pub(crate) mod fragment;
mod function;
mod known;
pub mod language;
mod overlap;
mod rule_set;
mod rules;
mod table;
mod tcp;

pub use function::Firewall;
pub use overlap::{Shadowed, shadowed};
pub use rule_set::RuleSetError;
pub use rules::{Action, MAX_RULES, MAX_ZONES, Rule, State, States, Zone, ZonePort};
pub use table::{FirewallTable, Fragments, HalfOpen, Options, Timeouts};

#[cfg(test)]
mod tests;
