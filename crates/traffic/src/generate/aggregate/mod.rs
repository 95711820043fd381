//! Traffic of an aggregated link: thousands of flows, a few of them huge, whales and minnows.

mod arrivals;
mod config;
mod payload;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tailwater_net::builder::{FrameBuilder, TcpFields};
use tailwater_net::tcp::TcpFlags;
use tailwater_net::{FlowKey, Nanos, protocol};

pub use self::arrivals::{FlowArrivals, Stay};
pub use self::config::{AggregateConfig, MinnowBursts, TrainClass};

use self::arrivals::{Start, Starts};
use self::config::MAX_FRAME;
use self::payload::Opening;
use super::SizeRange;
use super::frame::{FCS, FrameWriter, WIRE_OVERHEAD, client, server};
use super::random::Random;
use crate::bursts::{Arrival, Arrivals};
use crate::{Notice, Packet, PacketSource, TrafficError};

/// Size of Ethernet, IPv4 and TCP or UDP headers in bytes.
const TCP_HEADERS: u16 = 54;
const UDP_HEADERS: u16 = 42;

/// TCP option of a SYN: a maximum segment size of 1460 bytes (RFC 9293 §3.7.1).
const MSS: [u8; 4] = [2, 4, 0x05, 0xb4];

/// Fraction of its maximum lifetime in which a flow plans to send, so that it is rarely cut short.
const PLANNED: f64 = 0.6;

/// Aggregate of traffic as a source of packets. As a source of times and flows alone ([`Arrivals`]) it is several times
/// faster, and yields the same packets.
///
/// Traffic has one direction, from clients to servers, as a chain sees it. A TCP flow starts with a SYN. If it has at
/// least three packets, an ACK follows after the (unseen) SYN-ACK, then an HTTP request to port 80 or a TLS ClientHello
/// to port
/// 443. Its last packet is a FIN. A scan or an unanswered attempt is a single SYN. Lengths and checksums are correct.
///      Frames are not padded to 60 bytes, as captured on a sender.
#[derive(Debug)]
pub struct Aggregate {
    config: AggregateConfig,
    name: String,
    random: Random,
    writer: FrameWriter,
    starts: Starts,
    next_start: Start,
    /// Fraction of calm starts that are not part of a minnow burst.
    alone_share: f64,
    /// Start of the next minnow burst in nanoseconds.
    next_burst: f64,
    /// Mean packets per train, by class.
    train_means: Vec<f64>,
    size_weights: f64,
    /// Mean size of a data packet in bytes.
    mean_size: f64,
    /// Next packet of each active flow: time, a number that orders equal times, and its slot.
    due: BinaryHeap<Reverse<(u64, u64, u32)>>,
    scheduled: u64,
    flows: Vec<Flow>,
    free: Vec<u32>,
    started: u64,
    refused: u64,
    finished: bool,
    /// Key of the last arrival.
    last_key: FlowKey,
    /// Application data that opens the current packet's flow.
    said: Vec<u8>,
}

/// Active flow.
#[derive(Clone, Copy, Debug)]
struct Flow {
    key: FlowKey,
    /// Number of the flow among all flows.
    number: u64,
    bytes_left: u64,
    /// Latest end in nanoseconds.
    ends: u64,
    packets: u32,
    sent: u32,
    /// Remaining packets of the current train.
    in_train: u32,
    /// Mean gap in nanoseconds.
    gap: f32,
    sequence: u32,
    identification: u16,
    /// Class of the current train.
    class: u8,
    blocked: bool,
    /// Number that selects the opening application data.
    choice: u32,
}

/// Kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Syn,
    HandshakeAck,
    Opening,
    Data,
    Fin,
}

/// Packet before its bytes are built.
#[derive(Clone, Copy, Debug)]
struct Event {
    time: u64,
    kind: Kind,
    length: u16,
    /// State of the flow before this packet.
    flow: Flow,
}

