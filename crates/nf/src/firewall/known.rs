//! Connections and fragmented datagrams that all cores know of.
//!
//! A packet that is about a connection (an ICMP error, a first fragment) is hashed by other addresses or ports than the
//! connection's own, so that another core may have it than the connection's. What that core needs is little:
//! whether there is such a connection. It is kept in tables of single words that all cores read and write, without
//! locks: fingerprints of keys, by a hash with a secret seed. Two keys share one with a chance of 2⁻⁶⁰ or so.

use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_net::{FlowKey, Nanos};

/// Words of a set: a cache line.
const WAYS: usize = 8;

/// Fingerprints that have the same place.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Set([AtomicU64; WAYS]);

/// Sets enough for so many words.
fn sets(words: usize) -> Box<[Set]> {
    let count = words.div_ceil(WAYS).next_power_of_two();
    (0..count).map(|_| Set::default()).collect()
}

/// Connections that are there.
#[derive(Debug)]
pub(super) struct Connections {
    sets: Box<[Set]>,
    seed: u64,
}

impl Connections {
    /// For so many connections: all but a few in ten thousand find a place.
    pub(super) fn new(capacity: usize, seed: u64) -> Connections {
        Connections {
            sets: sets(2 * capacity),
            seed,
        }
    }

    /// A connection's set and fingerprint. The seeds differ, so that the two say nothing of each other.
    fn place(&self, key: &FlowKey) -> (&Set, u64) {
        let set = key.hash(self.seed ^ 0x5d58_8b65_6c07_8965) as usize & (self.sets.len() - 1);
        (&self.sets[set], key.hash(self.seed).max(1))
    }

    /// Notes a connection, by its [key](FlowKey::of_connection). Whether there was room.
    pub(super) fn insert(&self, key: &FlowKey) -> bool {
        let (Set(words), print) = self.place(key);
        let taken = |word: &AtomicU64| {
            word.compare_exchange(0, print, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
        };
        !words.iter().all(taken)
    }

    /// Forgets a connection.
    pub(super) fn remove(&self, key: &FlowKey) {
        let (Set(words), print) = self.place(key);
        let absent = |word: &AtomicU64| {
            word.compare_exchange(print, 0, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
        };
        let _ = words.iter().all(absent);
    }

    /// Whether it is there.
    pub(super) fn contains(&self, key: &FlowKey) -> bool {
        let (Set(words), print) = self.place(key);
        words
            .iter()
            .any(|word| word.load(Ordering::Relaxed) == print)
    }
}

/// Datagrams whose first fragments have been decided about.
#[derive(Debug)]
pub(super) struct Datagrams {
    sets: Box<[Set]>,
    seed: u64,
}

/// What a datagram's first fragment came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct First {
    /// Whether it passed.
    pub(super) passed: bool,
    /// Its bytes of data: no other fragment may lie below.
    pub(super) length: usize,
}

/// For how long: as long as hosts wait for the rest (RFC 8200 §4.5, RFC 1122 §3.3.2).
const WAIT: Nanos = Nanos::from_secs(60);
/// Times are kept in quarters of a second, 16 bits of them.
const QUARTER: u64 = 250_000_000;

impl Datagrams {
    /// For about so many at a time. When more come, the oldest are forgotten.
    pub(super) fn new(capacity: usize, seed: u64) -> Datagrams {
        Datagrams {
            sets: sets(capacity),
            seed,
        }
    }

    /// The set and the upper 34 bits of the word: the key's ports, which fragments do not all have, are not looked at.
    fn place(&self, key: &FlowKey, identification: u32) -> (&Set, u64) {
        let seed = self.seed ^ u64::from(identification).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let key = key.without_ports();
        let set = key.hash(seed ^ 0x5d58_8b65_6c07_8965) as usize & (self.sets.len() - 1);
        // The highest bit tells a word in use.
        (&self.sets[set], (key.hash(seed) >> 30 | 1 << 33) << 30)
    }

