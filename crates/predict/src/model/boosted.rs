//! Gradient boosting of squared errors (Friedman, 2001), with random subsets of the rows.

use super::linear::ridge;
use super::training::{Regressor, Training, Tuned};
use super::trees::{Binned, Growth, Trees, grow};
use crate::random::Random;

/// Numbers of trees of which the best is chosen.
pub(super) const ROUNDS: [usize; 6] = [10, 30, 80, 160, 300, 500];
/// Share of a tree's value that is added.
const RATE: f64 = 0.07;
/// Share of the rows that a tree is grown on.
const SAMPLE: f64 = 0.8;

pub(super) fn fit(training: &Training<'_>, targets: &[f64], rows: &[usize], tuned: Tuned, seed: u64) -> Trees {
    let mut ignore = |_: usize, _: &[f64]| {};
    boost(training, targets, rows, tuned, seed, &[], &mut ignore)
}

/// Grows trees. After each number of [`ROUNDS`], `staged` receives its index and the values of the rows `outside`.
fn boost(
    training: &Training<'_>,
    targets: &[f64],
    rows: &[usize],
    tuned: Tuned,
    seed: u64,
    outside: &[usize],
    staged: &mut dyn FnMut(usize, &[f64]),
) -> Trees {
    let data = training.data;
    let base = rows.iter().map(|at| targets[*at]).sum::<f64>() / rows.len().max(1) as f64;
    let binned = Binned::new(&data.columns);
    let columns: Vec<usize> = (0..data.inputs.len()).collect();
    let inputs: Vec<Vec<f64>> = (0..data.len()).map(|at| data.row(at)).collect();
    let mut rests: Vec<f64> = targets.iter().map(|target| target - base).collect();
    let mut values = vec![base; outside.len()];
    let mut random = Random::new(seed);
    let mut sample: Vec<u32> = rows.iter().map(|at| *at as u32).collect();
    let count = (sample.len() as f64 * SAMPLE).ceil() as usize;
    let growth = Growth {
        depth: tuned.depth,
        leaf: (rows.len() / 100).clamp(2, 10),
        shrink: 1.0,
        directions: &training.directions,
        rate: RATE,
    };
    let mut list = Vec::with_capacity(tuned.rounds);
    for round in 1..=tuned.rounds {
        random.shuffle(&mut sample);
        let tree = grow(&binned, &rests, &sample[..count], &columns, growth);
        for at in rows {
            rests[*at] -= tree.value(&inputs[*at]);
        }
        for (value, at) in values.iter_mut().zip(outside) {
            *value += tree.value(&inputs[*at]);
        }
        if let Some(stage) = ROUNDS.iter().position(|rounds| *rounds == round) {
            staged(stage, &values);
        }
        list.push(tree);
    }
    Trees { base, list }
}

/// Returns the sum of absolute errors on rows outside of the fit, for each number of [`ROUNDS`]. `on_ridge`: the trees
/// fit what ridge regression leaves.
pub(super) fn staged_errors(
    on_ridge: bool,
    training: &Training<'_>,
    folds: &[Vec<usize>],
    tuned: Tuned,
    seed: u64,
) -> [f64; ROUNDS.len()] {
    let mut errors = [0.0; ROUNDS.len()];
    let tuned = Tuned {
        rounds: ROUNDS[ROUNDS.len() - 1],
        ..tuned
    };
    for fold in folds {
        let rows = training.data.outside(fold);
        let mut training = training.clone();
        if on_ridge {
            let linear = ridge(&training, &rows, tuned.penalty);
            for at in 0..training.data.len() {
                training.targets[at] -= linear.value(&training.data.row(at));
            }
            training.directions.fill(0);
        }
        let targets = training.targets.clone();
        let mut staged = |stage: usize, values: &[f64]| {
            let pairs = values.iter().zip(fold);
            errors[stage] += pairs.map(|(value, at)| (value - targets[*at]).abs()).sum::<f64>();
        };
        boost(&training, &targets, &rows, tuned, seed, fold, &mut staged);
    }
    errors
}
