//! `Tunnel`: pushes and pops VLAN tags by rule.

pub mod function;
mod kind;
pub mod rules;
mod spec;

pub use function::Tunnel;
pub(crate) use function::outer_vlan;
pub use kind::KIND;
pub use rules::{Action, Rule, TunnelRules, VlanMatch};
pub use spec::TunnelConfig;
pub(crate) use spec::{VLAN_OR_UNTAGGED, vlan};

#[cfg(test)]
mod tests;
