//! Packets turned into responses to their senders: echo responses, error indications, and ICMP errors about packet
//! size.

use super::gtp;
use std::net::IpAddr;
use tailwater_chain::batch::Batch;
use tailwater_net::checksum::{sum, transport_v4, transport_v6, udp_field};
use tailwater_net::parse::{Fragment, Headers, parse};
use tailwater_net::{ethernet, icmp, ipv4, ipv6, protocol};

const TTL: u8 = 64;
/// Bytes of a UDP header, and of an ICMP header.
const UDP: usize = 8;
const ICMP: usize = 8;
/// Largest part of a packet quoted in an ICMP error, in bytes: the error is at most 576 bytes in IPv4 (RFC 1812
/// §4.3.2.3) and 1,280 in IPv6 (RFC 4443 §2.4).
const QUOTED: [usize; 2] = [576 - ipv4::HEADER - ICMP, 1280 - ipv6::HEADER - ICMP];

/// Turns packet `i`, a datagram to this endpoint, into the response `message` to its sender, from port `from` to port
/// `to`. Returns `None` if that is impossible; the packet may then be partly overwritten.
pub(crate) fn datagram(batch: &mut Batch, i: usize, [from, to]: [u16; 2], message: &[u8]) -> Option<()> {
    let key = batch.packet(i).headers.key;
    let length = (UDP + message.len()) as u16;
    let ends = [key.destination(), key.source()];
    resize(batch, i, network_length(ends[0]) + UDP + message.len())?;
    let (known, frame) = batch.packet_mut(i);
    let (link, packet) = frame.split_at_mut_checked(known.headers.network_offset.into())?;
    turn(link)?;
    let datagram = packet.get_mut(network_length(ends[0])..)?;
    let (head, rest) = datagram.split_first_chunk_mut::<UDP>()?;
    *head = [0; UDP];
    head[0..2].copy_from_slice(&from.to_be_bytes());
    head[2..4].copy_from_slice(&to.to_be_bytes());
    head[4..6].copy_from_slice(&length.to_be_bytes());
    rest.get_mut(..message.len())?.copy_from_slice(message);
    let checksum = match ends {
        [IpAddr::V4(a), IpAddr::V4(b)] => transport_v4(a, b, protocol::UDP, datagram),
        [IpAddr::V6(a), IpAddr::V6(b)] => transport_v6(a, b, protocol::UDP, datagram),
        _ => return None,
    };
    datagram[6..8].copy_from_slice(&udp_field(checksum).to_be_bytes());
    write_network(packet, ends, protocol::UDP)?;
    finish(batch, i)
}

/// Turns packet `i`, an echo request, into the response.
pub(super) fn echo(batch: &mut Batch, i: usize, sequence: u16) -> Option<()> {
    let source = batch.packet(i).headers.key.source_port();
    datagram(batch, i, [gtp::PORT, source], &gtp::echo_response(sequence))
}

/// Turns packet `i`, which has an unknown TEID, into an error indication to its sender.
pub(super) fn error_indication(batch: &mut Batch, i: usize, teid: u32) -> Option<()> {
    let key = batch.packet(i).headers.key;
    let mut message = [0; gtp::ERROR_INDICATION];
    let port = key.source_port();
    let length = match key.destination() {
        IpAddr::V4(own) => gtp::error_indication(&mut message, teid, &own.octets(), port),
        IpAddr::V6(own) => gtp::error_indication(&mut message, teid, &own.octets(), port),
    };
    datagram(batch, i, [gtp::PORT; 2], message.get(..length)?)
}

/// Returns `true` if an ICMP error may be sent about a packet (RFC 1122 §3.2.2, RFC 4443 §2.4). The packet must be
/// whole or a first fragment, unicast, and not itself an ICMP error; in IPv4 it must have "don't fragment" set.
pub(super) fn may_send_icmp_error(headers: &Headers, frame: &[u8]) -> bool {
    let key = &headers.key;
    let of_one = match key.source() {
        IpAddr::V4(a) => !(a.is_unspecified() || a.is_multicast() || a.is_broadcast() || a.is_loopback()),
        IpAddr::V6(a) => !(a.is_unspecified() || a.is_multicast() || a.is_loopback()),
    };
    let kind = headers.transport(frame).first().copied();
    let is_error = match key.protocol() {
        protocol::ICMP => kind.is_none_or(icmp::v4::is_error),
        protocol::ICMPV6 => kind.is_none_or(icmp::v6::is_error),
        _ => false,
    };
    let unfragmentable = match key.source() {
        IpAddr::V4(_) => headers.datagram(frame).get(6).is_some_and(|flags| flags & 0x40 != 0),
        IpAddr::V6(_) => true,
    };
    of_one && !is_error && unfragmentable && headers.fragment != Fragment::Later
}

