//! Internet checksum (RFC 1071), computed as a whole or updated incrementally (RFC 1624).
//!
//! A network function that rewrites a header computes a [`ChecksumDelta`] once per flow, and applies it to each packet,
//! independently of the packet's size:
//!
//! ```
//! use tailwater_net::checksum::{ChecksumDelta, Checksum, verify_transport};
//! use tailwater_net::builder::FrameBuilder;
//! use tailwater_net::parse::parse;
//! use tailwater_net::tcp::TcpView;
//! use tailwater_net::{FlowKey, protocol};
//!
//! let key = FlowKey::v4([10, 0, 0, 1].into(), [192, 0, 2, 80].into(), protocol::TCP, 4000, 80);
//! let mut frame = FrameBuilder::new(&key).payload(b"GET /").to_vec().unwrap();
//!
//! // Once: the destination port changes from 80 to 8080.
//! let delta = ChecksumDelta::u16(80, 8080);
//!
//! // For each packet:
//! let headers = parse(&frame).unwrap();
//! let mut tcp = TcpView::new(&mut frame[headers.transport_offset as usize..]).unwrap();
//! tcp.set_destination_port(8080);
//! tcp.set_checksum(delta.apply(tcp.checksum()));
//! assert_eq!(verify_transport(&frame, &headers), Checksum::Correct);
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::bytes;
use crate::headers::{Fragment, Headers, Network};
use crate::ipv6::Ipv6View;
use crate::protocol;

/// Returns the ones' complement sum of the bytes as big-endian 16-bit words. An odd last byte is followed by a zero.
/// The sum is zero only if all bytes are zero.
///
/// A checksum field holds the complement of this sum. Over data that includes a correct checksum, the sum is 0xffff.
#[inline]
pub fn sum(bytes: &[u8]) -> u16 {
    fold_native(raw_sum(bytes))
}

/// Returns the unfolded sum in native byte order. The sum of swapped words is the swapped sum (RFC 1071 §2 B), so bytes
/// are swapped only at the end.
#[inline]
fn raw_sum(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<32>();
    // 32-bit halves in 64-bit lanes leave room for carries, and let the compiler use vector registers.
    let mut lanes = [0u64; 8];
    for block in blocks {
        let (words, _) = block.as_chunks::<4>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane += u32::from_ne_bytes(*word) as u64;
        }
    }
    let mut sum = 0;
    for lane in lanes {
        sum += lane;
    }
    let (words, rest) = rest.as_chunks::<4>();
    for word in words {
        sum += u32::from_ne_bytes(*word) as u64;
    }
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    sum + u32::from_ne_bytes(last) as u64
}

/// Folds a native-order sum to 16 bits, big-endian.
#[inline]
fn fold_native(sum: u64) -> u16 {
    u16::from_be(fold(sum))
}

/// Folds a sum to 16 bits by adding carries at the low end.
#[inline]
const fn fold(sum: u64) -> u16 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    sum as u16
}

/// Returns the unfolded big-endian sum of an IPv4 pseudo header (RFC 9293 §3.1).
#[inline]
const fn pseudo_v4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, length: usize) -> u64 {
    source.to_bits() as u64 + destination.to_bits() as u64 + protocol as u64 + length as u64
}

/// Returns the unfolded big-endian sum of an IPv6 pseudo header (RFC 8200 §8.1).
#[inline]
const fn pseudo_v6(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, length: usize) -> u64 {
    words_u128(source.to_bits()) + words_u128(destination.to_bits()) + protocol as u64 + length as u64
}

/// Returns the sum of the 32-bit words of `value`.
#[inline]
const fn words_u128(value: u128) -> u64 {
    let (high, low) = ((value >> 64) as u64, value as u64);
    (high >> 32) + (high & 0xffff_ffff) + (low >> 32) + (low & 0xffff_ffff)
}

/// Computes the checksum of a TCP segment or UDP datagram over IPv4 whose checksum field is zero.
///
/// A UDP sender transmits zero as 0xffff: see [`udp_field`].
pub fn transport_v4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, segment: &[u8]) -> u16 {
    let pseudo = pseudo_v4(source, destination, protocol, segment.len());
    !fold(pseudo + sum(segment) as u64)
}

/// Computes the checksum of a TCP segment, UDP datagram or ICMPv6 message over IPv6 whose checksum field is zero. With
/// a routing header, `destination` is the final destination.
///
/// A UDP sender transmits zero as 0xffff: see [`udp_field`].
pub fn transport_v6(source: Ipv6Addr, destination: Ipv6Addr, protocol: u8, segment: &[u8]) -> u16 {
    let pseudo = pseudo_v6(source, destination, protocol, segment.len());
    !fold(pseudo + sum(segment) as u64)
}

/// Converts a computed checksum to a UDP header field, where zero means no checksum (RFC 768).
#[inline]
pub const fn udp_field(checksum: u16) -> u16 {
    if checksum == 0 { 0xffff } else { checksum }
}

/// Change of a checksum caused by a change of header fields: RFC 1624, equation 3, with everything but the old checksum
/// added up in advance.
///
/// Fields must lie at even offsets of the checksummed data. A change of a single byte is expressed as a change of the
/// 16-bit word that contains it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChecksumDelta(u16);

impl ChecksumDelta {
    /// No change.
    pub const NONE: ChecksumDelta = ChecksumDelta(0);

    /// Change of a 16-bit field.
    #[inline]
    pub const fn u16(old: u16, new: u16) -> Self {
        ChecksumDelta(fold(!old as u64 + new as u64))
    }

