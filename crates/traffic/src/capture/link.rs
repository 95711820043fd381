//! Link types, and how each becomes an Ethernet frame.
//!
//! Everything but Ethernet gets a made-up Ethernet header whose EtherType follows from the
//! packet's content.

use std::ops::Range;

use tailwater_net::protocol::ethertype;

/// The destination address of made-up Ethernet headers, locally administered.
pub const SYNTHETIC_DESTINATION: [u8; 6] = [0x02, 0, 0, 0, 0, 0x02];

/// The source address of made-up Ethernet headers, locally administered.
pub const SYNTHETIC_SOURCE: [u8; 6] = [0x02, 0, 0, 0, 0, 0x01];

/// The EtherType of made-up headers over content that has none: IEEE 802 local experimental 1.
pub const SYNTHETIC_ETHERTYPE: u16 = 0x88b5;

/// The link types that can be read, for messages.
pub(crate) const SUPPORTED_LINK_TYPES: &str = "Ethernet (1), BSD null and loopback (0, 108), \
     raw IP (12, 14, 101, 228, 229), Linux cooked v1 and v2 (113, 276)";

/// Bytes of an Ethernet header without tags.
const ETHERNET: usize = 14;

/// Bytes that [`LinkType::frame`] may write before a record's data.
pub(super) const HEADROOM: usize = ETHERNET;

/// What precedes the network layer in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkType {
    Ethernet,
    /// An address family in four bytes, in either byte order.
    Null,
    /// Nothing: the version is in the first four bits.
    Raw,
    RawV4,
    RawV6,
    Cooked,
    Cooked2,
    Unsupported(u32),
}

impl LinkType {
    /// The link type of a number in the registry of link-layer header types.
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

    /// Bytes of the link-layer header that a made-up Ethernet header replaces (0 for Ethernet,
    /// which keeps its own).
    pub(super) fn header(self) -> usize {
        match self {
            LinkType::Ethernet | LinkType::Raw | LinkType::RawV4 | LinkType::RawV6 => 0,
            LinkType::Null => 4,
            LinkType::Cooked => 16,
            LinkType::Cooked2 => 20,
            LinkType::Unsupported(_) => 0,
        }
    }

    /// How many bytes longer (or shorter) the Ethernet frame is than the record.
    pub(super) fn growth(self) -> i64 {
        match self {
            LinkType::Ethernet | LinkType::Unsupported(_) => 0,
            other => ETHERNET as i64 - other.header() as i64,
        }
    }

    /// Turns the record at `buffer[record]` into an Ethernet frame in place; gives where the
    /// frame lies, or `None` if the record ends within its link-layer header (or the buffer
    /// lacks [`HEADROOM`] bytes before the record). `wire_length` is the record's.
    pub(super) fn frame(self, buffer: &mut [u8], record: Range<usize>, wire_length: u64) -> Option<Range<usize>> {
        let data = buffer.get(record.clone())?;
        let ethertype = match self {
            LinkType::Ethernet | LinkType::Unsupported(_) => return Some(record),
            LinkType::RawV4 => ethertype::IPV4,
            LinkType::RawV6 => ethertype::IPV6,
            LinkType::Raw => match data.first()? >> 4 {
                6 => ethertype::IPV6,
                // Whatever is not IP either is left to the parser to refuse.
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

/// BSD loopback: the address family in the byte order of the capturing machine, or (OpenBSD)
/// in network order. `AF_INET` is 2 everywhere; `AF_INET6` is 24, 28 or 30 on the BSDs and
/// 10 on Linux.
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

/// Linux cooked: the protocol is an EtherType, or a small number of Linux's own. Of these, 4
/// is an 802.2 LLC frame, whose field in an Ethernet frame is the payload's length.
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

/// The name of a common link type that cannot be read, in parentheses after a space.
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
