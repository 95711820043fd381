//! Traffic for `dnsGuard`: the UDP packets of another source as answers of a name server.

use std::net::IpAddr;
use tailwater_net::checksum::{transport_v6, udp_field};
use tailwater_net::parse::parse;
use tailwater_net::protocol;
use tailwater_traffic::{Notice, Packet, PacketSource, TrafficError};

/// Packets of a source, those of UDP turned into answers from port 53 to their flows' sources. The name has three
/// letters, derived from the flow. Frame lengths do not change. Frames of 64 bytes have room for the root's name only,
/// and derive the type from the flow. Messages too short for that end in the middle.
pub struct Answers<S> {
    pub source: S,
    pub frame: Vec<u8>,
}

impl<S: PacketSource> PacketSource for Answers<S> {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        let Some(packet) = self.source.next_packet()? else {
            return Ok(None);
        };
        self.frame.clear();
        self.frame.extend_from_slice(packet.data);
        let headers = parse(&self.frame).unwrap_or_else(|reason| panic!("{reason:?}"));
        if headers.key.protocol() != protocol::UDP {
            return Ok(Some(Packet {
                data: &self.frame,
                ..packet
            }));
        }
        let (client, bits) = (headers.key.source_port(), headers.key.hash(1));
        let udp = usize::from(headers.transport_offset);
        // From the server, and without a checksum over IPv4.
        self.frame[udp..udp + 2].copy_from_slice(&53_u16.to_be_bytes());
        self.frame[udp + 2..udp + 4].copy_from_slice(&client.to_be_bytes());
        self.frame[udp + 6..udp + 8].fill(0);
        let letter = |at: u32| b'a' + ((bits >> (8 * at)) & 15) as u8;
        let named = [3, letter(0), letter(1), letter(2), 0, 0, 1, 0, 1];
        let root = [0, 1, letter(0), 0, 1];
        let message = &mut self.frame[udp + 8..usize::from(headers.end)];
        let question = match message.len() < 12 + named.len() {
            true => &root[..],
            false => &named[..],
        };
        let head = [0, 9, 0x84, 0, 0, 1, 0, 1, 0, 0, 0, 0];
        for (to, from) in message.iter_mut().zip(head.iter().chain(question)) {
            *to = *from;
        }
        if let (IpAddr::V6(source), IpAddr::V6(destination)) = (headers.key.source(), headers.key.destination()) {
            let datagram = &mut self.frame[udp..usize::from(headers.end)];
            let checksum = udp_field(transport_v6(source, destination, protocol::UDP, datagram));
            datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
        }
        Ok(Some(Packet {
            data: &self.frame,
            ..packet
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        self.source.notices()
    }

    fn name(&self) -> &str {
        self.source.name()
    }
}
