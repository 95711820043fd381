//! Mixed traffic for benchmarks: TCP, UDP and ICMP, IPv4 and IPv6, with and without VLAN tags, in unpredictable order.

use std::net::{IpAddr, Ipv6Addr};

use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::tcp::TcpFlags;
use tailwater_net::vlan::{TAG, VlanTag};
use tailwater_net::{FlowKey, icmp, protocol};

use super::frame::{FCS, FrameWriter, MAX_CLIENTS, MAX_SERVERS, client, server};
use super::random::{Random, scramble};
use super::uniform::{FLOWS_PER_CLIENT, MAX_FLOWS, Rounds, evenly, source_port};
use crate::trace::check_rate;
use crate::{Notice, Packet, PacketSource, TrafficError};

/// First client of the flows that begin within the traffic: 10.128.0.1, or the same in IPv6.
const NEW_CLIENTS: u32 = MAX_CLIENTS / 2;
/// IPv6 networks of clients and servers (RFC 3849). The low 32 bits of an address are those of the IPv4 address.
const CLIENTS_V6: u128 = 0x2001_0db8_0000 << 80;
const SERVERS_V6: u128 = 0x2001_0db8_ffff << 80;
/// Tags are of this VLAN or the next fifteen.
const FIRST_VLAN: u16 = 100;

/// Mean packets of a TCP connection if the flows stay the same: it is reopened between the same ports.
const CONNECTION: f64 = 32.0;
/// Maximum share of packets that begin a flow: eight packets each, which a TCP connection of both ends needs.
const MAX_NEW_FLOWS: f64 = 0.125;

/// Shares of flows, each 0 to 1. What is neither TCP nor ICMP is UDP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowShares {
    /// TCP.
    pub tcp: f64,
    /// ICMP and ICMPv6 echoes.
    pub icmp: f64,
    /// IPv6, the same share of each protocol.
    pub ipv6: f64,
    /// Flows with an 802.1Q tag, the same share of each protocol.
    pub vlan: f64,
}

impl FlowShares {
    /// Half TCP and half UDP over IPv4, without tags.
    pub const TCP_UDP: FlowShares = FlowShares {
        tcp: 0.5,
        icmp: 0.0,
        ipv6: 0.0,
        vlan: 0.0,
    };
    /// 60 % TCP, 38 % UDP, 2 % ICMP; a fifth over IPv6, a fifth with a tag.
    pub const MIXED: FlowShares = FlowShares {
        tcp: 0.6,
        icmp: 0.02,
        ipv6: 0.2,
        vlan: 0.2,
    };
}

/// Order in which flows have packets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Popularity {
    /// Rounds of one packet of each flow, each in another random order.
    Uniform,
    /// Independent draws from a Zipf distribution of this exponent, 0.1 to 3: the flow of rank `r` has a share
    /// proportional to `1 / r^exponent`.
    Zipf(f64),
}

/// Sender of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Senders {
    /// Clients only, for chains that change addresses: responses would need the new ones. The servers' segments count
    /// as unseen.
    Clients,
    /// Both ends of each flow.
    BothEnds,
}

/// Configuration of mixed traffic.
#[derive(Clone, Debug, PartialEq)]
pub struct MixedConfig {
    /// Seed of the flows and their order.
    pub seed: u64,
    /// Number of active flows, 1 to 16,777,216. Takes 20 bytes each, or 28 with [`Popularity::Zipf`].
    pub flows: u32,
    /// Frame lengths with frame check sequence, 64 to 9018 bytes, as of
    /// [`FrameSize::frames`](super::FrameSize::frames). Each packet's is drawn from these. A frame too short for its
    /// headers has those and no payload. TCP segments without data are as short as they can be.
    pub sizes: Vec<u16>,
    /// Protocols of the flows.
    pub shares: FlowShares,
    /// Order of the flows' packets.
    pub popularity: Popularity,
    /// Senders.
    pub senders: Senders,
    /// All flows are open at the start. Otherwise each begins with its first packet.
    pub open: bool,
    /// Share of packets that begin a flow, 0 to 0.125. A flow that ends is followed by another one with other addresses
    /// and ports, so that the number of active flows stays the same. At 0, TCP connections of 32 packets on average end
    /// and are reopened between the same ports.
    pub new_flows: f64,
    /// Constant rate in packets per second.
    pub rate_pps: u64,
    /// Total number of packets, at least 1.
    pub packets: u64,
}

/// Sender of a packet.
const CLIENT: usize = 0;
const SERVER: usize = 1;

/// Stage of a flow. TCP passes all, other protocols begin with [`Stage::Opening`] and stay in [`Stage::Data`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// First packet: of TCP a SYN.
    Opening,
    SynAck,
    HandshakeAck,
    Data,
    Fin,
    FinAck,
    LastAck,
}

