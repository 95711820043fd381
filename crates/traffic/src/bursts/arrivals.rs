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

    /// As [`PacketSource::notices`].
    fn notices(&self) -> Vec<Notice>;

    /// As [`PacketSource::name`].
    fn name(&self) -> &str;
}

/// The arrivals of packets: a flow is a 5-tuple, each direction its own.
#[derive(Debug)]
pub struct PacketArrivals<S>(pub S);

impl<S: PacketSource> Arrivals for PacketArrivals<S> {
    fn next_arrival(&mut self) -> Result<Option<Arrival>, TrafficError> {
        let packet = self.0.next_packet()?;
        Ok(packet.map(|packet| Arrival {
            time: packet.timestamp,
            flow: parse(packet.data)
                .ok()
                .filter(|headers| headers.key != FlowKey::default())
                .map(|headers| headers.key.hash(HASH_SEED)),
            bytes: packet.data.len() as u32,
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        self.0.notices()
    }

    fn name(&self) -> &str {
        self.0.name()
    }
}

impl<A: Arrivals + ?Sized> Arrivals for Box<A> {
    fn next_arrival(&mut self) -> Result<Option<Arrival>, TrafficError> {
        (**self).next_arrival()
    }

    fn notices(&self) -> Vec<Notice> {
        (**self).notices()
    }

    fn name(&self) -> &str {
        (**self).name()
    }
}
