//! Uniform traffic for benchmarks: a fixed number of flows, one size, one rate.

use tailwater_net::builder::TcpFields;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos, protocol};

use super::frame::{FCS, FrameWriter, MAX_SERVERS, client, server};
use super::random::Random;
use crate::trace::check_rate;
use crate::{Notice, Packet, PacketSource, TrafficError};

/// Size of Ethernet, IPv4 and TCP or UDP headers in bytes.
const TCP_HEADERS: usize = 54;
const UDP_HEADERS: usize = 42;

/// Flows per client address.
const FLOWS_PER_CLIENT: u32 = 16;

/// Maximum number of flows.
const MAX_FLOWS: u32 = 1 << 24;

/// Frame size as named by benchmarks: with the 4 bytes of the frame check sequence, which frames in memory do not
/// include. A "64-byte" frame has 60 bytes here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameSize {
    /// All frames have this size, 64 to 9018 bytes.
    Fixed(u16),
    /// Seven of 64, four of 594 and one of 1518 bytes in every twelve: the "simple IMIX".
    Imix,
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
    /// Flows in the order of this round.
    order: Vec<u32>,
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
        let longest = match config.size {
            FrameSize::Fixed(size) => usize::from(size),
            FrameSize::Imix => 1_518,
        };
        Ok(Uniform {
            random: Random::new(config.seed),
            writer: FrameWriter::new(longest),
            order: (0..config.flows).collect(),
            yielded: 0,
            config,
        })
    }

    /// Draws a random order for the next round (Fisher and Yates).
    fn shuffle(&mut self) {
        for last in (1..self.order.len()).rev() {
            let other = self.random.below(last as u64 + 1) as usize;
            self.order.swap(last, other);
        }
    }

    /// Returns the key of a flow, which depends on its number and the seed only.
    fn key(&self, flow: u32) -> FlowKey {
        let hash = scramble(u64::from(flow) ^ scramble(self.config.seed));
        let (number, destination_port) = match self.config.transport {
            Transport::Udp => (protocol::UDP, 4_789),
            Transport::Tcp => (protocol::TCP, 443),
        };
        // Sixteen port ranges of 4000 keep the flows of a client distinct.
        let source_port = 1_024 + (flow % FLOWS_PER_CLIENT) * 4_000 + (hash >> 32) as u32 % 4_000;
        FlowKey::v4(
            client(flow / FLOWS_PER_CLIENT),
            server(hash as u32 % MAX_SERVERS),
            number,
            source_port as u16,
            destination_port,
        )
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
        let (round, at) = (number / flows, (number % flows) as usize);
        if at == 0 {
            self.shuffle();
        }
        let key = self.key(self.order[at]);
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
        // 128 bits hold the product for any number of packets.
        let nanos = u128::from(number) * 1_000_000_000 / u128::from(self.config.rate_pps);
        Ok(Some(Packet {
            timestamp: Nanos(nanos.try_into().unwrap_or(u64::MAX)),
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

/// Finaliser of SplitMix64 on 64 bits (Steele, Lea, Flood, OOPSLA 2014).
fn scramble(value: u64) -> u64 {
    let mut x = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
