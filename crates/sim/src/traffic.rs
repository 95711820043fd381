//! Traffic in the simulator's form: packets of 16 bytes with their flow's index.
//!
//! A [`Workload`] is either [streamed](Workload::stream) from any source, storing flows but no packets, or a
//! [`Recording`], made once and used in many simulations. Both give the same packets.

mod flows;

pub use flows::FlowOptions;

use flows::FlowIndex;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use tailwater_net::toeplitz::{BUCKETS, RssHasher, bucket_of};
use tailwater_net::{FlowKey, Nanos};
use tailwater_traffic::bursts::{Arrival, Arrivals};
use tailwater_traffic::{Notice, TrafficError};

/// Packets passed to the engine at a time.
pub(crate) const CHUNK: usize = 8192;

/// Flow index of a packet for whose flow there was no room.
pub(crate) const NO_FLOW_INDEX: u32 = u32::MAX;

/// Packet on its way into the rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packet {
    /// Arrival time at the switch, counted from the traffic's first packet.
    pub arrival: u64,
    /// Its flow's index, or [`NO_FLOW_INDEX`].
    pub flow: u32,
    pub bytes: u16,
    /// RSS bucket, flag of a packet that opens its flow, and tenant.
    tag: u16,
}

/// Bit of a tag: the packet opens its flow.
const FIRST: u16 = BUCKETS as u16;
/// Position of the tenant's number in a tag.
const CHAIN: u32 = FIRST.ilog2() + 1;

/// Maximum number of tenants that a tag can hold.
pub(crate) const MOST_CHAINS: usize = 1 << (16 - CHAIN);

impl Packet {
    fn new(arrival: u64, flow: u32, bytes: u32, bucket: u16, first: bool) -> Packet {
        Packet {
            arrival,
            flow,
            bytes: bytes.min(u16::MAX.into()) as u16,
            tag: bucket | if first { FIRST } else { 0 },
        }
    }

    #[inline]
    pub fn bucket(&self) -> usize {
        usize::from(self.tag % FIRST)
    }

    /// Returns `true` if it opens its flow.
    #[inline]
    pub fn is_first(&self) -> bool {
        self.tag & FIRST != 0
    }

    /// Returns the packet with the flag that it opens its flow.
    pub fn opening(mut self) -> Packet {
        self.tag |= FIRST;
        self
    }

    #[inline]
    pub fn chain(&self) -> usize {
        usize::from(self.tag >> CHAIN)
    }

    /// Sets its tenant.
    pub fn of_chain(mut self, chain: usize) -> Packet {
        self.tag |= (chain as u16) << CHAIN;
        self
    }
}

/// Data of a flow that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowStart {
    /// Destination of its packets.
    pub destination: IpAddr,
}

/// Traffic for a simulation.
pub enum Workload<'a> {
    /// Packets in memory.
    Recorded(Arc<Recording>),
    /// Packets that are read on demand.
    Streamed(Box<Stream<'a>>),
}

impl std::fmt::Debug for Workload<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Workload").field(&self.name()).finish()
    }
}

impl<'a> Workload<'a> {
    /// Streams the packets of a source.
    pub fn stream(source: Box<dyn Arrivals + 'a>, options: FlowOptions) -> Workload<'a> {
        Workload::Streamed(Box::new(Stream::new(source, options, true)))
    }

    /// Returns the source's name.
    pub fn name(&self) -> &str {
        match self {
            Workload::Recorded(recording) => &recording.name,
            Workload::Streamed(stream) => stream.source.name(),
        }
    }

    /// Returns the source's notices, after its end.
    pub fn notices(&self) -> Vec<Notice> {
        match self {
            Workload::Recorded(recording) => recording.notices.clone(),
            Workload::Streamed(stream) => stream.source.notices(),
        }
    }
}

impl From<Arc<Recording>> for Workload<'_> {
    fn from(recording: Arc<Recording>) -> Self {
        Workload::Recorded(recording)
    }
}

/// Source whose flows are being numbered.
pub struct Stream<'a> {
    source: Box<dyn Arrivals + 'a>,
    flows: FlowIndex,
    rss: RssHasher,
    packets: Vec<Packet>,
    starts: Vec<FlowStart>,
    /// By index: the flow's bucket.
    buckets: Vec<u16>,
    /// Time of the first packet, and the latest time so far.
    origin: Option<Nanos>,
    latest: u64,
}

/// Number of all packets without a flow, which count as one flow.
const FLOWLESS: u64 = 0x6e6f_2066_6c6f_7773;

