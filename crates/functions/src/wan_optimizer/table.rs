//! State shared by all instances: tunnel headers, decoder caches, and requests to the encoders.

use super::decoder::Decoder;
use super::encoder::{Encoder, Outbound};
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
use tailwater_chain::shared_counters::SharedCounters;
use tailwater_net::{FlowKey, protocol};

/// Largest number of streams per end.
pub const MAX_STREAMS: u8 = 64;
/// Largest number of prefixes behind the remote end; they are scanned linearly.
pub const MAX_DESTINATIONS: usize = 64;

/// Options of one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Local address.
    pub local: IpAddr,
    /// Remote address, of the same IP version.
    pub remote: IpAddr,
    /// UDP port of both ends; streams use the ports from it on.
    pub port: u16,
    /// Number of streams, 1 to [`MAX_STREAMS`].
    pub streams: u8,
    /// Bytes of each stream's cache: a power of two from [`LEAST_CACHE`](super::LEAST_CACHE) to
    /// [`MOST_CACHE`](super::MOST_CACHE).
    pub cache: u64,
    /// Packets with fewer bytes of payload pass unchanged: encoding gains nothing.
    pub minimum: u16,
    /// Selection of fingerprints.
    pub fingerprints: Fingerprints,
    /// Largest outer IP packet, in bytes.
    pub mtu: u16,
    /// Time to live of outer packets.
    pub ttl: u8,
}

impl Options {
    /// Returns the streams' UDP ports.
    pub(super) fn ports(&self) -> Range<u16> {
        self.port..self.port + u16::from(self.streams)
    }
}

/// There is not enough memory for the caches.
#[derive(Debug, thiserror::Error)]
#[error("not enough memory for {streams} caches of {bytes} bytes: lower streams or cache")]
pub struct NoMemory {
    streams: u8,
    bytes: u64,
}

/// One end of a tunnel.
pub struct WanTable {
    options: Options,
    destinations: Live<Vec<IpNet>>,
    /// Outer headers, per stream.
    outers: Box<[Outer]>,
    outbound: Box<[Arc<Outbound>]>,
    inbound: Box<[Decoder]>,
    /// Bitmap of leased streams.
    leased: AtomicU64,
    /// The stream of each instance, for a process that has one instance; `None` if there is none left for it.
    own_stream: Option<Option<usize>>,
    /// Source of epoch numbers.
    seed: RandomState,
    epochs: AtomicU64,
}

/// Meaning of a packet between the two ends, by its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ports {
    /// Stream, if the packet may be content.
    pub(super) content: Option<usize>,
    /// Stream, if the packet may be a request.
    pub(super) request: Option<usize>,
}

impl WanTable {
    /// Creates one end; packets to `destinations` go to the remote end.
    ///
    /// # Errors
    /// There is not enough memory for the caches.
    pub fn new(options: Options, destinations: Vec<IpNet>) -> Result<WanTable, NoMemory> {
        let shared_counters = SharedCounters::of_this_process();
        WanTable::with_shared_counters(options, destinations, &shared_counters)
    }

    /// Creates an end as [`new`](WanTable::new) does, for process `part` of several. All of them use the same
    /// `shared_counters` of [this size](WanTable::shared_bytes), which hold the decoders' caches and the requests to
    /// the encoders. Each process encodes the stream of its number, and continues with a new epoch in the place of a
    /// failed one.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn sharing(
        options: Options,
        destinations: Vec<IpNet>,
        part: u16,
        shared_counters: &SharedCounters,
    ) -> Result<WanTable, NoMemory> {
        let stream = (part < options.streams.into()).then_some(part.into());
        let table = WanTable::with_shared_counters(options, destinations, shared_counters)?;
        Ok(WanTable {
            own_stream: Some(stream),
            ..table
        })
    }

    /// Returns the bytes of state shared by processes.
    pub fn shared_bytes(options: &Options) -> usize {
        usize::from(options.streams) * (Outbound::shared_bytes(options.cache) + Decoder::shared_bytes(options.cache))
    }

    /// Returns the bytes of an instance's own memory.
    pub fn private_bytes(options: &Options) -> u64 {
        Encoder::bytes(options.cache, options.fingerprints)
    }

    fn with_shared_counters(
        options: Options,
        destinations: Vec<IpNet>,
        shared_counters: &SharedCounters,
    ) -> Result<WanTable, NoMemory> {
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
            let outbound = Outbound::new(options.cache, shared_counters).ok_or_else(no_memory)?;
            Ok(Arc::new(outbound))
        });
        let inbound = streams.map(|_| Decoder::new(options.cache, shared_counters).ok_or_else(no_memory));
        Ok(WanTable {
            outers: options.ports().map(outer).collect(),
            outbound: outbound.collect::<Result<_, _>>()?,
            inbound: inbound.collect::<Result<_, _>>()?,
            options,
            destinations: Live::new(destinations),
            leased: AtomicU64::new(0),
            own_stream: None,
            seed: RandomState::new(),
            epochs: AtomicU64::new(0),
        })
    }

    /// Returns the options of this end.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the replaceable prefixes behind the remote end.
    pub fn destinations(&self) -> &Live<Vec<IpNet>> {
        &self.destinations
    }

    /// Leases a free stream until the lease is dropped.
    pub(super) fn lease(self: &Arc<Self>) -> Option<Lease> {
        if let Some(own) = self.own_stream {
            let table = Arc::clone(self);
            return own.map(|stream| Lease { table, stream });
        }
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

    /// Returns a random number for a new epoch, so that cache content of an earlier run is not mistaken for a later
    /// one's.
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

    /// Classifies a packet from the remote end; `None` if it does not belong to the tunnel.
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

/// Stream leased to an instance.
pub(super) struct Lease {
    table: Arc<WanTable>,
    pub(super) stream: usize,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.table.leased.fetch_and(!(1 << self.stream), Relaxed);
    }
}