impl Aggregate {
    /// Creates traffic with this configuration; `name` identifies it in messages.
    ///
    /// # Errors
    /// As [`AggregateConfig::validate`].
    pub fn new(config: AggregateConfig, name: &str) -> Result<Self, TrafficError> {
        config.validate()?;
        let mut random = Random::new(config.seed);
        let mut starts = Starts::new(config.arrivals, &mut random);
        let (mut alone_share, mut next_burst) = (1.0, f64::INFINITY);
        if let Some(minnows) = config.minnows
            && minnows.per_second > 0.0
        {
            let in_bursts = minnows.per_second * minnows.flows.mean();
            alone_share = 1.0 - in_bursts / config.arrivals.calm_per_second();
            next_burst = random.exponential(1e9 / minnows.per_second);
        }
        let next_start = starts.next(&mut random);
        let size_weights: f64 = config.sizes.iter().map(|range| range.weight).sum();
        let middle = |range: &SizeRange| f64::from(range.min + range.max) / 2.0;
        let sizes = config.sizes.iter().map(|range| range.weight * middle(range));
        let mean_size = sizes.sum::<f64>() / size_weights;
        let means = config.trains.iter().map(|class| class.packets.mean());
        Ok(Aggregate {
            name: name.to_owned(),
            train_means: means.collect(),
            size_weights,
            mean_size,
            config,
            random,
            writer: FrameWriter::new(usize::from(MAX_FRAME)),
            starts,
            next_start,
            alone_share,
            next_burst,
            due: BinaryHeap::new(),
            scheduled: 0,
            flows: Vec::new(),
            free: Vec::new(),
            started: 0,
            refused: 0,
            finished: false,
            last_key: FlowKey::default(),
            said: Vec::with_capacity(512),
        })
    }

    /// Starts flows up to the next packet that is due, and returns that packet; `None` at the end.
    fn next_due(&mut self) -> Option<(u64, u32)> {
        let end = (self.config.warm_up + self.config.duration).0;
        loop {
            let due = self.due.peek().map_or(end, |Reverse((time, ..))| *time);
            let next = self.next_start.time.min(self.next_burst);
            if next < due as f64 {
                if self.next_burst < self.next_start.time {
                    self.start_burst();
                } else {
                    self.start_next();
                }
                continue;
            }
            if due >= end {
                return None;
            }
            return self.due.pop().map(|Reverse((time, _, slot))| (time, slot));
        }
    }

    fn start_next(&mut self) {
        let Start { time, crowd } = self.next_start;
        self.next_start = self.starts.next(&mut self.random);
        if !crowd && self.alone_share < 1.0 && self.random.unit() > self.alone_share {
            return;
        }
        let short = crowd || self.random.unit() <= self.config.short_share;
        self.start_flow(time as u64, short);
    }

    fn start_burst(&mut self) {
        let Some(minnows) = self.config.minnows else {
            return;
        };
        let time = self.next_burst;
        self.next_burst += self.random.exponential(1e9 / minnows.per_second);
        for _ in 0..self.random.length(&minnows.flows) {
            let after = self.random.below(minnows.spread.0.saturating_add(1));
            self.start_flow(time as u64 + after, true);
        }
    }

