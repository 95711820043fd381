//! Parser: finds a frame's headers and flow key in one pass, or the reason why it is malformed.
//!
//! [`parse`] follows Ethernet, up to [three VLAN tags](crate::vlan::MAX_VLAN_TAGS), IPv4 or IPv6 with its extension
//! headers, and TCP, UDP, ICMP, ICMPv6 and SCTP. Views of an accepted frame never fail a length check: each header lies
//! completely inside the datagram, and the datagram inside the frame.
//!
//! It does not verify checksums (see [`checksum`](crate::checksum)), and does not parse IPv4 and TCP options or
//! tunnels (see [`tunnel`](crate::tunnel)). Frames with an LLC length instead of an EtherType, MPLS and PPPoE are
//! [`Network::NotIp`].

use std::hint::select_unpredictable;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::bytes::{be16, be32, be64};
use crate::ethernet;
use crate::flow::FlowKey;
use crate::icmp::{IcmpView, v4, v6};
use crate::ipv4;
use crate::ipv6::{self, MAX_EXTENSIONS};
use crate::protocol::{self, ethertype};

mod common;

pub use crate::headers::{Fragment, Headers, MAX_FRAME, Network};
pub use crate::malformed::Malformed;
pub use common::{guess_v4, is_plain, is_tagged_v4, parse_common};

/// Finds the headers of an Ethernet frame (without preamble and frame check sequence).
///
/// # Errors
/// The first reason found for which the frame is malformed.
#[inline]
pub fn parse(frame: &[u8]) -> Result<Headers, Malformed> {
    // Most packets are untagged IPv4 without options. All others take the general path, which also finds the reason why
    // a packet is malformed.
    match parse_plain_v4(frame) {
        Some(headers) => Ok(headers),
        None => parse_any(frame),
    }
}

/// [`parse`] in place for ordinary packets: untagged whole IPv4 datagrams without options that carry TCP or UDP.
/// Returns `false`, with `headers` unchanged, for any other frame, which needs [`parse`].
#[inline]
#[must_use]
pub fn parse_ordinary(frame: &[u8], headers: &mut Headers) -> bool {
    match parse_plain_v4(frame) {
        Some(found) => {
            *headers = found;
            true
        }
        None => false,
    }
}

/// Returns the headers of an untagged whole IPv4 datagram without options that carries TCP or UDP. Returns `None` if
/// the frame is anything else or malformed, which needs [`parse`]. As [`parse_ordinary`], for callers that move each
/// field on individually.
#[inline]
#[must_use]
pub fn parse_plain_v4(frame: &[u8]) -> Option<Headers> {
    // Ethernet, IPv4 and TCP headers: one length check for all reads below.
    const NEEDED: usize = ethernet::HEADER + ipv4::HEADER + 20;
    const TRANSPORT: u32 = (ethernet::HEADER + ipv4::HEADER) as u32;
    const UDP_PAYLOAD: u32 = TRANSPORT + 8;
    /// By protocol, the least end of what a transport header states the length of: the header for TCP, the datagram for
    /// UDP. No other protocol reaches its entry.
    const LEAST: [u32; 32] = {
        let mut least = [u32::MAX; 32];
        least[protocol::TCP as usize] = TRANSPORT + 20;
        least[protocol::UDP as usize] = UDP_PAYLOAD;
        least
    };
    let head = frame.first_chunk::<NEEDED>()?;
    // Neighbouring fields in one read each: EtherType, version and length, type of service, total length,
    // identification; then fragmentation, time to live, protocol, checksum.
    let first = be64(head, 12);
    let second = be64(head, 20);
    let end = ethernet::HEADER as u32 + u32::from((first >> 16) as u16);
    // A fragment is no protocol of the table.
    let protocol = (second >> 32) as u32 & 0x3fff_00ff;
    let is_plain = first >> 40 == 0x08_0045 && end as usize <= frame.len() && frame.len() <= MAX_FRAME;
    let least = *LEAST.get(protocol as usize)?;
    if !is_plain {
        return None;
    }
    // Both protocols take the same path: in mixed traffic, a branch on the protocol is mispredicted every other time.
    let is_udp = protocol & 1 != 0;
    let tcp_header = u32::from(head[46] >> 4) * 4;
    let udp_length = u32::from(be16([head[38], head[39]]));
    let stated_end = TRANSPORT + select_unpredictable(is_udp, udp_length, tcp_header);
    if stated_end < least || stated_end > end {
        return None;
    }
    let payload = select_unpredictable(is_udp, UDP_PAYLOAD, stated_end);
    let ports = be32([head[34], head[35], head[36], head[37]]);
    Some(Headers {
        network: Network::V4,
        fragment: Fragment::Whole,
        network_offset: ethernet::HEADER as u16,
        transport_offset: TRANSPORT as u16,
        payload_offset: payload as u16,
        end: end as u16,
        key: FlowKey::v4_of_wire(be64(head, 26), ports, protocol),
    })
}