/// Flow in a slot.
#[derive(Clone, Copy, Debug)]
struct Flow {
    /// Number of flows the slot had before.
    generation: u32,
    /// Next sequence number of each end. Of ICMP the client's only: requests are even, replies odd.
    next: [u32; 2],
    stage: Stage,
}

/// Invariant properties of a flow, which depend on the slot, its generation and the seed only.
#[derive(Clone, Copy, Debug)]
struct Kind {
    key: FlowKey,
    vlan: Option<VlanTag>,
}

/// Packet of a flow, before its bytes are built.
#[derive(Clone, Copy, Debug)]
struct Segment {
    from: usize,
    flags: TcpFlags,
    sequence: u32,
    acknowledgment: u32,
    /// Has payload if the frame's length permits.
    data: bool,
}

/// Mixed traffic as a source of packets.
///
/// A flow's first packet is from its client: a SYN, a datagram or an echo request. Sequence numbers advance by the bytes
/// sent. With [`Senders::Clients`] a connection is SYN, ACK, data, FIN, ACK.
#[derive(Debug)]
pub struct Mixed {
    config: MixedConfig,
    random: Random,
    writer: FrameWriter,
    order: FlowOrder,
    flows: Vec<Flow>,
    yielded: u64,
}

/// Draws of flows.
#[derive(Debug)]
enum FlowOrder {
    Rounds(Rounds),
    /// Cumulative shares of the flows, up to any total.
    Shares(Vec<f64>),
}

impl FlowOrder {
    fn new(flows: u32, popularity: Popularity) -> Result<FlowOrder, TrafficError> {
        match popularity {
            Popularity::Uniform => Ok(FlowOrder::Rounds(Rounds::new(flows))),
            Popularity::Zipf(exponent) if (0.1..=3.0).contains(&exponent) => {
                let shares = (1..=flows).scan(0.0, |total, rank| {
                    *total += libm::pow(f64::from(rank), -exponent);
                    Some(*total)
                });
                Ok(FlowOrder::Shares(shares.collect()))
            }
            Popularity::Zipf(exponent) => Err(TrafficError::setting("popularity", exponent, "0.1 to 3")),
        }
    }

    /// Returns the flow of the next packet.
    fn next(&mut self, random: &mut Random) -> u32 {
        match self {
            FlowOrder::Rounds(rounds) => rounds.next(random),
            FlowOrder::Shares(shares) => {
                let total = shares.last().copied().unwrap_or(0.0);
                let at = random.unit() * total;
                let rank = shares.partition_point(|share| *share < at);
                rank.min(shares.len() - 1) as u32
            }
        }
    }
}

/// Returns `true` for a flow that began within mixed traffic, in contrast to those open at its start, by either
/// direction's key.
pub fn is_new_flow(key: &FlowKey) -> bool {
    let [source, destination] = [key.source(), key.destination()].map(|address| match address {
        IpAddr::V4(address) => address.to_bits(),
        IpAddr::V6(address) => address.to_bits() as u32,
    });
    // Servers are not in 10.0.0.0/8.
    [source, destination]
        .iter()
        .any(|address| address >> 23 == 0x0a80_0000 >> 23)
}

impl Mixed {
    /// Creates traffic with this configuration.
    ///
    /// # Errors
    /// [`TrafficError::Setting`] for the first field out of range.
    pub fn new(config: MixedConfig) -> Result<Self, TrafficError> {
        if !(1..=MAX_FLOWS).contains(&config.flows) {
            return Err(TrafficError::setting("flows", config.flows, "1 to 16,777,216"));
        }
        let wrong = config.sizes.iter().find(|size| !(64..=9_018).contains(*size));
        if let Some(size) = wrong.or(config.sizes.is_empty().then_some(&0)) {
            return Err(TrafficError::setting(
                "sizes",
                size,
                "64 to 9018 bytes, with the frame check sequence",
            ));
        }
        let shares = &config.shares;
        for (field, share) in [
            ("tcp", shares.tcp),
            ("icmp", shares.icmp),
            ("tcp and icmp", shares.tcp + shares.icmp),
            ("ipv6", shares.ipv6),
            ("vlan", shares.vlan),
        ] {
            if !(0.0..=1.0).contains(&share) {
                return Err(TrafficError::setting(field, share, "0 to 1"));
            }
        }
        if !(0.0..=MAX_NEW_FLOWS).contains(&config.new_flows) {
            return Err(TrafficError::setting("new_flows", config.new_flows, "0 to 0.125"));
        }
        check_rate(config.rate_pps as f64)?;
        if config.packets == 0 {
            return Err(TrafficError::setting("packets", 0, "at least 1"));
        }
        let longest = config.sizes.iter().max().map_or(0, |size| usize::from(*size));
        let order = FlowOrder::new(config.flows, config.popularity)?;
        let mut mixed = Mixed {
            random: Random::new(config.seed),
            // All headers, with a tag.
            writer: FrameWriter::new(longest.max(128)),
            order,
            flows: Vec::new(),
            yielded: 0,
            config,
        };
        let stage = if mixed.config.open { Stage::Data } else { Stage::Opening };
        mixed.flows = (0..mixed.config.flows).map(|slot| mixed.flow(slot, 0, stage)).collect();
        Ok(mixed)
    }