impl<'a> Stream<'a> {
    /// Creates a stream. With `reuse`, the indices of removed flows are used again.
    fn new(source: Box<dyn Arrivals + 'a>, options: FlowOptions, reuse: bool) -> Stream<'a> {
        Stream {
            source,
            flows: FlowIndex::new(options, reuse),
            rss: RssHasher::default(),
            packets: Vec::with_capacity(CHUNK),
            starts: Vec::new(),
            buckets: Vec::new(),
            origin: None,
            latest: 0,
        }
    }

    /// Reads the next packets. No packet older than `oldest` is left in the system. Returns `true` if there were any.
    fn fill(&mut self, oldest: u64) -> Result<bool, TrafficError> {
        self.packets.clear();
        self.starts.clear();
        while self.packets.len() < CHUNK {
            let Some(arrival) = self.source.next_arrival()? else {
                break;
            };
            self.take(arrival, oldest);
        }
        Ok(!self.packets.is_empty())
    }

    #[inline]
    fn take(&mut self, arrival: Arrival, oldest: u64) {
        let origin = *self.origin.get_or_insert(arrival.time);
        // A packet earlier than its predecessor counts as arriving with it.
        self.latest = self.latest.max(arrival.time.saturating_sub(origin).0);
        let number = arrival.flow.unwrap_or(FLOWLESS);
        let found = self.flows.find(number, self.latest, oldest);
        let Some((flow, first)) = found else {
            let packet = Packet::new(self.latest, NO_FLOW_INDEX, arrival.bytes, 0, false);
            self.packets.push(packet);
            return;
        };
        if first {
            self.open(flow);
        }
        let bucket = self.buckets[flow as usize];
        let packet = Packet::new(self.latest, flow, arrival.bytes, bucket, first);
        self.packets.push(packet);
    }

    fn open(&mut self, flow: u32) {
        let key = self.source.flow_key();
        if flow as usize == self.buckets.len() {
            self.buckets.push(0);
        }
        self.buckets[flow as usize] = bucket_of(self.rss.hash(&key));
        self.starts.push(FlowStart {
            destination: destination_of(&key),
        });
    }
}

fn destination_of(key: &FlowKey) -> IpAddr {
    match *key == FlowKey::default() {
        true => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        false => key.destination(),
    }
}

/// Traffic in memory, for many simulations: 16 bytes per packet and 17 per flow.
#[derive(Clone, Debug)]
pub struct Recording {
    name: String,
    packets: Vec<Packet>,
    /// Flows in the order of their starts. A flow that begins again has another index.
    starts: Vec<FlowStart>,
    notices: Vec<Notice>,
}

impl Recording {
    /// Reads a source to its end.
    ///
    /// # Errors
    /// The source fails, or the packets exceed the limit ([`TrafficError::MemoryLimit`]).
    pub fn load(
        source: Box<dyn Arrivals + '_>,
        options: FlowOptions,
        memory_limit_bytes: u64,
    ) -> Result<Recording, TrafficError> {
        let name = source.name().to_owned();
        let mut stream = Stream::new(source, options, false);
        let (mut packets, mut starts) = (Vec::new(), Vec::new());
        while stream.fill(u64::MAX)? {
            packets.extend_from_slice(&stream.packets);
            starts.extend_from_slice(&stream.starts);
            let bytes = size_of_val(&packets[..]) + size_of_val(&starts[..]);
            if bytes as u64 > memory_limit_bytes {
                return Err(TrafficError::MemoryLimit {
                    file: name,
                    limit_bytes: memory_limit_bytes,
                    packets: packets.len() as u64,
                });
            }
        }
        packets.shrink_to_fit();
        Ok(Recording {
            name,
            packets,
            starts,
            notices: stream.source.notices(),
        })
    }

    /// Creates traffic from explicit packets, for experiments: (time in nanoseconds, flow, bytes), sorted by time.
    /// Flows are UDP, each from its own address, to `destinations` servers of 198.18.0.0/15, each with its own /24
    /// prefix.
    ///
    /// # Panics
    /// If `destinations` is 0.
    pub fn of_packets(
        name: &str,
        packets: impl IntoIterator<Item = (Nanos, u32, u16)>,
        destinations: u32,
    ) -> Recording {
        assert!(destinations > 0, "packets go somewhere");
        let source = ByHand {
            name,
            packets: packets.into_iter(),
            key: FlowKey::default(),
            destinations,
        };
        let options = FlowOptions {
            idle_timeout: Nanos::MAX,
            most: u32::MAX - 1,
        };
        match Recording::load(Box::new(source), options, u64::MAX) {
            Ok(recording) => recording,
            Err(error) => unreachable!("packets by hand do not fail: {error}"),
        }
    }

