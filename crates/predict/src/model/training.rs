//! Input of all methods: rows, scales, parameters.

use crate::dataset::{Dataset, Goal};
use crate::metric::{Effect, Scope};

/// Function from inputs to a value.
pub trait Regressor {
    /// Returns the value at these inputs, one for each column of the training data.
    fn value(&self, inputs: &[f64]) -> f64;
}

/// Parameters of a fit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tuned {
    /// Boosted trees.
    pub rounds: usize,
    /// Depth of each.
    pub depth: u32,
    /// Penalty of ridge regression, relative to the number of rows.
    pub penalty: f64,
    /// Kernel.
    pub shape: Shape,
}

impl Default for Tuned {
    fn default() -> Self {
        Tuned {
            rounds: 80,
            depth: 4,
            penalty: 1e-2,
            shape: Shape::START,
        }
    }
}

/// Parameters of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shape {
    /// Length over the target's properties, in standard deviations.
    pub target: f64,
    /// Length over the competition.
    pub competition: f64,
    /// Weight of the two separate functions, relative to that of both.
    pub separate: f64,
    /// Variance of the noise, relative to the kernel's.
    pub noise: f64,
}

impl Shape {
    /// Start of the search.
    pub(crate) const START: Shape = Shape {
        target: 0.6,
        competition: 1.9,
        separate: 1.0,
        noise: 0.05,
    };

    /// Returns alternatives that differ in one parameter, by parameter.
    pub(crate) fn alternatives(self, parameter: usize) -> [Shape; 2] {
        let with = |target, competition, separate, noise| Shape {
            target: self.target * target,
            competition: self.competition * competition,
            separate: self.separate * separate,
            noise: self.noise * noise,
        };
        match parameter {
            0 => [with(0.5, 1.0, 1.0, 1.0), with(2.0, 1.0, 1.0, 1.0)],
            1 => [with(1.0, 0.4, 1.0, 1.0), with(1.0, 2.5, 1.0, 1.0)],
            2 => [with(1.0, 1.0, 0.25, 1.0), with(1.0, 1.0, 4.0, 1.0)],
            _ => [with(1.0, 1.0, 1.0, 0.2), with(1.0, 1.0, 1.0, 5.0)],
        }
    }

    /// Number of parameters.
    pub(crate) const PARAMETERS: usize = 4;
}

/// Rows with targets in the scale of the method.
#[derive(Clone, Debug)]
pub(crate) struct Training<'a> {
    pub data: &'a Dataset,
    pub targets: Vec<f64>,
    pub directions: Vec<i8>,
}

impl<'a> Training<'a> {
    /// Divides the targets by `reference`, and takes their logarithms if the method is logarithmic.
    pub(crate) fn new(logarithmic: bool, data: &'a Dataset, goal: Goal, reference: f64) -> Training<'a> {
        let scale = |target: &f64| match logarithmic {
            true => (target / reference).ln(),
            false => target / reference,
        };
        let direction = |slows: bool| if slows { goal.direction() as i8 } else { 0 };
        let inputs = data.inputs.iter();
        Training {
            data,
            targets: data.targets.iter().map(scale).collect(),
            directions: inputs
                .map(|metric| direction(metric.effect == Effect::Slows && metric.scope == Scope::Competitors))
                .collect(),
        }
    }
}
