//! Tables of connections and fragmented datagrams, shared by all cores.
//!
//! A packet that refers to a connection (an ICMP error, a first fragment) is hashed by other addresses or ports than
//! the connection's. So it may arrive on another core. That core only needs to know whether the connection exists. The
//! tables consist of single words, which all cores read and write without locks. A word holds the fingerprint of a key,
//! a hash with a secret seed. Two keys have the same fingerprint with a probability of about 2⁻⁶⁰.

use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_chain::shared_counters::{CounterArray, SharedCounters};
use tailwater_net::{FlowKey, Nanos};

/// Words of a set: one cache line.
const WAYS: usize = 8;

/// Set-associative table of fingerprints. Each set is a cache line.
#[derive(Debug)]
struct Sets(CounterArray);

impl Sets {
    /// Returns the number of words, in whole sets, for at least `words` words.
    fn words(words: usize) -> usize {
        WAYS * words.div_ceil(WAYS).next_power_of_two()
    }

    fn new(words: usize, shared_counters: &SharedCounters) -> Sets {
        Sets(shared_counters.take(Sets::words(words)))
    }

    /// Returns the set of a hash.
    #[inline]
    fn of(&self, hash: u64) -> &[AtomicU64] {
        let words: &[AtomicU64] = &self.0;
        let set = hash as usize & (words.len() / WAYS - 1);
        &words[set * WAYS..][..WAYS]
    }
}

/// Table of open connections.
#[derive(Debug)]
pub(super) struct Connections {
    sets: Sets,
    seed: u64,
}

impl Connections {
    /// Returns the number of shared words for `capacity` connections.
    pub(super) fn words(capacity: usize) -> usize {
        Sets::words(2 * capacity)
    }

    /// Creates a table for `capacity` connections. All but a few in ten thousand find room.
    pub(super) fn new(capacity: usize, seed: u64, shared_counters: &SharedCounters) -> Connections {
        Connections {
            sets: Sets::new(2 * capacity, shared_counters),
            seed,
        }
    }

    /// Returns a connection's set and fingerprint. Their seeds differ, so that the two are independent.
    fn place(&self, key: &FlowKey) -> (&[AtomicU64], u64) {
        let set = self.sets.of(key.hash(self.seed ^ 0x5d58_8b65_6c07_8965));
        (set, key.hash(self.seed).max(1))
    }

    /// Inserts a connection by its [key](FlowKey::of_connection). Returns `false` if there was no room. A connection
    /// that exists already, because a process was killed during its first packet, stays in the table once.
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

    /// Removes a connection.
    pub(super) fn remove(&self, key: &FlowKey) {
        let (words, print) = self.place(key);
        let absent = |word: &AtomicU64| {
            word.compare_exchange(print, 0, Ordering::Relaxed, Ordering::Relaxed)
                .is_err()
        };
        let _ = words.iter().all(absent);
    }

    /// Returns `true` if the connection is in the table.
    pub(super) fn contains(&self, key: &FlowKey) -> bool {
        let (words, print) = self.place(key);
        words.iter().any(|word| word.load(Ordering::Relaxed) == print)
    }
}

/// Table of datagrams with a decision on their first fragment.
#[derive(Debug)]
pub(super) struct Datagrams {
    sets: Sets,
    seed: u64,
}

/// Decision on a datagram's first fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FirstFragment {
    /// `true` if the fragment passed.
    pub(super) passed: bool,
    /// Length of the fragment's data in bytes. No other fragment may begin below it.
    pub(super) length: usize,
}

/// Lifetime of a decision: hosts wait that long for the remaining fragments (RFC 8200 §4.5, RFC 1122 §3.3.2).
const WAIT: Nanos = Nanos::from_secs(60);
/// Unit of stored times: a quarter of a second, in 16 bits.
const QUARTER: u64 = 250_000_000;

impl Datagrams {
    /// Returns the number of shared words for about `capacity` datagrams.
    pub(super) fn words(capacity: usize) -> usize {
        Sets::words(capacity)
    }

    /// Creates a table for about `capacity` datagrams at a time. When it is full, the oldest are evicted.
    pub(super) fn new(capacity: usize, seed: u64, shared_counters: &SharedCounters) -> Datagrams {
        Datagrams {
            sets: Sets::new(capacity, shared_counters),
            seed,
        }
    }

