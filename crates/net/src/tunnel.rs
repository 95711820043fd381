//! Inner packets of tunnels: GRE, ERSPAN, VXLAN, GENEVE, PPPoE, MPLS, and IP in IP (6in4).
//!
//! [`inner`] finds the headers of the packet inside a parsed one, as offsets in the same frame, so that nothing is
//! copied. It goes one tunnel deep; a caller repeats it, at most [`MAX_TUNNELS`] times.

use crate::malformed::Malformed;
use crate::parse::{Fragment, Headers, Network, parse_at};
use crate::protocol::{self, ethertype};
use crate::{bytes, ethernet};

/// Largest number of nested tunnels to look into.
pub const MAX_TUNNELS: usize = 4;

/// UDP port of VXLAN (RFC 7348).
const VXLAN_PORT: u16 = 4789;
/// UDP port of GENEVE (RFC 8926).
const GENEVE_PORT: u16 = 6081;
/// Largest number of headers between two IP headers: MPLS labels count as one.
const MAX_HEADERS: usize = 8;
/// Largest number of MPLS labels.
const MAX_LABELS: usize = 16;

/// EtherTypes within tunnels.
const ETHERNET: u16 = 0x6558;
const MPLS: u16 = 0x8847;
const MPLS_MULTICAST: u16 = 0x8848;
const PPPOE_SESSION: u16 = 0x8864;
const PPP: u16 = 0x880b;
const ERSPAN_II: u16 = 0x88be;
const ERSPAN_III: u16 = 0x22eb;

/// Flags of a GRE header (RFC 2784, RFC 2890, RFC 2637).
const GRE_CHECKSUM: u16 = 0x8000;
const GRE_ROUTING: u16 = 0x4000;
const GRE_KEY: u16 = 0x2000;
const GRE_SEQUENCE: u16 = 0x1000;
const GRE_ACKNOWLEDGEMENT: u16 = 0x0080;

/// The tunnel's header is truncated, or the inner packet is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedTunnel;

impl From<Malformed> for MalformedTunnel {
    fn from(_: Malformed) -> MalformedTunnel {
        MalformedTunnel
    }
}

/// Returns `true` if a packet may have another one inside.
#[inline]
pub fn may_carry(headers: &Headers) -> bool {
    match headers.key.protocol() {
        protocol::TCP => false,
        protocol::UDP => matches!(headers.key.destination_port(), VXLAN_PORT | GENEVE_PORT),
        protocol::IPV4 | protocol::IPV6 | protocol::GRE => true,
        _ => headers.network == Network::NotIp,
    }
}

/// Returns the headers of the IP packet inside a parsed one; `None` if there is none.
///
/// # Errors
/// [`MalformedTunnel`].
pub fn inner(frame: &[u8], outer: &Headers) -> Result<Option<Headers>, MalformedTunnel> {
    if !may_carry(outer) || outer.fragment != Fragment::Whole {
        return Ok(None);
    }
    let frame = frame.get(..outer.end.into()).unwrap_or(frame);
    let (transport, payload) = (usize::from(outer.transport_offset), usize::from(outer.payload_offset));
    if outer.network == Network::NotIp {
        let network = usize::from(outer.network_offset);
        let Some(kind) = network.checked_sub(2) else {
            return Ok(None);
        };
        return carried(frame, bytes::u16_at(frame, kind), network);
    }
    match (outer.key.protocol(), outer.key.destination_port()) {
        (protocol::IPV4, _) => ip(frame, ethertype::IPV4, transport),
        (protocol::IPV6, _) => ip(frame, ethertype::IPV6, transport),
        (protocol::GRE, _) => gre(frame, transport),
        (protocol::UDP, VXLAN_PORT) => match frame.get(payload..payload + 8) {
            // The flag says that the network's number is valid.
            Some([flags, ..]) if flags & 0x08 != 0 => carried(frame, ETHERNET, payload + 8),
            Some(_) => Ok(None),
            None => Err(MalformedTunnel),
        },
        (protocol::UDP, GENEVE_PORT) => match frame.get(payload..payload + 8) {
            Some([first, _, high, low, ..]) if first >> 6 == 0 => {
                let options = usize::from(first & 0x3f) * 4;
                carried(frame, u16::from_be_bytes([*high, *low]), payload + 8 + options)
            }
            Some(_) => Ok(None),
            None => Err(MalformedTunnel),
        },
        _ => Ok(None),
    }
}

