//! Flow key: a 5-tuple.

use crate::abi;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// 5-tuple, IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct FlowKey(pub(crate) abi::FlowKey);

impl FlowKey {
    /// Creates a key. Both addresses must have the same family.
    pub fn new(source: IpAddr, destination: IpAddr, protocol: u8, source_port: u16, destination_port: u16) -> FlowKey {
        let (version, mut words) = match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let (source, destination) = (u32::from(source), u32::from(destination));
                let addresses = u64::from(source) | u64::from(destination) << 32;
                (4, [addresses, 0, 0, 0, 0])
            }
            (source, destination) => {
                let bits = |address| match address {
                    IpAddr::V4(address) => u128::from(address.to_ipv6_mapped()),
                    IpAddr::V6(address) => u128::from(address),
                };
                let (s, d) = (bits(source), bits(destination));
                (6, [s as u64, (s >> 64) as u64, d as u64, (d >> 64) as u64, 0])
            }
        };
        words[4] =
            u64::from(source_port) | u64::from(destination_port) << 16 | u64::from(protocol) << 32 | version << 40;
        FlowKey(abi::FlowKey { words })
    }

    /// Returns the IP protocol number.
    #[inline]
    pub fn protocol(&self) -> u8 {
        (self.0.words[4] >> 32) as u8
    }

    /// Returns `true` for the key of fragments, which have no ports.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.0.words[4] >> 48 & 1 != 0
    }

    /// Returns the source port; 0 if there is none.
    #[inline]
    pub fn source_port(&self) -> u16 {
        self.0.words[4] as u16
    }

    /// Returns the destination port; 0 if there is none.
    #[inline]
    pub fn destination_port(&self) -> u16 {
        (self.0.words[4] >> 16) as u16
    }

    /// Returns the source address.
    #[inline]
    pub fn source(&self) -> IpAddr {
        self.address(0)
    }

    /// Returns the destination address.
    #[inline]
    pub fn destination(&self) -> IpAddr {
        self.address(1)
    }

    #[inline]
    fn address(&self, which: usize) -> IpAddr {
        let words = &self.0.words;
        if (words[4] >> 40) as u8 == 4 {
            return Ipv4Addr::from((words[0] >> (32 * which)) as u32).into();
        }
        let [low, high] = [words[2 * which], words[2 * which + 1]];
        Ipv6Addr::from(u128::from(low) | u128::from(high) << 64).into()
    }
}
