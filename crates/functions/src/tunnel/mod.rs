//! `Tunnel`: pushes and pops VLAN tags by rule.

pub mod function;
pub mod rules;

pub use function::Tunnel;
pub(crate) use function::outer_vlan;
pub use rules::{Action, Rule, TunnelRules, VlanMatch};

#[cfg(test)]
mod tests;
