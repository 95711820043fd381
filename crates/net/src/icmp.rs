//! ICMP (RFC 792) and ICMPv6 (RFC 4443) messages, and the packets that their errors quote.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::bytes;
use crate::flow::FlowKey;
use crate::headers::{Fragment, Headers, Network};
use crate::ipv4;
use crate::ipv6::{self, Extensions};
use crate::malformed::Malformed;
use crate::protocol;

/// Size of the header in bytes: type, code, checksum and four bytes that depend on the type.
pub const HEADER: usize = 8;

/// Types of ICMP messages.
pub mod v4 {
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 0;
    /// Destination unreachable; its code 4 is "fragmentation needed".
    pub const UNREACHABLE: u8 = 3;
    /// Source quench (deprecated by RFC 6633).
    pub const SOURCE_QUENCH: u8 = 4;
    /// Redirect.
    pub const REDIRECT: u8 = 5;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 8;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 11;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 12;

    /// Returns `true` for messages that quote the packet that caused them.
    pub const fn is_error(kind: u8) -> bool {
        matches!(
            kind,
            UNREACHABLE | SOURCE_QUENCH | REDIRECT | TIME_EXCEEDED | PARAMETER_PROBLEM
        )
    }

    /// Returns `true` for messages with an echo identifier.
    pub const fn is_echo(kind: u8) -> bool {
        matches!(kind, ECHO_REPLY | ECHO_REQUEST)
    }
}

/// Types of ICMPv6 messages.
pub mod v6 {
    /// Destination unreachable.
    pub const UNREACHABLE: u8 = 1;
    /// Packet too big.
    pub const PACKET_TOO_BIG: u8 = 2;
    /// Time exceeded.
    pub const TIME_EXCEEDED: u8 = 3;
    /// Parameter problem.
    pub const PARAMETER_PROBLEM: u8 = 4;
    /// Echo request.
    pub const ECHO_REQUEST: u8 = 128;
    /// Echo reply.
    pub const ECHO_REPLY: u8 = 129;

    /// Returns `true` for messages that quote the packet that caused them.
    pub const fn is_error(kind: u8) -> bool {
        matches!(kind, UNREACHABLE | PACKET_TOO_BIG | TIME_EXCEEDED | PARAMETER_PROBLEM)
    }

    /// Returns `true` for messages with an echo identifier.
    pub const fn is_echo(kind: u8) -> bool {
        matches!(kind, ECHO_REPLY | ECHO_REQUEST)
    }
}

/// View of an ICMP or ICMPv6 message; the bytes are the IP payload without padding. Both protocols have the same
/// header.
#[derive(Clone, Copy, Debug)]
pub struct IcmpView<T> {
    bytes: T,
}

impl<T: AsRef<[u8]>> IcmpView<T> {
    /// Creates a view of an ICMP message.
    ///
    /// # Errors
    /// [`Malformed::TruncatedIcmp`] if there are fewer than 8 bytes.
    pub fn new(bytes: T) -> Result<Self, Malformed> {
        Self::of_at_least(bytes, HEADER)
    }

    /// Creates a view of an ICMPv6 message, which may end after its checksum unless it is an echo message (RFC 4443
    /// §2.1).
    ///
    /// # Errors
    /// [`Malformed::TruncatedIcmp`] if it is shorter.
    pub fn new_v6(bytes: T) -> Result<Self, Malformed> {
        let echo = v6::is_echo(bytes::u8_at(bytes.as_ref(), 0));
        Self::of_at_least(bytes, if echo { HEADER } else { 4 })
    }

    fn of_at_least(bytes: T, length: usize) -> Result<Self, Malformed> {
        if bytes.as_ref().len() < length {
            return Err(Malformed::TruncatedIcmp);
        }
        Ok(IcmpView { bytes })
    }

    #[inline]
    fn get(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// The type: see [`v4`] and [`v6`].
    pub fn kind(&self) -> u8 {
        bytes::u8_at(self.get(), 0)
    }

    /// The code.
    pub fn code(&self) -> u8 {
        bytes::u8_at(self.get(), 1)
    }

    /// Returns the checksum; ICMPv6's covers a pseudo header.
    pub fn checksum(&self) -> u16 {
        bytes::u16_at(self.get(), 2)
    }

    /// The four bytes after the checksum, such as the MTU in "packet too big"; zeros if absent.
    pub fn rest_of_header(&self) -> [u8; 4] {
        bytes::array(self.get(), 4)
    }

    /// Returns the identifier of an echo message.
    pub fn identifier(&self) -> u16 {
        bytes::u16_at(self.get(), 4)
    }

    /// Returns the sequence number of an echo message.
    pub fn sequence(&self) -> u16 {
        bytes::u16_at(self.get(), 6)
    }

    /// Returns the bytes after the 8-byte header: an echo message's data, or the packet that an error quotes.
    pub fn payload(&self) -> &[u8] {
        bytes::from(self.get(), HEADER)
    }
}

/// Setters do not update the checksum: see [`checksum`](crate::checksum).
impl<T: AsRef<[u8]> + AsMut<[u8]>> IcmpView<T> {
    /// Sets the type.
    pub fn set_kind(&mut self, kind: u8) {
        bytes::put_u8(self.bytes.as_mut(), 0, kind);
    }

