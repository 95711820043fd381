//! Kernel ridge regression, which is the mean of a Gaussian process (Rasmussen and Williams, 2006), over the logarithm
//! of the performance. Its kernel adds a function of the target's properties, a function of the competition, and one of
//! both: performance alone times slowdown, and what is left of it.

use super::linear::solve;
use super::training::{Regressor, Shape, Training};
use crate::metric::Scope;
use crate::random::Random;

/// Maximum number of rows that a fit uses; of more, a random choice.
pub(crate) const MAX_CENTRES: usize = 300;
/// Ratio of the largest to the smallest value beyond which the logarithm of a positive property of the target is used.
const WIDE: f64 = 1000.0;

/// Column as it enters the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Axis {
    pub mean: f64,
    /// Divisor: standard deviation times length.
    pub scale: f64,
    pub log: bool,
    /// The column is a property of the target.
    pub is_target: bool,
}

/// Fitted kernel model.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kernel {
    pub offset: f64,
    pub separate: f64,
    pub axes: Vec<Axis>,
    /// Scaled inputs of a row, and its weight.
    pub centres: Vec<(Vec<f64>, f64)>,
}

impl Kernel {
    fn scaled(axes: &[Axis], inputs: impl Iterator<Item = f64>) -> Vec<f64> {
        let scale = |(input, axis): (f64, &Axis)| {
            // A value just outside of the range may be 0.
            let value = if axis.log {
                input.max(f64::MIN_POSITIVE).ln()
            } else {
                input
            };
            (value - axis.mean) / axis.scale
        };
        inputs.zip(axes).map(scale).collect()
    }
}

fn kernel(axes: &[Axis], separate: f64, a: &[f64], b: &[f64]) -> f64 {
    let (mut target, mut competition) = (0.0, 0.0);
    for ((a, b), axis) in a.iter().zip(b).zip(axes) {
        let part = if axis.is_target { &mut target } else { &mut competition };
        *part += (a - b) * (a - b);
    }
    let (target, competition) = ((-0.5f64 * target).exp(), (-0.5f64 * competition).exp());
    target * competition + separate * (target + competition)
}

impl Regressor for Kernel {
    fn value(&self, inputs: &[f64]) -> f64 {
        let scaled = Kernel::scaled(&self.axes, inputs.iter().copied());
        let centres = self.centres.iter();
        let parts = centres.map(|(centre, weight)| weight * kernel(&self.axes, self.separate, centre, &scaled));
        self.offset + parts.sum::<f64>()
    }
}

pub(super) fn fit(training: &Training<'_>, rows: &[usize], shape: Shape, seed: u64) -> Kernel {
    let data = training.data;
    let mut rows = rows.to_vec();
    if rows.len() > MAX_CENTRES {
        Random::new(seed).shuffle(&mut rows);
        rows.truncate(MAX_CENTRES);
    }
    let mean_of = |value: &dyn Fn(usize) -> f64| rows.iter().map(|at| value(*at)).sum::<f64>() / rows.len() as f64;
    let count = |scope: Scope| data.inputs.iter().filter(|input| input.scope == scope).count() as f64;
    let lengths = [
        shape.target * count(Scope::Target).sqrt(),
        shape.competition * count(Scope::Competitors).sqrt(),
    ];
    let mut axes = Vec::new();
    for ((column, input), (low, high)) in data.columns.iter().zip(&data.inputs).zip(data.ranges()) {
        let log = input.scope == Scope::Target && low > 0.0 && high / low > WIDE;
        let value = |at: usize| if log { column[at].ln() } else { column[at] };
        let mean = mean_of(&value);
        let deviation = mean_of(&|at| (value(at) - mean).powi(2)).sqrt();
        let is_target = input.scope == Scope::Target;
        let length = if is_target { lengths[0] } else { lengths[1] };
        // A column that is constant in these rows says nothing.
        let varies = deviation > 1e-12 * mean.abs();
        axes.push(Axis {
            mean,
            scale: if varies { deviation * length } else { f64::MAX },
            log,
            is_target,
        });
    }
    let scaled = |at: &usize| Kernel::scaled(&axes, data.columns.iter().map(|column| column[*at]));
    let centres: Vec<Vec<f64>> = rows.iter().map(scaled).collect();
    let offset = mean_of(&|at| training.targets[at]);
    let row = |a: &Vec<f64>| centres.iter().map(|b| kernel(&axes, shape.separate, a, b)).collect();
    let mut matrix: Vec<Vec<f64>> = centres.iter().map(row).collect();
    for (at, row) in matrix.iter_mut().enumerate() {
        row[at] += shape.noise;
    }
    let right = rows.iter().map(|at| training.targets[*at] - offset).collect();
    let weights = solve(matrix, right);
    Kernel {
        offset,
        separate: shape.separate,
        axes,
        centres: centres.into_iter().zip(weights).collect(),
    }
}
