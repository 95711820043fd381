//! Regression models from inputs to performance relative to a reference, behind one trait.

mod boosted;
mod curve;
mod forest;
mod kernel;
mod linear;
mod training;
mod trees;

pub(crate) use curve::Curve;
pub(crate) use kernel::{Axis, Kernel, MAX_CENTRES};
pub(crate) use linear::{Linear, solve, solve_all};
pub use training::Regressor;
pub(crate) use training::{Training, Tuned};
pub(crate) use trees::{Tree, Trees, finite};

use crate::metric::{ACCESS_RATE, WORKING_SET, Words};
use std::fmt;
use training::Shape;

/// Minimum number of rows of a model.
pub const MIN_ROWS: usize = 8;

/// Method of regression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Gradient-boosted trees over all metrics, monotone where a metric [slows](crate::metric::Effect::Slows)
    /// the target (SLOMO, section 5.2).
    Boosted,
    /// Ridge regression, and gradient-boosted trees on what it leaves: for few rows.
    BoostedRidge,
    /// Kernel ridge regression, of the performance alone times the slowdown: for few rows and a target whose properties
    /// vary.
    Kernel,
    /// Mean of boosted trees and kernel ridge regression.
    Blend,
    /// Straight line over the cache access rate (Dobrescu, NSDI 2012).
    AccessRate,
    /// Monotone curve over the working set (BubbleUp, MICRO 2011).
    WorkingSet,
    /// Ridge regression over all metrics.
    Ridge,
    /// Random forest over all metrics.
    Forest,
}

impl Kind {
    /// All methods.
    pub const ALL: [Kind; 8] = [
        Kind::Boosted,
        Kind::BoostedRidge,
        Kind::Kernel,
        Kind::Blend,
        Kind::AccessRate,
        Kind::WorkingSet,
        Kind::Ridge,
        Kind::Forest,
    ];

    /// Returns the metric without which the method does not work.
    pub fn required_metric(self) -> Option<&'static str> {
        match self {
            Kind::AccessRate => Some(ACCESS_RATE),
            Kind::WorkingSet => Some(WORKING_SET),
            _ => None,
        }
    }

    /// Returns `true` if the logarithm of the performance is fitted.
    pub(crate) fn is_logarithmic(self) -> bool {
        !matches!(self, Kind::AccessRate | Kind::WorkingSet)
    }
}

impl Words for Kind {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("boosted", Kind::Boosted),
        ("boosted-ridge", Kind::BoostedRidge),
        ("kernel", Kind::Kernel),
        ("blend", Kind::Blend),
        ("access-rate", Kind::AccessRate),
        ("working-set", Kind::WorkingSet),
        ("ridge", Kind::Ridge),
        ("random-forest", Kind::Forest),
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.to_word())
    }
}

/// Reason why there is no model.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FitError {
    /// There are too few usable observations.
    #[error("expected at least {MIN_ROWS} undisturbed observations in 2 or more groups, found {found}")]
    TooFew {
        /// Number of observations.
        found: usize,
    },
    /// A method lacks its metric.
    #[error("expected the metric {metric:?}, without which there is no {kind} model")]
    Metric {
        /// The method.
        kind: Kind,
        /// Its metric.
        metric: &'static str,
    },
    /// No metric is left.
    #[error("expected a metric that varies, found none")]
    NoInputs,
}

/// Model that was fitted. Values are those of the [link](Kind::is_logarithmic).
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fitted {
    /// Intercept and weights.
    Linear(Linear),
    /// Curve over one input.
    Curve(Curve),
    /// Weights of rows.
    Kernel(Kernel),
    /// Base and trees, whose values are added.
    Trees(Trees),
    /// Sum of two models.
    Sum(Box<[Fitted; 2]>),
    /// Another model's value, times a factor, and an offset.
    Scaled(Box<Scaled>),
}

/// Model whose values are adapted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scaled {
    pub factor: f64,
    pub offset: f64,
    pub model: Fitted,
}

impl Regressor for Fitted {
    fn value(&self, inputs: &[f64]) -> f64 {
        match self {
            Fitted::Linear(linear) => linear.value(inputs),
            Fitted::Curve(curve) => curve.value(inputs),
            Fitted::Kernel(kernel) => kernel.value(inputs),
            Fitted::Trees(trees) => trees.value(inputs),
            Fitted::Sum(both) => both[0].value(inputs) + both[1].value(inputs),
            Fitted::Scaled(scaled) => scaled.offset + scaled.factor * scaled.model.value(inputs),
        }
    }
}

/// Penalties that [`tune`] tries.
const PENALTIES: [f64; 6] = [1e-4, 1e-3, 1e-2, 0.03, 0.1, 1.0];
/// Depths that [`tune`] tries.
const DEPTHS: [u32; 3] = [1, 2, 4];

