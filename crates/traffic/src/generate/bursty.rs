//! Bursty traffic: Poisson arrivals of flows with heavy-tailed lengths that send in trains.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tailwater_net::builder::TcpFields;
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos, protocol};

use super::frame::{FCS, FrameWriter, MAX_CLIENTS, MAX_SERVERS, WIRE_OVERHEAD, client, server};
use super::random::{HeavyTail, Random};
use crate::trace::check_rate;
use crate::{Notice, Packet, PacketSource, TrafficError};

/// Size of Ethernet, IPv4 and TCP or UDP headers in bytes.
const TCP_HEADERS: usize = 54;
const UDP_HEADERS: usize = 42;

/// Minimum and maximum frame length, without the frame check sequence.
const MIN_FRAME: u16 = 60;
const MAX_FRAME: u16 = 1_514;

/// TCP option of a SYN: a maximum segment size of 1460 bytes (RFC 9293 §3.7.1).
const MSS: [u8; 4] = [2, 4, 0x05, 0xb4];

/// Maximum generated time, warm-up included: one day.
const MAX_TIME: Nanos = Nanos::from_secs(86_400);

/// Configuration of bursty traffic. Sizes are those of frames without the frame check sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct BurstyConfig {
    /// Selects one of 2^64 streams of packets.
    pub seed: u64,
    /// Duration, above zero; with the warm-up at most one day.
    pub duration: Nanos,
    /// Simulated time before the first packet is yielded, so that traffic starts in the steady state. The longest flows
    /// last longer: with a warm-up shorter than their life, part of the mean rate is missing.
    pub warm_up: Nanos,
    /// Mean packets per second, over long times. Flows start at this rate divided by the mean of `flow_packets`.
    pub mean_rate_pps: f64,
    /// Packets per flow.
    pub flow_packets: HeavyTail,
    /// Packets that a flow sends back to back before a gap.
    pub train_packets: HeavyTail,
    /// Line rate of a train in bits per second, with preamble and gap, 1e3 to 1e12.
    pub train_rate_bps: f64,
    /// Mean gap between trains of a flow (exponentially distributed).
    pub mean_gap: Nanos,
    /// Fraction of flows that are TCP, 0 to 1; the others are UDP.
    pub tcp_share: f64,
    /// Sizes of data packets: 1 to 64 ranges.
    pub sizes: Vec<SizeRange>,
    /// Number of client addresses, from 10.0.0.1 up: 1 to 16,646,144. All are equally likely.
    pub clients: u32,
    /// Number of server addresses, in the networks reserved for documentation and benchmarks: 1 to 131,834. The first
    /// ones are the most popular.
    pub servers: u32,
    /// Maximum number of active flows, which bounds memory (about 100 bytes each): 1 to 10,000,000. Further flows are
    /// not started, and a notice counts them.
    pub max_active_flows: u32,
}

/// Range in a mixture of packet sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SizeRange {
    /// Weight of the range, relative to the other ranges; not negative.
    pub weight: f64,
    /// Minimum in bytes, at least 60.
    pub min: u16,
    /// Maximum in bytes, at most 1514. All sizes in between are equally likely.
    pub max: u16,
}

impl BurstyConfig {
    /// Validates every field.
    ///
    /// # Errors
    /// [`TrafficError::Setting`] for the first field out of range.
    pub fn validate(&self) -> Result<(), TrafficError> {
        let in_range = |inside: bool, field, value: &dyn ToString, expected| {
            if inside {
                return Ok(());
            }
            Err(TrafficError::setting(field, value.to_string(), expected))
        };
        let total = self.duration.0.saturating_add(self.warm_up.0);
        in_range(
            self.duration > Nanos::ZERO && total <= MAX_TIME.0,
            "duration",
            &self.duration,
            "above zero, with the warm-up at most a day",
        )?;
        check_rate(self.mean_rate_pps)?;
        in_range(
            self.mean_rate_pps <= 1e9,
            "mean_rate_pps",
            &self.mean_rate_pps,
            "at most 1e9",
        )?;
        self.flow_packets.validate("flow_packets")?;
        self.train_packets.validate("train_packets")?;
        in_range(
            (1e3..=1e12).contains(&self.train_rate_bps),
            "train_rate_bps",
            &self.train_rate_bps,
            "1e3 to 1e12 bits per second",
        )?;
        in_range(self.mean_gap <= MAX_TIME, "mean_gap", &self.mean_gap, "at most a day")?;
        in_range(
            (0.0..=1.0).contains(&self.tcp_share),
            "tcp_share",
            &self.tcp_share,
            "0 to 1",
        )?;
        let sizes = &self.sizes;
        let sound = sizes.iter().all(|range| {
            range.weight >= 0.0
                && range.weight <= 1e9
                && MIN_FRAME <= range.min
                && range.min <= range.max
                && range.max <= MAX_FRAME
        });
        let sum: f64 = sizes.iter().map(|range| range.weight).sum();
        in_range(
            sound && sizes.len() <= 64 && sum > 0.0,
            "sizes",
            &format!("{sizes:?}"),
            "1 to 64 ranges with 60 <= min <= max <= 1514 and weights that are not all zero",
        )?;
        in_range(
            (1..=MAX_CLIENTS).contains(&self.clients),
            "clients",
            &self.clients,
            "1 to 16,646,144",
        )?;
        in_range(
            (1..=MAX_SERVERS).contains(&self.servers),
            "servers",
            &self.servers,
            "1 to 131,834",
        )?;
        in_range(
            (1..=10_000_000).contains(&self.max_active_flows),
            "max_active_flows",
            &self.max_active_flows,
            "1 to 10,000,000",
        )
    }
}

