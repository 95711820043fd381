//! Statistics of a trace, shown by `tailwater trace info`.

mod nanos;
mod table;
#[cfg(test)]
mod tests;
mod window;

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use tailwater_net::parse::{Malformed, Network, parse};
use tailwater_net::{FlowKey, Nanos, protocol};

pub(crate) use self::nanos::as_nanos;
pub use self::window::Burst;
use self::window::{NO_FLOW, Sample, burst};
use crate::{MAX_FRAME, Notice, PacketSource, TrafficError};

/// Windows over which bursts are measured.
pub const BURST_WINDOWS: [Nanos; 3] = [Nanos::from_micros(100), Nanos::from_millis(1), Nanos::from_millis(10)];

/// Memory per packet, and approximately per flow, in bytes.
const BYTES_PER_PACKET: u64 = size_of::<Sample>() as u64;
const BYTES_PER_FLOW: u64 = 128;

/// Statistics of a trace. Field names are those of the JSON output, and stable.
///
/// The bytes of a packet are those of its Ethernet frame as replayed. They exclude preamble and frame check sequence,
/// and include the synthetic header of other link types, and the padding of packets truncated by a snap length.
#[derive(Clone, Debug, Serialize)]
pub struct Statistics {
    /// Name of the source.
    pub name: String,
    /// Number of packets.
    pub packets: u64,
    /// Bytes of all packets.
    pub bytes: u64,
    /// Time from the earliest packet to the latest (in JSON `duration_ns`).
    #[serde(rename = "duration_ns", serialize_with = "as_nanos")]
    pub duration: Nanos,
    /// `true` if no packet has a time before that of the packet before it.
    pub time_sorted: bool,
    /// Number of flows: distinct 5-tuples of well-formed IP packets; each direction is a flow.
    pub flows: u64,
    /// Number of flows with both directions counted as one.
    pub bidirectional_flows: u64,
    /// `packets / duration`; absent if the duration is zero.
    pub mean_packets_per_second: Option<f64>,
    /// `bytes * 8 / duration`; absent if the duration is zero.
    pub mean_bits_per_second: Option<f64>,
    /// Packet sizes.
    pub packet_bytes: Sizes,
    /// Packets by protocol, in descending order: `tcp`, `udp`, `icmp`, `icmp6`, `gre`, `esp`, `sctp`, `ip-<number>` for
    /// others over IP, `arp`, `non-ip`, and `malformed`.
    pub protocols: Vec<ProtocolShare>,
    /// Malformed packets by reason ([`Malformed::name`]).
    pub malformed: BTreeMap<&'static str, u64>,
    /// Flow with the most packets; absent without flows.
    pub top_flow: Option<TopFlow>,
    /// Burst maxima for each of [`BURST_WINDOWS`], exact over sliding windows.
    pub bursts: Vec<Burst>,
    /// Warnings of the source.
    pub notices: Vec<Notice>,
}

/// Packet sizes in bytes. Percentiles are exact, by nearest rank.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sizes {
    /// Mean.
    pub mean: f64,
    /// Minimum.
    pub min: u16,
    /// 25th percentile.
    pub p25: u16,
    /// Median.
    pub p50: u16,
    /// 75th percentile.
    pub p75: u16,
    /// 99th percentile.
    pub p99: u16,
    /// Maximum.
    pub max: u16,
}

/// Packets of one protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProtocolShare {
    /// Name of the protocol.
    pub protocol: String,
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Flow with the most packets.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopFlow {
    /// 5-tuple as text.
    pub flow: String,
    /// Number of packets.
    pub packets: u64,
    /// Fraction of all packets, 0 to 1.
    pub packet_share: f64,
}