/// [`parse`] without a path for plain packets: for comparison, with the same result for every frame.
///
/// # Errors
/// Same as [`parse`].
pub fn parse_any(frame: &[u8]) -> Result<Headers, Malformed> {
    if frame.len() > MAX_FRAME {
        return Err(Malformed::Oversize);
    }
    let (ethertype, offset) = ethernet::network(frame)?;
    parse_at(frame, ethertype, offset)
}

/// Continues [`parse`] at an offset with the header of an EtherType.
pub(crate) fn parse_at(frame: &[u8], ethertype: u16, offset: usize) -> Result<Headers, Malformed> {
    match ethertype {
        ethertype::IPV4 => parse_v4(frame, offset),
        ethertype::IPV6 => parse_v6(frame, offset),
        _ => Ok(Headers {
            network_offset: offset as u16,
            transport_offset: offset as u16,
            payload_offset: offset as u16,
            end: frame.len() as u16,
            ..Headers::default()
        }),
    }
}

/// Continues [`parse`] at an IPv4 header at `offset`.
fn parse_v4(frame: &[u8], offset: usize) -> Result<Headers, Malformed> {
    let packet = frame.get(offset..).unwrap_or_default();
    let Some(header) = packet.first_chunk::<{ ipv4::HEADER }>() else {
        return Err(Malformed::TruncatedIpv4Header);
    };
    if header[0] >> 4 != 4 {
        return Err(Malformed::Ipv4Version);
    }
    let header_length = (header[0] & 0x0f) as usize * 4;
    if header_length < ipv4::HEADER {
        return Err(Malformed::Ipv4HeaderLength);
    }
    if packet.len() < header_length {
        return Err(Malformed::TruncatedIpv4Header);
    }
    let total = be16([header[2], header[3]]) as usize;
    if total < header_length {
        return Err(Malformed::Ipv4TotalLength);
    }
    let Some(data) = packet.get(header_length..total) else {
        return Err(Malformed::TruncatedIpv4);
    };
    let protocol = header[9];
    let bits = be16([header[6], header[7]]);
    let fragment = fragment(bits & 0x1fff, bits & 0x2000 != 0, data.len(), protocol)?;
    let transport = transport(data, protocol, fragment, Network::V4)?;
    Ok(Headers {
        network: Network::V4,
        fragment,
        network_offset: offset as u16,
        transport_offset: (offset + header_length) as u16,
        payload_offset: (offset + header_length + transport.header_length) as u16,
        end: (offset + total) as u16,
        key: FlowKey::v4(
            Ipv4Addr::from_bits(be32([header[12], header[13], header[14], header[15]])),
            Ipv4Addr::from_bits(be32([header[16], header[17], header[18], header[19]])),
            protocol,
            transport.source_port,
            transport.destination_port,
        ),
    })
}