/// Bursty traffic as a source of packets.
///
/// Traffic has one direction, from clients to servers. A TCP flow starts with a SYN and, if it has more than one
/// packet, ends with a FIN. Lengths and checksums are correct.
#[derive(Debug)]
pub struct Bursty {
    config: BurstyConfig,
    random: Random,
    writer: FrameWriter,
    /// Mean time between flow starts in nanoseconds.
    mean_interval: f64,
    /// Start of the next flow in nanoseconds. A float, so that rounding errors do not add up.
    next_flow: f64,
    /// Next packet of each active flow: time, a number that orders equal times, and its slot.
    due: BinaryHeap<Reverse<(Nanos, u64, u32)>>,
    scheduled: u64,
    flows: Vec<Flow>,
    free: Vec<u32>,
    refused: u64,
    finished: bool,
}

/// Active flow.
#[derive(Clone, Copy, Debug)]
struct Flow {
    key: FlowKey,
    /// Remaining packets, at least one.
    remaining: u32,
    /// Remaining packets of the current train.
    in_train: u32,
    sequence: u32,
    identification: u16,
    started: bool,
}

/// Kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Syn,
    Fin,
    Data,
}

impl Bursty {
    /// Creates traffic with this configuration.
    ///
    /// # Errors
    /// As [`BurstyConfig::validate`].
    pub fn new(config: BurstyConfig) -> Result<Self, TrafficError> {
        config.validate()?;
        let mut random = Random::new(config.seed);
        let mean_interval = 1e9 * config.flow_packets.mean() / config.mean_rate_pps;
        let next_flow = random.exponential(mean_interval);
        Ok(Bursty {
            config,
            random,
            writer: FrameWriter::new(MAX_FRAME as usize),
            mean_interval,
            next_flow,
            due: BinaryHeap::new(),
            scheduled: 0,
            flows: Vec::new(),
            free: Vec::new(),
            refused: 0,
            finished: false,
        })
    }

    /// Starts flows up to the next packet that is due, and returns that packet; `None` at the end.
    fn next_due(&mut self) -> Option<(Nanos, u32)> {
        let end = (self.config.warm_up + self.config.duration).0;
        loop {
            let due = self.due.peek().map_or(end, |Reverse((time, ..))| time.0);
            if self.next_flow < due as f64 {
                let time = Nanos(self.next_flow as u64);
                self.next_flow += self.random.exponential(self.mean_interval);
                self.start_flow(time);
                continue;
            }
            if due >= end {
                return None;
            }
            return self.due.pop().map(|Reverse((time, _, slot))| (time, slot));
        }
    }

