//! Regression trees by histograms, with monotone constraints.

use super::training::Regressor;
use std::fmt::Write as _;

/// Maximum number of bins of a column.
const BINS: usize = 64;
/// Maximum number of nodes of a tree in a file.
pub(crate) const MAX_NODES: usize = 4096;

/// Node of a [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Node {
    /// Goes to the next node if the input is at most the threshold, otherwise to `right`.
    Split { input: u32, threshold: f64, right: u32 },
    /// Result.
    Leaf(f64),
}

/// Sum of trees.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trees {
    pub base: f64,
    pub list: Vec<Tree>,
}

impl Regressor for Trees {
    fn value(&self, inputs: &[f64]) -> f64 {
        self.base + self.list.iter().map(|tree| tree.value(inputs)).sum::<f64>()
    }
}

/// Tree in preorder.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tree(Vec<Node>);

impl Tree {
    pub(crate) fn value(&self, inputs: &[f64]) -> f64 {
        let mut at = 0;
        loop {
            match self.0[at] {
                Node::Leaf(value) => return value,
                Node::Split {
                    input,
                    threshold,
                    right,
                } => {
                    at = match inputs[input as usize] <= threshold {
                        true => at + 1,
                        false => right as usize,
                    };
                }
            }
        }
    }

    pub(crate) fn nodes(&self) -> usize {
        self.0.len()
    }

    /// Parses a tree of the form `0:1.5 =1 =2`: a split of input 0 at 1.5, then its two leaves. `None` if it is not a
    /// whole tree over `inputs` inputs.
    pub(crate) fn parse(text: &str, inputs: usize) -> Option<Tree> {
        let mut nodes = Vec::new();
        // Splits whose right side has not begun.
        let mut open: Vec<usize> = Vec::new();
        let mut is_complete = false;
        for word in text.split_ascii_whitespace() {
            if is_complete || nodes.len() >= MAX_NODES {
                return None;
            }
            if let Some(value) = word.strip_prefix('=') {
                nodes.push(Node::Leaf(finite(value)?));
                let next = nodes.len() as u32;
                match open.pop() {
                    Some(split) => {
                        if let Node::Split { right, .. } = &mut nodes[split] {
                            *right = next;
                        }
                    }
                    None => is_complete = true,
                }
            } else {
                let (input, threshold) = word.split_once(':')?;
                let input: u32 = input.parse().ok().filter(|input| (*input as usize) < inputs)?;
                open.push(nodes.len());
                nodes.push(Node::Split {
                    input,
                    threshold: finite(threshold)?,
                    right: 0,
                });
            }
        }
        is_complete.then_some(Tree(nodes))
    }

    /// Returns the text that [`parse`](Self::parse) reads.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        for node in &self.0 {
            let separator = if text.is_empty() { "" } else { " " };
            // Writing into a string cannot fail.
            let _ = match node {
                Node::Leaf(value) => write!(text, "{separator}={value:e}"),
                Node::Split { input, threshold, .. } => write!(text, "{separator}{input}:{threshold:e}"),
            };
        }
        text
    }
}

/// Parses a finite number of a bounded length.
pub(crate) fn finite(text: &str) -> Option<f64> {
    let fits = text.len() <= 40 && text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    fits.then(|| text.parse::<f64>().ok())
        .flatten()
        .filter(|value| value.is_finite())
}

/// Columns of inputs as numbers of bins.
#[derive(Clone, Debug)]
pub(crate) struct Binned {
    /// Upper limit of each bin but the last, by column.
    limits: Vec<Vec<f64>>,
    /// Bin by column, then by row.
    bins: Vec<Vec<u8>>,
}

impl Binned {
    pub(crate) fn new(columns: &[Vec<f64>]) -> Binned {
        let limits = columns.iter().map(|column| limits(column));
        let limits: Vec<Vec<f64>> = limits.collect();
        let bin = |limits: &[f64], value: f64| limits.partition_point(|limit| *limit < value) as u8;
        let columns = columns.iter().zip(&limits);
        let bins = columns.map(|(column, limits)| column.iter().map(|value| bin(limits, *value)).collect());
        Binned {
            bins: bins.collect(),
            limits,
        }
    }