/// Continues [`parse`] at an IPv6 header at `offset`.
fn parse_v6(frame: &[u8], offset: usize) -> Result<Headers, Malformed> {
    let packet = frame.get(offset..).unwrap_or_default();
    let Some((header, rest)) = packet.split_first_chunk::<{ ipv6::HEADER }>() else {
        return Err(Malformed::TruncatedIpv6Header);
    };
    if header[0] >> 4 != 6 {
        return Err(Malformed::Ipv6Version);
    }
    let length = be16([header[4], header[5]]) as usize;
    let next = header[6];
    if length == 0 && next != protocol::NO_NEXT_HEADER {
        return Err(Malformed::Ipv6ZeroLength);
    }
    let Some(payload) = rest.get(..length) else {
        return Err(Malformed::TruncatedIpv6);
    };
    let upper = if protocol::is_extension(next) {
        skip_extensions(payload, next)?
    } else {
        UpperLayer {
            protocol: next,
            offset: 0,
            fragment: Fragment::Whole,
        }
    };
    let data = payload.get(upper.offset..).unwrap_or_default();
    let transport = transport(data, upper.protocol, upper.fragment, Network::V6)?;
    let (_, addresses) = header.split_at(8);
    let (source, destination) = addresses.split_at(16);
    let transport_offset = offset + ipv6::HEADER + upper.offset;
    Ok(Headers {
        network: Network::V6,
        fragment: upper.fragment,
        network_offset: offset as u16,
        transport_offset: transport_offset as u16,
        payload_offset: (transport_offset + transport.header_length) as u16,
        end: (offset + ipv6::HEADER + length) as u16,
        key: FlowKey::v6(
            ipv6_address(source),
            ipv6_address(destination),
            upper.protocol,
            transport.source_port,
            transport.destination_port,
        ),
    })
}

/// Position of an IPv6 packet's upper layer, after its extension headers.
struct UpperLayer {
    protocol: u8,
    /// Offset in the IPv6 payload in bytes; at most its length.
    offset: usize,
    fragment: Fragment,
}

/// Skips the extension headers of an IPv6 payload (RFC 8200 §4), the first of kind `next`.
fn skip_extensions(payload: &[u8], mut next: u8) -> Result<UpperLayer, Malformed> {
    let mut offset = 0;
    let mut fragment_header = false;
    let mut whole = Fragment::Whole;
    for position in 0..=MAX_EXTENSIONS {
        if !protocol::is_extension(next) {
            return Ok(UpperLayer {
                protocol: next,
                offset,
                fragment: whole,
            });
        }
        if next == protocol::HOP_BY_HOP && position != 0 {
            return Err(Malformed::HopByHopNotFirst);
        }
        let rest = payload.get(offset..).unwrap_or_default();
        let Some(header) = rest.first_chunk::<8>() else {
            return Err(Malformed::TruncatedExtension);
        };
        let length = ipv6::length(next, header[1]);
        if length > rest.len() {
            return Err(Malformed::TruncatedExtension);
        }
        offset += length;
        if next == protocol::FRAGMENT {
            if fragment_header {
                return Err(Malformed::RepeatedFragmentHeader);
            }
            fragment_header = true;
            let bits = be16([header[2], header[3]]);
            let data = rest.len() - length;
            whole = fragment(bits >> 3, bits & 1 != 0, data, header[0])?;
            if whole == Fragment::Later {
                return Ok(UpperLayer {
                    protocol: header[0],
                    offset,
                    fragment: whole,
                });
            }
        }
        next = header[0];
    }
    Err(Malformed::TooManyExtensions)
}

