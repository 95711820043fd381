//! VLAN tunnels: tags pushed and popped by rule.

pub mod function;
pub mod rules;

pub use function::Tunnel;
pub use rules::{Action, Rule, TunnelRules, VlanMatch};

#[cfg(test)]
mod tests;