    fn start_flow(&mut self, time: Nanos) {
        let random = &mut self.random;
        let tcp = random.unit() <= self.config.tcp_share;
        let source = client(random.below(u64::from(self.config.clients)) as u32);
        // With the cube, the first tenth of the servers receives nearly half of the flows.
        let popularity = random.unit();
        let popular = popularity * popularity * popularity * f64::from(self.config.servers);
        let destination = server((popular as u32).min(self.config.servers - 1));
        let source_port = random.between(1_024, 65_535) as u16;
        let (number, ports) = if tcp {
            (protocol::TCP, [443, 443, 443, 443, 443, 443, 80, 80, 22, 8_443])
        } else {
            (protocol::UDP, [443, 443, 443, 443, 443, 53, 53, 53, 123, 3_478])
        };
        let destination_port = ports[random.below(10) as usize];
        let remaining = random.length(&self.config.flow_packets);
        let flow = Flow {
            key: FlowKey::v4(source, destination, number, source_port, destination_port),
            remaining,
            in_train: random.length(&self.config.train_packets),
            sequence: random.below(1 << 32) as u32,
            identification: random.below(1 << 16) as u16,
            started: false,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.flows[slot as usize] = flow;
                slot
            }
            None if self.flows.len() < self.config.max_active_flows as usize => {
                self.flows.push(flow);
                self.flows.len() as u32 - 1
            }
            None => {
                self.refused += 1;
                return;
            }
        };
        self.schedule(time, slot);
    }

    fn schedule(&mut self, time: Nanos, slot: u32) {
        self.due.push(Reverse((time, self.scheduled, slot)));
        self.scheduled += 1;
    }

    /// Takes the flow's next packet: its kind, its frame's length, and the flow before it. Schedules the following one.
    fn take(&mut self, time: Nanos, slot: u32) -> (Kind, usize, Flow) {
        let before = self.flows[slot as usize];
        let tcp = before.key.protocol() == protocol::TCP;
        let kind = match (tcp, before.started, before.remaining) {
            (true, false, _) => Kind::Syn,
            (true, true, 1) => Kind::Fin,
            _ => Kind::Data,
        };
        let length = match kind {
            Kind::Syn | Kind::Fin => usize::from(MIN_FRAME),
            Kind::Data => self.size(),
        };
        let flow = &mut self.flows[slot as usize];
        flow.started = true;
        flow.remaining -= 1;
        flow.identification = flow.identification.wrapping_add(1);
        flow.sequence = flow.sequence.wrapping_add(match kind {
            Kind::Syn | Kind::Fin => 1,
            Kind::Data => (length - TCP_HEADERS) as u32,
        });
        if flow.remaining == 0 {
            self.free.push(slot);
            return (kind, length, before);
        }
        flow.in_train -= 1;
        let wait = if flow.in_train > 0 {
            let bits = ((length + FCS + WIRE_OVERHEAD) * 8) as f64;
            Nanos((bits * 1e9 / self.config.train_rate_bps).round() as u64)
        } else {
            flow.in_train = self.random.length(&self.config.train_packets);
            self.random.exponential_nanos(self.config.mean_gap)
        };
        self.schedule(time + wait, slot);
        (kind, length, before)
    }

    /// Draws a size from the mixture.
    fn size(&mut self) -> usize {
        let sizes = &self.config.sizes;
        let sum: f64 = sizes.iter().map(|range| range.weight).sum();
        let mut at = self.random.unit() * sum;
        let chosen = sizes.iter().find(|range| {
            at -= range.weight;
            at <= 0.0
        });
        match chosen.or(sizes.last()) {
            Some(range) => self.random.between(u64::from(range.min), u64::from(range.max)) as usize,
            None => usize::from(MIN_FRAME),
        }
    }
}

impl PacketSource for Bursty {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        if self.finished {
            return Ok(None);
        }
        let (time, kind, length, flow) = loop {
            let Some((time, slot)) = self.next_due() else {
                self.finished = true;
                return Ok(None);
            };
            let (kind, length, flow) = self.take(time, slot);
            if time >= self.config.warm_up {
                break (time - self.config.warm_up, kind, length, flow);
            }
        };
        let fields = |flags, options| TcpFields {
            sequence: flow.sequence,
            flags,
            options,
            ..TcpFields::default()
        };
        let (key, identification) = (&flow.key, flow.identification);
        let writer = &mut self.writer;
        let frame = match kind {
            Kind::Syn => writer.tcp(key, identification, fields(TcpFlags::SYN, &MSS), 0),
            Kind::Fin => {
                let flags = TcpFlags::FIN | TcpFlags::ACK;
                writer.tcp(key, identification, fields(flags, &[]), 0)
            }
            Kind::Data if key.protocol() == protocol::TCP => {
                let flags = TcpFlags::ACK | TcpFlags::PSH;
                let payload = length - TCP_HEADERS;
                writer.tcp(key, identification, fields(flags, &[]), payload)
            }
            Kind::Data => writer.udp(key, identification, length - UDP_HEADERS),
        };
        let data = frame.map_err(|error| TrafficError::setting("sizes", error, "frames that hold their headers"))?;
        Ok(Some(Packet {
            timestamp: time,
            data,
            wire_length: data.len() as u32,
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        if self.refused == 0 {
            return Vec::new();
        }
        vec![Notice::FlowsRefused {
            flows: self.refused,
            limit: self.config.max_active_flows,
        }]
    }

    fn name(&self) -> &str {
        "bursty"
    }
}