    /// Returns the set and the upper 34 bits of the word. The key's ports are ignored, because later fragments have
    /// none.
    fn place(&self, key: &FlowKey, identification: u32) -> (&[AtomicU64], u64) {
        let seed = self.seed ^ u64::from(identification).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let key = key.without_ports();
        let set = self.sets.of(key.hash(seed ^ 0x5d58_8b65_6c07_8965));
        // The highest bit marks a word in use.
        (set, (key.hash(seed) >> 30 | 1 << 33) << 30)
    }

    /// Stores the decision on a datagram's first fragment.
    pub(super) fn record_first(&self, (key, identification): (&FlowKey, u32), now: Nanos, first: FirstFragment) {
        let (words, print) = self.place(key, identification);
        let time = (now.0 / QUARTER) & 0xffff;
        let length = (first.length as u64 / 8).min(0x1fff);
        let word = print | time << 14 | length << 1 | u64::from(first.passed);
        let age = |word: &AtomicU64| match word.load(Ordering::Relaxed) {
            old if old & PRINT == print => u64::MAX,
            0 => u64::MAX - 1,
            old => time.wrapping_sub(old >> 14) & 0xffff,
        };
        // Another core may write the same word. Then the later write stays, and fragments of the other datagram are
        // dropped as if its first fragment had been lost.
        if let Some(oldest) = words.iter().max_by_key(|word| age(word)) {
            oldest.store(word, Ordering::Relaxed);
        }
    }

    /// Returns the decision on a datagram's first fragment if the fragment was seen recently.
    pub(super) fn find(&self, key: &FlowKey, identification: u32, now: Nanos) -> Option<FirstFragment> {
        let (words, print) = self.place(key, identification);
        let time = now.0 / QUARTER;
        let mut found = words.iter().map(|word| word.load(Ordering::Relaxed));
        let word = found.find(|word| word & PRINT == print)?;
        // A core whose clock was read earlier may look up a decision that another core has just stored.
        let age = time.wrapping_sub(word >> 14) as u16 as i16;
        let fresh = i64::from(age) <= (WAIT.0 / QUARTER) as i64;
        (fresh && age > -100).then_some(FirstFragment {
            passed: word & 1 != 0,
            length: (word >> 1 & 0x1fff) as usize * 8,
        })
    }
}

/// Mask of the fingerprint in a word.
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
        let known = Connections::new(4096, 7, &SharedCounters::of_this_process());
        let found = (0..4096).filter(|n| known.insert(&key(*n))).count();
        assert!(found >= 4000, "{found}");
        let there = (0..4096).filter(|n| known.contains(&key(*n))).count();
        assert_eq!(there, found);
        assert!(!(5000..9000).any(|n| known.contains(&key(n))));
        (0..4096).for_each(|n| known.remove(&key(n)));
        assert!(!(0..4096).any(|n| known.contains(&key(n))));
        let empty = |word: &AtomicU64| word.load(Ordering::Relaxed) == 0;
        assert!(known.sets.0.iter().all(empty));
        // A repeated insertion by a caller that does not know of the first is stored once.
        assert!(known.insert(&key(1)) && known.insert(&key(1)));
        known.remove(&key(1));
        assert!(!known.contains(&key(1)));
    }

    #[test]
    fn datagrams_are_told_apart_and_forgotten() {
        let datagrams = Datagrams::new(256, 7, &SharedCounters::of_this_process());
        let start = Nanos::from_secs(16_000);
        let passed = FirstFragment {
            passed: true,
            length: 1480,
        };
        let refused = FirstFragment {
            passed: false,
            length: 8,
        };
        datagrams.record_first((&key(1), 7), start, passed);
        datagrams.record_first((&key(1), 8), start, refused);
        // Later fragments have no ports.
        let later = key(1).without_ports();
        let soon = Nanos::from_secs(16_050);
        assert_eq!(datagrams.find(&later, 7, soon), Some(passed));
        assert_eq!(datagrams.find(&later, 8, soon), Some(refused));
        assert_eq!(datagrams.find(&later, 9, soon), None);
        assert_eq!(datagrams.find(&key(2), 7, soon), None);
        assert_eq!(datagrams.find(&later, 7, Nanos::from_secs(16_061)), None);
        // A flood of other datagrams evicts the oldest.
        for n in 0..4096 {
            datagrams.record_first((&key(n), 7), soon, refused);
        }
        assert_eq!(datagrams.find(&key(4095), 7, soon), Some(refused));
    }
}
