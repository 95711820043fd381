//! Set-associative cache with least-recently-used replacement within a mask of ways.

/// Line that left a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    pub line: u64,
    pub is_dirty: bool,
    /// A device wrote the line, and no core has read it since.
    pub is_unread: bool,
}

/// Number of a slot that [`Cache::find`] found.
pub(crate) type Slot = usize;

const DIRTY: u8 = 1;
const UNREAD: u8 = 2;

/// Cache. Lines are identified by numbers other than 0.
pub(crate) struct Cache {
    ways: usize,
    sets: usize,
    lines: Vec<u64>,
    used: Vec<u32>,
    flags: Vec<u8>,
    now: u32,
}

impl Cache {
    pub fn new(sets: usize, ways: usize) -> Cache {
        let slots = sets * ways;
        Cache {
            ways,
            sets,
            lines: vec![0; slots],
            used: vec![0; slots],
            flags: vec![0; slots],
            now: 0,
        }
    }

    pub fn sets(&self) -> usize {
        self.sets
    }

    pub fn find(&self, set: usize, line: u64) -> Option<Slot> {
        let first = set * self.ways;
        let ways = &self.lines[first..first + self.ways];
        ways.iter().position(|&l| l == line).map(|way| first + way)
    }

    /// Records a use of a line.
    pub fn touch(&mut self, slot: Slot) {
        self.now += 1;
        self.used[slot] = self.now;
    }

    pub fn set_dirty(&mut self, slot: Slot) {
        self.flags[slot] |= DIRTY;
    }

    pub fn set_unread(&mut self, slot: Slot) {
        self.flags[slot] |= UNREAD;
    }

    pub fn set_read(&mut self, slot: Slot) {
        self.flags[slot] &= !UNREAD;
    }

    /// Puts a line into a free way of `mask`, or in place of the least recently used one.
    pub fn fill(&mut self, set: usize, line: u64, mask: u64, is_dirty: bool) -> (Slot, Option<Victim>) {
        let first = set * self.ways;
        let mut oldest = first;
        let mut age = u32::MAX;
        for way in (0..self.ways).filter(|way| mask >> way & 1 == 1) {
            let slot = first + way;
            // A free slot has never been used.
            let used = if self.lines[slot] == 0 { 0 } else { self.used[slot] };
            if used < age {
                (oldest, age) = (slot, used);
            }
        }
        let victim = self.remove(oldest);
        self.lines[oldest] = line;
        self.flags[oldest] = u8::from(is_dirty) * DIRTY;
        self.touch(oldest);
        (oldest, victim)
    }

    /// Takes a line out.
    pub fn remove(&mut self, slot: Slot) -> Option<Victim> {
        let line = std::mem::take(&mut self.lines[slot]);
        let flags = std::mem::take(&mut self.flags[slot]);
        (line != 0).then_some(Victim {
            line,
            is_dirty: flags & DIRTY != 0,
            is_unread: flags & UNREAD != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Oracle: a list per set, most recent last.
        #[test]
        fn replaces_the_least_recently_used_line(lines in prop::collection::vec(1_u64..40, 1..300)) {
            let (sets, ways) = (3, 4);
            let mut cache = Cache::new(sets, ways);
            let mut lists: Vec<Vec<u64>> = vec![Vec::new(); sets];
            for line in lines {
                let set = line as usize % sets;
                let list = &mut lists[set];
                let known = list.iter().position(|&l| l == line);
                match (cache.find(set, line), known) {
                    (Some(slot), Some(at)) => {
                        cache.touch(slot);
                        list.remove(at);
                    }
                    (None, None) => {
                        let (_, victim) = cache.fill(set, line, 0b1111, false);
                        let oldest = (list.len() == ways).then(|| list.remove(0));
                        prop_assert_eq!(victim.map(|victim| victim.line), oldest);
                    }
                    (found, known) => prop_assert!(false, "{:?} {:?}", found, known),
                }
                list.push(line);
            }
        }
    }

    #[test]
    fn allocates_only_within_the_mask() {
        let mut cache = Cache::new(1, 4);
        for line in 1..=4 {
            assert_eq!(cache.fill(0, line, 0b1111, true).1, None);
        }
        for line in 5..20 {
            cache.fill(0, line, 0b0100, false);
        }
        // Line 3 was in the way of the mask.
        let left: Vec<u64> = (1..20).filter(|&line| cache.find(0, line).is_some()).collect();
        assert_eq!(left, [1, 2, 4, 19]);
    }
}
