//! Packets, as seen by rules.

use crate::connection::Connection;
use crate::rule::{Direction, Field};
use std::net::IpAddr;
use tailwater_net::parse::{Headers, Network};
use tailwater_net::{FlowKey, Nanos, protocol};

/// Packet as it arrived.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Frame.
    pub frame: &'a [u8],
    /// Parsed headers.
    pub headers: &'a Headers,
    /// Arrival time.
    pub arrival: Nanos,
    /// `true` if the packet goes against its connection's key.
    pub reversed: bool,
}

impl<'a> Input<'a> {
    /// Returns the transport header and payload.
    #[inline]
    fn transport(&self) -> &'a [u8] {
        self.headers.transport(self.frame)
    }

    /// Returns the payload.
    #[inline]
    pub(crate) fn payload(&self) -> &'a [u8] {
        self.headers.payload(self.frame)
    }

    /// Reads a big-endian number from the transport header.
    #[inline]
    fn word(&self, at: usize, bytes: usize) -> Option<u64> {
        number(self.transport(), at, bytes)
    }

    /// Returns sequence number, acknowledgement number and flags of a TCP segment.
    #[inline]
    pub(crate) fn segment(&self) -> Option<(u32, u32, u8)> {
        let header = self.transport().first_chunk::<20>()?;
        let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        Some((word(4), word(8), header[13]))
    }
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + length)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Subject of evaluation: a packet, or the stream bytes it completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    pub(crate) input: &'a Input<'a>,
    /// Source and destination; for a stream in the opposite direction, the stream's.
    pub(crate) key: FlowKey,
    pub(crate) direction: Direction,
    /// `true` if rules may drop.
    pub(crate) drops: bool,
}

impl Subject<'_> {
    #[inline]
    pub(crate) fn ends(&self) -> [IpAddr; 2] {
        [self.key.source(), self.key.destination()]
    }

    #[inline]
    pub(crate) fn arrival(&self) -> Nanos {
        self.input.arrival
    }

    /// Returns the TCP flags; 0 for other packets.
    #[inline]
    pub(crate) fn flags(&self) -> u8 {
        match self.key.protocol() {
            protocol::TCP => self.input.segment().map_or(0, |(_, _, flags)| flags),
            _ => 0,
        }
    }

    /// Returns the subject for the opposite direction.
    pub(crate) fn opposite(&self) -> Self {
        Subject {
            key: self.key.reversed(),
            direction: self.direction.opposite(),
            ..*self
        }
    }

    /// Returns a number of the packet's headers, if present.
    pub(crate) fn number(&self, field: Field, connection: &Connection) -> Option<u64> {
        let (input, headers) = (self.input, self.input.headers);
        let datagram = headers.datagram(input.frame);
        let v4 = headers.network == Network::V4;
        let of = |wanted: &[u8]| wanted.contains(&self.key.protocol()).then_some(());
        let icmp = [protocol::ICMP, protocol::ICMPV6];
        let tcp = [protocol::TCP];
        match field {
            Field::PayloadSize => Some(input.payload().len() as u64),
            Field::IcmpType => of(&icmp).and_then(|()| input.word(0, 1)),
            Field::IcmpCode => of(&icmp).and_then(|()| input.word(1, 1)),
            Field::IcmpId => of(&icmp).and_then(|()| input.word(4, 2)),
            Field::IcmpSequence => of(&icmp).and_then(|()| input.word(6, 2)),
            Field::TimeToLive => number(datagram, if v4 { 8 } else { 7 }, 1),
            Field::Identification if v4 => number(datagram, 4, 2),
            Field::Identification => None,
            // In IPv6 the protocol after extension headers; in a later fragment it may be an extension header.
            Field::IpProtocol => Some(self.key.protocol().into()),
            Field::Sequence => of(&tcp).and_then(|()| input.word(4, 4)),
            Field::Acknowledgement => of(&tcp).and_then(|()| input.word(8, 4)),
            Field::Window => of(&tcp).and_then(|()| input.word(14, 2)),
            Field::StreamSize(direction) => of(&tcp).map(|()| connection.sizes[direction.index()].into()),
        }
    }
}
