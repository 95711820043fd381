//! Index of a hash map: keys to entry numbers, in memory that is allocated once.

use std::hash::Hasher;

/// Slot without an entry, and the end of a list.
const NONE: u32 = u32::MAX;

/// Open addressing with linear probing, at most half full. Entries keep their numbers until they are removed.
#[derive(Debug)]
pub(super) struct HashIndex {
    key_size: usize,
    seed: u64,
    evicts: bool,
    keys: Box<[u8]>,
    hashes: Box<[u32]>,
    slots: Box<[u32]>,
    /// Neighbours of each entry in the list by recency, circular through an entry behind the last one, or the next
    /// entry in the list of free ones.
    links: Box<[[u32; 2]]>,
    free: u32,
    /// Entries that have been used at any time. Those behind them are free, too.
    touched: u32,
}

const NEWER: usize = 0;
const OLDER: usize = 1;

impl HashIndex {
    /// Bytes of an entry beside its key: hash, links, two to four slots.
    pub(super) const BYTES_PER_ENTRY: u64 = 4 + 8 + 16;

    /// Empty index for `entries` keys, which replaces the least recently used one when it is full, if it `evicts`.
    pub(super) fn new(key_size: usize, entries: u32, evicts: bool, seed: u64) -> HashIndex {
        let count = entries as usize;
        HashIndex {
            key_size,
            seed,
            evicts,
            keys: vec![0; key_size * count].into(),
            hashes: vec![0; count].into(),
            slots: vec![NONE; (2 * count).next_power_of_two()].into(),
            links: vec![[entries; 2]; count + 1].into(),
            free: NONE,
            touched: 0,
        }
    }

    fn hash(&self, key: &[u8]) -> u32 {
        // The seed comes first, so that senders cannot choose keys of one slot.
        let mut hasher = std::collections::hash_map::DefaultHasher::new();
        hasher.write_u64(self.seed);
        hasher.write(key);
        hasher.finish() as u32
    }

    fn key(&self, entry: u32) -> &[u8] {
        &self.keys[entry as usize * self.key_size..][..self.key_size]
    }

    /// Slot of a key, or the empty one in which it would be.
    fn slot(&self, key: &[u8], hash: u32) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let entry = self.slots[slot];
            if entry == NONE || (self.hashes[entry as usize] == hash && self.key(entry) == key) {
                return slot;
            }
            slot = (slot + 1) & mask;
        }
    }

    /// Entry of a key, which becomes the most recent one.
    pub(super) fn find(&mut self, key: &[u8]) -> Option<u32> {
        let entry = self.slots[self.slot(key, self.hash(key))];
        if entry == NONE {
            return None;
        }
        if self.evicts {
            self.unlink(entry);
            self.link(entry);
        }
        Some(entry)
    }

    /// Adds a key that is not there. Returns its entry; `None` if the index is full and does not evict.
    pub(super) fn insert(&mut self, key: &[u8]) -> Option<u32> {
        let entries = self.hashes.len() as u32;
        let entry = if self.free != NONE {
            let entry = self.free;
            self.free = self.links[entry as usize][OLDER];
            entry
        } else if self.touched < entries {
            self.touched += 1;
            self.touched - 1
        } else if self.evicts {
            // The list's anchor precedes the newest entry and follows the oldest.
            let oldest = self.links[entries as usize][NEWER];
            self.take_out(self.slot(self.key(oldest), self.hashes[oldest as usize]));
            self.unlink(oldest);
            oldest
        } else {
            return None;
        };
        let hash = self.hash(key);
        let slot = self.slot(key, hash);
        self.slots[slot] = entry;
        self.hashes[entry as usize] = hash;
        self.keys[entry as usize * self.key_size..][..self.key_size].copy_from_slice(key);
        if self.evicts {
            self.link(entry);
        }
        Some(entry)
    }

    /// Removes a key. Returns `false` if it is not there.
    pub(super) fn remove(&mut self, key: &[u8]) -> bool {
        let slot = self.slot(key, self.hash(key));
        let entry = self.slots[slot];
        if entry == NONE {
            return false;
        }
        self.take_out(slot);
        if self.evicts {
            self.unlink(entry);
        }
        self.links[entry as usize][OLDER] = self.free;
        self.free = entry;
        true
    }

    /// Empties a slot, and moves entries behind it up, so that they are still found.
    fn take_out(&mut self, mut gap: usize) {
        let mask = self.slots.len() - 1;
        let mut slot = gap;
        loop {
            slot = (slot + 1) & mask;
            let entry = self.slots[slot];
            if entry == NONE {
                break;
            }
            let home = self.hashes[entry as usize] as usize & mask;
            // The entry may move if its home is not between the gap and it.
            if slot.wrapping_sub(home) & mask >= slot.wrapping_sub(gap) & mask {
                self.slots[gap] = entry;
                gap = slot;
            }
        }
        self.slots[gap] = NONE;
    }

    fn unlink(&mut self, entry: u32) {
        let [newer, older] = self.links[entry as usize];
        self.links[newer as usize][OLDER] = older;
        self.links[older as usize][NEWER] = newer;
    }

    /// Makes an entry that is in no list the newest.
    fn link(&mut self, entry: u32) {
        let anchor = self.hashes.len() as u32;
        let newest = self.links[anchor as usize][OLDER];
        self.links[entry as usize] = [anchor, newest];
        self.links[newest as usize][NEWER] = entry;
        self.links[anchor as usize][OLDER] = entry;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Compared with a plain list of keys by recency.
    #[test]
    fn an_index_holds_what_a_list_of_keys_holds() {
        for evicts in [false, true] {
            let mut index = HashIndex::new(2, 8, evicts, 7);
            let mut model: Vec<(u16, u32)> = Vec::new();
            let mut random = 1_u32;
            for _ in 0..4_000 {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let number = (random >> 24) as u16 % 14;
                let key = number.to_le_bytes();
                let at = model.iter().position(|(other, _)| *other == number);
                match (random >> 20 & 3, at) {
                    (0, _) => {
                        assert_eq!(index.remove(&key), at.is_some());
                        at.map(|at| model.remove(at));
                    }
                    (_, Some(at)) => {
                        let found = model.remove(at);
                        assert_eq!(index.find(&key), Some(found.1));
                        model.push(found);
                    }
                    (_, None) => {
                        assert_eq!(index.find(&key), None);
                        let is_full = model.len() == 8;
                        if is_full && evicts {
                            model.remove(0);
                        }
                        let entry = index.insert(&key);
                        assert_eq!(entry.is_some(), evicts || !is_full);
                        entry.inspect(|entry| model.push((number, *entry)));
                    }
                }
                let distinct: HashMap<u32, u16> = model.iter().map(|(key, entry)| (*entry, *key)).collect();
                assert_eq!(distinct.len(), model.len());
            }
        }
    }
}