impl Statistics {
    /// Reads a source to its end and measures it.
    ///
    /// Memory grows by 16 bytes per packet and about 128 bytes per flow. Exact burst maxima of an unsorted trace
    /// require all its times.
    ///
    /// # Errors
    /// Errors of the source; [`TrafficError::NoPackets`] if it is empty; [`TrafficError::MemoryLimit`] beyond
    /// `memory_limit_bytes`.
    pub fn measure<S: PacketSource + ?Sized>(source: &mut S, memory_limit_bytes: u64) -> Result<Self, TrafficError> {
        let name = source.name().to_owned();
        let mut collector = Collector::new();
        while let Some(packet) = source.next_packet()? {
            collector.add(packet.timestamp, packet.data);
            if collector.memory() > memory_limit_bytes {
                return Err(TrafficError::MemoryLimit {
                    file: name,
                    limit_bytes: memory_limit_bytes,
                    packets: collector.samples.len() as u64,
                });
            }
        }
        if collector.samples.is_empty() {
            return Err(TrafficError::NoPackets {
                file: name,
                reason: "the source ended before its first packet".to_owned(),
            });
        }
        Ok(collector.finish(name, source.notices()))
    }
}

/// Collector of counts while packets are read.
struct Collector {
    samples: Vec<Sample>,
    latest: Nanos,
    time_sorted: bool,
    flows: HashMap<FlowKey, u32>,
    /// Number of packets per flow, by index.
    flow_packets: Vec<u64>,
    /// Number of packets per length.
    lengths: Vec<u64>,
    /// Packets and bytes by IP protocol number.
    by_number: Vec<(u64, u64)>,
    arp: (u64, u64),
    non_ip: (u64, u64),
    malformed_total: (u64, u64),
    malformed: BTreeMap<&'static str, u64>,
}

impl Collector {
    fn new() -> Self {
        Collector {
            samples: Vec::new(),
            latest: Nanos::ZERO,
            time_sorted: true,
            flows: HashMap::new(),
            flow_packets: Vec::new(),
            lengths: vec![0; MAX_FRAME + 1],
            by_number: vec![(0, 0); 256],
            arp: (0, 0),
            non_ip: (0, 0),
            malformed_total: (0, 0),
            malformed: BTreeMap::new(),
        }
    }

    fn memory(&self) -> u64 {
        self.samples.len() as u64 * BYTES_PER_PACKET + self.flows.len() as u64 * BYTES_PER_FLOW
    }

    fn add(&mut self, time: Nanos, frame: &[u8]) {
        // Sources yield frames of at most `MAX_FRAME` bytes.
        let length = frame.len().min(MAX_FRAME);
        self.time_sorted &= time >= self.latest;
        self.latest = self.latest.max(time);
        self.lengths[length] += 1;
        let parsed = parse(frame);
        let (flow, count) = match parsed {
            Ok(headers) if headers.network == Network::NotIp => {
                let arp = frame.get(12..14) == Some(&[0x08, 0x06]);
                (NO_FLOW, if arp { &mut self.arp } else { &mut self.non_ip })
            }
            Ok(headers) => {
                let index = self.flow_packets.len() as u32;
                let flow = *self.flows.entry(headers.key).or_insert(index);
                if flow == index {
                    self.flow_packets.push(0);
                }
                self.flow_packets[flow as usize] += 1;
                let number = usize::from(headers.key.protocol());
                (flow, &mut self.by_number[number])
            }
            Err(reason) => {
                *self.malformed.entry(Malformed::name(reason)).or_default() += 1;
                (NO_FLOW, &mut self.malformed_total)
            }
        };
        count.0 += 1;
        count.1 += length as u64;
        self.samples.push(Sample {
            time,
            flow,
            length: length as u16,
            first: false,
        });
    }