/// Turns packet `i` into an ICMP "too big" error to its sender, from address `own`, with this MTU in bytes.
pub(super) fn too_big(batch: &mut Batch, i: usize, own: IpAddr, mtu: u16) -> Option<()> {
    let headers = batch.packet(i).headers;
    let v4 = own.is_ipv4();
    let ends = [own, headers.key.source()];
    let front = network_length(own) + ICMP;
    let quoted = usize::from(headers.end - headers.network_offset).min(QUOTED[usize::from(!v4)]);
    let link = usize::from(headers.network_offset);
    // The packet is cut to the quoted length, which then moves behind the new headers.
    cut(batch, i, link + quoted)?;
    let (_, frame) = batch.grow_front(i, front)?;
    frame.copy_within(front..front + link, 0);
    let (link, packet) = frame.split_at_mut_checked(link)?;
    turn(link)?;
    let message = packet.get_mut(network_length(own)..)?;
    let head = message.first_chunk_mut::<ICMP>()?;
    let [m0, m1] = mtu.to_be_bytes();
    *head = match v4 {
        true => [icmp::v4::UNREACHABLE, 4, 0, 0, 0, 0, m0, m1],
        false => [icmp::v6::PACKET_TOO_BIG, 0, 0, 0, 0, 0, m0, m1],
    };
    let checksum = match ends {
        [IpAddr::V4(_), IpAddr::V4(_)] => !sum(message),
        [IpAddr::V6(a), IpAddr::V6(b)] => transport_v6(a, b, protocol::ICMPV6, message),
        _ => return None,
    };
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    let kind = if v4 { protocol::ICMP } else { protocol::ICMPV6 };
    write_network(packet, ends, kind)?;
    finish(batch, i)
}

fn network_length(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(_) => ipv4::HEADER,
        IpAddr::V6(_) => ipv6::HEADER,
    }
}

/// Truncates the frame of packet `i` to `length` bytes.
fn cut(batch: &mut Batch, i: usize, length: usize) -> Option<()> {
    let (packet, _) = batch.packet_mut(i);
    let whole = packet.length();
    // Placeholder headers that only give the frame's end, so that all of it may be cut.
    let headers = &mut packet.headers;
    headers.payload_offset = headers.network_offset;
    headers.transport_offset = headers.network_offset;
    headers.end = whole as u16;
    batch.shrink_back(i, whole.checked_sub(length)?)?;
    Some(())
}

/// Resizes the frame of packet `i` to `datagram` bytes from its network header on.
pub(crate) fn resize(batch: &mut Batch, i: usize, datagram: usize) -> Option<()> {
    let link = usize::from(batch.packet(i).headers.network_offset);
    let whole = batch.packet(i).length();
    let wanted = link + datagram;
    if wanted <= whole {
        return cut(batch, i, wanted);
    }
    let (packet, _) = batch.packet_mut(i);
    packet.headers.end = whole as u16;
    batch.grow_back(i, wanted - whole)?;
    Some(())
}

/// Swaps the Ethernet addresses of a frame.
fn turn(link: &mut [u8]) -> Option<()> {
    let addresses = link.first_chunk_mut::<{ ethernet::HEADER }>()?;
    let (to, rest) = addresses.split_at_mut_checked(6)?;
    to.swap_with_slice(rest.get_mut(..6)?);
    Some(())
}

/// Writes the IP header of an otherwise complete packet.
fn write_network(packet: &mut [u8], ends: [IpAddr; 2], kind: u8) -> Option<()> {
    let total = packet.len();
    match ends {
        [IpAddr::V4(from), IpAddr::V4(to)] => {
            let header = packet.first_chunk_mut::<{ ipv4::HEADER }>()?;
            *header = [0; ipv4::HEADER];
            (header[0], header[8], header[9]) = (0x45, TTL, kind);
            header[2..4].copy_from_slice(&u16::try_from(total).ok()?.to_be_bytes());
            // "Don't fragment": the packet is short enough never to need it.
            header[6] = 0x40;
            header[12..16].copy_from_slice(&from.octets());
            header[16..20].copy_from_slice(&to.octets());
            let checksum = !sum(header);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        [IpAddr::V6(from), IpAddr::V6(to)] => {
            let header = packet.first_chunk_mut::<{ ipv6::HEADER }>()?;
            *header = [0; ipv6::HEADER];
            (header[0], header[6], header[7]) = (0x60, kind, TTL);
            let length = u16::try_from(total - ipv6::HEADER).ok()?;
            header[4..6].copy_from_slice(&length.to_be_bytes());
            header[8..24].copy_from_slice(&from.octets());
            header[24..40].copy_from_slice(&to.octets());
        }
        _ => return None,
    }
    Some(())
}

/// Parses the new headers of packet `i`, and marks it to leave through its ingress port.
fn finish(batch: &mut Batch, i: usize) -> Option<()> {
    let (packet, frame) = batch.packet_mut(i);
    packet.headers = parse(frame).ok()?;
    packet.turn_back();
    Some(())
}
