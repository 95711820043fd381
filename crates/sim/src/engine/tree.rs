//! Which core is next: a tournament of the cores' times.

/// No time.
pub(crate) const NEVER: u64 = u64::MAX;

/// The cores' next times. A change costs a comparison for each doubling of the cores; equal times go
/// by number.
#[derive(Debug)]
pub(crate) struct Tree {
    times: Vec<u64>,
    /// Winners, as in a binary heap: 1 is the root; the children of `i` are `2 i` and `2 i + 1`.
    winners: Vec<u16>,
    size: usize,
}

impl Tree {
    /// For so many cores, none of which has a time.
    pub(crate) fn new(cores: usize) -> Tree {
        let size = cores.next_power_of_two().max(2);
        let mut tree = Tree {
            times: vec![NEVER; size],
            winners: vec![0; size],
            size,
        };
        for core in (0..size).rev().step_by(2) {
            tree.set(core, NEVER);
        }
        tree
    }

    /// The core whose time is first, and that time.
    #[inline]
    pub(crate) fn first(&self) -> (usize, u64) {
        let core = usize::from(self.winners[1]);
        (core, self.times[core])
    }

    #[inline]
    pub(crate) fn time(&self, core: usize) -> u64 {
        self.times[core]
    }

    /// Sets a core's time.
    #[inline]
    pub(crate) fn set(&mut self, core: usize, time: u64) {
        self.times[core] = time;
        let mut node = (self.size + core) / 2;
        let even = core & !1;
        let mut winner = even + usize::from(self.times[even + 1] < self.times[even]);
        loop {
            self.winners[node] = winner as u16;
            if node == 1 {
                return;
            }
            let other = usize::from(self.winners[node ^ 1]);
            let (low, high) = (winner.min(other), winner.max(other));
            winner = match self.times[high] < self.times[low] {
                true => high,
                false => low,
            };
            node /= 2;
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