/// Validates and classifies fragmentation. `offset` is in units of 8 bytes, `data` in bytes.
fn fragment(offset: u16, more: bool, data: usize, protocol: u8) -> Result<Fragment, Malformed> {
    if offset == 0 && !more {
        return Ok(Fragment::Whole);
    }
    if more && !data.is_multiple_of(8) {
        return Err(Malformed::FragmentLength);
    }
    if offset as usize * 8 + data > u16::MAX as usize {
        return Err(Malformed::FragmentOverflow);
    }
    if offset == 1 && protocol == protocol::TCP {
        return Err(Malformed::FragmentOverlap);
    }
    Ok(if offset == 0 { Fragment::First } else { Fragment::Later })
}

/// Transport header fields of the flow key, and the header's length in bytes.
#[derive(Default)]
struct Transport {
    source_port: u16,
    destination_port: u16,
    header_length: usize,
}

/// Reads the transport header at the start of `data`, which ends at the datagram's end.
#[inline]
fn transport(data: &[u8], protocol: u8, fragment: Fragment, network: Network) -> Result<Transport, Malformed> {
    let truncated = |reason| match fragment {
        Fragment::First => Malformed::TinyFragment,
        _ => reason,
    };
    if fragment == Fragment::Later {
        return Ok(Transport::default());
    }
    match (protocol, network) {
        (protocol::TCP, _) => {
            let Some(header) = data.first_chunk::<20>() else {
                return Err(truncated(Malformed::TruncatedTcp));
            };
            let header_length = (header[12] >> 4) as usize * 4;
            if header_length < 20 {
                return Err(Malformed::TcpDataOffset);
            }
            if header_length > data.len() {
                return Err(truncated(Malformed::TruncatedTcp));
            }
            Ok(ports(header.first_chunk(), header_length))
        }
        (protocol::UDP, _) => {
            let Some(header) = data.first_chunk::<8>() else {
                return Err(truncated(Malformed::TruncatedUdp));
            };
            // A first fragment states the length of the whole datagram.
            let length = be16([header[4], header[5]]) as usize;
            if length < 8 || (length > data.len() && fragment == Fragment::Whole) {
                return Err(Malformed::UdpLength);
            }
            Ok(ports(header.first_chunk(), 8))
        }
        (protocol::SCTP, _) => {
            if data.len() < 12 {
                return Err(truncated(Malformed::TruncatedSctp));
            }
            Ok(ports(data.first_chunk(), 12))
        }
        (protocol::ICMP, Network::V4) => {
            let Some(header) = data.first_chunk::<8>() else {
                return Err(truncated(Malformed::TruncatedIcmp));
            };
            Ok(icmp(header, v4::is_echo(header[0])))
        }
        (protocol::ICMPV6, Network::V6) => {
            let Some(header) = data.first_chunk::<8>() else {
                // Some messages end after the checksum (RFC 4286 §4).
                return match IcmpView::new_v6(data) {
                    Ok(_) => Ok(Transport {
                        header_length: data.len(),
                        ..Transport::default()
                    }),
                    Err(reason) => Err(truncated(reason)),
                };
            };
            Ok(icmp(header, v6::is_echo(header[0])))
        }
        _ => Ok(Transport::default()),
    }
}

/// Reads source and destination port from a header's first four bytes.
#[inline]
fn ports(head: Option<&[u8; 4]>, header_length: usize) -> Transport {
    let [a, b, c, d] = *head.unwrap_or(&[0; 4]);
    Transport {
        source_port: be16([a, b]),
        destination_port: be16([c, d]),
        header_length,
    }
}

/// Reads an ICMP header. An echo message's identifier is used as both ports, so that request and reply have reversed
/// keys.
#[inline]
fn icmp(header: &[u8; 8], echo: bool) -> Transport {
    let identifier = if echo { be16([header[4], header[5]]) } else { 0 };
    Transport {
        source_port: identifier,
        destination_port: identifier,
        header_length: 8,
    }
}

/// Converts exactly 16 bytes to an address.
#[inline]
fn ipv6_address(bytes: &[u8]) -> Ipv6Addr {
    Ipv6Addr::from(*bytes.first_chunk::<16>().unwrap_or(&[0; 16]))
}

#[cfg(test)]
mod tests;
