//! Concurrent index from keys to session slots: many readers, one writer.
//!
//! An entry is one atomic number and never moves. So a reader finds every present key while others are inserted or
//! removed, without waiting. Each key has two candidate buckets of one cache line, and goes to the emptier one. The
//! index is filled to at most half, where a bucket of eight practically never overflows.

use super::lines::{Lines, WORDS};
use std::sync::atomic::Ordering;
use tailwater_chain::region::prefetch;
use tailwater_chain::shared_counters::SharedCounters;

/// Index from keys to slots. Results are candidates that must be compared with the key: entries hold only a tag of it.
#[derive(Debug)]
pub(super) struct Index {
    buckets: Lines,
    mask: u32,
    seed: u64,
}

/// Candidate buckets of a key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Buckets {
    tag: u32,
    pub(super) at: [u32; 2],
}

impl Index {
    /// Returns the number of buckets for `capacity` keys: at most half full, and at least two.
    fn buckets(capacity: usize) -> usize {
        (capacity * 2).div_ceil(WORDS).next_power_of_two().max(2)
    }

    /// Returns the bytes of counters for `capacity` keys.
    pub(super) fn shared_bytes(capacity: usize) -> usize {
        Lines::shared_bytes(Index::buckets(capacity))
    }

    /// Creates an index for `capacity` keys.
    pub(super) fn new(capacity: usize, seed: u64, shared_counters: &SharedCounters) -> Index {
        let buckets = Index::buckets(capacity);
        Index {
            buckets: Lines::new(buckets, shared_counters),
            mask: buckets as u32 - 1,
            seed,
        }
    }

    /// Computes the key's buckets and prefetches them.
    #[inline]
    pub(super) fn prefetch(&self, key: u64) -> Buckets {
        let found = self.buckets_of(key);
        for at in found.at {
            if let Some(bucket) = self.buckets.get(at as usize) {
                prefetch(std::ptr::from_ref(bucket).cast());
            }
        }
        found
    }

    #[inline]
    fn buckets_of(&self, key: u64) -> Buckets {
        // Two rounds of multiply and fold: every bit of the key affects every bit of the result.
        let mixed = |key: u64, by: u64| {
            let product = u128::from(key ^ self.seed) * u128::from(by);
            (product as u64) ^ (product >> 64) as u64
        };
        let hash = mixed(mixed(key, 0x9e37_79b9_7f4a_7c15), 0xd6e8_feb8_6659_fd93);
        let first = hash as u32 & self.mask;
        let second = (hash >> 32) as u32 & self.mask;
        let second = if second == first { first ^ 1 } else { second };
        Buckets {
            // Uses both halves, so that keys with different prefixes get different tags.
            tag: key as u32 ^ ((key >> 32) as u32).wrapping_mul(0x85eb_ca6b),
            at: [first, second],
        }
    }

    /// Iterates over the slots whose keys may match.
    #[inline]
    pub(super) fn find(&self, buckets: Buckets) -> impl Iterator<Item = u32> + '_ {
        let lines = buckets.at.into_iter();
        let lines = lines.filter_map(|at| self.buckets.get(at as usize));
        let entries = lines.flatten();
        entries.filter_map(move |entry| {
            // The slot's record has its own generation, which guards its contents.
            let entry = entry.load(Ordering::Acquire);
            let (tag, place) = ((entry >> 32) as u32, entry as u32);
            (tag == buckets.tag && place != 0).then(|| place - 1)
        })
    }

    /// Inserts a key with its slot; returns `false` if there is no room. Only one thread may write at a time.
    pub(super) fn insert(&self, key: u64, place: u32) -> bool {
        let Buckets { tag, at } = self.buckets_of(key);
        let used = |at: &u32| {
            let entries = self.buckets.line(*at as usize).iter();
            entries.filter(|entry| entry.load(Ordering::Relaxed) != 0).count()
        };
        let emptier = if used(&at[0]) <= used(&at[1]) { at[0] } else { at[1] };
        let mut entries = self.buckets.line(emptier as usize).iter();
        let Some(free) = entries.find(|entry| entry.load(Ordering::Relaxed) == 0) else {
            return false;
        };
        let entry = u64::from(tag) << 32 | u64::from(place + 1);
        free.store(entry, Ordering::Release);
        true
    }

    /// Removes the key's entry with this slot. Only one thread may write at a time.
    pub(super) fn remove(&self, key: u64, place: u32) {
        let Buckets { tag, at } = self.buckets_of(key);
        let whole = u64::from(tag) << 32 | u64::from(place + 1);
        let entries = at.iter().flat_map(|at| self.buckets.line(*at as usize));
        for entry in entries {
            if entry.load(Ordering::Relaxed) == whole {
                entry.store(0, Ordering::Release);
                return;
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.buckets.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    #[test]
    fn all_keys_find_room_up_to_the_capacity() {
        // Consecutive keys, keys that differ in their high bits only, and both.
        let patterns: [fn(u64) -> u64; 3] = [|i| i, |i| i << 32, |i| i << 16 | i >> 8 << 48];
        for (seed, pattern) in patterns.into_iter().enumerate() {
            for capacity in [1, 2, 3, 8, 100, 4096, 100_000, 1 << 17] {
                let index = Index::new(capacity, seed as u64, &SharedCounters::of_this_process());
                for i in 0..capacity as u32 {
                    assert!(index.insert(pattern(i.into()), i), "{i} of {capacity}");
                }
                for i in 0..capacity as u32 {
                    let buckets = index.prefetch(pattern(i.into()));
                    assert!(index.find(buckets).any(|place| place == i));
                }
                assert!(index.bytes() <= capacity * 32 + 256);
            }
        }
    }

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((any::<bool>(), 0u64..200), 1..600)) {
            let (index, mut map) = (Index::new(200, 5, &SharedCounters::of_this_process()), HashMap::new());
            for (place, (add, key)) in steps.into_iter().enumerate() {
                if add && !map.contains_key(&key) {
                    prop_assert!(index.insert(key, place as u32));
                    map.insert(key, place as u32);
                } else if let Some(place) = map.remove(&key) {
                    index.remove(key, place);
                }
                let found: Vec<_> = index.find(index.prefetch(key)).collect();
                let expected: Vec<_> = map.get(&key).copied().into_iter().collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
