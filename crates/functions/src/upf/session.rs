//! Sessions, and how they are treated.

use super::filter::Flows;
use crate::acl::linear;
use crate::policer::Meter;
use std::net::{IpAddr, Ipv4Addr};
use tailwater_net::{FlowKey, Nanos};

/// The most sessions of a function.
pub const MAX_SESSIONS: usize = 4 << 20;
/// The most profiles.
pub const MAX_PROFILES: usize = 4096;
/// The most rules of a profile.
pub const MAX_RULES: usize = 64;
/// The most rules of a profile that have rates of their own.
pub const MAX_RATES: usize = 8;
/// The most addresses of this end.
pub const MAX_ADDRESSES: usize = 16;

/// Which end of tunnels this is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// The user plane function: users are on the tunnels' far side.
    #[default]
    Core,
    /// The base station: users are on the near side.
    Access,
}

impl Role {
    /// The address that says whose a packet is that comes by no tunnel.
    #[inline]
    pub(super) fn user(self, key: &FlowKey) -> IpAddr {
        match self {
            Role::Core => key.destination(),
            Role::Access => key.source(),
        }
    }

    /// The ways of packets that come out of tunnels, and that go into them.
    #[inline]
    pub(super) fn ways(self) -> [Way; 2] {
        match self {
            Role::Core => [Way::Up, Way::Down],
            Role::Access => [Way::Down, Way::Up],
        }
    }
}

/// The way of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the user.
    Up,
    /// To the user.
    Down,
}

impl Way {
    /// As a place in pairs of what there is for either way.
    #[inline]
    pub(super) fn at(self) -> usize {
        match self {
            Way::Up => 0,
            Way::Down => 1,
        }
    }
}

/// Where a session's packets are tunnelled to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// The other end.
    pub peer: IpAddr,
    /// Its identifier there; not 0.
    pub teid: u32,
}

/// A session of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Its number, for whoever manages it.
    pub id: u64,
    /// The user's address.
    pub address: Option<Ipv4Addr>,
    /// The first 64 bits of the user's IPv6 addresses.
    pub prefix: Option<u64>,
    /// The identifier of the tunnel that ends here; not 0.
    pub teid: u32,
    /// The tunnel that begins here; `None`: there is none, as while a user is idle.
    pub tunnel: Option<Tunnel>,
    /// The place of its profile.
    pub profile: u16,
}

/// What is done with packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Treatment {
    /// The QoS flow in the container of packets that go into tunnels; `None`: there is no container, as in 4G.
    pub qfi: Option<u8>,
    /// The code point of outer headers; `None`: the inner one's.
    pub dscp: Option<u8>,
    /// Whether packets pass at all, up and down.
    pub open: [bool; 2],
    /// Rates of these packets alone, up and down.
    pub rates: [Option<Meter>; 2],
    /// Whether they count for the session's own rates.
    pub in_session_rate: bool,
    /// Whether they count for usage.
    pub counted: bool,
}

/// Some packets of a session that are treated in a way of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Which.
    pub flows: Flows,
    /// How.
    pub treatment: Treatment,
}

/// How a session's packets are treated. What is no rule's has the last treatment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// What sessions call it.
    pub name: String,
    /// Rules in order; the first that matches counts.
    pub rules: Vec<Rule>,
    /// What becomes of packets that no rule matches; `None`: they are dropped.
    pub rest: Option<Treatment>,
    /// The rates of the session, up and down.
    pub session_rates: [Option<Meter>; 2],
    /// A report is made each time so many bytes were used, both ways.
    pub volume: Option<u64>,
    /// A report is made as often as this.
    pub time: Option<Nanos>,
}

impl Profile {
    /// The place of a packet's treatment; `None` if there is none for it. `key` is the inner packet's.
    #[inline]
    pub(super) fn find(&self, key: &FlowKey, way: Way) -> Option<u16> {
        let matches = |rule: &Rule| linear::matches(rule.flows.of(way), key);
        match self.rules.iter().position(matches) {
            Some(place) => Some(place as u16),
            None => self.rest.as_ref().map(|_| self.rules.len() as u16),
        }
    }

    /// The treatment at a place that was found.
    #[inline]
    pub(super) fn treatment(&self, place: u16) -> Option<&Treatment> {
        let rule = self.rules.get(usize::from(place));
        rule.map(|rule| &rule.treatment).or(self.rest.as_ref())
    }

    /// All treatments in the order of their places.
    pub(super) fn treatments(&self) -> impl Iterator<Item = &Treatment> {
        let rules = self.rules.iter().map(|rule| &rule.treatment);
        rules.chain(&self.rest)
    }
}