    /// Notes what a datagram's first fragment came to.
    pub(super) fn note(&self, (key, identification): (&FlowKey, u32), now: Nanos, first: First) {
        let (Set(words), print) = self.place(key, identification);
        let time = (now.0 / QUARTER) & 0xffff;
        let length = (first.length as u64 / 8).min(0x1fff);
        let word = print | time << 14 | length << 1 | u64::from(first.passed);
        let age = |word: &AtomicU64| match word.load(Ordering::Relaxed) {
            old if old & PRINT == print => u64::MAX,
            0 => u64::MAX - 1,
            old => time.wrapping_sub(old >> 14) & 0xffff,
        };
        // Another core may be at the same set: then the later of the two stays, and the other's fragments are
        // dropped as if the first had been lost.
        if let Some(oldest) = words.iter().max_by_key(|word| age(word)) {
            oldest.store(word, Ordering::Relaxed);
        }
    }

    /// What a datagram's first fragment came to, if it was seen, and not long ago.
    pub(super) fn find(&self, key: &FlowKey, identification: u32, now: Nanos) -> Option<First> {
        let (Set(words), print) = self.place(key, identification);
        let time = now.0 / QUARTER;
        let found = words.iter().map(|word| word.load(Ordering::Relaxed));
        let word = found.into_iter().find(|word| word & PRINT == print)?;
        // A core whose clock was read earlier may ask about what another has just noted.
        let age = time.wrapping_sub(word >> 14) as u16 as i16;
        let fresh = i64::from(age) <= (WAIT.0 / QUARTER) as i64;
        (fresh && age > -100).then_some(First {
            passed: word & 1 != 0,
            length: (word >> 1 & 0x1fff) as usize * 8,
        })
    }
}

/// Where in a word the fingerprint is.
const PRINT: u64 = !((1 << 30) - 1);

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn key(n: u32) -> FlowKey {
        let ends = (Ipv4Addr::from_bits(n), Ipv4Addr::new(198, 18, 0, 1));
        FlowKey::v4(ends.0, ends.1, 17, n as u16, 53)
    }

    #[test]
    fn connections_are_there_until_they_are_removed() {
        let known = Connections::new(4096, 7);
        let found = (0..4096).filter(|n| known.insert(&key(*n))).count();
        assert!(found >= 4000, "{found}");
        let there = (0..4096).filter(|n| known.contains(&key(*n))).count();
        assert_eq!(there, found);
        assert!(!(5000..9000).any(|n| known.contains(&key(n))));
        (0..4096).for_each(|n| known.remove(&key(n)));
        assert!(!(0..4096).any(|n| known.contains(&key(n))));
        assert!(known.sets.iter().all(|set| {
            let empty = |word: &AtomicU64| word.load(Ordering::Relaxed) == 0;
            set.0.iter().all(empty)
        }));
    }

    #[test]
    fn datagrams_are_told_apart_and_forgotten() {
        let datagrams = Datagrams::new(256, 7);
        let start = Nanos::from_secs(16_000);
        let passed = First {
            passed: true,
            length: 1480,
        };
        let refused = First {
            passed: false,
            length: 8,
        };
        datagrams.note((&key(1), 7), start, passed);
        datagrams.note((&key(1), 8), start, refused);
        // Later fragments have no ports.
        let later = key(1).without_ports();
        let soon = Nanos::from_secs(16_050);
        assert_eq!(datagrams.find(&later, 7, soon), Some(passed));
        assert_eq!(datagrams.find(&later, 8, soon), Some(refused));
        assert_eq!(datagrams.find(&later, 9, soon), None);
        assert_eq!(datagrams.find(&key(2), 7, soon), None);
        assert_eq!(datagrams.find(&later, 7, Nanos::from_secs(16_061)), None);
        // A flood of others displaces the oldest.
        for n in 0..4096 {
            datagrams.note((&key(n), 7), soon, refused);
        }
        assert_eq!(datagrams.find(&key(4095), 7, soon), Some(refused));
    }
}
