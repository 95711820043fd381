//! Random forest (Breiman, 2001): mean of trees on rows drawn with replacement and random columns.

use super::training::Training;
use super::trees::{Binned, Growth, Trees, grow};
use crate::random::Random;

/// Number of trees.
const TREES: usize = 150;

pub(super) fn fit(training: &Training<'_>, rows: &[usize], seed: u64) -> Trees {
    let binned = Binned::new(&training.data.columns);
    let width = training.data.inputs.len();
    let mut columns: Vec<usize> = (0..width).collect();
    let mut random = Random::new(seed);
    let growth = Growth {
        depth: 10,
        leaf: 2,
        shrink: 0.0,
        directions: &training.directions,
        rate: 1.0 / TREES as f64,
    };
    let list = (0..TREES).map(|_| {
        let drawn: Vec<u32> = rows.iter().map(|_| rows[random.below(rows.len())] as u32).collect();
        random.shuffle(&mut columns);
        grow(
            &binned,
            &training.targets,
            &drawn,
            &columns[..(2 * width).div_ceil(3)],
            growth,
        )
    });
    Trees {
        base: 0.0,
        list: list.collect(),
    }
}
