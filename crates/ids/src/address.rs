//! Address and port sets of rule headers.

use crate::interval::Intervals;
use std::net::IpAddr;

/// Set of addresses of both IP versions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AddressSet {
    /// IPv4 addresses.
    pub v4: Intervals<u32>,
    /// IPv6 addresses.
    pub v6: Intervals<u128>,
}

/// Set of ports.
pub type PortSet = Intervals<u16>;

impl AddressSet {
    /// Returns the empty set.
    pub fn none() -> AddressSet {
        AddressSet {
            v4: Intervals::none(),
            v6: Intervals::none(),
        }
    }

    /// Returns the set of all addresses.
    pub fn all() -> AddressSet {
        AddressSet {
            v4: Intervals::all(),
            v6: Intervals::all(),
        }
    }

    /// Returns `true` if the set contains every address.
    pub fn is_all(&self) -> bool {
        self.v4.is_all() && self.v6.is_all()
    }

    /// Returns `true` if the set contains an address.
    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.v4.contains(address.to_bits()),
            IpAddr::V6(address) => self.v6.contains(address.to_bits()),
        }
    }

    /// Returns `true` if the set is small enough to be selective: at most the size of a /12 in IPv4, or a /64 in IPv6.
    pub fn is_narrow(&self) -> bool {
        let v4 = self.v4.intervals().iter();
        let v4: u64 = v4.map(|(first, last)| u64::from(last - first) + 1).sum();
        let v6 = self.v6.intervals().iter();
        v4 <= 1 << 20 && v6.map(|(first, last)| last - first).max().unwrap_or(0) < 1 << 64
    }
}

/// Operations common to sets, for the parser.
pub(crate) trait Set: Clone {
    /// Returns the empty set.
    fn none() -> Self;
    /// Returns the full set.
    fn all() -> Self;
    /// Adds another set.
    fn add(&mut self, other: &Self);
    /// Subtracts another set.
    fn remove(&mut self, other: &Self);
}

impl Set for AddressSet {
    fn none() -> Self {
        AddressSet::none()
    }

    fn all() -> Self {
        AddressSet::all()
    }

    fn add(&mut self, other: &Self) {
        self.v4.add(&other.v4);
        self.v6.add(&other.v6);
    }

    fn remove(&mut self, other: &Self) {
        self.v4.remove(&other.v4);
        self.v6.remove(&other.v6);
    }
}

impl Set for PortSet {
    fn none() -> Self {
        Intervals::none()
    }

    fn all() -> Self {
        Intervals::all()
    }

    fn add(&mut self, other: &Self) {
        Intervals::add(self, other);
    }

    fn remove(&mut self, other: &Self) {
        Intervals::remove(self, other);
    }
}
