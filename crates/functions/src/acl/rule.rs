//! Access-control rules.

use ipnet::IpNet;
use std::ops::RangeInclusive;

/// Action for a packet that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The packet continues to the next function.
    Allow,
    /// The packet is dropped.
    Deny,
}

/// Access-control rule. A packet must match every given field. Rules are tried in order, and the first match decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Source prefix; `None` matches every address of both IP versions.
    pub source: Option<IpNet>,
    /// Destination prefix; `None` matches every address of both IP versions.
    pub destination: Option<IpNet>,
    /// Source ports. A range other than the full one applies to all protocols. Packets without ports have zero ports in
    /// their flow key.
    pub source_ports: RangeInclusive<u16>,
    /// Destination ports, matched like the source ports.
    pub destination_ports: RangeInclusive<u16>,
    /// IP protocol number; `None` matches all.
    pub protocol: Option<u8>,
    /// Action for a packet that matches.
    pub action: Action,
}
