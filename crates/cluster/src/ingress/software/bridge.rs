//! Learnt Ethernet addresses, for normal forwarding: the ports behind which hosts are. All cores share them without
//! locks.

use crate::ingress::rule::MacAddress;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_net::Nanos;

/// Sets of entries, and entries of a set.
const SETS: usize = 2048;
const WAYS: usize = 4;
/// Unit of ages in seconds, and the age at which an address is forgotten.
const UNIT: u64 = 4;
const OLDEST: u64 = 300 / UNIT;
/// An age has ten bits.
const AGES: u64 = 1 << 10;

/// Learnt addresses. An entry is one word: address, port, age. 0 is free.
#[derive(Debug)]
pub(super) struct Bridge(Box<[AtomicU64]>);

/// Destination of a frame in normal forwarding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Behind this port, by index.
    Port(usize),
    /// Not known, or for several hosts: to all ports.
    All,
    /// Of the link itself, such as LLDP: to none.
    None,
}

impl Bridge {
    pub fn new() -> Bridge {
        Bridge((0..SETS * WAYS).map(|_| AtomicU64::new(0)).collect())
    }

    fn set(&self, mac: u64) -> &[AtomicU64] {
        let set = (mac.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 53) as usize % SETS;
        &self.0[set * WAYS..(set + 1) * WAYS]
    }

    /// Learns that a source address is behind a port.
    #[inline]
    pub fn learn(&self, source: MacAddress, port: usize, now: Nanos) {
        if source[0] & 1 != 0 {
            return;
        }
        let (mac, age) = (number(source), age(now));
        let new = mac << 16 | (port as u64 & 0x3f) << 10 | age;
        let set = self.set(mac);
        let own = set.iter().find(|entry| entry.load(Ordering::Relaxed) >> 16 == mac);
        let entry = own.or_else(|| {
            // The one that was seen the longest ago, free ones first.
            set.iter().max_by_key(|entry| match entry.load(Ordering::Relaxed) {
                0 => AGES,
                entry => since(entry, age),
            })
        });
        if let Some(entry) = entry
            && entry.load(Ordering::Relaxed) != new
        {
            entry.store(new, Ordering::Relaxed);
        }
    }

    /// Returns the way to a destination address.
    #[inline]
    pub fn way(&self, destination: MacAddress, now: Nanos) -> Way {
        if destination[0] & 1 != 0 {
            let is_of_link = destination[..5] == [0x01, 0x80, 0xc2, 0, 0] && destination[5] < 16;
            return if is_of_link { Way::None } else { Way::All };
        }
        let (mac, age) = (number(destination), age(now));
        let entries = self.set(mac).iter().map(|entry| entry.load(Ordering::Relaxed));
        let found = entries.into_iter().find(|entry| entry >> 16 == mac && *entry != 0);
        match found.filter(|entry| since(*entry, age) <= OLDEST) {
            Some(entry) => Way::Port((entry >> 10 & 0x3f) as usize),
            None => Way::All,
        }
    }
}

fn number(mac: MacAddress) -> u64 {
    mac.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn age(now: Nanos) -> u64 {
    now.0 / (UNIT * 1_000_000_000) % AGES
}

fn since(entry: u64, age: u64) -> u64 {
    (age + AGES - entry % AGES) % AGES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mac(number: u32) -> MacAddress {
        let [a, b, c, d] = number.to_be_bytes();
        [2, 0, a, b, c, d]
    }

    #[test]
    fn addresses_are_learnt_move_and_age() {
        let bridge = Bridge::new();
        let at = Nanos::from_secs;
        assert_eq!(bridge.way(mac(1), at(10)), Way::All);
        bridge.learn(mac(1), 3, at(10));
        bridge.learn(mac(2), 0, at(10));
        assert_eq!(bridge.way(mac(1), at(300)), Way::Port(3));
        assert_eq!(bridge.way(mac(2), at(10)), Way::Port(0));
        bridge.learn(mac(1), 5, at(300));
        assert_eq!(bridge.way(mac(1), at(590)), Way::Port(5));
        assert_eq!(bridge.way(mac(2), at(590)), Way::All);
        // Groups are no hosts, and nobody forwards what is for the link.
        bridge.learn([1, 0, 0, 0, 0, 1], 2, at(590));
        assert_eq!(bridge.way([1, 0, 0, 0, 0, 1], at(590)), Way::All);
        assert_eq!(bridge.way([0xff; 6], at(590)), Way::All);
        assert_eq!(bridge.way([0x01, 0x80, 0xc2, 0, 0, 0x0e], at(590)), Way::None);
    }

    #[test]
    fn a_full_table_forgets_the_oldest() {
        let bridge = Bridge::new();
        for number in 0..100_000 {
            bridge.learn(
                mac(number),
                (number % 60) as usize,
                Nanos::from_secs(u64::from(number) / 1000),
            );
        }
        let known = |number: u32| match bridge.way(mac(number), Nanos::from_secs(100)) {
            Way::Port(port) => {
                assert_eq!(port, (number % 60) as usize);
                true
            }
            _ => false,
        };
        assert!(known(99_999));
        let count = (0..100_000).filter(|number| known(*number)).count();
        assert!((4096..=SETS * WAYS).contains(&count), "{count}");
    }
}
