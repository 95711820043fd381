//! Link types, and their conversion to Ethernet frames.
//!
//! All link types except Ethernet get a synthetic Ethernet header, whose EtherType is derived from the packet.

use std::ops::Range;

use tailwater_net::protocol::ethertype;

/// Destination address of synthetic Ethernet headers, locally administered.
pub const SYNTHETIC_DESTINATION: [u8; 6] = [0x02, 0, 0, 0, 0, 0x02];

/// Source address of synthetic Ethernet headers, locally administered.
pub const SYNTHETIC_SOURCE: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];

/// EtherType of synthetic headers for content without one: IEEE 802 local experimental 1.
pub const SYNTHETIC_ETHERTYPE: u16 = 0x88b5;

/// Supported link types, for messages.
pub(crate) const SUPPORTED_LINK_TYPES: &str = "Ethernet (1), BSD null and loopback (0, 108), \
     raw IP (12, 14, 101, 228, 229), Linux cooked v1 and v2 (113, 276)";

/// Size of an Ethernet header without tags in bytes.
const ETHERNET: usize = 14;

/// Bytes that [`LinkType::frame`] may write before a record's data.
pub(super) const HEADROOM: usize = ETHERNET;

/// Header in front of the network layer in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkType {
    Ethernet,
    /// Four-byte address family, in either byte order.
    Null,
    /// No header: the IP version is in the first four bits.
    Raw,
    RawV4,
    RawV6,
    Cooked,
    Cooked2,
    Unsupported(u32),
}

impl LinkType {
    /// Returns the link type of a number in the registry of link-layer header types.
    pub(super) fn from_number(number: u32) -> Self {
        match number {
            0 | 108 => LinkType::Null,
            1 => LinkType::Ethernet,
            12 | 14 | 101 => LinkType::Raw,
            113 => LinkType::Cooked,
            228 => LinkType::RawV4,
            229 => LinkType::RawV6,
            276 => LinkType::Cooked2,
            other => LinkType::Unsupported(other),
        }
    }

    /// Returns the size in bytes of the link-layer header that a synthetic Ethernet header replaces (0 for Ethernet,
    /// which is kept).
    pub(super) fn header(self) -> usize {
        match self {
            LinkType::Ethernet | LinkType::Raw | LinkType::RawV4 | LinkType::RawV6 => 0,
            LinkType::Null => 4,
            LinkType::Cooked => 16,
            LinkType::Cooked2 => 20,
            LinkType::Unsupported(_) => 0,
        }
    }

    /// Returns the difference in bytes between the Ethernet frame and the record.
    pub(super) fn growth(self) -> i64 {
        match self {
            LinkType::Ethernet | LinkType::Unsupported(_) => 0,
            other => ETHERNET as i64 - other.header() as i64,
        }
    }

    /// Converts the record at `buffer[record]` to an Ethernet frame in place, and returns the frame's range. `None` if
    /// the record ends within its link-layer header, or the buffer lacks [`HEADROOM`] bytes before the record.
    /// `wire_length` is the record's.
    pub(super) fn frame(self, buffer: &mut [u8], record: Range<usize>, wire_length: u64) -> Option<Range<usize>> {
        let data = buffer.get(record.clone())?;
        let ethertype = match self {
            LinkType::Ethernet | LinkType::Unsupported(_) => return Some(record),
            LinkType::RawV4 => ethertype::IPV4,
            LinkType::RawV6 => ethertype::IPV6,
            LinkType::Raw => match data.first()? >> 4 {
                6 => ethertype::IPV6,
                // The parser rejects packets that are not IP either.
                _ => ethertype::IPV4,
            },
            LinkType::Null => null_ethertype(*data.first_chunk()?),
            LinkType::Cooked => cooked_ethertype(data.get(..16)?[14..].try_into().ok()?, 16, wire_length),
            LinkType::Cooked2 => cooked_ethertype(data.get(..20)?[..2].try_into().ok()?, 20, wire_length),
        };
        let start = (record.start + self.header()).checked_sub(ETHERNET)?;
        let header = buffer.get_mut(start..start + ETHERNET)?;
        header[..6].copy_from_slice(&SYNTHETIC_DESTINATION);
        header[6..12].copy_from_slice(&SYNTHETIC_SOURCE);
        header[12..].copy_from_slice(&ethertype.to_be_bytes());
        Some(start..record.end)
    }
}

/// Returns the EtherType of a BSD loopback header: an address family in the byte order of the capturing machine, or
/// (OpenBSD) in network order. `AF_INET` is 2 everywhere; `AF_INET6` is 24, 28 or 30 on the BSDs and 10 on Linux.
fn null_ethertype(family: [u8; 4]) -> u16 {
    let little = u32::from_le_bytes(family);
    match if little > 0xffff {
        u32::from_be_bytes(family)
    } else {
        little
    } {
        2 => ethertype::IPV4,
        10 | 24 | 28 | 30 => ethertype::IPV6,
        _ => SYNTHETIC_ETHERTYPE,
    }
}

/// Returns the EtherType of a Linux cooked header: its protocol is an EtherType, or a small Linux-specific number.
/// Number 4 is an 802.2 LLC frame, whose Ethernet field is the payload's length.
fn cooked_ethertype(protocol: [u8; 2], header: u64, wire_length: u64) -> u16 {
    match u16::from_be_bytes(protocol) {
        ethertype @ 0x0600.. => ethertype,
        4 => match wire_length.saturating_sub(header) {
            length @ 0..=1500 => length as u16,
            _ => SYNTHETIC_ETHERTYPE,
        },
        _ => SYNTHETIC_ETHERTYPE,
    }
}

/// Returns the name of a common unsupported link type, in parentheses after a space.
pub(super) fn unsupported_name(number: u32) -> &'static str {
    match number {
        9 => " (PPP)",
        51 => " (PPPoE)",
        104 => " (Cisco HDLC)",
        105 => " (IEEE 802.11)",
        107 => " (frame relay)",
        119 | 127 | 163 => " (IEEE 802.11 with radio information)",
        187 | 201 => " (Bluetooth HCI)",
        189 | 220 | 249 => " (USB)",
        192 => " (per-packet information)",
        195 | 230 => " (IEEE 802.15.4)",
        227 => " (CAN bus)",
        239 => " (netfilter log)",
        252 => " (Wireshark upper PDU)",
        253 => " (Linux netlink)",
        _ => "",
    }
}
