//! What all instances share: the tunnel's headers, the decoders' caches, and what the other end asked the encoders for.

use super::decoder::Decoder;
use super::encoder::Outbound;
use super::sampling::Fingerprints;
use crate::ipsec::DontFragment;
use crate::ipsec::headers::Outer;
use ipnet::IpNet;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tailwater_chain::live::Live;
use tailwater_net::{FlowKey, protocol};

/// The most streams of an end.
pub const MAX_STREAMS: u8 = 64;
/// The most prefixes behind the other end: each is looked at for packets that match none before it.
pub const MAX_DESTINATIONS: usize = 64;

/// How an end is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// This end.
    pub local: IpAddr,
    /// The other one, of the same IP version.
    pub remote: IpAddr,
    /// The UDP port of both; the ones from it on are the streams'.
    pub port: u16,
    /// Streams, 1 to [`MAX_STREAMS`].
    pub streams: u8,
    /// Bytes of each stream's cache: a power of two from [`LEAST_CACHE`](super::LEAST_CACHE) to [`MOST_CACHE`](super::MOST_CACHE).
    pub cache: u64,
    /// Packets with fewer bytes of payload pass as they are: nothing is gained by them.
    pub minimum: u16,
    /// How stretches are found again.
    pub fingerprints: Fingerprints,
    /// The longest outer IP packet.
    pub mtu: u16,
    /// Time to live of outer packets.
    pub ttl: u8,
}

impl Options {
    /// The ports that streams have.
    pub(super) fn ports(&self) -> Range<u16> {
        self.port..self.port + u16::from(self.streams)
    }
}

/// There is not enough memory for the caches.
#[derive(Debug, thiserror::Error)]
#[error("there is no memory for {streams} caches of {bytes} bytes: lower streams or cache")]
pub struct NoMemory {
    streams: u8,
    bytes: u64,
}

/// An end of a tunnel.
pub struct WanTable {
    options: Options,
    destinations: Live<Vec<IpNet>>,
    /// The outer headers of each stream.
    outers: Box<[Outer]>,
    outbound: Box<[Arc<Outbound>]>,
    inbound: Box<[Decoder]>,
    /// A bit for each stream that an instance has.
    leased: AtomicU64,
    /// Epochs come of it.
    seed: RandomState,
    epochs: AtomicU64,
}

/// What a packet between the two ends is, by its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ports {
    /// The stream of content that it would be.
    pub(super) content: Option<usize>,
    /// The stream that it would be a request about.
    pub(super) request: Option<usize>,
}

impl WanTable {
    /// An end; packets to `destinations` go to the other one.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(options: Options, destinations: Vec<IpNet>) -> Result<WanTable, NoMemory> {
        let no_memory = || NoMemory {
            streams: options.streams,
            bytes: options.cache,
        };
        let outer = |port| {
            let ends = [options.local, options.remote];
            let kept = (options.ttl, None, DontFragment::Set);
            Outer::between(ends, Some([port, options.port]), protocol::UDP, kept)
        };
        let streams = 0..options.streams;
        let outbound = streams.clone().map(|_| {
            let outbound = Outbound::new(options.cache).ok_or_else(no_memory)?;
            Ok(Arc::new(outbound))
        });
        let inbound = streams.map(|_| Decoder::new(options.cache).ok_or_else(no_memory));
        Ok(WanTable {
            outers: options.ports().map(outer).collect(),
            outbound: outbound.collect::<Result<_, _>>()?,
            inbound: inbound.collect::<Result<_, _>>()?,
            options,
            destinations: Live::new(destinations),
            leased: AtomicU64::new(0),
            seed: RandomState::new(),
            epochs: AtomicU64::new(0),
        })
    }

    /// What this end was set up with.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What is behind the other end, which can be replaced.
    pub fn destinations(&self) -> &Live<Vec<IpNet>> {
        &self.destinations
    }

    /// Takes a stream that nobody has, for as long as the lease is kept.
    pub(super) fn lease(self: &Arc<Self>) -> Option<Lease> {
        let take = |leased: u64| {
            let free = leased.trailing_ones();
            (free < u32::from(self.options.streams)).then(|| leased | 1 << free)
        };
        let before = self.leased.fetch_update(Relaxed, Relaxed, take).ok()?;
        Some(Lease {
            table: Arc::clone(self),
            stream: before.trailing_ones() as usize,
        })
    }

    /// A number for a new epoch: by chance, so that what is in a cache from an earlier run is not taken for a later one's.
    pub(super) fn new_epoch(&self) -> u32 {
        let count = self.epochs.fetch_add(1, Relaxed);
        (self.seed.hash_one(count) as u32).max(1)
    }

    pub(super) fn outer(&self, stream: usize) -> &Outer {
        &self.outers[stream]
    }

    pub(super) fn outbound(&self, stream: usize) -> &Arc<Outbound> {
        &self.outbound[stream]
    }

    pub(super) fn inbound(&self, stream: usize) -> &Decoder {
        &self.inbound[stream]
    }

    /// What a packet from the other end is; `None`: none of the tunnel's.
    #[inline]
    pub(super) fn ports_of(&self, key: &FlowKey) -> Option<Ports> {
        let options = &self.options;
        if key.protocol() != protocol::UDP || key.source() != options.remote || key.destination() != options.local {
            return None;
        }
        let ports = options.ports();
        let [from, to] = [key.source_port(), key.destination_port()];
        let stream = |port, other| {
            let of_stream = other == options.port && ports.contains(&port);
            of_stream.then(|| usize::from(port - options.port))
        };
        let found = Ports {
            content: stream(from, to),
            request: stream(to, from),
        };
        (found.content.is_some() || found.request.is_some()).then_some(found)
    }
}

/// A stream that an instance has.
pub(super) struct Lease {
    table: Arc<WanTable>,
    pub(super) stream: usize,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.table.leased.fetch_and(!(1 << self.stream), Relaxed);
    }
}