    /// Returns random bits of a flow.
    fn bits(&self, slot: u32, generation: u32) -> u64 {
        let slot = u64::from(slot) | u64::from(generation) << 32;
        scramble(slot ^ scramble(self.config.seed))
    }

    fn flow(&self, slot: u32, generation: u32, stage: Stage) -> Flow {
        let bits = scramble(self.bits(slot, generation) ^ 1);
        Flow {
            generation,
            next: [bits as u32 & !1, (bits >> 32) as u32],
            stage,
        }
    }

    /// Returns the invariant properties of a flow.
    fn kind(&self, slot: u32, generation: u32) -> Kind {
        let bits = self.bits(slot, generation);
        let choices = scramble(bits).to_le_bytes();
        let choice = |at: usize| f64::from(u16::from_le_bytes([choices[at], choices[at + 1]])) / 65_536.0;
        let shares = &self.config.shares;
        let v6 = choice(2) < shares.ipv6;
        let port = source_port(slot, bits);
        let (transport, ports) = match choice(0) {
            part if part < shares.tcp => (protocol::TCP, (port, if bits & 3 == 0 { 80 } else { 443 })),
            part if part < shares.tcp + shares.icmp => match v6 {
                true => (protocol::ICMPV6, (port, port)),
                false => (protocol::ICMP, (port, port)),
            },
            _ => (protocol::UDP, (port, if bits & 3 == 0 { 53 } else { 443 })),
        };
        let first = if generation == 0 { 0 } else { NEW_CLIENTS };
        let (client, server) = (
            client(first + slot / FLOWS_PER_CLIENT),
            server(bits as u32 % MAX_SERVERS),
        );
        let key = match v6 {
            true => {
                let v6 = |network, low: std::net::Ipv4Addr| Ipv6Addr::from_bits(network | u128::from(low.to_bits()));
                FlowKey::v6(
                    v6(CLIENTS_V6, client),
                    v6(SERVERS_V6, server),
                    transport,
                    ports.0,
                    ports.1,
                )
            }
            false => FlowKey::v4(client, server, transport, ports.0, ports.1),
        };
        let vlan = VlanTag::customer(FIRST_VLAN + u16::from(choices[6] & 15));
        Kind {
            key,
            vlan: (choice(4) < shares.vlan).then_some(vlan),
        }
    }

    /// Draws whether a flow in stage [`Stage::Data`] ends with this packet, so that flows have the configured mean
    /// length. A connection has four packets of its client apart from data, and six of both ends.
    fn ends(&mut self, is_tcp: bool) -> bool {
        let mean = match (self.config.new_flows > 0.0, is_tcp) {
            (true, _) => 1.0 / self.config.new_flows,
            (false, true) => CONNECTION,
            (false, false) => return false,
        };
        let control = match (is_tcp, self.config.senders) {
            (false, _) => 0.0,
            (true, Senders::Clients) => 4.0,
            (true, Senders::BothEnds) => 6.0,
        };
        self.random.unit() * (mean - control) <= 1.0
    }

    /// Draws the sender of a packet of data.
    fn sender(&mut self) -> usize {
        match self.config.senders {
            Senders::Clients => CLIENT,
            Senders::BothEnds => self.random.below(2) as usize,
        }
    }

    /// Returns the slot's flow after its last packet: another one, or the same again.
    fn successor(&self, slot: u32) -> Flow {
        let flow = self.flows[slot as usize];
        match self.config.new_flows > 0.0 {
            true => self.flow(slot, flow.generation + 1, Stage::Opening),
            // With later sequence numbers, as RFC 9293 §3.4.1 requires.
            false => Flow {
                stage: Stage::Opening,
                ..flow
            },
        }
    }