/// Returns the parameters with the least mean absolute error on rows outside of the fit.
pub(crate) fn tune(kind: Kind, training: &Training<'_>, folds: &[Vec<usize>], seed: u64) -> Tuned {
    let mut tuned = Tuned::default();
    if kind == Kind::Blend {
        let boosted = tune(Kind::Boosted, training, folds, seed);
        let shape = tune(Kind::Kernel, training, folds, seed).shape;
        return Tuned { shape, ..boosted };
    }
    if kind == Kind::Kernel {
        let error = |shape: Shape| errors(kind, training, folds, Tuned { shape, ..tuned }, seed);
        let mut best = (tuned.shape, error(tuned.shape));
        for parameter in (0..Shape::PARAMETERS).chain(0..Shape::PARAMETERS) {
            for shape in best.0.alternatives(parameter) {
                let found = error(shape);
                if found < best.1 {
                    best = (shape, found);
                }
            }
        }
        tuned.shape = best.0;
    }
    if matches!(kind, Kind::Ridge | Kind::BoostedRidge) {
        let error = |penalty: f64| {
            let tuned = Tuned { penalty, ..tuned };
            errors(Kind::Ridge, training, folds, tuned, seed)
        };
        tuned.penalty = least(
            PENALTIES.iter().map(|penalty| (*penalty, error(*penalty))),
            tuned.penalty,
        );
    }
    if matches!(kind, Kind::Boosted | Kind::BoostedRidge) {
        let staged = DEPTHS.iter().flat_map(|&depth| {
            let tuned = Tuned { depth, ..tuned };
            let errors = boosted::staged_errors(kind == Kind::BoostedRidge, training, folds, tuned, seed);
            let rounds = boosted::ROUNDS.into_iter().zip(errors);
            rounds.map(move |(rounds, error)| ((rounds, depth), error))
        });
        (tuned.rounds, tuned.depth) = least(staged, (tuned.rounds, tuned.depth));
    }
    tuned
}

fn least<T>(candidates: impl Iterator<Item = (T, f64)>, otherwise: T) -> T {
    let best = candidates.min_by(|a, b| a.1.total_cmp(&b.1));
    best.map_or(otherwise, |(best, _)| best)
}

/// Returns the sum of absolute errors on rows outside of the fit.
fn errors(kind: Kind, training: &Training<'_>, folds: &[Vec<usize>], tuned: Tuned, seed: u64) -> f64 {
    let fold = |fold: &Vec<usize>| {
        let model = fit(kind, training, &training.data.outside(fold), tuned, seed);
        let error = |at: &usize| (model.value(&training.data.row(*at)) - training.targets[*at]).abs();
        fold.iter().map(error).sum::<f64>()
    };
    folds.iter().map(fold).sum()
}

/// Fits a model to some of the rows.
pub(crate) fn fit(kind: Kind, training: &Training<'_>, rows: &[usize], tuned: Tuned, seed: u64) -> Fitted {
    match kind {
        Kind::Boosted => Fitted::Trees(boosted::fit(training, &training.targets, rows, tuned, seed)),
        Kind::BoostedRidge => {
            let linear = Fitted::Linear(linear::ridge(training, rows, tuned.penalty));
            let rest = |at: usize| training.targets[at] - linear.value(&training.data.row(at));
            let rests: Vec<f64> = (0..training.data.len()).map(rest).collect();
            // The sum of both is constrained by neither, so the trees are not.
            let training = Training {
                directions: vec![0; training.directions.len()],
                ..training.clone()
            };
            let trees = Fitted::Trees(boosted::fit(&training, &rests, rows, tuned, seed));
            Fitted::Sum(Box::new([linear, trees]))
        }
        Kind::Kernel => Fitted::Kernel(kernel::fit(training, rows, tuned.shape, seed)),
        Kind::Blend => {
            let half = |kind| {
                let model = fit(kind, training, rows, tuned, seed);
                let (factor, offset) = (0.5, 0.0);
                Fitted::Scaled(Box::new(Scaled { factor, offset, model }))
            };
            Fitted::Sum(Box::new([half(Kind::Boosted), half(Kind::Kernel)]))
        }
        // A penalty of 0 is least squares.
        Kind::AccessRate => Fitted::Linear(linear::ridge(training, rows, 0.0)),
        Kind::WorkingSet => Fitted::Curve(curve::fit(training, rows)),
        Kind::Ridge => Fitted::Linear(linear::ridge(training, rows, tuned.penalty)),
        Kind::Forest => Fitted::Trees(forest::fit(training, rows, seed)),
    }
}
