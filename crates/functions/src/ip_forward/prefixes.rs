//! Prefixes of the routes, for explanations: the look-up structures hold targets only.

use super::route::Route;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Largest table of which explanations name prefixes.
pub(super) const MOST_EXPLAINED: usize = 65_536;

/// Prefixes of a table, sorted; none if there are more than [`MOST_EXPLAINED`].
pub(super) struct Prefixes {
    v4: Box<[(u32, u8)]>,
    v6: Box<[(u128, u8)]>,
    are_known: bool,
}

impl Prefixes {
    pub(super) fn new(routes: &[Route]) -> Prefixes {
        let are_known = routes.len() <= MOST_EXPLAINED;
        let known = if are_known { routes } else { &[] };
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for route in known {
            match route.prefix.trunc() {
                IpNet::V4(prefix) => v4.push((prefix.addr().to_bits(), prefix.prefix_len())),
                IpNet::V6(prefix) => v6.push((prefix.addr().to_bits(), prefix.prefix_len())),
            }
        }
        v4.sort_unstable();
        v6.sort_unstable();
        Prefixes {
            v4: v4.into(),
            v6: v6.into(),
            are_known,
        }
    }

    /// Returns `true` if all prefixes are here.
    pub(super) fn are_known(&self) -> bool {
        self.are_known
    }

    /// Longest prefix that contains an address: one search for each length.
    pub(super) fn longest(&self, address: IpAddr) -> Option<IpNet> {
        match address {
            IpAddr::V4(address) => {
                let mask = |length: u8| u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                let found = |length: &u8| {
                    let prefix = (address.to_bits() & mask(*length), *length);
                    self.v4.binary_search(&prefix).is_ok()
                };
                let length = (0..=32).rev().find(found)?;
                let start = Ipv4Addr::from_bits(address.to_bits() & mask(length));
                Some(Ipv4Net::new(start, length).ok()?.into())
            }
            IpAddr::V6(address) => {
                let mask = |length: u8| u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
                let found = |length: &u8| {
                    let prefix = (address.to_bits() & mask(*length), *length);
                    self.v6.binary_search(&prefix).is_ok()
                };
                let length = (0..=128).rev().find(found)?;
                let start = Ipv6Addr::from_bits(address.to_bits() & mask(length));
                Some(Ipv6Net::new(start, length).ok()?.into())
            }
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.v4) + size_of_val(&*self.v6)
    }
}