    fn start_flow(&mut self, time: u64, short: bool) {
        let random = &mut self.random;
        let packets = match short {
            true => random.length(&self.config.short_packets),
            false => self.config.flow_packets.sample(random),
        };
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
        let lifetime = self.config.lifetime_max.0;
        let gap = (self.config.mean_gap.0 as f64).min(PLANNED * lifetime as f64 / self.expected_trains(packets));
        let random = &mut self.random;
        let flow = Flow {
            key: FlowKey::v4(source, destination, number, source_port, destination_port),
            number: self.started,
            bytes_left: self.config.flow_bytes_max,
            ends: time.saturating_add(lifetime),
            packets,
            sent: 0,
            in_train: 0,
            gap: gap as f32,
            sequence: random.below(1 << 32) as u32,
            identification: random.below(1 << 16) as u16,
            class: 0,
            blocked: tcp && random.unit() <= self.config.blocked_share,
            choice: random.below(1 << 32) as u32,
        };
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.flows.len() < self.config.max_active_flows as usize => {
                self.flows.push(flow);
                self.flows.len() as u32 - 1
            }
            None => {
                self.refused += 1;
                return;
            }
        };
        self.started += 1;
        self.flows[slot as usize] = flow;
        self.start_train(slot);
        self.schedule(time, slot);
    }

    /// Returns the approximate number of trains that a flow of `packets` packets sends before it reaches its maximum
    /// size; at least one.
    fn expected_trains(&self, packets: u32) -> f64 {
        let most = self.config.flow_bytes_max as f64 / self.mean_size;
        let open = self.config.trains.iter().zip(&self.train_means);
        let (mut weights, mut sum) = (0.0, 0.0);
        for (class, mean) in open.filter(|(class, _)| class.flow_packets_min <= packets) {
            weights += class.weight;
            sum += class.weight * mean;
        }
        (f64::from(packets).min(most) * weights / sum.max(1e-9)).max(1.0)
    }

    /// Draws the next train of the flow.
    fn start_train(&mut self, slot: u32) {
        let packets = self.flows[slot as usize].packets;
        let open = |class: &&TrainClass| class.flow_packets_min <= packets;
        let trains = &self.config.trains;
        let sum: f64 = trains.iter().filter(open).map(|class| class.weight).sum();
        let mut at = self.random.unit() * sum;
        let mut chosen = 0;
        for (index, class) in trains.iter().enumerate() {
            if open(&class) {
                chosen = index;
                at -= class.weight;
                if at <= 0.0 {
                    break;
                }
            }
        }
        let length = self.random.length(&trains[chosen].packets);
        let flow = &mut self.flows[slot as usize];
        (flow.class, flow.in_train) = (chosen as u8, length);
    }

    fn schedule(&mut self, time: u64, slot: u32) {
        self.due.push(Reverse((time, self.scheduled, slot)));
        self.scheduled += 1;
    }

    /// Returns the next packet before its bytes are built, with times that include the warm-up. Schedules the flow's
    /// next one.
    fn next_event(&mut self) -> Option<Event> {
        loop {
            let (time, slot) = self.next_due()?;
            let flow = self.flows[slot as usize];
            let kind = kind(&flow);
            let length = self.length(kind, &flow);
            if u64::from(length) > flow.bytes_left || time >= flow.ends {
                self.free.push(slot);
                continue;
            }
            self.advance(slot, time, kind, length);
            return Some(Event {
                time,
                kind,
                length,
                flow,
            });
        }
    }

    /// Returns a packet's length as a frame. Writes opening application data to `said`.
    fn length(&mut self, kind: Kind, flow: &Flow) -> u16 {
        match kind {
            // Half of the flows with a single unanswered SYN are scans, without options.
            Kind::Syn if flow.packets == 1 && flow.choice & 1 == 0 => TCP_HEADERS,
            Kind::Syn => TCP_HEADERS + MSS.len() as u16,
            Kind::HandshakeAck | Kind::Fin => TCP_HEADERS,
            Kind::Opening => {
                let opening = Opening {
                    choice: flow.choice,
                    blocked: flow.blocked,
                };
                match flow.key.destination_port() {
                    80 => opening.http(&mut self.said),
                    _ => opening.tls(&mut self.said),
                }
                TCP_HEADERS + self.said.len() as u16
            }
            Kind::Data if self.config.trains[usize::from(flow.class)].full_size => MAX_FRAME,
            Kind::Data => self.size(),
        }
    }

    /// Updates the flow after a packet: ends it, or schedules its next packet.
    fn advance(&mut self, slot: u32, time: u64, kind: Kind, length: u16) {
        let flow = &mut self.flows[slot as usize];
        flow.sent += 1;
        flow.bytes_left -= u64::from(length);
        flow.identification = flow.identification.wrapping_add(1);
        flow.sequence = flow.sequence.wrapping_add(match kind {
            Kind::Syn | Kind::Fin => 1,
            _ => u32::from(length.saturating_sub(TCP_HEADERS)),
        });
        if flow.sent == flow.packets {
            self.free.push(slot);
            return;
        }
        flow.in_train -= 1;
        let ends = flow.in_train == 0;
        let gap = f64::from(flow.gap);
        // After a SYN the sender waits for the response; after the ACK it sends at once.
        let wait = if kind == Kind::Syn || ends {
            if ends {
                self.start_train(slot);
            }
            self.random.exponential(gap)
        } else {
            let class = &self.config.trains[usize::from(flow.class)];
            let bits = f64::from((u32::from(length) + (FCS + WIRE_OVERHEAD) as u32) * 8);
            bits * 1e9 / class.line_rate_bps
        };
        self.schedule(time + wait.round() as u64, slot);
    }

    /// Draws a size from the mixture.
    fn size(&mut self) -> u16 {
        let mut at = self.random.unit() * self.size_weights;
        let sizes = &self.config.sizes;
        let chosen = sizes.iter().find(|range| {
            at -= range.weight;
            at <= 0.0
        });
        match chosen.or(sizes.last()) {
            Some(range) if range.min == range.max => range.min,
            Some(range) => {
                let (low, high) = (u64::from(range.min), u64::from(range.max));
                self.random.between(low, high) as u16
            }
            None => TCP_HEADERS,
        }
    }

    /// Returns the next event after the warm-up.
    fn next_counted(&mut self) -> Option<Event> {
        while !self.finished {
            let Some(event) = self.next_event() else {
                self.finished = true;
                break;
            };
            if event.time >= self.config.warm_up.0 {
                return Some(event);
            }
        }
        None
    }

    fn frame(&mut self, event: &Event) -> Result<&[u8], TrafficError> {
        let flow = &event.flow;
        let mut builder = FrameBuilder::new(&flow.key);
        let mut headers = UDP_HEADERS;
        let mss = event.length > TCP_HEADERS;
        if flow.key.protocol() == protocol::TCP {
            headers = TCP_HEADERS;
            let (flags, options): (_, &[u8]) = match event.kind {
                Kind::Syn => (TcpFlags::SYN, if mss { &MSS } else { &[] }),
                Kind::HandshakeAck => (TcpFlags::ACK, &[]),
                Kind::Fin => (TcpFlags::FIN | TcpFlags::ACK, &[]),
                Kind::Opening | Kind::Data => (TcpFlags::ACK | TcpFlags::PSH, &[]),
            };
            // The unseen server's sequence number does not advance: only clients send data.
            let acknowledgment = match event.kind {
                Kind::Syn => 0,
                _ => flow.choice.wrapping_mul(0x9e37_79b9).wrapping_add(1),
            };
            builder = builder.tcp(TcpFields {
                sequence: flow.sequence,
                acknowledgment,
                flags,
                options,
                ..TcpFields::default()
            });
        }
        let said = match event.kind {
            Kind::Opening => Ok(self.said.as_slice()),
            Kind::Data => Err(usize::from(event.length.saturating_sub(headers))),
            Kind::Syn | Kind::HandshakeAck | Kind::Fin => Err(0),
        };
        let frame = self.writer.unpadded(builder, flow.identification, said);
        frame.map_err(|error| TrafficError::setting("sizes", error, "frames that hold their headers"))
    }
}