    /// Change of a 32-bit field.
    #[inline]
    pub const fn u32(old: u32, new: u32) -> Self {
        ChecksumDelta(fold(!old as u64 + new as u64))
    }

    /// Change of an IPv4 address.
    #[inline]
    pub const fn ipv4(old: Ipv4Addr, new: Ipv4Addr) -> Self {
        Self::u32(old.to_bits(), new.to_bits())
    }

    /// Change of an IPv6 address.
    #[inline]
    pub const fn ipv6(old: Ipv6Addr, new: Ipv6Addr) -> Self {
        ChecksumDelta(fold(words_u128(!old.to_bits()) + words_u128(new.to_bits())))
    }

    /// Combines this change and `other`.
    #[inline]
    pub const fn and(self, other: ChecksumDelta) -> Self {
        ChecksumDelta(fold(self.0 as u64 + other.0 as u64))
    }

    /// Returns the change in the opposite direction.
    #[inline]
    pub const fn inverse(self) -> Self {
        ChecksumDelta(!self.0)
    }

    /// Returns the change as a number, for storage in a flow's state.
    #[inline]
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// Restores the change from [`to_bits`](ChecksumDelta::to_bits).
    #[inline]
    pub const fn from_bits(bits: u16) -> Self {
        ChecksumDelta(bits)
    }

    /// Returns the checksum after the change. It equals a recomputed checksum, unless the data is all zeros.
    #[inline]
    pub const fn apply(self, checksum: u16) -> u16 {
        let (sum, carry) = (!checksum).overflowing_add(self.0);
        !(sum + carry as u16)
    }

    /// [`ChecksumDelta::apply`] for the checksum field of a UDP header: zero (no checksum) is kept, and a computed zero
    /// becomes 0xffff.
    #[inline]
    pub const fn apply_udp(self, field: u16) -> u16 {
        self.apply_transport(field, true)
    }

    /// [`ChecksumDelta::apply_udp`] for a UDP header, [`ChecksumDelta::apply`] for a TCP header, without a branch.
    #[inline]
    pub const fn apply_transport(self, field: u16, is_udp: bool) -> u16 {
        // Below 1 is only zero, and below 0 is nothing.
        let udp = is_udp as u16;
        let new = self.apply(field);
        let new = new.wrapping_sub((new < udp) as u16);
        new & ((field < udp) as u16).wrapping_sub(1)
    }
}

/// Result of verifying a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The checksum is right.
    Correct,
    /// The checksum is wrong: the packet was damaged, or its sender left the checksum to hardware.
    Wrong,
    /// The packet has no checksum: IPv6 headers, packets that are not IP, UDP over IPv4 with a zero.
    Absent,
    /// The checksum cannot be verified: fragments, routing headers with nodes left to visit, unknown protocols, headers
    /// of another frame.
    Unknown,
}

impl Checksum {
    fn of(correct: bool) -> Self {
        if correct { Checksum::Correct } else { Checksum::Wrong }
    }
}

/// Verifies the IPv4 header checksum of a parsed frame.
pub fn verify_network(frame: &[u8], headers: &Headers) -> Checksum {
    if headers.network != Network::V4 {
        return Checksum::Absent;
    }
    // The header ends where the transport header starts.
    match frame.get(headers.network_offset as usize..headers.transport_offset as usize) {
        Some(header) => Checksum::of(sum(header) == 0xffff),
        None => Checksum::Unknown,
    }
}

/// Verifies the TCP, UDP, ICMP or ICMPv6 checksum of a parsed frame.
pub fn verify_transport(frame: &[u8], headers: &Headers) -> Checksum {
    let range = headers.transport_offset as usize..headers.end as usize;
    let Some(data) = frame.get(range) else {
        return Checksum::Unknown;
    };
    if headers.network == Network::NotIp {
        return Checksum::Absent;
    }
    if headers.fragment != Fragment::Whole {
        return Checksum::Unknown;
    }
    let protocol = headers.key.protocol();
    let data = match (protocol, headers.network) {
        (protocol::ICMP, Network::V4) => return Checksum::of(sum(data) == 0xffff),
        (protocol::ICMPV6, Network::V6) | (protocol::TCP, _) => data,
        (protocol::UDP, network) => {
            if bytes::u16_at(data, 6) == 0 {
                // RFC 8200 §8.1: not optional over IPv6 (RFC 6936 tunnels excepted).
                return match network {
                    Network::V4 => Checksum::Absent,
                    _ => Checksum::Wrong,
                };
            }
            bytes::range(data, 0, bytes::u16_at(data, 4) as usize)
        }
        _ => return Checksum::Unknown,
    };
    let pseudo = match (headers.key.source(), headers.key.destination()) {
        (std::net::IpAddr::V4(source), std::net::IpAddr::V4(destination)) => {
            pseudo_v4(source, destination, protocol, data.len())
        }
        (std::net::IpAddr::V6(source), std::net::IpAddr::V6(destination)) => {
            if has_final_destination_elsewhere(headers.datagram(frame)) {
                return Checksum::Unknown;
            }
            pseudo_v6(source, destination, protocol, data.len())
        }
        _ => return Checksum::Unknown,
    };
    Checksum::of(fold(pseudo + sum(data) as u64) == 0xffff)
}

/// Returns `true` if an IPv6 packet has a routing header with nodes left to visit: its checksum covers the last of them
/// (RFC 8200 §8.1).
fn has_final_destination_elsewhere(datagram: &[u8]) -> bool {
    Ipv6View::new(datagram).is_ok_and(|view| {
        view.extensions()
            .flatten()
            .any(|extension| extension.segments_left().is_some_and(|left| left > 0))
    })
}

#[cfg(test)]
mod tests;
