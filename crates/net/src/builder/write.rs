//! The parts of a frame as bytes, with lengths and checksums.

use super::error::BuildError;
use super::layout::Layout;
use super::{Arp, FrameBuilder, Network, Transport};
use crate::bytes::{put, put_u8, put_u16, put_u32};
use crate::checksum;
use crate::flow::FlowKey;
use crate::protocol::ethertype;
use crate::vlan::TAG;
use crate::{arp, ipv4, ipv6, tcp};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

impl FrameBuilder<'_> {
    /// Writes all parts to a frame of the layout's length.
    #[inline]
    pub(super) fn write_parts(&self, frame: &mut [u8], layout: &Layout) -> Result<(), BuildError> {
        let (link, rest) = frame.split_at_mut(layout.link);
        let (datagram, padding) = rest.split_at_mut(layout.network + layout.upper);
        let (network, upper) = datagram.split_at_mut(layout.network);
        padding.fill(0);
        self.write_link(link);
        match &self.network {
            Network::Arp(arp) => write_arp(network, arp),
            Network::Ip(key) => {
                let (source, destination) = (key.source(), key.destination());
                match (source, destination) {
                    (IpAddr::V4(s), IpAddr::V4(d)) => {
                        self.write_v4(network, upper.len(), key, s, d);
                    }
                    (IpAddr::V6(s), IpAddr::V6(d)) => {
                        self.write_v6(network, upper.len(), key, s, d);
                    }
                    _ => return Err(BuildError::NotIp),
                }
                self.write_transport(upper, layout.transport, key);
            }
        }
        Ok(())
    }

    fn write_link(&self, out: &mut [u8]) {
        put(out, 0, self.destination_mac.0);
        put(out, 6, self.source_mac.0);
        let mut offset = 12;
        for tag in self.tags.iter().take(self.tag_count) {
            put_u16(out, offset, tag.ethertype);
            put_u16(out, offset + 2, tag.control());
            offset += TAG;
        }
        let ethertype = match &self.network {
            Network::Arp(_) => ethertype::ARP,
            Network::Ip(key) if key.is_v4() => ethertype::IPV4,
            Network::Ip(_) => ethertype::IPV6,
        };
        put_u16(out, offset, ethertype);
    }

    fn write_v4(&self, out: &mut [u8], upper: usize, key: &FlowKey, s: Ipv4Addr, d: Ipv4Addr) {
        let length = out.len();
        put_u8(out, 0, 0x40 | (length / 4) as u8);
        put_u8(out, 1, self.dscp << 2 | self.ecn);
        put_u16(out, 2, (length + upper) as u16);
        put_u16(out, 4, self.identification);
        put_u16(out, 6, (self.dont_fragment as u16) << 14);
        put_u8(out, 8, self.ttl);
        put_u8(out, 9, key.protocol());
        put_u16(out, 10, 0);
        put(out, 12, s.octets());
        put(out, 16, d.octets());
        copy_at(out, ipv4::HEADER, self.ip_options);
        let checksum = !checksum::sum(out);
        put_u16(out, 10, checksum);
    }

    fn write_v6(&self, out: &mut [u8], upper: usize, key: &FlowKey, s: Ipv6Addr, d: Ipv6Addr) {
        let first = 0x6000_0000 | (self.dscp as u32) << 22 | (self.ecn as u32) << 20 | self.flow_label;
        put_u32(out, 0, first);
        put_u16(out, 4, (out.len() - ipv6::HEADER + upper) as u16);
        put_u8(out, 7, self.ttl);
        put(out, 8, s.octets());
        put(out, 24, d.octets());
        // Offset of the field in the previous header that names the next one.
        let mut name_at = 6;
        let mut offset = ipv6::HEADER;
        for &(kind, data) in self.extensions {
            put_u8(out, name_at, kind);
            name_at = offset;
            put_u8(out, offset + 1, ((2 + data.len()) / 8 - 1) as u8);
            copy_at(out, offset + 2, data);
            offset += 2 + data.len();
        }
        put_u8(out, name_at, key.protocol());
    }

    /// Writes the transport header (`header` bytes), the payload, and zeros up to the end of `out`.
    fn write_transport(&self, out: &mut [u8], header: usize, key: &FlowKey) {
        copy_at(out, header, self.payload);
        if let Some(zeros) = out.get_mut(header + self.payload.len()..) {
            zeros.fill(0);
        }
        let checksum_at = match &self.transport {
            Transport::Tcp(fields) => {
                put_u16(out, 0, key.source_port());
                put_u16(out, 2, key.destination_port());
                put_u32(out, 4, fields.sequence);
                put_u32(out, 8, fields.acknowledgment);
                put(out, 12, [((header / 4) as u8) << 4, fields.flags.0]);
                put_u16(out, 14, fields.window);
                put_u16(out, 16, 0);
                put_u16(out, 18, fields.urgent_pointer);
                copy_at(out, tcp::HEADER, fields.options);
                16
            }
            Transport::Udp { checksum } => {
                let length = out.len() as u16;
                put_u16(out, 0, key.source_port());
                put_u16(out, 2, key.destination_port());
                put_u16(out, 4, length);
                put_u16(out, 6, 0);
                if !checksum {
                    return;
                }
                6
            }
            Transport::Sctp => {
                put_u16(out, 0, key.source_port());
                put_u16(out, 2, key.destination_port());
                put(out, 4, [0; 8]);
                return;
            }
            Transport::Icmp { kind, code, rest } => {
                put(out, 0, [*kind, *code, 0, 0]);
                put(out, 4, *rest);
                if key.is_v4() {
                    let checksum = !checksum::sum(out);
                    put_u16(out, 2, checksum);
                    return;
                }
                2
            }
            Transport::Raw => return,
        };
        let checksum = match (key.source(), key.destination()) {
            (IpAddr::V4(s), IpAddr::V4(d)) => checksum::transport_v4(s, d, key.protocol(), out),
            (IpAddr::V6(s), IpAddr::V6(d)) => checksum::transport_v6(s, d, key.protocol(), out),
            _ => return,
        };
        let checksum = match self.transport {
            Transport::Udp { .. } => checksum::udp_field(checksum),
            _ => checksum,
        };
        put_u16(out, checksum_at, checksum);
    }
}

fn write_arp(out: &mut [u8], arp: &Arp) {
    put(out, 0, arp::FORMAT);
    put_u16(out, 6, arp.operation);
    put(out, 8, arp.sender_mac.0);
    put(out, 14, arp.sender_ip.octets());
    put(out, 18, arp.target_mac.0);
    put(out, 24, arp.target_ip.octets());
}

/// Copies `data` to `out` at `offset`, if it fits.
#[inline]
fn copy_at(out: &mut [u8], offset: usize, data: &[u8]) {
    if let Some(place) = out.get_mut(offset..offset + data.len()) {
        place.copy_from_slice(data);
    }
}