    fn rows(&self) -> usize {
        self.bins.first().map_or(0, Vec::len)
    }
}

/// Returns limits between distinct values, at most as many as bins allow, with about as many rows each.
fn limits(column: &[f64]) -> Vec<f64> {
    let mut sorted = column.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mut limits: Vec<f64> = Vec::new();
    let step = (sorted.len() as f64 / BINS as f64).max(1.0);
    let mut next = step;
    for (at, pair) in sorted.windows(2).enumerate() {
        if pair[0] < pair[1] && (at + 1) as f64 >= next {
            limits.push(f64::midpoint(pair[0], pair[1]));
            while next <= (at + 1) as f64 {
                next += step;
            }
        }
    }
    limits.truncate(BINS - 1);
    limits
}

/// Shape of a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth<'a> {
    /// Maximum number of splits from the root to a leaf.
    pub depth: u32,
    /// Minimum number of rows of a leaf.
    pub leaf: usize,
    /// Added to the number of rows of a leaf, which shrinks its value towards 0.
    pub shrink: f64,
    /// Direction by column: 1 if the value must not fall with the input, -1 if it must not rise, 0 for any.
    pub directions: &'a [i8],
    /// Factor of each leaf's value.
    pub rate: f64,
}

/// Returns the tree that fits `targets` on `rows` (which may repeat), over `columns`.
pub(crate) fn grow(binned: &Binned, targets: &[f64], rows: &[u32], columns: &[usize], growth: Growth<'_>) -> Tree {
    debug_assert_eq!(binned.rows(), targets.len());
    let mut grower = Grower {
        binned,
        targets,
        columns,
        growth,
        nodes: Vec::new(),
    };
    grower.node(&mut rows.to_vec(), 0, (f64::NEG_INFINITY, f64::INFINITY));
    Tree(grower.nodes)
}

struct Grower<'a> {
    binned: &'a Binned,
    targets: &'a [f64],
    columns: &'a [usize],
    growth: Growth<'a>,
    nodes: Vec<Node>,
}

struct Split {
    column: usize,
    bin: u8,
    gain: f64,
    left: f64,
    right: f64,
}

