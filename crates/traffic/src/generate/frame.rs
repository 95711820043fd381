//! Addresses and frames of synthetic flows.

use std::net::Ipv4Addr;

use tailwater_net::FlowKey;
use tailwater_net::builder::{BuildError, FrameBuilder, TcpFields};

use super::random::Random;

/// Size of the Ethernet frame check sequence in bytes. Frames in memory do not include it.
pub(super) const FCS: usize = 4;

/// Bytes of a frame on the wire in addition to its own and the frame check sequence: preamble, start delimiter and
/// inter-frame gap.
pub(super) const WIRE_OVERHEAD: usize = 20;

/// Clients per /24 of 10.0.0.0/8: host numbers 1 to 254.
const HOSTS: u32 = 254;

/// Maximum number of clients, which fill 10.0.0.0/8.
pub(super) const MAX_CLIENTS: u32 = HOSTS << 16;

/// Maximum number of servers, which fill 198.18.0.0/15 and three documentation networks.
pub(super) const MAX_SERVERS: u32 = (1 << 17) + 3 * HOSTS;

/// Returns the address of client `index`, from 10.0.0.1 up, without network and broadcast addresses.
pub(super) fn client(index: u32) -> Ipv4Addr {
    let (network, host) = (index / HOSTS, index % HOSTS + 1);
    Ipv4Addr::from_bits(0x0a00_0000 | ((network & 0xffff) << 8) | host)
}

/// Returns the address of server `index`: the documentation networks of RFC 5737, then the benchmark network of RFC
/// 2544.
pub(super) fn server(index: u32) -> Ipv4Addr {
    let host = index % HOSTS + 1;
    match index / HOSTS {
        0 => Ipv4Addr::from_bits(0xcb00_7100 | host),
        1 => Ipv4Addr::from_bits(0xc633_6400 | host),
        2 => Ipv4Addr::from_bits(0xc000_0200 | host),
        _ => Ipv4Addr::from_bits(0xc612_0000 | ((index - 3 * HOSTS) & 0x1_ffff)),
    }
}

/// Writer of frames, with a buffer of its own.
#[derive(Clone, Debug)]
pub(super) struct FrameWriter {
    /// Source of payloads: random bytes, the same in all traffic.
    payload: Vec<u8>,
    buffer: Vec<u8>,
}

impl FrameWriter {
    /// Creates a writer for frames of up to `longest` bytes.
    pub(super) fn new(longest: usize) -> Self {
        let mut payload = vec![0; longest];
        Random::new(0).fill(&mut payload);
        FrameWriter {
            payload,
            buffer: vec![0; longest.max(64)],
        }
    }

    /// Builds a TCP segment of the flow with `payload` bytes of payload.
    pub(super) fn tcp(
        &mut self,
        key: &FlowKey,
        identification: u16,
        fields: TcpFields<'_>,
        payload: usize,
    ) -> Result<&[u8], BuildError> {
        let builder = FrameBuilder::new(key).tcp(fields);
        self.write(builder, identification, payload)
    }

    /// Builds a UDP datagram of the flow.
    pub(super) fn udp(&mut self, key: &FlowKey, identification: u16, payload: usize) -> Result<&[u8], BuildError> {
        self.write(FrameBuilder::new(key), identification, payload)
    }

    /// Builds a packet with `payload` bytes of payload, padded to the minimum frame.
    pub(super) fn write(
        &mut self,
        builder: FrameBuilder<'_>,
        identification: u16,
        payload: usize,
    ) -> Result<&[u8], BuildError> {
        let payload = self.payload.get(..payload).unwrap_or(&self.payload);
        let length = builder
            .identification(identification)
            .payload(payload)
            .pad_to_minimum()
            .write(&mut self.buffer)?;
        Ok(&self.buffer[..length])
    }

    /// Builds a packet as captured on a link, without padding to the minimum frame. `said` is its payload, or a number
    /// of random bytes.
    pub(super) fn unpadded(
        &mut self,
        builder: FrameBuilder<'_>,
        identification: u16,
        said: Result<&[u8], usize>,
    ) -> Result<&[u8], BuildError> {
        let payload = match said {
            Ok(payload) => payload,
            Err(length) => self.payload.get(..length).unwrap_or(&self.payload),
        };
        let length = builder
            .identification(identification)
            .payload(payload)
            .write(&mut self.buffer)?;
        Ok(&self.buffer[..length])
    }
}
