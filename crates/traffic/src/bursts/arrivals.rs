//! Packets reduced to what queues see: when, of which flow, how long.

use tailwater_net::parse::parse;
use tailwater_net::{FlowKey, Nanos};

use crate::{Notice, PacketSource, TrafficError};

/// A flow's number is 64 bits of hash: two of a million flows share them with a chance of 3 in
/// 10^8. The seed is fixed, so that flows go to the same cores each time.
const HASH_SEED: u64 = 0x7461_696c_7761_7465;

/// A packet's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub time: Nanos,
    /// A number that tells its flow from others; `None` for packets that belong to none.
    pub flow: Option<u64>,
    /// The length of its frame without the frame check sequence.
    pub bytes: u32,
}

/// Yields arrivals in order, as a [`PacketSource`] yields packets.
pub trait Arrivals {
    /// The next arrival, or `None` at the end.
    ///
    /// # Errors
    /// Why the source cannot go on.
    fn next_arrival(&mut self) -> Result<Option<Arrival>, TrafficError>;

    /// The 5-tuple of the arrival that was yielded last; the default key if it belongs to no flow.
    fn flow_key(&self) -> FlowKey;

    /// As [`PacketSource::notices`].
    fn notices(&self) -> Vec<Notice>;

    /// As [`PacketSource::name`].
    fn name(&self) -> &str;
}

/// The arrivals of packets: a flow is a 5-tuple, each direction its own.
#[derive(Debug)]
pub struct PacketArrivals<S> {
    source: S,
    key: FlowKey,
}

impl<S: PacketSource> PacketArrivals<S> {
    /// The arrivals of a source's packets.
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
