//! What a firewall's rules say.

use crate::acl;
use ipnet::IpNet;
use std::ops::RangeInclusive;

/// The most zones of a firewall.
pub const MAX_ZONES: usize = 16;
/// The most rules of a firewall.
pub const MAX_RULES: usize = 250_000;

/// What becomes of a connection, or of a packet that is none's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// It passes.
    Allow,
    /// It is dropped.
    Deny,
    /// It is dropped, and counted apart from what is denied.
    Reject,
}

/// How a packet stands to connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// The first of a connection.
    New,
    /// Of a connection that is there.
    Established,
    /// An ICMP error about one.
    Related,
    /// None of these: out of the window, an answer to nothing.
    Invalid,
}

impl State {
    /// All of them, in the order of their bits in [`States`].
    pub const ALL: [(&'static str, State); 4] = [
        ("new", State::New),
        ("established", State::Established),
        ("related", State::Related),
        ("invalid", State::Invalid),
    ];
}

/// A set of states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct States(u8);

impl States {
    /// None.
    pub const NONE: States = States(0);
    /// The first packets of connections: what rules are about that name no state.
    pub const NEW: States = States(1);

    /// Whether this one is among them.
    pub fn has(self, state: State) -> bool {
        self.0 >> state as u8 & 1 != 0
    }

    /// With this one.
    #[must_use]
    pub fn with(self, state: State) -> States {
        States(self.0 | 1 << state as u8)
    }

    /// Whether all of the others are among them.
    pub fn contain(self, others: States) -> bool {
        others.0 & !self.0 == 0
    }
}

/// A rule: a packet must match everything that is given. The first that matches decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What becomes of what matches.
    pub action: Action,
    /// The zone that it comes from, by its place in the list.
    pub from: Option<u8>,
    /// The zone that it goes to.
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
    /// The states that it is about.
    pub states: States,
    /// The line of the file that it is in, or its place in the list, from 1.
    pub line: u32,
}

/// All ports.
pub(super) const ANY_PORT: RangeInclusive<u16> = 0..=u16::MAX;

impl Rule {
    /// A rule about everything new.
    pub(super) fn any(action: Action, line: u32) -> Rule {
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

    /// Its addresses, ports and protocol, for a classifier.
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

/// A part of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Its name.
    pub name: String,
    /// Its addresses: an address is of the zone with the longest prefix that holds it.
    pub prefixes: Vec<IpNet>,
    /// The port that it lies behind, if packets from there, and only those, are from the zone.
    pub port: Option<ZonePort>,
}

/// Which of a chain's two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZonePort {
    /// The entry port.
    Entry,
    /// The exit port.
    Exit,
}
