//! Uniform traffic for benchmarks: a fixed number of flows, one size, one rate.

use tailwater_net::builder::TcpFields;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos, protocol};

use super::frame::{FCS, FrameWriter, MAX_SERVERS, client, server};
use super::random::{Random, scramble};
use crate::trace::check_rate;
use crate::{Notice, Packet, PacketSource, TrafficError};

/// Size of Ethernet, IPv4 and TCP or UDP headers in bytes.
const TCP_HEADERS: usize = 54;
const UDP_HEADERS: usize = 42;

/// Flows per client address.
pub(super) const FLOWS_PER_CLIENT: u32 = 16;

/// Maximum number of flows.
pub(super) const MAX_FLOWS: u32 = 1 << 24;

/// Frame size as named by benchmarks: with the 4 bytes of the frame check sequence, which frames in memory do not
/// include. A "64-byte" frame has 60 bytes here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameSize {
    /// All frames have this size, 64 to 9018 bytes.
    Fixed(u16),
    /// Seven of 64, four of 594 and one of 1518 bytes in every twelve: the "simple IMIX".
    Imix,
}

impl FrameSize {
    /// Returns the lengths that frames of this size are drawn from.
    pub fn frames(self) -> Vec<u16> {
        match self {
            FrameSize::Fixed(size) => vec![size],
            FrameSize::Imix => [&[64; 7][..], &[594; 4], &[1_518]].concat(),
        }
    }
}

/// Transport protocol of all flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP.
    Udp,
    /// TCP: the first packet of a flow is a SYN, all others carry data with ACK.
    Tcp,
}

/// Configuration of uniform traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UniformConfig {
    /// Seed of the flows' addresses, ports and order.
    pub seed: u64,
    /// Number of flows, 1 to 16,777,216: 16 per client address. Takes 4 bytes each.
    pub flows: u32,
    /// Frame size.
    pub size: FrameSize,
    /// Transport protocol.
    pub transport: Transport,
    /// Constant rate in packets per second.
    pub rate_pps: u64,
    /// Total number of packets, at least 1.
    pub packets: u64,
}

/// Uniform traffic as a source of packets.
///
/// Packets come in rounds. Each round has one packet of every flow, in a random order that differs from round to round.
#[derive(Debug)]
pub struct Uniform {
    config: UniformConfig,
    random: Random,
    writer: FrameWriter,
    order: Rounds,
    /// Number of packets yielded.
    yielded: u64,
}

impl Uniform {
    /// Creates traffic with this configuration.
    ///
    /// # Errors
    /// [`TrafficError::Setting`] for the first field out of range.
    pub fn new(config: UniformConfig) -> Result<Self, TrafficError> {
        if !(1..=MAX_FLOWS).contains(&config.flows) {
            let expected = "1 to 16,777,216";
            return Err(TrafficError::setting("flows", config.flows, expected));
        }
        if let FrameSize::Fixed(size @ (..64 | 9_019..)) = config.size {
            let expected = "64 to 9018 bytes, with the frame check sequence";
            return Err(TrafficError::setting("size", size, expected));
        }
        check_rate(config.rate_pps as f64)?;
        if config.packets == 0 {
            return Err(TrafficError::setting("packets", 0, "at least 1"));
        }
        let longest = config.size.frames().into_iter().max().unwrap_or(0);
        Ok(Uniform {
            random: Random::new(config.seed),
            writer: FrameWriter::new(longest.into()),
            order: Rounds::new(config.flows),
            yielded: 0,
            config,
        })
    }

    /// Returns the key of a flow, which depends on its number and the seed only.
    fn key(&self, flow: u32) -> FlowKey {
        let hash = scramble(u64::from(flow) ^ scramble(self.config.seed));
        let (number, destination_port) = match self.config.transport {
            Transport::Udp => (protocol::UDP, 4_789),
            Transport::Tcp => (protocol::TCP, 443),
        };
        FlowKey::v4(
            client(flow / FLOWS_PER_CLIENT),
            server(hash as u32 % MAX_SERVERS),
            number,
            source_port(flow, hash),
            destination_port,
        )
    }
}

/// Returns the source port of a flow with random bits. Sixteen ranges of 4000 ports keep the flows of a client
/// distinct.
pub(super) fn source_port(flow: u32, bits: u64) -> u16 {
    (1_024 + (flow % FLOWS_PER_CLIENT) * 4_000 + (bits >> 32) as u32 % 4_000) as u16
}

/// Returns the time of a packet by its number, at a constant rate.
pub(super) fn evenly(number: u64, rate_pps: u64) -> Nanos {
    // 128 bits hold the product for any number of packets.
    let nanos = u128::from(number) * 1_000_000_000 / u128::from(rate_pps);
    Nanos(nanos.try_into().unwrap_or(u64::MAX))
}

/// Rounds of one packet of every flow, each in another random order.
#[derive(Debug)]
pub(super) struct Rounds {
    /// Flows in the order of this round.
    order: Vec<u32>,
    /// Flows of this round so far.
    at: usize,
}

impl Rounds {
    pub(super) fn new(flows: u32) -> Rounds {
        Rounds {
            order: (0..flows).collect(),
            at: 0,
        }
    }

    /// Returns the flow of the next packet.
    pub(super) fn next(&mut self, random: &mut Random) -> u32 {
        if self.at == 0 {
            // Fisher and Yates.
            for last in (1..self.order.len()).rev() {
                let other = random.below(last as u64 + 1) as usize;
                self.order.swap(last, other);
            }
        }
        let flow = self.order[self.at];
        self.at = (self.at + 1) % self.order.len();
        flow
    }
}

impl PacketSource for Uniform {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        if self.yielded == self.config.packets {
            return Ok(None);
        }
        let number = self.yielded;
        self.yielded += 1;
        let flows = u64::from(self.config.flows);
        let round = number / flows;
        let flow = self.order.next(&mut self.random);
        let key = self.key(flow);
        let size = match self.config.size {
            FrameSize::Fixed(size) => usize::from(size),
            FrameSize::Imix => match self.random.below(12) {
                0..7 => 64,
                7..11 => 594,
                _ => 1_518,
            },
        };
        let length = size - FCS;
        let identification = round as u16;
        let frame = match self.config.transport {
            Transport::Udp => self.writer.udp(&key, identification, length - UDP_HEADERS),
            Transport::Tcp => {
                let payload = length - TCP_HEADERS;
                let flags = match round {
                    0 => TcpFlags::SYN,
                    _ => TcpFlags::ACK,
                };
                let fields = TcpFields {
                    sequence: (round as u32).wrapping_mul(payload as u32),
                    flags,
                    ..TcpFields::default()
                };
                self.writer.tcp(&key, identification, fields, payload)
            }
        };
        let data = frame.map_err(|error| TrafficError::setting("size", error, "frames that hold their headers"))?;
        Ok(Some(Packet {
            timestamp: evenly(number, self.config.rate_pps),
            data,
            wire_length: data.len() as u32,
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }

    fn name(&self) -> &str {
        "uniform"
    }
}
