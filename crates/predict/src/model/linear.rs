//! Ridge regression.

use super::training::{Regressor, Training};
use crate::metric::Scope;

/// Ratio of the largest to the smallest value beyond which the logarithm of a positive property of the target is used.
const WIDE: f64 = 1000.0;

/// Intercept and weights.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Linear {
    pub intercept: f64,
    /// Weight by input, and whether the input's logarithm is weighted.
    pub weights: Vec<(f64, bool)>,
}

impl Regressor for Linear {
    fn value(&self, inputs: &[f64]) -> f64 {
        let terms = inputs.iter().zip(&self.weights);
        self.intercept
            + terms
                .map(|(input, (weight, log))| weight * transformed(*input, *log))
                .sum::<f64>()
    }
}

fn transformed(input: f64, log: bool) -> f64 {
    match log {
        // A value just outside of the range may be 0.
        true => input.max(f64::MIN_POSITIVE).ln(),
        false => input,
    }
}

/// Fits weights, penalised relative to the columns' standard deviations. A penalty of 0 is least squares, on the inputs
/// as they are.
pub(super) fn ridge(training: &Training<'_>, rows: &[usize], penalty: f64) -> Linear {
    let count = rows.len() as f64;
    let mean_of = |value: &dyn Fn(usize) -> f64| rows.iter().map(|at| value(*at)).sum::<f64>() / count;
    let target = mean_of(&|at| training.targets[at]);
    let mut logs = Vec::new();
    let mut scales = Vec::new();
    let mut columns: Vec<Vec<f64>> = Vec::new();
    let inputs = training.data.inputs.iter();
    for ((column, range), input) in training.data.columns.iter().zip(training.data.ranges()).zip(inputs) {
        let is_target = input.scope == Scope::Target;
        let log = penalty > 0.0 && is_target && range.0 > 0.0 && range.1 / range.0 > WIDE;
        let mean = mean_of(&|at| transformed(column[at], log));
        let deviation = mean_of(&|at| (transformed(column[at], log) - mean).powi(2)).sqrt();
        // A column that is constant in these rows gets no weight.
        let scale = if deviation > 1e-12 * mean.abs() {
            deviation
        } else {
            f64::INFINITY
        };
        logs.push(log);
        scales.push((mean, scale));
        columns.push(
            rows.iter()
                .map(|at| (transformed(column[*at], log) - mean) / scale)
                .collect(),
        );
    }
    let width = columns.len();
    let mut matrix = vec![vec![0.0; width]; width];
    let mut right = vec![0.0; width];
    for a in 0..width {
        for b in 0..width {
            matrix[a][b] = columns[a].iter().zip(&columns[b]).map(|(a, b)| a * b).sum::<f64>();
        }
        matrix[a][a] += (penalty + 1e-9) * count;
        let pairs = columns[a].iter().zip(rows);
        right[a] = pairs.map(|(value, at)| value * (training.targets[*at] - target)).sum();
    }
    let solution = solve(matrix, right);
    let scaled = solution.iter().zip(&scales);
    let weights: Vec<f64> = scaled.map(|(weight, (_, scale))| weight / scale).collect();
    let shift: f64 = weights
        .iter()
        .zip(&scales)
        .map(|(weight, (mean, _))| weight * mean)
        .sum();
    Linear {
        intercept: target - shift,
        weights: weights.into_iter().zip(logs).collect(),
    }
}

/// Solves a system whose matrix is symmetric and positive definite, by Cholesky's decomposition.
pub(crate) fn solve(matrix: Vec<Vec<f64>>, right: Vec<f64>) -> Vec<f64> {
    solve_all(matrix, vec![right]).pop().unwrap_or_default()
}

/// Solves several systems of one matrix.
pub(crate) fn solve_all(mut matrix: Vec<Vec<f64>>, mut rights: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
    let width = matrix.len();
    for row in 0..width {
        for column in 0..=row {
            let inner: f64 = (0..column).map(|at| matrix[row][at] * matrix[column][at]).sum();
            let rest = matrix[row][column] - inner;
            matrix[row][column] = match row == column {
                true => rest.max(f64::MIN_POSITIVE).sqrt(),
                false => rest / matrix[column][column],
            };
        }
    }
    for right in &mut rights {
        for row in 0..width {
            let inner: f64 = (0..row).map(|at| matrix[row][at] * right[at]).sum();
            right[row] = (right[row] - inner) / matrix[row][row];
        }
        for row in (0..width).rev() {
            let inner: f64 = (row + 1..width).map(|at| matrix[at][row] * right[at]).sum();
            right[row] = (right[row] - inner) / matrix[row][row];
        }
    }
    rights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_is_solved() {
        let matrix = vec![vec![4.0, 1.0, 0.5], vec![1.0, 3.0, 0.2], vec![0.5, 0.2, 2.0]];
        let right = vec![1.0, 2.0, 3.0];
        let solution = solve(matrix.clone(), right.clone());
        for (row, expected) in matrix.iter().zip(right) {
            let value: f64 = row.iter().zip(&solution).map(|(a, b)| a * b).sum();
            assert!((value - expected).abs() < 1e-12);
        }
    }
}
