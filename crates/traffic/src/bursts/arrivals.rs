//! Packets reduced to the data that queues need: arrival time, flow, length.

use tailwater_net::parse::parse;
use tailwater_net::{FlowKey, Nanos};

use crate::{Notice, PacketSource, TrafficError};

/// Seed of the flow hash. A flow's number is 64 bits of hash: any two of a million flows collide with a probability of
/// 3 in 10^8. The seed is fixed, so that flows are mapped to the same cores in each run.
const HASH_SEED: u64 = 0x7461_696c_7761_7465;

/// Arrival of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Arrival time.
    pub time: Nanos,
    /// Number that identifies its flow; `None` for packets without a flow.
    pub flow: Option<u64>,
    /// Length of its frame without the frame check sequence.
    pub bytes: u32,
}

/// Source of arrivals in order, as a [`PacketSource`] of packets.
pub trait Arrivals {
    /// Returns the next arrival, or `None` at the end.
    ///
    /// # Errors
    /// An error of the source that prevents it from continuing.
    fn next_arrival(&mut self) -> Result<Option<Arrival>, TrafficError>;

    /// Returns the 5-tuple of the last arrival; the default key if it has no flow.
    fn flow_key(&self) -> FlowKey;

    /// As [`PacketSource::notices`].
    fn notices(&self) -> Vec<Notice>;

    /// As [`PacketSource::name`].
    fn name(&self) -> &str;
}

/// Arrivals of packets. A flow is a 5-tuple; each direction is a flow of its own.
#[derive(Debug)]
pub struct PacketArrivals<S> {
    source: S,
    key: FlowKey,
}

impl<S: PacketSource> PacketArrivals<S> {
    /// Creates the arrivals of a source's packets.
    pub fn new(source: S) -> Self {
        PacketArrivals {
            source,
            key: FlowKey::default(),
        }
    }
}

impl<S: PacketSource> Arrivals for PacketArrivals<S> {
    fn next_arrival(&mut self) -> Result<Option<Arrival>, TrafficError> {
        let Some(packet) = self.source.next_packet()? else {
            return Ok(None);
        };
        self.key = parse(packet.data).map_or_else(|_| FlowKey::default(), |headers| headers.key);
        Ok(Some(Arrival {
            time: packet.timestamp,
            flow: (self.key != FlowKey::default()).then(|| self.key.hash(HASH_SEED)),
            bytes: packet.data.len() as u32,
        }))
    }

    fn flow_key(&self) -> FlowKey {
        self.key
    }

    fn notices(&self) -> Vec<Notice> {
        self.source.notices()
    }

    fn name(&self) -> &str {
        self.source.name()
    }
}

impl<A: Arrivals + ?Sized> Arrivals for Box<A> {
    fn next_arrival(&mut self) -> Result<Option<Arrival>, TrafficError> {
        (**self).next_arrival()
    }

    fn flow_key(&self) -> FlowKey {
        (**self).flow_key()
    }

    fn notices(&self) -> Vec<Notice> {
        (**self).notices()
    }

    fn name(&self) -> &str {
        (**self).name()
    }
}
