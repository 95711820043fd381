//! Sessions, profiles and treatments.

use super::direction::LinkDirection;
use super::filter::Flows;
use crate::acl::linear;
use crate::policer::Meter;
use std::net::{IpAddr, Ipv4Addr};
use tailwater_net::{FlowKey, Nanos};

/// Largest number of sessions per function.
pub const MAX_SESSIONS: usize = 4 << 20;
/// Largest number of profiles.
pub const MAX_PROFILES: usize = 4096;
/// Largest number of rules per profile.
pub const MAX_RULES: usize = 64;
/// Largest number of rules with their own rates per profile.
pub const MAX_RATES: usize = 8;
/// Largest number of local addresses.
pub const MAX_ADDRESSES: usize = 16;

/// End of the tunnels this function implements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// User plane function: UEs are on the tunnels' remote side.
    #[default]
    Core,
    /// Base station: UEs are on the local side.
    Access,
}

impl Role {
    /// Returns the UE's address in a packet outside tunnels.
    #[inline]
    pub(super) fn user(self, key: &FlowKey) -> IpAddr {
        match self {
            Role::Core => key.destination(),
            Role::Access => key.source(),
        }
    }

    /// Returns the directions of decapsulated and of encapsulated packets.
    #[inline]
    pub(super) fn directions(self) -> [LinkDirection; 2] {
        match self {
            Role::Core => [LinkDirection::Up, LinkDirection::Down],
            Role::Access => [LinkDirection::Down, LinkDirection::Up],
        }
    }
}

/// Remote end of a session's tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Address of the peer.
    pub peer: IpAddr,
    /// TEID at the peer; not 0.
    pub teid: u32,
}

/// Session of a UE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Number assigned by the control plane.
    pub id: u64,
    /// The UE's IPv4 address.
    pub address: Option<Ipv4Addr>,
    /// First 64 bits of the UE's IPv6 addresses.
    pub prefix: Option<u64>,
    /// Local TEID; not 0.
    pub teid: u32,
    /// Tunnel to the peer; `None` while there is none, for example for an idle UE.
    pub tunnel: Option<Tunnel>,
    /// Index of its profile.
    pub profile: u16,
}

/// Treatment of packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Treatment {
    /// QoS flow in the container of encapsulated packets; `None` omits the container, as in 4G.
    pub qfi: Option<u8>,
    /// DSCP of outer headers; `None` copies the inner one.
    pub dscp: Option<u8>,
    /// Gates, up and down: `true` lets packets pass.
    pub open: [bool; 2],
    /// Rates of these packets, up and down.
    pub rates: [Option<Meter>; 2],
    /// `true` if the packets count against the session's rates.
    pub in_session_rate: bool,
    /// `true` if the packets count as usage.
    pub counted: bool,
}

/// Rule that gives some of a session's packets their own treatment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Packets it applies to.
    pub flows: Flows,
    /// Their treatment.
    pub treatment: Treatment,
}

/// Profile of sessions: rules, rates and reporting thresholds. Packets without a rule get treatment `rest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name sessions refer to.
    pub name: String,
    /// Rules in order; the first match applies.
    pub rules: Vec<Rule>,
    /// Treatment of packets that match no rule; `None` drops them.
    pub rest: Option<Treatment>,
    /// Rates of the session, up and down.
    pub session_rates: [Option<Meter>; 2],
    /// Bytes of usage between volume reports, both directions.
    pub volume: Option<u64>,
    /// Interval of time reports.
    pub time: Option<Nanos>,
}

impl Profile {
    /// Returns the index of a packet's treatment, or `None` if it has none. `key` is the inner packet's.
    #[inline]
    pub(super) fn find(&self, key: &FlowKey, direction: LinkDirection) -> Option<u16> {
        let matches = |rule: &Rule| linear::matches(rule.flows.of(direction), key);
        match self.rules.iter().position(matches) {
            Some(place) => Some(place as u16),
            None => self.rest.as_ref().map(|_| self.rules.len() as u16),
        }
    }

    /// Returns the treatment with an index from [`find`](Profile::find).
    #[inline]
    pub(super) fn treatment(&self, place: u16) -> Option<&Treatment> {
        let rule = self.rules.get(usize::from(place));
        rule.map(|rule| &rule.treatment).or(self.rest.as_ref())
    }

    /// Iterates over all treatments in order of their indices.
    pub(super) fn treatments(&self) -> impl Iterator<Item = &Treatment> {
        let rules = self.rules.iter().map(|rule| &rule.treatment);
        rules.chain(&self.rest)
    }
}