    /// Sets the code.
    pub fn set_code(&mut self, code: u8) {
        bytes::put_u8(self.bytes.as_mut(), 1, code);
    }

    /// Sets the checksum.
    pub fn set_checksum(&mut self, checksum: u16) {
        bytes::put_u16(self.bytes.as_mut(), 2, checksum);
    }

    /// Sets the four bytes after the checksum.
    pub fn set_rest_of_header(&mut self, rest: [u8; 4]) {
        bytes::put(self.bytes.as_mut(), 4, rest);
    }

    /// Sets an echo message's identifier.
    pub fn set_identifier(&mut self, identifier: u16) {
        bytes::put_u16(self.bytes.as_mut(), 4, identifier);
    }

    /// Sets an echo message's sequence number.
    pub fn set_sequence(&mut self, sequence: u16) {
        bytes::put_u16(self.bytes.as_mut(), 6, sequence);
    }

    /// Returns the bytes after the 8-byte header.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        self.bytes.as_mut().get_mut(HEADER..).unwrap_or_default()
    }
}

/// Packet quoted by an ICMP or ICMPv6 error: the fields that a NAT must rewrite. Offsets are in bytes from the start of
/// the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// Start of the quoted IP header.
    pub network_offset: u16,
    /// Start of the quoted transport header.
    pub transport_offset: u16,
    /// Fragmentation of the quoted packet. A later fragment has no ports.
    pub fragment: Fragment,
    /// 5-tuple of the quoted packet: the flow that the error refers to, in the direction of the packet that caused it.
    pub key: FlowKey,
}

/// Returns the packet quoted by a frame's ICMP or ICMPv6 error. The quote may end after 8 bytes of transport header
/// (RFC 792). `None` if it is shorter or malformed, or if the frame is not a whole ICMP error.
pub fn quoted(frame: &[u8], headers: &Headers) -> Option<Quoted> {
    if headers.fragment != Fragment::Whole {
        return None;
    }
    let message = headers.transport(frame);
    let kind = *message.first()?;
    let error = match (headers.key.protocol(), headers.network) {
        (protocol::ICMP, Network::V4) => v4::is_error(kind),
        (protocol::ICMPV6, Network::V6) => v6::is_error(kind),
        _ => false,
    };
    if !error {
        return None;
    }
    let packet = message.get(HEADER..)?;
    let start = headers.transport_offset as usize + HEADER;
    match headers.network {
        Network::V4 => quoted_v4(packet, start),
        Network::V6 => quoted_v6(packet, start),
        Network::NotIp => None,
    }
}

fn quoted_v4(packet: &[u8], start: usize) -> Option<Quoted> {
    // A view would fail, because the quote is shorter than its total length.
    let header = packet.first_chunk::<{ ipv4::HEADER }>()?;
    let header_length = (header[0] & 0x0f) as usize * 4;
    if header[0] >> 4 != 4 || header_length < ipv4::HEADER {
        return None;
    }
    let data = packet.get(header_length..)?;
    let bits = u16::from_be_bytes([header[6], header[7]]);
    let fragment = match (bits & 0x1fff, bits & 0x2000) {
        (0, 0) => Fragment::Whole,
        (0, _) => Fragment::First,
        _ => Fragment::Later,
    };
    let protocol = header[9];
    let (source_port, destination_port) = quoted_ports(data, protocol, fragment, Network::V4)?;
    Some(Quoted {
        network_offset: start as u16,
        transport_offset: (start + header_length) as u16,
        fragment,
        key: FlowKey::v4(
            Ipv4Addr::from_bits(bytes::u32_at(header, 12)),
            Ipv4Addr::from_bits(bytes::u32_at(header, 16)),
            protocol,
            source_port,
            destination_port,
        ),
    })
}

fn quoted_v6(packet: &[u8], start: usize) -> Option<Quoted> {
    let (header, payload) = packet.split_first_chunk::<{ ipv6::HEADER }>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let mut extensions = Extensions::new(header[6], payload);
    let mut fragment = Fragment::Whole;
    for extension in extensions.by_ref() {
        match extension.ok()?.fragment() {
            None | Some((0, false)) => {}
            Some((0, true)) => fragment = Fragment::First,
            Some(_) => fragment = Fragment::Later,
        }
    }
    let (protocol, data) = extensions.remainder();
    let (source_port, destination_port) = quoted_ports(data, protocol, fragment, Network::V6)?;
    Some(Quoted {
        network_offset: start as u16,
        transport_offset: (start + packet.len() - data.len()) as u16,
        fragment,
        key: FlowKey::v6(
            Ipv6Addr::from(bytes::array::<16>(header, 8)),
            Ipv6Addr::from(bytes::array::<16>(header, 24)),
            protocol,
            source_port,
            destination_port,
        ),
    })
}