/// Parses an IP packet at an offset.
fn ip(frame: &[u8], kind: u16, offset: usize) -> Result<Option<Headers>, MalformedTunnel> {
    Ok(Some(parse_at(frame, kind, offset)?))
}

fn gre(frame: &[u8], offset: usize) -> Result<Option<Headers>, MalformedTunnel> {
    let Some([high, low, kind_high, kind_low]) = frame.get(offset..).and_then(<[u8]>::first_chunk::<4>) else {
        return Err(MalformedTunnel);
    };
    let flags = u16::from_be_bytes([*high, *low]);
    let kind = u16::from_be_bytes([*kind_high, *kind_low]);
    let version = flags & 7;
    if version > 1 || flags & GRE_ROUTING != 0 {
        return Ok(None);
    }
    let mut fields = [GRE_CHECKSUM, GRE_KEY, GRE_SEQUENCE]
        .iter()
        .filter(|flag| flags & **flag != 0)
        .count();
    fields += usize::from(version == 1 && flags & GRE_ACKNOWLEDGEMENT != 0);
    let content = offset + 4 + 4 * fields;
    match kind {
        // Type I has no header of its own.
        ERSPAN_II if flags & GRE_SEQUENCE == 0 => carried(frame, ETHERNET, content),
        ERSPAN_II => carried(frame, ETHERNET, content + 8),
        ERSPAN_III => {
            let more = bytes::u8_at(frame, content + 11) & 1;
            carried(frame, ETHERNET, content + 12 + 8 * usize::from(more))
        }
        _ => carried(frame, kind, content),
    }
}

/// Follows headers of an EtherType at an offset up to an IP header.
fn carried(frame: &[u8], mut kind: u16, mut offset: usize) -> Result<Option<Headers>, MalformedTunnel> {
    for _ in 0..MAX_HEADERS {
        let rest = frame.get(offset..).unwrap_or_default();
        match kind {
            ethertype::IPV4 | ethertype::IPV6 => return ip(frame, kind, offset),
            ETHERNET => {
                let (next, length) = ethernet::network(rest)?;
                (kind, offset) = (next, offset + length);
            }
            ethertype::VLAN | ethertype::QINQ | ethertype::QINQ_OLD => {
                let Some([_, _, high, low]) = rest.first_chunk::<4>() else {
                    return Err(MalformedTunnel);
                };
                (kind, offset) = (u16::from_be_bytes([*high, *low]), offset + 4);
            }
            MPLS | MPLS_MULTICAST => {
                let (labels, _) = rest.as_chunks::<4>();
                let Some(last) = labels.iter().take(MAX_LABELS).position(|label| label[2] & 1 != 0) else {
                    return Err(MalformedTunnel);
                };
                offset += 4 * (last + 1);
                // There is no type: the first digit tells IP from Ethernet, possibly behind a control word (RFC 4385).
                (kind, offset) = match bytes::u8_at(frame, offset) >> 4 {
                    4 => (ethertype::IPV4, offset),
                    6 => (ethertype::IPV6, offset),
                    0 => (ETHERNET, offset + 4),
                    _ => (ETHERNET, offset),
                };
            }
            PPPOE_SESSION => match rest {
                [0x11, 0, _, _, _, _, ..] => (kind, offset) = (PPP, offset + 6),
                [_, _, _, _, _, _, ..] => return Ok(None),
                _ => return Err(MalformedTunnel),
            },
            PPP => {
                // Address and control fields may be left out, and the protocol's first byte if it is 0 (RFC 1661 §6.5).
                let skipped = if rest.starts_with(&[0xff, 0x03]) { 2 } else { 0 };
                (kind, offset) = match rest.get(skipped..).unwrap_or_default() {
                    [0, 0x21, ..] => (ethertype::IPV4, offset + skipped + 2),
                    [0, 0x57, ..] => (ethertype::IPV6, offset + skipped + 2),
                    [0x21, ..] => (ethertype::IPV4, offset + skipped + 1),
                    [0x57, ..] => (ethertype::IPV6, offset + skipped + 1),
                    _ => return Ok(None),
                };
            }
            _ => return Ok(None),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
