//! Configuration of security associations and policies.

use super::cipher::Keying;
use crate::acl;
use std::net::IpAddr;

/// Largest number of associations per direction.
pub const MAX_ASSOCIATIONS: usize = 65_536;
/// Largest number of policies, and of prefixes allowed out of one association.
pub const MAX_POLICIES: usize = 65_536;
/// Largest anti-replay window, in packets.
pub const MAX_WINDOW: u32 = 65_536;
/// Default anti-replay window, in packets.
pub const WINDOW: u32 = 1024;

/// Parameters common to ESP associations of both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Association {
    /// Name in the spec.
    pub name: String,
    /// Security parameters index (SPI), at least 256.
    pub spi: u32,
    /// Cipher with its key.
    pub keying: Keying,
    /// `true` for 64-bit sequence numbers (ESN, RFC 4304), of which packets carry the low 32 bits.
    pub extended: bool,
}

/// UDP ports of ESP in UDP (RFC 3948).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpPorts {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
}

/// Setting of the outer IPv4 header's "don't fragment" bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DontFragment {
    /// Copied from the inner header; set for IPv6, which routers do not fragment.
    #[default]
    Copy,
    /// Always set.
    Set,
    /// Never set.
    Clear,
}

/// Outbound association: encapsulates packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outbound {
    /// SPI and key.
    pub association: Association,
    /// Outer source address.
    pub source: IpAddr,
    /// Outer destination address, of the same IP version.
    pub destination: IpAddr,
    /// Ports, if ESP is in UDP.
    pub udp: Option<UdpPorts>,
    /// Outer time to live, or hop limit.
    pub ttl: u8,
    /// Outer DSCP; `None` copies the inner one.
    pub dscp: Option<u8>,
    /// "Don't fragment" bit of an outer IPv4 header.
    pub dont_fragment: DontFragment,
    /// First sequence number, at least 1.
    pub first: u64,
}

/// Inbound association: decapsulates packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inbound {
    /// SPI and key.
    pub association: Association,
    /// Outer destination, an address of this endpoint.
    pub destination: IpAddr,
    /// UDP port of this endpoint, if ESP is in UDP.
    pub udp: Option<u16>,
    /// Sequence numbers in the anti-replay window; `None` disables it, which 64-bit numbers do not allow.
    pub window: Option<u32>,
    /// First sequence number, at least 1. With a window, lower numbers are rejected.
    pub first: u64,
    /// Inner packets allowed; empty allows all. The rules' actions are ignored.
    pub allow: Vec<acl::Rule>,
}

/// Action of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyAction {
    /// Encapsulate with the outbound association at this index of the list.
    Protect(u32),
    /// Forward unchanged.
    Pass,
    /// Drop.
    Drop,
}

/// Policy that maps packets to an action. The first match applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Match condition; its own action is ignored.
    pub rule: acl::Rule,
    /// Action on matching packets.
    pub action: PolicyAction,
}

/// Complete configuration of an IPsec function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpsecRules {
    /// Outbound associations.
    pub outbound: Vec<Outbound>,
    /// Inbound associations; each SPI occurs once.
    pub inbound: Vec<Inbound>,
    /// Policies in order, for packets other than ESP to one of this endpoint's addresses.
    pub policies: Vec<Policy>,
    /// Action on packets that match no policy: `Pass` or `Drop`.
    pub default: PolicyAction,
    /// Largest outer IP packet, in bytes.
    pub mtu: u16,
    /// Lets IKE packets on ESP's UDP port (non-ESP marker) pass.
    pub pass_ike: bool,
    /// Lets NAT keep-alives pass.
    pub pass_keep_alives: bool,
}

/// Identity of one end of an association: outbound flag, SPI and outer destination.
pub(crate) type Identity = (bool, u32, IpAddr);

/// One end of an association, as configured.
pub(crate) struct End<'a> {
    pub(crate) association: &'a Association,
    destination: IpAddr,
    sends: bool,
}

impl End<'_> {
    pub(crate) fn identity(&self) -> Identity {
        (self.sends, self.association.spi, self.destination)
    }

    /// Returns `true` if the two are opposite ends of one association and so share a key.
    pub(crate) fn is_far_end_of(&self, other: Identity) -> bool {
        (!self.sends, self.association.spi, self.destination) == other
    }
}

impl IpsecRules {
    /// Iterates over the ends of the associations of both directions.
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
