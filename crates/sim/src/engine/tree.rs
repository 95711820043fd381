//! Selection of the next core: a tournament of the cores' times.

/// Marks the absence of a time.
pub(crate) const NEVER: u64 = u64::MAX;

/// Bits of a key that hold the core.
const CORE: u32 = 12;

/// First invalid time. No run lasts for weeks.
const LAST: u64 = u64::MAX >> CORE;

/// Combines a time and its core into a key. The smaller of two keys is first, and equal times are ordered by core.
#[inline]
fn key(core: usize, time: u64) -> u64 {
    time.min(LAST) << CORE | core as u64
}

/// Returns the time of a key.
#[inline]
fn time_of(key: u64) -> u64 {
    match key >> CORE {
        LAST => NEVER,
        time => time,
    }
}

/// Returns the smallest key of a match of four.
#[inline]
fn least(keys: &[u64; 4]) -> u64 {
    keys[0].min(keys[1]).min(keys[2].min(keys[3]))
}

/// Next times of all cores. A change costs three branch-free comparisons per level, with four entries per match.
#[derive(Debug)]
pub(crate) struct Tree {
    /// Matches in heap order: 0 is the final. Entry `i` of match `m` is the winner of match `4 m + 1 + i`, or a core.
    matches: Vec<[u64; 4]>,
    /// Index of the first match of cores.
    cores: usize,
}

impl Tree {
    /// Creates a tree for `cores` cores without a time.
    pub(crate) fn new(cores: usize) -> Tree {
        assert!(cores <= 1 << CORE, "keys have no room for so many cores");
        let (mut first, mut size) = (0, 4);
        while size < cores {
            first = 4 * first + 1;
            size *= 4;
        }
        let mut tree = Tree {
            matches: vec![[u64::MAX; 4]; first + size / 4],
            cores: first,
        };
        (0..size.min(1 << CORE)).for_each(|core| tree.set(core, NEVER));
        tree
    }

    /// Returns the core with the earliest time, and that time.
    #[inline]
    pub(crate) fn first(&self) -> (usize, u64) {
        let key = least(&self.matches[0]);
        ((key % (1 << CORE)) as usize, time_of(key))
    }

    #[inline]
    pub(crate) fn time(&self, core: usize) -> u64 {
        time_of(self.matches[self.cores + core / 4][core % 4])
    }

    /// Sets a core's time.
    #[inline]
    pub(crate) fn set(&mut self, core: usize, time: u64) {
        let (mut at, mut place) = (self.cores + core / 4, core % 4);
        let mut winner = key(core, time);
        loop {
            let keys = &mut self.matches[at];
            keys[place] = winner;
            if at == 0 {
                return;
            }
            winner = least(keys);
            (at, place) = ((at - 1) / 4, (at - 1) % 4);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_is_the_least(
            cores in 1_usize..70,
            changes in prop::collection::vec((0_usize..70, 0_u64..20), 0..200),
        ) {
            let mut tree = Tree::new(cores);
            let mut times = vec![NEVER; cores];
            prop_assert_eq!(tree.first().1, NEVER);
            for (core, time) in changes {
                let core = core % cores;
                times[core] = time;
                tree.set(core, time);
                let least = *times.iter().min().unwrap();
                let first = times.iter().position(|time| *time == least).unwrap();
                prop_assert_eq!(tree.first(), (first, least));
                prop_assert_eq!(tree.time(core), time);
            }
        }
    }
}
