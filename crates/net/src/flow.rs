//! Flow key: a packet's 5-tuple in a fixed-size form that hashes and compares fast.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// 5-tuple, IPv4 or IPv6, in 40 bytes.
///
/// Packets without ports (other protocols, every fragment but a datagram's first) have both ports zero. ICMP and ICMPv6
/// echo messages carry their identifier as both ports.
///
/// Layout for IPv6: `words[0..2]` source and `words[2..4]` destination address. For IPv4 both addresses are in
/// `words[0]` (source in the low half), so only two words of an IPv4 key differ. `words[4]` holds source port (bits
/// 0-15), destination port (16-31), protocol (32-39), IP version (40-47) and the fragment flag (48).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C, align(8))]
pub struct FlowKey {
    words: [u64; 5],
}

impl FlowKey {
    /// Returns the key as words, for [`from_words`](FlowKey::from_words) of the same version.
    #[inline]
    pub const fn words(&self) -> [u64; 5] {
        self.words
    }

    /// Creates a key from words. All values are valid, although not all occur in packets.
    #[inline]
    pub const fn from_words(words: [u64; 5]) -> Self {
        FlowKey { words }
    }

    /// Creates the key of an IPv4 flow. Ports are in host byte order.
    #[inline]
    pub const fn v4(
        source: Ipv4Addr,
        destination: Ipv4Addr,
        protocol: u8,
        source_port: u16,
        destination_port: u16,
    ) -> Self {
        let addresses = source.to_bits() as u64 | ((destination.to_bits() as u64) << 32);
        FlowKey {
            words: [addresses, 0, 0, 0, tail(source_port, destination_port, protocol, 4)],
        }
    }

    /// Creates the key of an IPv4 flow from its header fields: source (high half) and destination address, source (high
    /// half) and destination port, protocol (below 32).
    #[inline]
    pub(crate) const fn v4_of_wire(addresses: u64, ports: u32, protocol: u32) -> Self {
        /// A look-up takes fewer instructions than shifting the protocol into place.
        const TAILS: [u64; 32] = {
            let mut tails = [0; 32];
            let mut protocol = 0;
            while protocol < 32 {
                tails[protocol] = tail(0, 0, protocol as u8, 4);
                protocol += 1;
            }
            tails
        };
        FlowKey {
            words: [
                addresses.rotate_left(32),
                0,
                0,
                0,
                TAILS[protocol as usize] | ports.rotate_left(16) as u64,
            ],
        }
    }

    /// Creates the key of an IPv6 flow. Ports are in host byte order.
    #[inline]
    pub const fn v6(
        source: Ipv6Addr,
        destination: Ipv6Addr,
        protocol: u8,
        source_port: u16,
        destination_port: u16,
    ) -> Self {
        let (s, d) = (source.to_bits(), destination.to_bits());
        FlowKey {
            words: [
                s as u64,
                (s >> 64) as u64,
                d as u64,
                (d >> 64) as u64,
                tail(source_port, destination_port, protocol, 6),
            ],
        }
    }

    /// Returns the key of an IPv4 flow with another address and port at one end, without a branch on the end: at the
    /// destination if `destination` is set, or else at the source.
    #[inline]
    #[must_use]
    pub const fn with_v4_end(mut self, destination: bool, address: Ipv4Addr, port: u16) -> Self {
        let end = destination as u32;
        let (addresses, ports) = (32 * end, 16 * end);
        self.words[0] = self.words[0] & !(0xffff_ffff << addresses) | (address.to_bits() as u64) << addresses;
        self.words[4] = self.words[4] & !(0xffff << ports) | (port as u64) << ports;
        self
    }

    /// Returns the IP version, 4 or 6 (0 for the default key, which no packet has).
    #[inline]
    pub const fn version(&self) -> u8 {
        (self.words[4] >> 40) as u8
    }

    /// Returns `true` for an IPv4 flow.
    #[inline]
    pub const fn is_v4(&self) -> bool {
        self.version() == 4
    }

    /// The source address.
    #[inline]
    pub const fn source(&self) -> IpAddr {
        if self.is_v4() {
            IpAddr::V4(Ipv4Addr::from_bits(self.words[0] as u32))
        } else {
            IpAddr::V6(Ipv6Addr::from_bits(
                self.words[0] as u128 | ((self.words[1] as u128) << 64),
            ))
        }
    }

    /// The destination address.
    #[inline]
    pub const fn destination(&self) -> IpAddr {
        if self.is_v4() {
            IpAddr::V4(Ipv4Addr::from_bits((self.words[0] >> 32) as u32))
        } else {
            IpAddr::V6(Ipv6Addr::from_bits(
                self.words[2] as u128 | ((self.words[3] as u128) << 64),
            ))
        }
    }

    /// Returns source (high half) and destination address (low half) of an IPv4 key; big-endian, this is their order on
    /// the wire.
    #[inline]
    pub(crate) const fn v4_addresses(&self) -> u64 {
        self.words[0].rotate_left(32)
    }

    /// Source and destination address of an IPv6 key.
    #[inline]
    pub(crate) const fn v6_addresses(&self) -> (u128, u128) {
        let w = &self.words;
        (
            w[0] as u128 | ((w[1] as u128) << 64),
            w[2] as u128 | ((w[3] as u128) << 64),
        )
    }