    /// Returns the number of packets.
    pub fn packets(&self) -> u64 {
        self.packets.len() as u64
    }

    /// Returns the number of flows. One that begins again counts again.
    pub fn flows(&self) -> u64 {
        self.starts.len() as u64
    }

    /// Returns the source's notices at its end.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// Returns the time from the first packet to the last.
    pub fn duration(&self) -> Nanos {
        Nanos(self.packets.last().map_or(0, |packet| packet.arrival))
    }

    /// Returns the memory in bytes.
    pub fn memory_bytes(&self) -> u64 {
        (size_of_val(&self.packets[..]) + size_of_val(&self.starts[..])) as u64
    }

    /// Returns the total bytes of its frames.
    pub fn bytes(&self) -> u64 {
        let bytes = |packet: &Packet| u64::from(packet.bytes);
        self.packets.iter().map(bytes).sum()
    }

    /// Returns the packets as (time, flow, bytes), by time.
    pub fn iter(&self) -> impl Iterator<Item = (Nanos, u32, u16)> {
        let parts = |packet: &Packet| (Nanos(packet.arrival), packet.flow, packet.bytes);
        self.packets.iter().map(parts)
    }

    /// Returns the RSS bucket of each packet, in order.
    pub fn buckets(&self) -> impl Iterator<Item = u16> {
        self.packets.iter().map(|packet| packet.bucket() as u16)
    }
}

/// Explicitly listed packets.
struct ByHand<'a, I> {
    name: &'a str,
    packets: I,
    key: FlowKey,
    destinations: u32,
}

impl<I: Iterator<Item = (Nanos, u32, u16)>> Arrivals for ByHand<'_, I> {
    fn next_arrival(&mut self) -> Result<Option<Arrival>, TrafficError> {
        let Some((time, flow, bytes)) = self.packets.next() else {
            return Ok(None);
        };
        let source = Ipv4Addr::from_bits(0x0a00_0000 | (flow & 0xff_ffff));
        let server = 0xc612_0000 | (flow % self.destinations) << 8 & 0x1_ff00 | 1;
        let ports = (1024 + (flow >> 24) as u16, 9);
        let udp = tailwater_net::protocol::UDP;
        self.key = FlowKey::v4(source, server.into(), udp, ports.0, ports.1);
        Ok(Some(Arrival {
            time,
            flow: Some(flow.into()),
            bytes: bytes.into(),
        }))
    }

    fn flow_key(&self) -> FlowKey {
        self.key
    }

    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }

    fn name(&self) -> &str {
        self.name
    }
}

/// Next packets, and the starts of the flows that they open, in order.
#[derive(Clone, Copy)]
pub(crate) struct Chunk<'a> {
    pub packets: &'a [Packet],
    pub starts: &'a [FlowStart],
}

/// Returns a workload in chunks.
pub(crate) enum ChunkReader<'w, 'a> {
    Recorded {
        recording: Arc<Recording>,
        packets: usize,
        starts: usize,
    },
    Streamed(&'w mut Stream<'a>),
}

impl<'w, 'a> ChunkReader<'w, 'a> {
    pub fn new(workload: &'w mut Workload<'a>) -> Self {
        match workload {
            Workload::Recorded(recording) => ChunkReader::Recorded {
                recording: Arc::clone(recording),
                packets: 0,
                starts: 0,
            },
            Workload::Streamed(stream) => ChunkReader::Streamed(stream),
        }
    }

    /// Returns the number of remaining packets, if known.
    pub fn rest(&self) -> Option<u64> {
        match self {
            ChunkReader::Recorded { recording, packets, .. } => Some((recording.packets.len() - packets) as u64),
            ChunkReader::Streamed(_) => None,
        }
    }

    /// Returns the next packets, or none at the end. No packet older than `oldest` is left in the system.
    ///
    /// # Errors
    /// The source of streamed packets fails.
    pub fn next(&mut self, oldest: u64) -> Result<Chunk<'_>, TrafficError> {
        match self {
            ChunkReader::Recorded {
                recording,
                packets,
                starts,
            } => {
                let rest = &recording.packets[*packets..];
                let chunk = &rest[..rest.len().min(CHUNK)];
                *packets += chunk.len();
                let first = chunk.iter().filter(|packet| packet.is_first()).count();
                let opened = &recording.starts[*starts..*starts + first];
                *starts += first;
                Ok(Chunk {
                    packets: chunk,
                    starts: opened,
                })
            }
            ChunkReader::Streamed(stream) => {
                stream.fill(oldest)?;
                Ok(Chunk {
                    packets: &stream.packets,
                    starts: &stream.starts,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests;
