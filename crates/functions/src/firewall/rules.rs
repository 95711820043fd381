//! Rules and zones of a firewall.

use crate::acl;
use ipnet::IpNet;
use std::ops::RangeInclusive;

/// Maximum number of zones of a firewall.
pub const MAX_ZONES: usize = 16;
/// Maximum number of rules of a firewall.
pub const MAX_RULES: usize = 250_000;

/// Action for a connection, or for a packet of no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Packets pass.
    Allow,
    /// Packets are dropped.
    Deny,
    /// Packets are dropped and counted as rejected instead of denied.
    Reject,
}

/// Relation of a packet to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// First packet of a connection.
    New,
    /// Packet of an existing connection.
    Established,
    /// ICMP error about an existing connection.
    Related,
    /// Packet of no connection, for example out of the window or an unsolicited answer.
    Invalid,
}

impl State {
    /// All states, in the order of their bits in [`States`].
    pub const ALL: [(&'static str, State); 4] = [
        ("new", State::New),
        ("established", State::Established),
        ("related", State::Related),
        ("invalid", State::Invalid),
    ];
}

/// Set of states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct States(u8);

impl States {
    /// The empty set.
    pub const NONE: States = States(0);
    /// First packets of connections: the default of rules that name no state.
    pub const NEW: States = States(1);

    /// Returns `true` if the set contains `state`.
    pub fn has(self, state: State) -> bool {
        self.0 >> state as u8 & 1 != 0
    }

    /// Returns the set with `state` added.
    #[must_use]
    pub fn with(self, state: State) -> States {
        States(self.0 | 1 << state as u8)
    }

    /// Returns `true` if the set contains all of `others`.
    pub fn contain(self, others: States) -> bool {
        others.0 & !self.0 == 0
    }
}

/// Firewall rule. A packet must match every given field. The first rule that matches decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Action for matching packets.
    pub action: Action,
    /// Source zone, by its index in the list.
    pub from: Option<u8>,
    /// Destination zone, by its index in the list.
    pub to: Option<u8>,
    /// Source prefix.
    pub source: Option<IpNet>,
    /// Destination prefix.
    pub destination: Option<IpNet>,
    /// Source ports.
    pub source_ports: RangeInclusive<u16>,
    /// Destination ports.
    pub destination_ports: RangeInclusive<u16>,
    /// IP protocol; `None` matches all.
    pub protocol: Option<u8>,
    /// States of matching packets.
    pub states: States,
    /// Line in the rules file, or position in the list, from 1.
    pub line: u32,
}

/// All ports.
pub(super) const ANY_PORT: RangeInclusive<u16> = 0..=u16::MAX;

impl Rule {
    /// Creates a rule that matches all new connections.
    pub(crate) fn any(action: Action, line: u32) -> Rule {
        Rule {
            action,
            from: None,
            to: None,
            source: None,
            destination: None,
            source_ports: ANY_PORT,
            destination_ports: ANY_PORT,
            protocol: None,
            states: States::NEW,
            line,
        }
    }

    /// Returns the addresses, ports and protocol, for a classifier.
    pub(super) fn five_tuple(&self) -> acl::Rule {
        acl::Rule {
            source: self.source,
            destination: self.destination,
            source_ports: self.source_ports.clone(),
            destination_ports: self.destination_ports.clone(),
            protocol: self.protocol,
            action: acl::Action::Allow,
        }
    }
}

/// Network zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Its name.
    pub name: String,
    /// Prefixes of the zone. An address belongs to the zone with the longest matching prefix.
    pub prefixes: Vec<IpNet>,
    /// Port of the zone. If given, packets from this port, and only these, come from the zone.
    pub port: Option<ZonePort>,
}

/// One of a chain's two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZonePort {
    /// The entry port.
    Entry,
    /// The exit port.
    Exit,
}
