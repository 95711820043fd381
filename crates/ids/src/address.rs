//! Sets of addresses and of ports, as the header of a rule names them.

use crate::interval::Intervals;
use std::net::IpAddr;

/// Addresses of both versions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AddressSet {
    /// IPv4.
    pub v4: Intervals<u32>,
    /// IPv6.
    pub v6: Intervals<u128>,
}

/// Ports.
pub type PortSet = Intervals<u16>;

impl AddressSet {
    /// No address.
    pub fn none() -> AddressSet {
        AddressSet {
            v4: Intervals::none(),
            v6: Intervals::none(),
        }
    }

    /// Every address.
    pub fn all() -> AddressSet {
        AddressSet {
            v4: Intervals::all(),
            v6: Intervals::all(),
        }
    }

    /// Whether every address is in it.
    pub fn is_all(&self) -> bool {
        self.v4.is_all() && self.v6.is_all()
    }

    /// Whether an address is in it.
    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.v4.contains(address.to_bits()),
            IpAddr::V6(address) => self.v6.contains(address.to_bits()),
        }
    }

    /// Whether it has so few addresses that it says much about a packet: as many as a /12 has, or a /64 of IPv6.
    pub fn is_narrow(&self) -> bool {
        let v4 = self.v4.intervals().iter();
        let v4: u64 = v4.map(|(first, last)| u64::from(last - first) + 1).sum();
        let v6 = self.v6.intervals().iter();
        v4 <= 1 << 20 && v6.map(|(first, last)| last - first).max().unwrap_or(0) < 1 << 64
    }
}

/// What sets have in common, for who reads them.
pub(crate) trait Set: Clone {
    /// Nothing.
    fn none() -> Self;
    /// Everything.
    fn all() -> Self;
    /// Adds another.
    fn add(&mut self, other: &Self);
    /// Takes another away.
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
