//! An access-control rule.

use ipnet::IpNet;
use std::ops::RangeInclusive;

/// What happens to a packet that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The packet goes on to the next function.
    Allow,
    /// The packet is dropped.
    Deny,
}

/// One rule: every given field must match. Rules are tried in order; the first match decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Source prefix; `None` matches every address of both IP versions.
    pub source: Option<IpNet>,
    /// Destination prefix; `None` matches every address of both IP versions.
    pub destination: Option<IpNet>,
    /// Source ports. A range that is not the full one matches TCP, UDP and other packets by the
    /// ports of their flow key (zero where a packet has none).
    pub source_ports: RangeInclusive<u16>,
    /// Destination ports, likewise.
    pub destination_ports: RangeInclusive<u16>,
    /// IP protocol number; `None` matches all.
    pub protocol: Option<u8>,
    /// What to do with a packet that matches.
    pub action: Action,
}
