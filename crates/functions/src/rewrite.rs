//! Rewriting of addresses and ports in a packet, with incremental checksum updates (RFC 1624). Shared by `Nat` and
//! `LoadBalancer`.

use bytemuck::{Pod, Zeroable};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use tailwater_chain::batch::Packet;
use tailwater_chain::region::write_in_order;
use tailwater_net::checksum::ChecksumDelta;
use tailwater_net::{FlowKey, protocol};

/// The packet passes unchanged.
pub(crate) const PASS: u16 = 0;
/// Address and port replace the source's.
pub(crate) const SOURCE: u16 = 1;
/// Address and port replace the destination's.
pub(crate) const DESTINATION: u16 = 2;

/// New address and port for one end of TCP or UDP packets over IPv4, in a form that fits a flow's state. Zero is
/// [`PASS`].
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Translation {
    /// New address, in host byte order.
    address: u32,
    /// New port.
    port: u16,
    /// Change to the IP header's checksum.
    ip: u16,
    /// Change to the transport checksum.
    transport: u16,
    /// [`PASS`], [`SOURCE`] or [`DESTINATION`].
    pub(crate) mode: u16,
}

impl Translation {
    #[inline]
    pub(crate) fn new(mode: u16, old: (Ipv4Addr, u16), new: (Ipv4Addr, u16)) -> Translation {
        let ip = ChecksumDelta::ipv4(old.0, new.0);
        let transport = ip.and(ChecksumDelta::u16(old.1, new.1));
        Translation {
            address: new.0.to_bits(),
            port: new.1,
            ip: ip.to_bits(),
            transport: transport.to_bits(),
            mode,
        }
    }

    /// Writes the translation into a flow's state, with the mode last: if the process is killed before that, the state
    /// holds no translation yet.
    pub(crate) fn write(self, state: &mut Translation) {
        *state = Translation { mode: PASS, ..self };
        write_in_order();
        state.mode = self.mode;
    }

    /// New address and port.
    pub(crate) fn target(&self) -> (Ipv4Addr, u16) {
        (Ipv4Addr::from_bits(self.address), self.port)
    }

    /// Rewrites a packet. Returns `None` and changes nothing if the frame does not match its headers, which parsing
    /// rules out.
    #[inline]
    pub(crate) fn apply(&self, packet: &mut Packet, frame: &mut [u8]) -> Option<()> {
        let headers = &mut packet.headers;
        let (network, transport) = frame.split_at_mut_checked(headers.transport_offset.into())?;
        let ip = network
            .get_mut(headers.network_offset.into()..)?
            .first_chunk_mut::<20>()?;
        // No branches on the end or the protocol: packets of both come in random order.
        let destination = self.mode != SOURCE;
        let end = usize::from(destination);
        let delta = ChecksumDelta::from_bits(self.transport);
        rewrite_transport(transport, headers.key.protocol(), 2 * end, self.port, delta)?;
        let address_at = 12 + 4 * end;
        ip[address_at..address_at + 4].copy_from_slice(&self.address.to_be_bytes());
        let checksum = u16::from_be_bytes([ip[10], ip[11]]);
        let checksum = ChecksumDelta::from_bits(self.ip).apply(checksum);
        [ip[10], ip[11]] = checksum.to_be_bytes();
        if headers.key.is_v4() {
            let address = Ipv4Addr::from_bits(self.address);
            headers.key = headers.key.with_v4_end(destination, address, self.port);
        }
        Some(())
    }
}

/// Replaces the destination of a TCP or UDP packet over IPv6. Returns `None` and changes nothing if it has extension
/// headers: with a routing header, the checksum covers a destination other than the one in the IPv6 header (RFC 8200
/// §8.1).
#[inline]
pub(crate) fn redirect_v6(packet: &mut Packet, frame: &mut [u8], (address, port): (Ipv6Addr, u16)) -> Option<()> {
    const HEADER: u16 = 40;
    let headers = &mut packet.headers;
    let key = headers.key;
    let (IpAddr::V6(source), IpAddr::V6(old)) = (key.source(), key.destination()) else {
        return None;
    };
    if headers.transport_offset != headers.network_offset + HEADER {
        return None;
    }
    let (network, transport) = frame.split_at_mut_checked(headers.transport_offset.into())?;
    let ip = network
        .get_mut(headers.network_offset.into()..)?
        .first_chunk_mut::<40>()?;
    let delta = ChecksumDelta::ipv6(old, address).and(ChecksumDelta::u16(key.destination_port(), port));
    rewrite_transport(transport, key.protocol(), 2, port, delta)?;
    ip[24..].copy_from_slice(&address.octets());
    headers.key = FlowKey::v6(source, address, key.protocol(), key.source_port(), port);
    Some(())
}

/// Writes a port and updates the checksum of a TCP or UDP header.
#[inline]
fn rewrite_transport(
    transport: &mut [u8],
    protocol: u8,
    port_at: usize,
    port: u16,
    delta: ChecksumDelta,
) -> Option<()> {
    let is_udp = protocol == protocol::UDP;
    let checksum_at = 16 - 10 * usize::from(is_udp);
    if transport.len() < checksum_at + 2 {
        return None;
    }
    transport[port_at..port_at + 2].copy_from_slice(&port.to_be_bytes());
    let field = &mut transport[checksum_at..checksum_at + 2];
    let checksum = u16::from_be_bytes([field[0], field[1]]);
    let checksum = delta.apply_transport(checksum, is_udp);
    field.copy_from_slice(&checksum.to_be_bytes());
    Some(())
}
