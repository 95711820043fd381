//! Numbers on the wire: EtherTypes and IP protocols.

/// EtherTypes (IEEE 802 Numbers registry).
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// An 802.1Q customer VLAN tag.
    pub const VLAN: u16 = 0x8100;
    /// An 802.1ad service VLAN tag.
    pub const QINQ: u16 = 0x88a8;
    /// A service VLAN tag of switches older than 802.1ad.
    pub const QINQ_OLD: u16 = 0x9100;

    /// Returns `true` for the EtherType of a VLAN tag.
    #[inline]
    pub const fn is_vlan(ethertype: u16) -> bool {
        matches!(ethertype, VLAN | QINQ | QINQ_OLD)
    }
}

/// IPv6 hop-by-hop options (RFC 8200 §4.3).
pub const HOP_BY_HOP: u8 = 0;
/// ICMP (RFC 792).
pub const ICMP: u8 = 1;
/// IPv4 in IP (RFC 2003).
pub const IPV4: u8 = 4;
/// TCP (RFC 9293).
pub const TCP: u8 = 6;
/// UDP (RFC 768).
pub const UDP: u8 = 17;
/// IPv6 in IP (RFC 4213).
pub const IPV6: u8 = 41;
/// IPv6 routing header (RFC 8200 §4.4).
pub const ROUTING: u8 = 43;
/// IPv6 fragment header (RFC 8200 §4.5).
pub const FRAGMENT: u8 = 44;
/// Generic routing encapsulation (RFC 2784).
pub const GRE: u8 = 47;
/// Encapsulating security payload (RFC 4303): everything after it is encrypted.
pub const ESP: u8 = 50;
/// Authentication header (RFC 4302).
pub const AUTHENTICATION: u8 = 51;
/// ICMPv6 (RFC 4443).
pub const ICMPV6: u8 = 58;
/// Nothing follows (RFC 8200 §4.7).
pub const NO_NEXT_HEADER: u8 = 59;
/// IPv6 destination options (RFC 8200 §4.6).
pub const DESTINATION_OPTIONS: u8 = 60;
/// SCTP (RFC 9260).
pub const SCTP: u8 = 132;
/// Mobility header (RFC 6275 §6.1).
pub const MOBILITY: u8 = 135;
/// Host identity protocol (RFC 7401 §5.1).
pub const HIP: u8 = 139;
/// Shim6 (RFC 5533 §5.1).
pub const SHIM6: u8 = 140;

/// Returns `true` for an IPv6 extension header that has a next header.
#[inline]
pub const fn is_extension(protocol: u8) -> bool {
    matches!(
        protocol,
        HOP_BY_HOP | ROUTING | FRAGMENT | AUTHENTICATION | DESTINATION_OPTIONS | MOBILITY | HIP | SHIM6
    )
}
