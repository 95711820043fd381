//! Security associations and policies, as they are configured.

use super::cipher::Keying;
use crate::acl;
use std::net::IpAddr;

/// The most associations of each direction.
pub const MAX_ASSOCIATIONS: usize = 65_536;
/// The most policies, and the most prefixes that may come out of one association.
pub const MAX_POLICIES: usize = 65_536;
/// The largest anti-replay window, in packets.
pub const MAX_WINDOW: u32 = 65_536;
/// The anti-replay window where nothing is said.
pub const WINDOW: u32 = 1024;

/// What makes up an ESP association of either direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Association {
    /// Its name in the spec.
    pub name: String,
    /// The security parameters index, from 256 on.
    pub spi: u32,
    /// The cipher with its key.
    pub keying: Keying,
    /// Whether sequence numbers have 64 bits (ESN, RFC 4304), of which 32 are in the packets.
    pub extended: bool,
}

/// The ports of ESP in UDP (RFC 3948).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpPorts {
    /// The source port.
    pub source: u16,
    /// The destination port.
    pub destination: u16,
}

/// How the outer IPv4 header's "don't fragment" is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DontFragment {
    /// As in the inner header; set for IPv6, whose packets routers do not fragment.
    #[default]
    Copy,
    /// Always.
    Set,
    /// Never.
    Clear,
}

/// An association that packets leave by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outbound {
    /// Index and key.
    pub association: Association,
    /// The outer source.
    pub source: IpAddr,
    /// The outer destination, of the same IP version.
    pub destination: IpAddr,
    /// The ports, if ESP is in UDP.
    pub udp: Option<UdpPorts>,
    /// The outer time to live, or hop limit.
    pub ttl: u8,
    /// The outer code point; `None`: the inner one's.
    pub dscp: Option<u8>,
    /// "Don't fragment" of an outer IPv4 header.
    pub dont_fragment: DontFragment,
    /// The first packet's sequence number, at least 1.
    pub first: u64,
}

/// An association that packets come by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inbound {
    /// Index and key.
    pub association: Association,
    /// The outer destination: an address of this end.
    pub destination: IpAddr,
    /// This end's port, if ESP is in UDP.
    pub udp: Option<u16>,
    /// How many sequence numbers the anti-replay window holds; `None`: there is none, which 64-bit numbers do not
    /// allow.
    pub window: Option<u32>,
    /// The first packet's sequence number, at least 1: with a window none below is taken.
    pub first: u64,
    /// Which packets may come out; all if empty. Actions do not count.
    pub allow: Vec<acl::Rule>,
}

/// What a policy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyAction {
    /// The packet leaves by the outbound association at this place in the list.
    Protect(u32),
    /// It goes on as it is.
    Pass,
    /// It is dropped.
    Drop,
}

/// Which packets become what. The first policy that matches counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What matches; its action does not count.
    pub rule: acl::Rule,
    /// What becomes of it.
    pub action: PolicyAction,
}

/// All that an IPsec function is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpsecRules {
    /// Associations that packets leave by.
    pub outbound: Vec<Outbound>,
    /// Associations that packets come by; no two have the same index.
    pub inbound: Vec<Inbound>,
    /// Policies in order, for packets that are not ESP to one of this end's addresses.
    pub policies: Vec<Policy>,
    /// What becomes of packets that no policy matches: `Pass` or `Drop`.
    pub default: PolicyAction,
    /// The longest outer IP packet, in bytes.
    pub mtu: u16,
    /// Whether the key exchange's packets on ESP's UDP port (non-ESP marker) pass.
    pub pass_ike: bool,
    /// Whether NAT keep-alives pass.
    pub pass_keep_alives: bool,
}

/// What tells an association's end from others: whether it sends, the index and the outer destination.
pub(crate) type Identity = (bool, u32, IpAddr);

/// One end of an association, as it stands in rules.
pub(crate) struct End<'a> {
    pub(crate) association: &'a Association,
    destination: IpAddr,
    sends: bool,
}

impl End<'_> {
    pub(crate) fn identity(&self) -> Identity {
        (self.sends, self.association.spi, self.destination)
    }

    /// Whether the two are the ends of one association, which share a key.
    pub(crate) fn is_far_end_of(&self, other: Identity) -> bool {
        (!self.sends, self.association.spi, self.destination) == other
    }
}

impl IpsecRules {
    /// The ends of the associations of both directions.
    pub(crate) fn ends(&self) -> impl Iterator<Item = End<'_>> {
        let outbound = self.outbound.iter().map(|outbound| End {
            association: &outbound.association,
            destination: outbound.destination,
            sends: true,
        });
        outbound.chain(self.inbound.iter().map(|inbound| End {
            association: &inbound.association,
            destination: inbound.destination,
            sends: false,
        }))
    }
}