    fn finish(mut self, name: String, notices: Vec<Notice>) -> Statistics {
        if !self.time_sorted {
            self.samples.sort_by_key(|sample| sample.time);
        }
        let mut seen = vec![false; self.flow_packets.len()];
        for sample in &mut self.samples {
            if let Some(seen) = seen.get_mut(sample.flow as usize) {
                sample.first = !*seen;
                *seen = true;
            }
        }
        let packets = self.samples.len() as u64;
        let bytes = (self.lengths.iter().enumerate())
            .map(|(length, count)| length as u64 * count)
            .sum::<u64>();
        let duration = match (self.samples.first(), self.samples.last()) {
            (Some(first), Some(last)) => last.time.saturating_sub(first.time),
            _ => Nanos::ZERO,
        };
        let rate = |amount: u64| (duration > Nanos::ZERO).then(|| amount as f64 / duration.as_secs_f64());
        Statistics {
            packets,
            bytes,
            duration,
            time_sorted: self.time_sorted,
            flows: self.flows.len() as u64,
            bidirectional_flows: bidirectional(&self.flows),
            mean_packets_per_second: rate(packets),
            mean_bits_per_second: rate(bytes * 8),
            packet_bytes: sizes(&self.lengths, packets, bytes),
            protocols: self.protocols(),
            top_flow: self.top_flow(packets),
            bursts: BURST_WINDOWS
                .iter()
                .map(|window| burst(&self.samples, self.flow_packets.len(), *window))
                .collect(),
            malformed: self.malformed,
            notices,
            name,
        }
    }

    fn protocols(&self) -> Vec<ProtocolShare> {
        let by_number = self.by_number.iter().enumerate();
        let mut shares: Vec<ProtocolShare> = by_number
            .map(|(number, counts)| (protocol_name(number as u8), *counts))
            .chain([
                ("arp".to_owned(), self.arp),
                ("non-ip".to_owned(), self.non_ip),
                ("malformed".to_owned(), self.malformed_total),
            ])
            .filter(|(_, (packets, _))| *packets > 0)
            .map(|(protocol, (packets, bytes))| ProtocolShare {
                protocol,
                packets,
                bytes,
            })
            .collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.packets));
        shares
    }

    /// Returns the flow with the most packets; of several, the one seen first.
    fn top_flow(&self, packets: u64) -> Option<TopFlow> {
        let most = *self.flow_packets.iter().max()?;
        let index = self.flow_packets.iter().position(|count| *count == most)? as u32;
        let (key, _) = self.flows.iter().find(|(_, flow)| **flow == index)?;
        Some(TopFlow {
            flow: key.to_string(),
            packets: most,
            packet_share: most as f64 / packets as f64,
        })
    }
}

/// Returns the number of flows with both directions as one. Every flow counts two halves, or one half if its reverse is
/// a different flow that exists.
fn bidirectional(flows: &HashMap<FlowKey, u32>) -> u64 {
    let halves: u64 = (flows.keys())
        .map(|key| {
            let reversed = key.reversed();
            if reversed != *key && flows.contains_key(&reversed) {
                1
            } else {
                2
            }
        })
        .sum();
    halves / 2
}

fn protocol_name(number: u8) -> String {
    let name = match number {
        protocol::TCP => "tcp",
        protocol::UDP => "udp",
        protocol::ICMP => "icmp",
        protocol::ICMPV6 => "icmp6",
        protocol::ESP => "esp",
        protocol::SCTP => "sctp",
        47 => "gre",
        other => return format!("ip-{other}"),
    };
    name.to_owned()
}

/// Computes percentiles from the number of packets of each length.
fn sizes(lengths: &[u64], packets: u64, bytes: u64) -> Sizes {
    let percentile = |percent: u64| {
        let rank = (packets * percent).div_ceil(100).max(1);
        let mut below = 0;
        let length = lengths.iter().position(|count| {
            below += count;
            below >= rank
        });
        length.unwrap_or(0) as u16
    };
    Sizes {
        mean: bytes as f64 / packets as f64,
        min: percentile(0),
        p25: percentile(25),
        p50: percentile(50),
        p75: percentile(75),
        p99: percentile(99),
        max: percentile(100),
    }
}
