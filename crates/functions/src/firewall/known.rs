//! Connections and fragmented datagrams that all cores know of.
//!
//! A packet that is about a connection (an ICMP error, a first fragment) is hashed by other addresses or ports than the
//! connection's own, so that another core may have it than the connection's. What that core needs is little:
//! whether there is such a connection. It is kept in tables of single words that all cores read and write, without
//! locks: fingerprints of keys, by a hash with a secret seed. Two keys share one with a chance of 2⁻⁶⁰ or so.

use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_chain::commons::{Commons, SharedNumbers};
use tailwater_net::{FlowKey, Nanos};

/// Words of a set: a cache line.
const WAYS: usize = 8;

/// Sets of fingerprints that have the same place: each is a cache line.
#[derive(Debug)]
struct Sets(SharedNumbers);

impl Sets {
    /// Words in sets enough for so many.
    fn words(words: usize) -> usize {
        WAYS * words.div_ceil(WAYS).next_power_of_two()
    }

    fn new(words: usize, commons: &Commons) -> Sets {
        Sets(commons.take(Sets::words(words)))
    }

    /// The set of a hash.
    #[inline]
    fn of(&self, hash: u64) -> &[AtomicU64] {
        let words: &[AtomicU64] = &self.0;
        let set = hash as usize & (words.len() / WAYS - 1);
        &words[set * WAYS..][..WAYS]
    }
}

/// Connections that are there.
#[derive(Debug)]
pub(super) struct Connections {
    sets: Sets,
    seed: u64,
}

impl Connections {
    /// The numbers that this takes, for so many connections.
    pub(super) fn words(capacity: usize) -> usize {
        Sets::words(2 * capacity)
    }

    /// For so many connections: all but a few in ten thousand find a place.
    pub(super) fn new(capacity: usize, seed: u64, commons: &Commons) -> Connections {
        Connections {
            sets: Sets::new(2 * capacity, commons),
            seed,
        }
    }

    /// A connection's set and fingerprint. The seeds differ, so that the two say nothing of each other.
    fn place(&self, key: &FlowKey) -> (&[AtomicU64], u64) {
        let set = self.sets.of(key.hash(self.seed ^ 0x5d58_8b65_6c07_8965));
        (set, key.hash(self.seed).max(1))
    }

    /// Notes a connection, by its [key](FlowKey::of_connection). Whether there was room. One that is noted already, by a
    /// process that was killed over its first packet, stays noted once.
    pub(super) fn insert(&self, key: &FlowKey) -> bool {
        if self.contains(key) {
            return true;
        }
        let (words, print) = self.place(key);
        let taken = |word: &AtomicU64| {
            word.compare_exchange(0, print, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
        };
        !words.iter().all(taken)
    }

    /// Forgets a connection.
    pub(super) fn remove(&self, key: &FlowKey) {
        let (words, print) = self.place(key);
        let absent = |word: &AtomicU64| {
            word.compare_exchange(print, 0, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
        };
        let _ = words.iter().all(absent);
    }

    /// Whether it is there.
    pub(super) fn contains(&self, key: &FlowKey) -> bool {
        let (words, print) = self.place(key);
        words.iter().any(|word| word.load(Ordering::Relaxed) == print)
    }
}

/// Datagrams whose first fragments have been decided about.
#[derive(Debug)]
pub(super) struct Datagrams {
    sets: Sets,
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
    /// The numbers that this takes, for about so many.
    pub(super) fn words(capacity: usize) -> usize {
        Sets::words(capacity)
    }

    /// For about so many at a time. When more come, the oldest are forgotten.
    pub(super) fn new(capacity: usize, seed: u64, commons: &Commons) -> Datagrams {
        Datagrams {
            sets: Sets::new(capacity, commons),
            seed,
        }
    }

    /// The set and the upper 34 bits of the word: the key's ports, which fragments do not all have, are not looked at.
    fn place(&self, key: &FlowKey, identification: u32) -> (&[AtomicU64], u64) {
        let seed = self.seed ^ u64::from(identification).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let key = key.without_ports();
        let set = self.sets.of(key.hash(seed ^ 0x5d58_8b65_6c07_8965));
        // The highest bit tells a word in use.
        (set, (key.hash(seed) >> 30 | 1 << 33) << 30)
    }

    /// Notes what a datagram's first fragment came to.
    pub(super) fn note(&self, (key, identification): (&FlowKey, u32), now: Nanos, first: First) {
        let (words, print) = self.place(key, identification);
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
        let (words, print) = self.place(key, identification);
        let time = now.0 / QUARTER;
        let mut found = words.iter().map(|word| word.load(Ordering::Relaxed));
        let word = found.find(|word| word & PRINT == print)?;
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
        let known = Connections::new(4096, 7, &Commons::of_this_process());
        let found = (0..4096).filter(|n| known.insert(&key(*n))).count();
        assert!(found >= 4000, "{found}");
        let there = (0..4096).filter(|n| known.contains(&key(*n))).count();
        assert_eq!(there, found);
        assert!(!(5000..9000).any(|n| known.contains(&key(n))));
        (0..4096).for_each(|n| known.remove(&key(n)));
        assert!(!(0..4096).any(|n| known.contains(&key(n))));
        let empty = |word: &AtomicU64| word.load(Ordering::Relaxed) == 0;
        assert!(known.sets.0.iter().all(empty));
        // Noted twice, by somebody who does not know that it was, is noted once.
        assert!(known.insert(&key(1)) && known.insert(&key(1)));
        known.remove(&key(1));
        assert!(!known.contains(&key(1)));
    }

    #[test]
    fn datagrams_are_told_apart_and_forgotten() {
        let datagrams = Datagrams::new(256, 7, &Commons::of_this_process());
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
