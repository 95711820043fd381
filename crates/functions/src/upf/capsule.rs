//! Encapsulation and decapsulation.

use super::direction::LinkDirection;
use super::gtp::{self, Header, PORT, Unreadable};
use super::reasons::{CONGESTION, FRAGMENT, INNER_MALFORMED, MALFORMED, NO_ROOM, UNSUPPORTED};
use super::session::Treatment;
use super::table::Options;
use crate::ipsec::headers::{ECN, Inner, Outer, decapsulated_ecn, set_ecn};
use std::net::IpAddr;
use tailwater_chain::batch::Batch;
use tailwater_net::checksum::{transport_v4, udp_field};
use tailwater_net::parse::{Fragment, Headers, Network, parse};
use tailwater_net::protocol::ethertype;
use tailwater_net::vlan::{MAX_VLAN_TAGS, TAG};
use tailwater_net::{FlowKey, ethernet, ipv4, protocol};

/// Parses the GTP-U header of a tunnelled packet.
#[inline]
pub(super) fn read(headers: &Headers, frame: &[u8]) -> Result<Header, u8> {
    if headers.fragment != Fragment::Whole {
        return Err(FRAGMENT);
    }
    let transport = headers.transport(frame);
    let length = transport.get(4..6).unwrap_or_default();
    if length != (transport.len() as u16).to_be_bytes() {
        return Err(MALFORMED);
    }
    gtp::parse(headers.payload(frame)).map_err(|why| match why {
        Unreadable::Malformed => MALFORMED,
        Unreadable::Extension => UNSUPPORTED,
    })
}

/// Removes the outer headers of packet `i`.
#[inline]
pub(super) fn uncover(batch: &mut Batch, i: usize, header: &Header) -> Result<(), u8> {
    let (packet, frame) = batch.packet_mut(i);
    let whole = packet.length();
    let headers = &mut packet.headers;
    let (link, payload) = (usize::from(headers.network_offset), usize::from(headers.payload_offset));
    let (start, end) = (payload + header.length, payload + header.end);
    let outer = frame.get(link..).and_then(Inner::of).ok_or(MALFORMED)?;
    let datagram = frame.get_mut(start..end).ok_or(MALFORMED)?;
    let inner = Inner::of(datagram).ok_or(INNER_MALFORMED)?;
    let kind = match datagram[0] >> 4 {
        4 => ethertype::IPV4,
        6 => ethertype::IPV6,
        _ => return Err(INNER_MALFORMED),
    };
    let bits = decapsulated_ecn(outer.class, inner.class).ok_or(CONGESTION)?;
    if bits != inner.class & ECN {
        set_ecn(datagram, bits).ok_or(INNER_MALFORMED)?;
    }
    frame.copy_within(..link, start - link);
    frame[start - 2..start].copy_from_slice(&kind.to_be_bytes());
    headers.network_offset = start as u16;
    headers.transport_offset = start as u16;
    headers.payload_offset = start as u16;
    headers.end = whole as u16;
    // The inner packet lies within the frame, so this cannot fail.
    let _ = batch.shrink_back(i, whole - end);
    let _ = batch.shrink_front(i, start - link);
    let (packet, frame) = batch.packet_mut(i);
    packet.headers = parse(frame).map_err(|_| INNER_MALFORMED)?;
    Ok(())
}

/// Tunnel for encapsulation of one packet.
pub(super) struct Encapsulation<'a> {
    pub(super) outer: &'a Outer,
    pub(super) teid: u32,
    pub(super) treatment: &'a Treatment,
    pub(super) identification: u16,
}

