//! Outer headers of tunnels, and congestion bits (ECN) at decapsulation.

use super::association::{DontFragment, Outbound};
use std::net::IpAddr;
use tailwater_net::checksum::{ChecksumDelta, sum, transport_v6, udp_field};
use tailwater_net::{FlowKey, ipv4, ipv6, protocol};

/// Bytes of a UDP header.
pub(crate) const UDP: usize = 8;
/// Bytes of SPI and sequence number.
pub(crate) const ESP: usize = 8;

/// Mask of the two ECN bits.
pub(crate) const ECN: u8 = 3;
const CONGESTION_EXPERIENCED: u8 = 3;
const NOT_CAPABLE: u8 = 0;
const CAPABLE_1: u8 = 1;
const CAPABLE_0: u8 = 2;

/// Constant part of an outer header.
#[derive(Debug)]
pub(crate) struct Outer {
    /// Template of the IP header. IPv4 uses the first 20 bytes.
    template: [u8; ipv6::HEADER],
    /// Checksum sum of the IPv4 template.
    sum: u16,
    /// UDP ports in front of ESP, in network byte order.
    ports: Option<[u8; 4]>,
    /// Bytes of all outer headers.
    pub(crate) length: usize,
    /// Bytes of the IP header.
    pub(crate) network: usize,
    /// Flow key of all encapsulated packets.
    pub(crate) key: FlowKey,
    dscp: Option<u8>,
    dont_fragment: DontFragment,
}

/// Fields an outer header copies from the inner packet.
#[derive(Clone, Copy)]
pub(crate) struct Inner {
    /// Type of service, or traffic class.
    pub(crate) class: u8,
    /// "Don't fragment" bit; `true` for IPv6.
    pub(crate) dont_fragment: bool,
}

impl Inner {
    /// Reads the fields of an IP packet, or returns `None` if it is too short.
    #[inline]
    pub(crate) fn of(datagram: &[u8]) -> Option<Inner> {
        let head = datagram.first_chunk::<8>()?;
        Some(match head[0] >> 4 {
            4 => Inner {
                class: head[1],
                dont_fragment: head[6] & 0x40 != 0,
            },
            _ => Inner {
                class: head[0] << 4 | head[1] >> 4,
                dont_fragment: true,
            },
        })
    }
}

impl Outer {
    pub(crate) fn new(outbound: &Outbound) -> Outer {
        let ports = outbound.udp.map(|udp| [udp.source, udp.destination]);
        let kept = (outbound.ttl, outbound.dscp, outbound.dont_fragment);
        let inside = protocol::ESP;
        Outer::between([outbound.source, outbound.destination], ports, inside, kept)
    }

    /// Builds the header between `ends`, source first, both of the same IP version. With `udp` (ports) the payload is
    /// in UDP, without it follows directly as protocol `inside`. `kept` holds time to live, DSCP and "don't fragment".
    pub(crate) fn between(
        ends: [IpAddr; 2],
        udp: Option<[u16; 2]>,
        inside: u8,
        kept: (u8, Option<u8>, DontFragment),
    ) -> Outer {
        let (ttl, dscp, dont_fragment) = kept;
        let mut template = [0; ipv6::HEADER];
        let protocol = if udp.is_some() { protocol::UDP } else { inside };
        let network = match ends {
            [IpAddr::V4(source), IpAddr::V4(destination)] => {
                template[0] = 0x45;
                template[8] = ttl;
                template[9] = protocol;
                template[12..16].copy_from_slice(&source.octets());
                template[16..20].copy_from_slice(&destination.octets());
                ipv4::HEADER
            }
            [source, destination] => {
                template[0] = 0x60;
                template[6] = protocol;
                template[7] = ttl;
                template[8..24].copy_from_slice(&v6(source));
                template[24..40].copy_from_slice(&v6(destination));
                ipv6::HEADER
            }
        };
        let [source_port, destination_port] = udp.unwrap_or_default();
        let key = match ends {
            [IpAddr::V4(source), IpAddr::V4(destination)] => {
                FlowKey::v4(source, destination, protocol, source_port, destination_port)
            }
            [source, destination] => FlowKey::v6(
                v6(source).into(),
                v6(destination).into(),
                protocol,
                source_port,
                destination_port,
            ),
        };
        Outer {
            sum: sum(&template[..ipv4::HEADER]),
            template,
            ports: udp.map(|ports| {
                let [[a, b], [c, d]] = ports.map(u16::to_be_bytes);
                [a, b, c, d]
            }),
            length: network + udp.map_or(0, |_| UDP),
            network,
            key,
            dscp,
            dont_fragment,
        }
    }