/// Returns the ports of a quoted packet as in its flow key.
fn quoted_ports(data: &[u8], protocol: u8, fragment: Fragment, network: Network) -> Option<(u16, u16)> {
    if fragment == Fragment::Later {
        return Some((0, 0));
    }
    let head = data.first_chunk::<8>();
    match (protocol, network) {
        (protocol::TCP | protocol::UDP | protocol::SCTP, _) => {
            let head = head?;
            Some((bytes::u16_at(head, 0), bytes::u16_at(head, 2)))
        }
        (protocol::ICMP, Network::V4) => head.map(|head| echo(head, v4::is_echo(head[0]))),
        (protocol::ICMPV6, Network::V6) => head.map(|head| echo(head, v6::is_echo(head[0]))),
        _ => Some((0, 0)),
    }
}

/// Returns an echo message's identifier as both ports, or zeros.
fn echo(head: &[u8; 8], is_echo: bool) -> (u16, u16) {
    let identifier = if is_echo { bytes::u16_at(head, 4) } else { 0 };
    (identifier, identifier)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::FrameBuilder;
    use crate::parse::parse;

    #[test]
    fn fields() {
        let mut message = [0; 10];
        let mut view = IcmpView::new(&mut message[..]).unwrap();
        view.set_kind(8);
        view.set_code(1);
        view.set_checksum(0x0203);
        view.set_identifier(0x0405);
        view.set_sequence(0x0607);
        view.payload_mut().fill(9);
        assert_eq!((view.kind(), view.code(), view.checksum()), (8, 1, 0x0203));
        assert_eq!((view.identifier(), view.sequence()), (0x0405, 0x0607));
        assert_eq!(view.rest_of_header(), [4, 5, 6, 7]);
        assert_eq!(view.payload(), [9, 9]);
        view.set_rest_of_header([0; 4]);
        assert_eq!(message, [8, 1, 2, 3, 0, 0, 0, 0, 9, 9]);
    }

    #[test]
    fn short_messages() {
        assert!(IcmpView::new([0; 7]).is_err());
        let solicitation = IcmpView::new_v6([152, 0, 0, 0]).unwrap();
        assert_eq!(
            (solicitation.rest_of_header(), solicitation.payload()),
            ([0; 4], &[][..])
        );
        assert!(IcmpView::new_v6([128, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(IcmpView::new_v6([152, 0, 0]).is_err());
    }

    /// Builds an error of type `kind` from a router that quotes `length` bytes of the IP packet `inner`.
    fn error_about(inner: &[u8], kind: u8, length: usize) -> Vec<u8> {
        let headers = parse(inner).unwrap();
        let start = headers.network_offset as usize;
        let key = match headers.network {
            Network::V4 => FlowKey::v4([9; 4].into(), [10; 4].into(), protocol::ICMP, 0, 0),
            _ => FlowKey::v6([9; 16].into(), [10; 16].into(), protocol::ICMPV6, 0, 0),
        };
        FrameBuilder::new(&key)
            .icmp(kind, 0, [0; 4])
            .payload(&inner[start..start + length])
            .to_vec()
            .unwrap()
    }

    #[test]
    fn errors_quote_the_packet_that_caused_them() {
        let (s4, d4) = ([1, 2, 3, 4].into(), [5, 6, 7, 8].into());
        let (s6, d6) = ([1; 16].into(), [2; 16].into());
        for key in [
            FlowKey::v4(s4, d4, protocol::TCP, 1, 2),
            FlowKey::v4(s4, d4, protocol::UDP, 3, 4),
            FlowKey::v4(s4, d4, protocol::ICMP, 5, 5),
            FlowKey::v6(s6, d6, protocol::TCP, 1, 2),
            FlowKey::v6(s6, d6, protocol::ICMPV6, 6, 6),
            FlowKey::v6(s6, d6, protocol::SCTP, 0, 0),
        ] {
            let inner = FrameBuilder::new(&key).payload(&[0; 40]).to_vec().unwrap();
            let inner_headers = parse(&inner).unwrap();
            let network_header = inner_headers.transport_offset - inner_headers.network_offset;
            let (kind, ip) = if key.is_v4() {
                (v4::TIME_EXCEEDED, 20)
            } else {
                (v6::TIME_EXCEEDED, 40)
            };
            let frame = error_about(&inner, kind, network_header as usize + 8);
            let headers = parse(&frame).unwrap();
            let quote = quoted(&frame, &headers).unwrap();
            assert_eq!(quote.key, key);
            assert_eq!(quote.fragment, Fragment::Whole);
            assert_eq!(quote.network_offset, headers.payload_offset);
            assert_eq!(quote.transport_offset, headers.payload_offset + ip);

            let frame = error_about(&inner, kind, network_header as usize + 7);
            assert_eq!(quoted(&frame, &parse(&frame).unwrap()), None);
            let mut frame = error_about(&inner, kind, network_header as usize + 8);
            frame[headers.payload_offset as usize] ^= 0x20;
            assert_eq!(quoted(&frame, &headers), None, "another IP version");
            // The inner packet itself is not an error.
            assert_eq!(quoted(&inner, &inner_headers), None);
        }
    }
}