impl Encapsulation<'_> {
    /// Encapsulates packet `i` in this tunnel.
    #[inline]
    pub(super) fn wrap(&self, batch: &mut Batch, i: usize, options: &Options) -> Result<(), u8> {
        let (outer, qfi) = (self.outer, self.treatment.qfi);
        let (packet, frame) = batch.packet_mut(i);
        let (link, end) = (
            usize::from(packet.headers.network_offset),
            usize::from(packet.headers.end),
        );
        let (inner, whole) = (end - link, packet.length());
        let seen = frame.get(link..end).and_then(Inner::of).ok_or(INNER_MALFORMED)?;
        let seen = Inner {
            class: match self.treatment.dscp {
                None => seen.class,
                Some(dscp) => dscp << 2 | seen.class & ECN,
            },
            ..seen
        };
        if whole > end {
            // Ethernet padding is cut off: bytes behind the packet become part of it.
            packet.headers.end = whole as u16;
            let _ = batch.shrink_back(i, whole - end);
        }
        let front = outer.length + gtp::length(qfi);
        let (packet, frame) = batch.grow_front(i, front).ok_or(NO_ROOM)?;
        // A copy of constant size covers the longest possible link header; the excess is overwritten later. The frame
        // has these bytes, since the inner packet is longer.
        const LINK: usize = ethernet::HEADER + MAX_VLAN_TAGS * TAG;
        let link_header: [u8; LINK] = *frame.get(front..).and_then(<[u8]>::first_chunk).ok_or(NO_ROOM)?;
        *frame.first_chunk_mut().ok_or(NO_ROOM)? = link_header;
        let (network, kind) = match outer.network {
            ipv4::HEADER => (Network::V4, ethertype::IPV4),
            _ => (Network::V6, ethertype::IPV6),
        };
        let (addresses, datagram) = frame.split_at_mut_checked(link).ok_or(NO_ROOM)?;
        *addresses.last_chunk_mut::<2>().ok_or(NO_ROOM)? = kind.to_be_bytes();
        let total = datagram.len();
        outer
            .write(datagram, total as u16, seen, self.identification)
            .ok_or(NO_ROOM)?;
        let header = datagram.get_mut(outer.length..).ok_or(NO_ROOM)?;
        let [_, direction] = options.role.directions();
        gtp::write(header, self.teid, qfi, direction == LinkDirection::Up, inner).ok_or(NO_ROOM)?;
        let mut key = outer.key;
        if options.flow_ports {
            key = self.write_flow_port(datagram, packet.rss_hash).ok_or(NO_ROOM)?;
        }
        if outer.wants_checksum() {
            outer.finish(datagram).ok_or(NO_ROOM)?;
        } else if options.checksums {
            self.finish_v4(datagram).ok_or(NO_ROOM)?;
        }
        packet.headers = Headers {
            network,
            fragment: Fragment::Whole,
            network_offset: link as u16,
            transport_offset: (link + outer.network) as u16,
            payload_offset: (link + outer.length) as u16,
            end: (link + total) as u16,
            key,
        };
        Ok(())
    }

    /// Writes a dynamic source port (RFC 6335) derived from the inner flow's hash, and returns the outer key with it.
    #[inline]
    fn write_flow_port(&self, datagram: &mut [u8], hash: u32) -> Option<FlowKey> {
        let port = 0xc000 | (hash ^ hash >> 16) as u16;
        let udp = datagram.get_mut(self.outer.network..)?;
        *udp.first_chunk_mut()? = port.to_be_bytes();
        let key = &self.outer.key;
        Some(match (key.source(), key.destination()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                FlowKey::v4(source, destination, protocol::UDP, port, PORT)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                FlowKey::v6(source, destination, protocol::UDP, port, PORT)
            }
            _ => return None,
        })
    }

    /// Writes the optional checksum of UDP over IPv4.
    fn finish_v4(&self, packet: &mut [u8]) -> Option<()> {
        let key = &self.outer.key;
        let (IpAddr::V4(source), IpAddr::V4(destination)) = (key.source(), key.destination()) else {
            return None;
        };
        let datagram = packet.get_mut(self.outer.network..)?;
        let checksum = transport_v4(source, destination, protocol::UDP, datagram);
        let field = datagram.get_mut(6..8)?;
        field.copy_from_slice(&udp_field(checksum).to_be_bytes());
        Some(())
    }
}
