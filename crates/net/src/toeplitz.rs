//! Toeplitz hash of receive-side scaling (RSS), as NICs compute it.
//!
//! The hash of an input is an XOR over its one bits: each contributes the 32-bit window of the key that starts at the
//! bit's position (Microsoft, "RSS hashing functions"). So the hash is linear over XOR: it is the XOR of the
//! contributions of each field, which [`RssHasher`] returns. A NAT uses them to choose a port whose return traffic
//! falls into a given bucket:
//!
//! ```
//! use std::net::IpAddr;
//! use tailwater_net::parse::Network;
//! use tailwater_net::toeplitz::{End, RssHasher, bucket_of};
//! use tailwater_net::{FlowKey, protocol};
//!
//! let rss = RssHasher::default();
//! let server = "192.0.2.80".parse().unwrap();
//! let nat = "198.51.100.1".parse().unwrap();
//! // The return tuple without its destination port.
//! let base = rss.address_contribution(End::Source, IpAddr::V4(server))
//!     ^ rss.address_contribution(End::Destination, IpAddr::V4(nat))
//!     ^ rss.port_contribution(Network::V4, End::Source, 443);
//! let port = (1024..=u16::MAX)
//!     .find(|&port| {
//!         bucket_of(base ^ rss.port_contribution(Network::V4, End::Destination, port)) == 77
//!     })
//!     .unwrap();
//! let returning = FlowKey::v4(server, nat, protocol::TCP, 443, port);
//! assert_eq!(bucket_of(rss.hash(&returning)), 77);
//! ```

use std::fmt;
use std::net::IpAddr;

use crate::flow::FlowKey;
use crate::parse::{Fragment, Headers, Network, parse, parse_plain_v4};
use crate::protocol;

/// Number of RSS buckets, which are the entries of the RETA (the table from hashes to queues).
pub const BUCKETS: usize = 512;

/// Returns the bucket of a hash: its low 9 bits; below [`BUCKETS`].
#[inline]
pub const fn bucket_of(hash: u32) -> u16 {
    (hash % BUCKETS as u32) as u16
}

/// 40-byte RSS key, long enough for an IPv6 4-tuple.
pub type RssKey = [u8; 40];

/// Key of Microsoft's verification suite, the default of most NICs and drivers.
pub const MICROSOFT_KEY: RssKey = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];

/// Key with a period of 16 bits, under which both directions of a flow have the same hash (Woo and Park, "Scalable TCP
/// session monitoring with symmetric receive-side scaling", 2012).
pub const SYMMETRIC_KEY: RssKey = {
    let mut key = [0x6d; 40];
    let mut i = 1;
    while i < key.len() {
        key[i] = 0x5a;
        i += 2;
    }
    key
};

/// Length of the longest input in bytes: IPv6 addresses and ports.
const INPUT: usize = 36;

/// End of a flow that a field belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The sender.
    Source,
    /// The receiver.
    Destination,
}

/// Toeplitz hash under one key.
///
/// It holds a table of 256 contributions for each input byte (36 KiB, of which IPv4 uses the first 12 tables), so an
/// IPv4 4-tuple costs 12 look-ups.
#[derive(Clone)]
pub struct RssHasher {
    key: RssKey,
    tables: Box<[[u32; 256]; INPUT]>,
}

impl RssHasher {
    /// Hash under `key`.
    pub fn new(key: &RssKey) -> Self {
        let mut tables = Box::new([[0; 256]; INPUT]);
        for (table, key) in tables.iter_mut().zip(key.windows(5)) {
            // The 32-bit windows at the eight bit positions of this byte lie within 40 bits.
            let bits = key.iter().fold(0u64, |bits, &byte| bits << 8 | byte as u64);
            for (byte, contribution) in table.iter_mut().enumerate() {
                *contribution = (0..8)
                    .filter(|bit| byte >> bit & 1 != 0)
                    .fold(0, |hash, bit| hash ^ (bits >> (bit + 1)) as u32);
            }
        }
        RssHasher { key: *key, tables }
    }

    /// Hash under [`SYMMETRIC_KEY`]: equal for both directions of a flow.
    pub fn symmetric() -> Self {
        Self::new(&SYMMETRIC_KEY)
    }

    /// Returns the key.
    pub fn key(&self) -> &RssKey {
        &self.key
    }