    /// The IP protocol number (for IPv6 that of the upper layer).
    #[inline]
    pub const fn protocol(&self) -> u8 {
        (self.words[4] >> 32) as u8
    }

    /// The source port, or zero.
    #[inline]
    pub const fn source_port(&self) -> u16 {
        self.words[4] as u16
    }

    /// The destination port, or zero.
    #[inline]
    pub const fn destination_port(&self) -> u16 {
        (self.words[4] >> 16) as u16
    }

    /// Returns the key for the flow's fragments, which are looked up apart from whole packets. A NIC leaves the ports
    /// out of a fragment's RSS hash, so fragments may belong to another bucket, and decisions on whole packets do not
    /// apply to them.
    #[inline]
    pub const fn of_fragment(mut self) -> Self {
        self.words[4] |= FRAGMENT;
        self
    }

    /// Returns the key of the flow's whole packets: the opposite of [`FlowKey::of_fragment`].
    #[inline]
    pub const fn of_whole(mut self) -> Self {
        self.words[4] &= !FRAGMENT;
        self
    }

    /// Returns the key with both ports zero, as in all fragments of a datagram but the first.
    #[inline]
    pub const fn without_ports(mut self) -> Self {
        self.words[4] &= !0xffff_ffff;
        self
    }

    /// Returns `true` for a key created by [`FlowKey::of_fragment`].
    #[inline]
    pub const fn is_fragment(&self) -> bool {
        self.words[4] & FRAGMENT != 0
    }

    /// Returns the key of the opposite direction.
    #[inline]
    pub const fn reversed(&self) -> Self {
        let w = &self.words;
        let tail = tail(
            self.destination_port(),
            self.source_port(),
            self.protocol(),
            self.version(),
        ) | w[4] & FRAGMENT;
        if self.is_v4() {
            FlowKey {
                words: [w[0].rotate_left(32), 0, 0, 0, tail],
            }
        } else {
            FlowKey {
                words: [w[2], w[3], w[0], w[1], tail],
            }
        }
    }

    /// Returns the common key of both directions of a connection, and `true` if it is the opposite direction's. The end
    /// with the lower address comes first, or with equal addresses the one with the lower port.
    #[inline]
    pub const fn of_connection(&self) -> (Self, bool) {
        let w = &self.words;
        let ports = self.source_port() > self.destination_port();
        let reversed = if self.is_v4() {
            let (source, destination) = (w[0] as u32, (w[0] >> 32) as u32);
            source > destination || source == destination && ports
        } else if w[1] == w[3] {
            w[0] > w[2] || w[0] == w[2] && ports
        } else {
            w[1] > w[3]
        };
        match reversed {
            true => (self.reversed(), true),
            false => (*self, false),
        }
    }

    /// Returns a 64-bit hash. It is keyed: without the seed nobody can construct flows that collide.
    ///
    /// Every input word passes through a 64x64-bit multiplication folded to 64 bits, as in the wyhash family. The hash
    /// is independent of the [Toeplitz](crate::toeplitz) hash, so flows of one RSS bucket spread over the bucket's own
    /// table.
    #[inline]
    pub const fn hash(&self, seed: u64) -> u64 {
        let w = &self.words;
        // A zero or small factor loses information of the other factor. The seed may be small, so it is mixed with a
        // constant before any word is multiplied with it.
        let seed = seed ^ 0x2d35_8dcc_aa6c_78a5;
        let low = fold(w[0] ^ seed, w[4] ^ 0x9e37_79b9_7f4a_7c15);
        if self.is_v4() {
            return fold(low ^ 0xa076_1d64_78bd_642f, seed ^ 0xe703_7ed1_a0b4_28db);
        }
        let a = fold(w[1] ^ 0x8ebc_6af0_9c88_c6e3, w[2] ^ seed);
        let b = fold(w[3] ^ 0x5899_65cc_7537_4cc3, low ^ seed);
        fold(a ^ low, b ^ 0xa076_1d64_78bd_642f)
    }
}

/// Bit that marks the key of fragments.
const FRAGMENT: u64 = 1 << 48;

/// Packs ports, protocol and version into a key's last word.
#[inline]
const fn tail(source_port: u16, destination_port: u16, protocol: u8, version: u8) -> u64 {
    source_port as u64 | ((destination_port as u64) << 16) | ((protocol as u64) << 32) | ((version as u64) << 40)
}

/// Folds the two halves of a 128-bit product.
#[inline]
const fn fold(a: u64, b: u64) -> u64 {
    let product = a as u128 * b as u128;
    product as u64 ^ (product >> 64) as u64
}

/// `tcp 10.0.0.1:80 > 10.0.0.2:1234`
impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.protocol() {
            6 => write!(f, "tcp ")?,
            17 => write!(f, "udp ")?,
            other => write!(f, "proto-{other} ")?,
        }
        let end = |ip: IpAddr, port| std::net::SocketAddr::new(ip, port);
        write!(
            f,
            "{} > {}",
            end(self.source(), self.source_port()),
            end(self.destination(), self.destination_port())
        )
    }
}

impl fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests;