    /// Returns `true` if the packets are UDP over IPv6, where the checksum is mandatory.
    #[inline]
    pub(crate) fn wants_checksum(&self) -> bool {
        self.network == ipv6::HEADER && self.ports.is_some()
    }

    /// Writes the outer headers; `total` is the length in bytes of the packet including them. `identification` is used
    /// for IPv4. Returns `None` if there is no room; `out` may then be partly written.
    #[inline]
    pub(crate) fn write(&self, out: &mut [u8], total: u16, inner: Inner, identification: u16) -> Option<()> {
        let class = match self.dscp {
            None => inner.class,
            Some(dscp) => dscp << 2 | inner.class & ECN,
        };
        if self.network == ipv4::HEADER {
            let whole = match self.dont_fragment {
                DontFragment::Copy => inner.dont_fragment,
                DontFragment::Set => true,
                DontFragment::Clear => false,
            };
            let flags = u16::from(whole) << 14;
            let header = out.first_chunk_mut::<{ ipv4::HEADER }>()?;
            *header = *self.template.first_chunk()?;
            header[1] = class;
            header[2..4].copy_from_slice(&total.to_be_bytes());
            header[4..6].copy_from_slice(&identification.to_be_bytes());
            header[6..8].copy_from_slice(&flags.to_be_bytes());
            let words = [self.sum, class.into(), total, identification, flags];
            let all = words.into_iter().fold(0, |all, word| all + u32::from(word));
            // The sum of five words carries at most 4, so two folds are enough.
            let folded = (all >> 16) + (all & 0xffff);
            let checksum = !((folded >> 16) + folded) as u16;
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
        } else {
            let header = out.first_chunk_mut::<{ ipv6::HEADER }>()?;
            *header = self.template;
            header[0] |= class >> 4;
            header[1] = class << 4;
            let length = total - ipv6::HEADER as u16;
            header[4..6].copy_from_slice(&length.to_be_bytes());
        }
        if let Some(ports) = &self.ports {
            let [high, low] = (total - self.network as u16).to_be_bytes();
            let udp = out.get_mut(self.network..)?.first_chunk_mut::<UDP>()?;
            udp[..4].copy_from_slice(ports);
            // The IPv6 checksum is written once the packet is complete.
            udp[4..].copy_from_slice(&[high, low, 0, 0]);
        }
        Some(())
    }

    /// Writes the UDP checksum of `packet`, an IPv6 packet that is otherwise complete.
    #[inline]
    pub(crate) fn finish(&self, packet: &mut [u8]) -> Option<()> {
        let (IpAddr::V6(source), IpAddr::V6(destination)) = (self.key.source(), self.key.destination()) else {
            return None;
        };
        let datagram = packet.get_mut(self.network..)?;
        let checksum = transport_v6(source, destination, protocol::UDP, datagram);
        datagram
            .get_mut(6..8)?
            .copy_from_slice(&udp_field(checksum).to_be_bytes());
        Some(())
    }
}

/// Returns an address as 16 bytes, IPv4 as IPv4-mapped.
fn v6(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Returns the ECN bits of a decapsulated packet from its outer and inner bits (RFC 6040 §4.2), or `None` if it must be
/// dropped: its transport cannot signal the congestion.
#[inline]
pub(crate) fn decapsulated_ecn(outer: u8, inner: u8) -> Option<u8> {
    match (outer & ECN, inner & ECN) {
        (CONGESTION_EXPERIENCED, NOT_CAPABLE) => None,
        (CONGESTION_EXPERIENCED, _) => Some(CONGESTION_EXPERIENCED),
        (CAPABLE_1, CAPABLE_0) => Some(CAPABLE_1),
        (_, inner) => Some(inner & ECN),
    }
}

/// Sets the ECN bits of an IP packet and updates the IPv4 header checksum.
pub(crate) fn set_ecn(datagram: &mut [u8], bits: u8) -> Option<()> {
    let header = datagram.first_chunk_mut::<{ ipv4::HEADER }>()?;
    if header[0] >> 4 != 4 {
        header[1] = header[1] & !(ECN << 4) | bits << 4;
        return Some(());
    }
    let before = u16::from_be_bytes([header[0], header[1]]);
    header[1] = header[1] & !ECN | bits;
    let delta = ChecksumDelta::u16(before, u16::from_be_bytes([header[0], header[1]]));
    let checksum = delta.apply(u16::from_be_bytes([header[10], header[11]]));
    [header[10], header[11]] = checksum.to_be_bytes();
    Some(())
}