/// Returns the kind of a flow's next packet.
fn kind(flow: &Flow) -> Kind {
    if flow.key.protocol() != protocol::TCP {
        return Kind::Data;
    }
    let speaks = matches!(flow.key.destination_port(), 80 | 443);
    match flow.sent {
        0 => Kind::Syn,
        sent if sent + 1 == flow.packets => Kind::Fin,
        1 => Kind::HandshakeAck,
        2 if speaks => Kind::Opening,
        _ => Kind::Data,
    }
}

impl PacketSource for Aggregate {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        let Some(event) = self.next_counted() else {
            return Ok(None);
        };
        let timestamp = Nanos(event.time - self.config.warm_up.0);
        let data = self.frame(&event)?;
        Ok(Some(Packet {
            timestamp,
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
        &self.name
    }
}

impl Arrivals for Aggregate {
    fn next_arrival(&mut self) -> Result<Option<Arrival>, TrafficError> {
        let Some(event) = self.next_counted() else {
            return Ok(None);
        };
        self.last_key = event.flow.key;
        Ok(Some(Arrival {
            time: Nanos(event.time - self.config.warm_up.0),
            flow: Some(event.flow.number),
            bytes: u32::from(event.length),
        }))
    }

    fn flow_key(&self) -> FlowKey {
        self.last_key
    }

    fn notices(&self) -> Vec<Notice> {
        PacketSource::notices(self)
    }

    fn name(&self) -> &str {
        &self.name
    }
}