    /// Returns the hash of a whole packet of the flow. TCP and UDP: over addresses and ports. Every other protocol, and
    /// the key [of a fragment](FlowKey::of_fragment): over addresses. The default key: zero.
    ///
    /// A NIC leaves out the ports of every fragment, the first included. Use [`RssHasher::hash_headers`] if the packet
    /// is available.
    #[inline]
    pub fn hash(&self, key: &FlowKey) -> u32 {
        let ports = matches!(key.protocol(), protocol::TCP | protocol::UDP) && !key.is_fragment();
        self.hash_tuple(key, ports)
    }

    /// Returns the hash of a packet: [`RssHasher::hash`], but over addresses only for all fragments, the first
    /// included. NICs do the same so that all fragments of a datagram reach one queue. Zero if not IP.
    #[inline]
    pub fn hash_headers(&self, headers: &Headers) -> u32 {
        let ports =
            headers.fragment == Fragment::Whole && matches!(headers.key.protocol(), protocol::TCP | protocol::UDP);
        self.hash_tuple(&headers.key, ports)
    }

    /// Returns the hash of a frame: [`RssHasher::hash_headers`] of its headers; zero if it is malformed.
    #[inline]
    pub fn hash_frame(&self, frame: &[u8]) -> u32 {
        match parse_plain_v4(frame) {
            // Whole TCP or UDP: addresses and ports are adjacent.
            Some(Headers { key, .. }) => {
                let both_ports = u32::from(key.source_port()) << 16 | u32::from(key.destination_port());
                self.at::<0, 8>(key.v4_addresses().to_be_bytes()) ^ self.at::<8, 4>(both_ports.to_be_bytes())
            }
            None => self.hash_other_frame(frame),
        }
    }

    #[inline(never)]
    fn hash_other_frame(&self, frame: &[u8]) -> u32 {
        parse(frame).map_or(0, |headers| self.hash_headers(&headers))
    }

    /// Returns the hash of a flow's addresses alone.
    #[inline]
    pub fn hash_addresses(&self, key: &FlowKey) -> u32 {
        self.hash_tuple(key, false)
    }

    /// Returns the contribution of an address to the hash.
    pub fn address_contribution(&self, end: End, address: IpAddr) -> u32 {
        match (address, end) {
            (IpAddr::V4(ip), End::Source) => self.at::<0, 4>(ip.octets()),
            (IpAddr::V4(ip), End::Destination) => self.at::<4, 4>(ip.octets()),
            (IpAddr::V6(ip), End::Source) => self.at::<0, 16>(ip.octets()),
            (IpAddr::V6(ip), End::Destination) => self.at::<16, 16>(ip.octets()),
        }
    }

    /// Returns the contribution of a port to the hash of a TCP or UDP packet of this network layer; zero if not IP.
    #[inline]
    pub fn port_contribution(&self, network: Network, end: End, port: u16) -> u32 {
        let port = port.to_be_bytes();
        match (network, end) {
            (Network::V4, End::Source) => self.at::<8, 2>(port),
            (Network::V4, End::Destination) => self.at::<10, 2>(port),
            (Network::V6, End::Source) => self.at::<32, 2>(port),
            (Network::V6, End::Destination) => self.at::<34, 2>(port),
            (Network::NotIp, _) => 0,
        }
    }

    #[inline]
    fn hash_tuple(&self, key: &FlowKey, ports: bool) -> u32 {
        let both_ports = ((key.source_port() as u32) << 16 | key.destination_port() as u32).to_be_bytes();
        match (key.version(), ports) {
            (4, false) => self.at::<0, 8>(key.v4_addresses().to_be_bytes()),
            (4, true) => self.at::<0, 8>(key.v4_addresses().to_be_bytes()) ^ self.at::<8, 4>(both_ports),
            (6, _) => {
                let (source, destination) = key.v6_addresses();
                let addresses = self.at::<0, 16>(source.to_be_bytes()) ^ self.at::<16, 16>(destination.to_be_bytes());
                if ports {
                    addresses ^ self.at::<32, 4>(both_ports)
                } else {
                    addresses
                }
            }
            _ => 0,
        }
    }

    /// Returns the contribution of `bytes` at position `START` of the input.
    #[inline]
    fn at<const START: usize, const N: usize>(&self, bytes: [u8; N]) -> u32 {
        const { assert!(START + N <= INPUT) };
        let mut hash = 0;
        let mut i = 0;
        // Constant bounds let the compiler unroll the loop and drop all checks.
        while i < N {
            hash ^= self.tables[START + i][bytes[i] as usize];
            i += 1;
        }
        hash
    }
}

/// The hash under [`MICROSOFT_KEY`].
impl Default for RssHasher {
    fn default() -> Self {
        Self::new(&MICROSOFT_KEY)
    }
}

impl fmt::Debug for RssHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RssHasher")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
