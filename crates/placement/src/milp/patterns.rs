//! Patterns: sets of instances by size that fit on a NUMA node.

use crate::cluster::ServerKind;
use crate::demand::Slot;

/// Indices of sizes with their number of instances, sorted by size, without zeros.
pub(super) type Pattern = Vec<(usize, u32)>;

/// Pattern on a node of a kind of servers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct NodePattern {
    /// Index of the kind.
    pub kind: usize,
    pub pattern: Pattern,
}

/// Resources of a node that a pattern leaves.
#[derive(Clone, Copy)]
struct Left {
    cores: u16,
    ways: u16,
    classes: u16,
}

/// Sizes of one kind of servers, and its node.
pub(super) struct Node<'a> {
    pub kind: usize,
    pub room: &'a ServerKind,
    /// Sizes by index, largest first.
    pub sizes: Vec<(usize, Slot)>,
}

impl<'a> Node<'a> {
    pub(super) fn new(kind: usize, room: &'a ServerKind, sizes: &[Slot]) -> Self {
        let mut sizes: Vec<(usize, Slot)> = sizes
            .iter()
            .copied()
            .enumerate()
            .filter(|(_, slot)| slot.kind == kind)
            .collect();
        sizes.sort_by_key(|&(_, slot)| std::cmp::Reverse((slot.cores, slot.ways)));
        Node { kind, room, sizes }
    }

    /// Returns all patterns to which nothing can be added, or `None` if there are more than `most`.
    pub(super) fn full_patterns(&self, most: usize) -> Option<Vec<Pattern>> {
        let mut found = Vec::new();
        let left = Left {
            cores: self.room.cores,
            ways: self.room.ways,
            classes: self.room.classes,
        };
        let mut steps = most.saturating_mul(100);
        self.extend(0, left, &mut Vec::new(), most, &mut steps, &mut found)
            .then_some(found)
    }

    fn extend(
        &self,
        first: usize,
        left: Left,
        pattern: &mut Pattern,
        most: usize,
        steps: &mut usize,
        found: &mut Vec<Pattern>,
    ) -> bool {
        let Some(&(number, slot)) = self.sizes.get(first) else {
            let fits = |slot: Slot| slot.cores <= left.cores && slot.ways <= left.ways && left.classes > 0;
            if !self.sizes.iter().any(|&(_, slot)| fits(slot)) {
                found.push(pattern.clone());
            }
            return found.len() <= most;
        };
        *steps = steps.saturating_sub(1);
        if *steps == 0 {
            return false;
        }
        let count = (left.cores / slot.cores).min(left.ways / slot.ways).min(left.classes);
        for count in (0..=count).rev() {
            if count > 0 {
                pattern.push((number, count.into()));
            }
            let left = Left {
                cores: left.cores - count * slot.cores,
                ways: left.ways - count * slot.ways,
                classes: left.classes - count,
            };
            let all = self.extend(first + 1, left, pattern, most, steps, found);
            if count > 0 {
                pattern.pop();
            }
            if !all {
                return false;
            }
        }
        true
    }

    /// Returns the most valuable pattern at these prices of sizes (by index), and its value.
    pub(super) fn best(&self, prices: &[f64]) -> (f64, Pattern) {
        // If there are fewer classes than instances that fit, classes are counted, too.
        let least = self.sizes.iter().map(|(_, slot)| slot.cores).min();
        let instances = self.room.cores / least.unwrap_or(1).max(1);
        let counted = self.room.classes < instances;
        let layers = if counted { self.room.classes.into() } else { 0 };
        let (cores, ways) = (usize::from(self.room.cores), usize::from(self.room.ways));
        let index = |n: usize, c: usize, w: usize| (n * (cores + 1) + c) * (ways + 1) + w;
        // Maximum value for each number of classes, cores and ways, and its last size.
        let mut most = vec![(0.0_f64, usize::MAX); index(layers, cores, ways) + 1];
        for n in 0..=layers {
            for c in 0..=cores {
                for w in 0..=ways {
                    let mut here = (0.0, usize::MAX);
                    for (i, &(number, slot)) in self.sizes.iter().enumerate() {
                        let (sc, sw) = (usize::from(slot.cores), usize::from(slot.ways));
                        if sc > c || sw > w || (counted && n == 0) {
                            continue;
                        }
                        let before = index(n.saturating_sub(1), c - sc, w - sw);
                        let worth = most[before].0 + prices[number];
                        if worth > here.0 {
                            here = (worth, i);
                        }
                    }
                    most[index(n, c, w)] = here;
                }
            }
        }
        let (mut n, mut c, mut w) = (layers, cores, ways);
        let mut counts = vec![0; prices.len()];
        while let Some(&(number, slot)) = self.sizes.get(most[index(n, c, w)].1) {
            counts[number] += 1;
            n = n.saturating_sub(1);
            c -= usize::from(slot.cores);
            w -= usize::from(slot.ways);
        }
        let pattern = counts.into_iter().enumerate();
        let pattern = pattern.filter(|&(_, count)| count > 0).collect();
        (most[index(layers, cores, ways)].0, pattern)
    }
}
