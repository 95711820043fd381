//! Table of packets by fingerprint: a first-in, first-out queue per fingerprint, and one for all.

use super::fingerprint::Fingerprint;

/// Index that means no entry.
const NONE: u32 = u32::MAX;

/// Entry of one packet.
#[derive(Clone, Debug)]
struct Entry<T> {
    fingerprint: Fingerprint,
    value: T,
    /// Neighbours among all entries, by age.
    older: u32,
    newer: u32,
    /// Neighbours in the bucket's list, which links the first entry of each fingerprint. Valid in first entries only.
    before: u32,
    behind: u32,
    /// Next entry of the same fingerprint.
    next: u32,
    /// Last entry of the same fingerprint. Valid in the first entry only.
    last: u32,
}

/// Table of bounded size. All memory is allocated at once. Every operation takes constant time, apart from fingerprints
/// that share a bucket. There are as many buckets as entries.
#[derive(Debug)]
pub(super) struct Table<T> {
    most: usize,
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    /// Head of each bucket's list.
    buckets: Box<[u32]>,
    oldest: u32,
    newest: u32,
}

impl<T: Copy> Table<T> {
    /// With room for `most` packets.
    pub(super) fn new(most: u32) -> Table<T> {
        let buckets = most.next_power_of_two() as usize;
        Table {
            most: most as usize,
            entries: Vec::with_capacity(most as usize),
            free: Vec::with_capacity(most as usize),
            buckets: vec![NONE; buckets].into(),
            oldest: NONE,
            newest: NONE,
        }
    }

    /// Number of packets.
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Returns `true` if there is room for `more` packets.
    pub(super) fn has_room_for(&self, more: usize) -> bool {
        self.len() + more <= self.most
    }

    fn bucket(&self, fingerprint: Fingerprint) -> usize {
        fingerprint.0 as usize & (self.buckets.len() - 1)
    }

    /// First entry of a fingerprint.
    fn first(&self, fingerprint: Fingerprint) -> u32 {
        let mut at = self.buckets[self.bucket(fingerprint)];
        while at != NONE && self.entries[at as usize].fingerprint != fingerprint {
            at = self.entries[at as usize].behind;
        }
        at
    }

    /// Adds a packet as the newest. Returns `true` if there was room.
    pub(super) fn add(&mut self, fingerprint: Fingerprint, value: T) -> bool {
        if !self.has_room_for(1) {
            return false;
        }
        let bucket = self.bucket(fingerprint);
        let first = self.first(fingerprint);
        let entry = Entry {
            fingerprint,
            value,
            older: self.newest,
            newer: NONE,
            before: NONE,
            behind: if first == NONE { self.buckets[bucket] } else { NONE },
            next: NONE,
            last: NONE,
        };
        let behind = entry.behind;
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        match self.newest {
            NONE => self.oldest = at,
            newest => self.entries[newest as usize].newer = at,
        }
        self.newest = at;
        if first == NONE {
            self.entries[at as usize].last = at;
            self.buckets[bucket] = at;
            if behind != NONE {
                self.entries[behind as usize].before = at;
            }
        } else {
            let last = std::mem::replace(&mut self.entries[first as usize].last, at);
            self.entries[last as usize].next = at;
        }
        true
    }

    /// Takes the oldest packet of a fingerprint.
    pub(super) fn take(&mut self, fingerprint: Fingerprint) -> Option<T> {
        let at = self.first(fingerprint);
        (at != NONE).then(|| self.remove(at).1)
    }

    /// Oldest packet of all.
    pub(super) fn oldest(&self) -> Option<T> {
        let entry = self.entries.get(self.oldest as usize)?;
        Some(entry.value)
    }

    /// Takes the oldest packet of all.
    pub(super) fn take_oldest(&mut self) -> Option<(Fingerprint, T)> {
        // The oldest of all is the first of its fingerprint.
        (self.oldest != NONE).then(|| self.remove(self.oldest))
    }

    /// Removes the first entry of a fingerprint.
    fn remove(&mut self, at: u32) -> (Fingerprint, T) {
        let entry = self.entries[at as usize].clone();
        match entry.older {
            NONE => self.oldest = entry.newer,
            older => self.entries[older as usize].newer = entry.newer,
        }
        match entry.newer {
            NONE => self.newest = entry.older,
            newer => self.entries[newer as usize].older = entry.older,
        }
        // The next entry of its fingerprint, if any, takes its position.
        let (mut front, mut back) = (entry.behind, entry.before);
        if entry.next != NONE {
            let next = &mut self.entries[entry.next as usize];
            (next.before, next.behind, next.last) = (entry.before, entry.behind, entry.last);
            (front, back) = (entry.next, entry.next);
        }
        match entry.before {
            NONE => {
                let bucket = self.bucket(entry.fingerprint);
                self.buckets[bucket] = front;
            }
            before => self.entries[before as usize].behind = front,
        }
        if entry.behind != NONE {
            self.entries[entry.behind as usize].before = back;
        }
        self.free.push(at);
        (entry.fingerprint, entry.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Add(u64),
        Take(u64),
        TakeOldest,
    }

    fn step() -> impl Strategy<Value = Step> {
        // Few fingerprints, some of which share a bucket.
        let fingerprint = || prop_oneof![0u64..4, (0u64..4).prop_map(|n| n << 32)];
        prop_oneof![
            4 => fingerprint().prop_map(Step::Add),
            3 => fingerprint().prop_map(Step::Take),
            1 => Just(Step::TakeOldest),
        ]
    }

    proptest! {
        /// The table behaves like a plain list.
        #[test]
        fn it_is_a_list(most in 1u32..12, steps in prop::collection::vec(step(), 0..300)) {
            let mut table = Table::new(most);
            let mut list: Vec<(u64, usize)> = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Add(fingerprint) => {
                        let room = list.len() < most as usize;
                        prop_assert_eq!(table.has_room_for(1), room);
                        prop_assert_eq!(table.add(Fingerprint(fingerprint), number), room);
                        if room {
                            list.push((fingerprint, number));
                        }
                    }
                    Step::Take(fingerprint) => {
                        let place = list.iter().position(|(other, _)| *other == fingerprint);
                        let expected = place.map(|place| list.remove(place).1);
                        prop_assert_eq!(table.take(Fingerprint(fingerprint)), expected);
                    }
                    Step::TakeOldest => {
                        prop_assert_eq!(table.oldest(), list.first().map(|entry| entry.1));
                        let expected = (!list.is_empty()).then(|| list.remove(0));
                        let taken = table.take_oldest();
                        prop_assert_eq!(taken.map(|(print, value)| (print.0, value)), expected);
                    }
                }
                prop_assert_eq!(table.len(), list.len());
            }
        }
    }
}