impl Grower<'_> {
    fn node(&mut self, rows: &mut [u32], depth: u32, bounds: (f64, f64)) {
        let sum: f64 = rows.iter().map(|row| self.targets[*row as usize]).sum();
        let count = rows.len() as f64;
        let split = (depth < self.growth.depth)
            .then(|| self.best(rows, sum, count, bounds))
            .flatten();
        let Some(split) = split else {
            let value = self.mean(sum, count).clamp(bounds.0, bounds.1);
            self.nodes.push(Node::Leaf(value * self.growth.rate));
            return;
        };
        let bins = &self.binned.bins[split.column];
        // Rows of the left side come first.
        let mut end = 0;
        for at in 0..rows.len() {
            if bins[rows[at] as usize] <= split.bin {
                rows.swap(at, end);
                end += 1;
            }
        }
        let (left, right) = rows.split_at_mut(end);
        let at = self.nodes.len();
        let threshold = self.binned.limits[split.column][usize::from(split.bin)];
        self.nodes.push(Node::Split {
            input: split.column as u32,
            threshold,
            right: 0,
        });
        // With a constraint, no leaf of one side may pass the middle between the sides.
        let middle = f64::midpoint(split.left, split.right);
        let (low, high) = match self.growth.directions.get(split.column) {
            Some(1) => ((bounds.0, middle), (middle, bounds.1)),
            Some(-1) => ((middle, bounds.1), (bounds.0, middle)),
            _ => (bounds, bounds),
        };
        self.node(left, depth + 1, low);
        let start = self.nodes.len() as u32;
        if let Node::Split { right, .. } = &mut self.nodes[at] {
            *right = start;
        }
        self.node(right, depth + 1, high);
    }

    fn mean(&self, sum: f64, count: f64) -> f64 {
        sum / (count + self.growth.shrink)
    }

    /// Returns the split with the largest gain that keeps the constraints.
    fn best(&self, rows: &[u32], sum: f64, count: f64, bounds: (f64, f64)) -> Option<Split> {
        let score = |sum: f64, count: f64| sum * sum / (count + self.growth.shrink);
        let mut best: Option<Split> = None;
        for &column in self.columns {
            let bins = &self.binned.bins[column];
            let mut sums = [(0.0, 0.0); BINS];
            for row in rows {
                let bin = &mut sums[usize::from(bins[*row as usize])];
                bin.0 += self.targets[*row as usize];
                bin.1 += 1.0;
            }
            let direction = self.growth.directions.get(column).copied().unwrap_or(0);
            let (mut left_sum, mut left_count) = (0.0, 0.0);
            for (bin, in_bin) in sums.iter().enumerate().take(self.binned.limits[column].len()) {
                left_sum += in_bin.0;
                left_count += in_bin.1;
                let (right_sum, right_count) = (sum - left_sum, count - left_count);
                let least = self.growth.leaf as f64;
                if in_bin.1 == 0.0 || left_count < least || right_count < least {
                    continue;
                }
                let left = self.mean(left_sum, left_count).clamp(bounds.0, bounds.1);
                let right = self.mean(right_sum, right_count).clamp(bounds.0, bounds.1);
                if f64::from(direction) * (right - left) < 0.0 {
                    continue;
                }
                let gain = score(left_sum, left_count) + score(right_sum, right_count) - score(sum, count);
                // Rounding leaves a small gain where all values are the same.
                if gain > 1e-12 && best.as_ref().is_none_or(|best| gain > best.gain) {
                    let bin = bin as u8;
                    best = Some(Split {
                        column,
                        bin,
                        gain,
                        left,
                        right,
                    });
                }
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn a_tree_is_the_same_after_writing_and_reading() {
        let mut random = Random::new(1);
        let columns: Vec<Vec<f64>> = (0..3)
            .map(|_| (0..200).map(|_| random.unit() * 1e9).collect())
            .collect();
        let targets: Vec<f64> = columns[0].iter().map(|x| (x / 1e8).sin()).collect();
        let rows: Vec<u32> = (0..200).collect();
        let growth = Growth {
            depth: 5,
            leaf: 2,
            shrink: 0.0,
            directions: &[],
            rate: 1.0,
        };
        let tree = grow(&Binned::new(&columns), &targets, &rows, &[0, 1, 2], growth);
        assert!(tree.nodes() > 20);
        assert_eq!(Tree::parse(&tree.to_text(), 3), Some(tree.clone()));
        assert_eq!(Tree::parse(&tree.to_text(), 0), None);
        let error: f64 = (0..200)
            .map(|at| (tree.value(&[columns[0][at], columns[1][at], columns[2][at]]) - targets[at]).abs())
            .sum();
        assert!(error / 200.0 < 0.1, "{error}");
    }

    #[test]
    fn texts_that_are_no_tree_are_refused() {
        for text in [
            "",
            "=",
            "0:1",
            "0:1 =1",
            "=1 =2",
            "0:1 =1 =2 =3",
            "1:1 =1 =2",
            "0:nan =1 =2",
            "=inf",
            "0:1 =1 x",
            "-1:1 =1 =2",
        ] {
            assert_eq!(Tree::parse(text, 1), None, "{text}");
        }
        let deep = "0:1 ".repeat(MAX_NODES) + "=1";
        assert_eq!(Tree::parse(&deep, 1), None);
    }

    #[test]
    fn constraints_hold_between_all_leaves() {
        let mut random = Random::new(3);
        let columns: Vec<Vec<f64>> = (0..2).map(|_| (0..300).map(|_| random.unit()).collect()).collect();
        let targets: Vec<f64> = (0..300)
            .map(|at| -columns[0][at] + random.unit() + columns[1][at])
            .collect();
        let rows: Vec<u32> = (0..300).collect();
        let growth = Growth {
            depth: 6,
            leaf: 1,
            shrink: 0.0,
            directions: &[-1, 0],
            rate: 1.0,
        };
        let tree = grow(&Binned::new(&columns), &targets, &rows, &[0, 1], growth);
        for _ in 0..500 {
            let (low, more, other) = (random.unit(), random.unit(), random.unit());
            let (low, high) = (low.min(more), low.max(more));
            assert!(tree.value(&[high, other]) <= tree.value(&[low, other]));
        }
    }
}