    /// Advances a TCP flow to its next visible segment; `payload` is its number of bytes if it has data.
    fn tcp_segment(&mut self, slot: u32, payload: u32) -> Segment {
        const ACK: TcpFlags = TcpFlags::ACK;
        loop {
            let stage = self.flows[slot as usize].stage;
            let (from, flags, data, next) = match stage {
                Stage::Opening => (CLIENT, TcpFlags::SYN, false, Stage::SynAck),
                Stage::SynAck => (SERVER, TcpFlags::SYN | ACK, false, Stage::HandshakeAck),
                Stage::HandshakeAck => (CLIENT, ACK, false, Stage::Data),
                Stage::Data => {
                    // About half of the segments end what their sender had to send.
                    let push = payload > 0 && self.random.below(2) == 0;
                    let flags = if push { TcpFlags::PSH | ACK } else { ACK };
                    let next = if self.ends(true) { Stage::Fin } else { Stage::Data };
                    (self.sender(), flags, true, next)
                }
                Stage::Fin => (CLIENT, TcpFlags::FIN | ACK, false, Stage::FinAck),
                Stage::FinAck => (SERVER, TcpFlags::FIN | ACK, false, Stage::LastAck),
                Stage::LastAck => (CLIENT, ACK, false, Stage::Opening),
            };
            let flow = &mut self.flows[slot as usize];
            let segment = Segment {
                from,
                flags,
                sequence: flow.next[from],
                acknowledgment: if flags.contains(ACK) { flow.next[1 - from] } else { 0 },
                data,
            };
            let controls = u32::from(flags.intersects(TcpFlags::SYN | TcpFlags::FIN));
            let sent = controls + if data { payload } else { 0 };
            flow.next[from] = flow.next[from].wrapping_add(sent);
            flow.stage = next;
            if stage == Stage::LastAck {
                self.flows[slot as usize] = self.successor(slot);
            }
            if from == CLIENT || self.config.senders == Senders::BothEnds {
                return segment;
            }
        }
    }

    /// Advances a UDP or ICMP flow to its next packet. Echo requests and replies alternate.
    fn datagram(&mut self, slot: u32, is_icmp: bool) -> Segment {
        let Flow { stage, next, .. } = self.flows[slot as usize];
        let number = next[CLIENT];
        let both = self.config.senders == Senders::BothEnds;
        let (from, advance) = match is_icmp {
            true if both => ((number & 1) as usize, 1),
            true => (CLIENT, 2),
            false if stage == Stage::Opening => (CLIENT, 2),
            false => (self.sender(), 2),
        };
        let flow = &mut self.flows[slot as usize];
        flow.next[CLIENT] = number.wrapping_add(advance);
        flow.stage = Stage::Data;
        if self.ends(false) {
            self.flows[slot as usize] = self.successor(slot);
        }
        Segment {
            from,
            flags: TcpFlags::default(),
            // Of a request and its reply.
            sequence: number >> 1,
            acknowledgment: 0,
            data: true,
        }
    }
}

/// Bytes of a frame's headers.
fn header_length(kind: &Kind) -> usize {
    let tag = if kind.vlan.is_some() { TAG } else { 0 };
    let network = if kind.key.is_v4() { 20 } else { 40 };
    let transport = if kind.key.protocol() == protocol::TCP { 20 } else { 8 };
    14 + tag + network + transport
}

impl PacketSource for Mixed {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        if self.yielded == self.config.packets {
            return Ok(None);
        }
        let number = self.yielded;
        self.yielded += 1;
        let slot = self.order.next(&mut self.random);
        let kind = self.kind(slot, self.flows[slot as usize].generation);
        let size = self.config.sizes[self.random.below(self.config.sizes.len() as u64) as usize];
        let room = (usize::from(size) - FCS).saturating_sub(header_length(&kind));
        let transport = kind.key.protocol();
        let segment = match transport {
            protocol::TCP => self.tcp_segment(slot, room as u32),
            _ => self.datagram(slot, transport != protocol::UDP),
        };
        let key = match segment.from {
            CLIENT => kind.key,
            _ => kind.key.reversed(),
        };
        let mut builder = FrameBuilder::new(&key);
        if let Some(tag) = kind.vlan {
            builder = builder.vlan(tag);
        }
        builder = match transport {
            protocol::TCP => builder.tcp(TcpFields {
                sequence: segment.sequence,
                acknowledgment: segment.acknowledgment,
                flags: segment.flags,
                ..TcpFields::default()
            }),
            protocol::UDP => builder,
            _ => {
                let request = segment.from == CLIENT;
                let echo = match (key.is_v4(), request) {
                    (true, true) => icmp::v4::ECHO_REQUEST,
                    (true, false) => icmp::v4::ECHO_REPLY,
                    (false, true) => icmp::v6::ECHO_REQUEST,
                    (false, false) => icmp::v6::ECHO_REPLY,
                };
                let ([a, b], [c, d]) = (key.source_port().to_be_bytes(), (segment.sequence as u16).to_be_bytes());
                builder.icmp(echo, 0, [a, b, c, d])
            }
        };
        let payload = if segment.data { room } else { 0 };
        let frame = self.writer.write(builder, number as u16, payload);
        let data = frame.map_err(|error| TrafficError::setting("sizes", error, "frames that hold their headers"))?;
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
        "mixed"
    }
}

#[cfg(test)]
mod tests;
