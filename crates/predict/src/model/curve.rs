//! Monotone, piecewise linear curve over one input.

use super::training::{Regressor, Training};

/// Maximum number of points.
pub(crate) const MAX_POINTS: usize = 16;

/// Points by input, and constant beyond both ends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve(pub Vec<(f64, f64)>);

impl Regressor for Curve {
    fn value(&self, inputs: &[f64]) -> f64 {
        let input = inputs.first().copied().unwrap_or(0.0);
        let points = &self.0;
        let above = points.partition_point(|point| point.0 < input);
        match (above.checked_sub(1).and_then(|at| points.get(at)), points.get(above)) {
            (Some(low), Some(high)) => {
                let share = (input - low.0) / (high.0 - low.0);
                low.1 + share * (high.1 - low.1)
            }
            (Some(end), None) | (None, Some(end)) => end.1,
            (None, None) => 0.0,
        }
    }
}

/// Fits means of the rows in order of the input, made monotone by pooling adjacent violators.
pub(super) fn fit(training: &Training<'_>, rows: &[usize]) -> Curve {
    let Some(column) = training.data.columns.first() else {
        return Curve(Vec::new());
    };
    let sign = f64::from(training.directions.first().copied().unwrap_or(0));
    let mut sorted = rows.to_vec();
    sorted.sort_by(|a, b| column[*a].total_cmp(&column[*b]));
    let size = sorted.len().div_ceil(MAX_POINTS).max(1);
    // Input, target, rows; all as sums.
    let mut bins: Vec<(f64, f64, f64)> = Vec::new();
    let mut last = f64::NAN;
    for at in sorted {
        // Rows with the same input belong to one point.
        match bins.last_mut() {
            Some(bin) if bin.2 < size as f64 || column[at] == last => {
                *bin = (bin.0 + column[at], bin.1 + training.targets[at], bin.2 + 1.0);
            }
            _ => bins.push((column[at], training.targets[at], 1.0)),
        }
        last = column[at];
    }
    let mut pooled: Vec<(f64, f64, f64)> = Vec::new();
    for bin in bins {
        pooled.push(bin);
        while let [.., a, b] = pooled[..]
            && sign * (b.1 / b.2 - a.1 / a.2) < 0.0
        {
            pooled.truncate(pooled.len() - 2);
            pooled.push((a.0 + b.0, a.1 + b.1, a.2 + b.2));
        }
    }
    Curve(pooled.iter().map(|bin| (bin.0 / bin.2, bin.1 / bin.2)).collect())
}
