//! A function's own vector as it follows from its competitors' vector: what contention makes of its contentiousness.

use crate::campaign::Campaign;
use crate::metric::{OCCUPANCY, Scope};
use crate::model::solve_all;
use crate::random::Random;
use crate::select::mean;

/// Penalties that a fit tries, relative to the number of rows.
const PENALTIES: [f64; 4] = [1e-4, 1e-3, 1e-2, 1e-1];
/// Folds by which the penalty is chosen.
const FOLDS: usize = 5;
/// Minimum number of rows.
const MIN_ROWS: usize = 20;

/// Competitors' metric as it enters the surface.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Entry {
    /// Position in the schema.
    pub metric: usize,
    /// Smallest and largest value of the campaign. Values beyond are clamped: the surface is one of second order.
    pub range: (f64, f64),
    /// Mean and standard deviation of the square roots.
    pub mean: f64,
    pub deviation: f64,
}

/// Metric of the function's own vector.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Surface {
    /// Position in the schema.
    pub metric: usize,
    /// Smallest and largest value of the campaign.
    pub range: (f64, f64),
    /// Intercept, then a weight for each term.
    pub weights: Vec<f64>,
}

/// Surfaces of second order over the square roots of the competitors' metrics, by ridge regression: one for each
/// metric of the function's own vector.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Response {
    /// Largest sum of [`OCCUPANCY`] of the function and its competitors: there is no more cache.
    pub capacity: Option<f64>,
    pub entries: Vec<Entry>,
    pub surfaces: Vec<Surface>,
}

/// Number of weights of a surface over so many metrics.
pub(crate) fn terms(entries: usize) -> usize {
    1 + entries + entries * (entries + 1) / 2
}

impl Response {
    /// Fits the co-runs of a campaign in which both vectors were measured. `None` if there are too few.
    pub(crate) fn fit(campaign: &Campaign) -> Option<Response> {
        let rows: Vec<[&[Option<f64>]; 2]> = campaign
            .usable()
            .filter(|of| of.competitors > 0)
            .filter_map(|of| Some([of.competition.values(), of.own.as_ref()?.values()]))
            .collect();
        if rows.len() < MIN_ROWS {
            return None;
        }
        let metrics = campaign.schema().metrics();
        let is_of_competitors = |at: &usize| metrics[*at].scope == Scope::Competitors;
        let competitors = (0..metrics.len()).filter(is_of_competitors);
        let entry = |metric: usize| {
            let column: Option<Vec<f64>> = rows.iter().map(|[with, _]| with[metric]).collect();
            let column = column?;
            let range = range(&column);
            let roots: Vec<f64> = column.iter().map(|value| value.max(0.0).sqrt()).collect();
            let center = mean(&roots);
            let deviation = mean(&roots.iter().map(|of| (of - center).powi(2)).collect::<Vec<f64>>()).sqrt();
            // A metric that does not vary says nothing.
            (deviation > 1e-9 * center.abs().max(f64::MIN_POSITIVE)).then_some(Entry {
                metric,
                range,
                mean: center,
                deviation,
            })
        };
        let occupied = campaign.schema().position(OCCUPANCY).map(|at| {
            let sums = rows.iter().filter_map(|[with, own]| Some(with[at]? + own[at]?));
            sums.fold(0.0, f64::max)
        });
        let mut response = Response {
            capacity: occupied.filter(|sum| *sum > 0.0),
            entries: competitors.clone().filter_map(entry).collect(),
            surfaces: Vec::new(),
        };
        let inputs: Vec<Vec<f64>> = rows
            .iter()
            .map(|[with, _]| response.terms(|metric| with[metric].unwrap_or(0.0)))
            .collect();
        let own = |metric: usize| {
            let column: Option<Vec<f64>> = rows.iter().map(|[_, own]| own[metric]).collect();
            Some((metric, column?))
        };
        let columns: Vec<(usize, Vec<f64>)> = competitors.filter_map(own).collect();
        let all: Vec<usize> = (0..rows.len()).collect();
        let mut order = all.clone();
        Random::new(1).shuffle(&mut order);
        let mut least = (f64::INFINITY, PENALTIES[0]);
        for penalty in PENALTIES {
            let mut error = 0.0;
            for fold in 0..FOLDS {
                let outside: Vec<usize> = order
                    .iter()
                    .copied()
                    .enumerate()
                    .filter(|(at, _)| at % FOLDS != fold)
                    .map(|(_, row)| row)
                    .collect();
                let weights = fit(&inputs, &columns, &outside, penalty);
                for (weights, (_, column)) in weights.iter().zip(&columns) {
                    let scale = mean(column).abs().max(f64::MIN_POSITIVE);
                    for (_, row) in order.iter().enumerate().filter(|(at, _)| at % FOLDS == fold) {
                        error += (value(weights, &inputs[*row]) - column[*row]).abs() / scale;
                    }
                }
            }
            if error < least.0 {
                least = (error, penalty);
            }
        }
        if response.entries.is_empty() || columns.is_empty() {
            return None;
        }
        let weights = fit(&inputs, &columns, &all, least.1);
        let surfaces = columns.iter().zip(weights);
        response.surfaces = surfaces
            .map(|((metric, column), weights)| Surface {
                metric: *metric,
                range: range(column),
                weights,
            })
            .collect();
        Some(response)
    }

    /// Returns the terms of the surfaces.
    fn terms(&self, with: impl Fn(usize) -> f64) -> Vec<f64> {
        let scaled = self.entries.iter().map(|of| {
            let root = with(of.metric).clamp(of.range.0, of.range.1).max(0.0).sqrt();
            (root - of.mean) / of.deviation
        });
        let mut all: Vec<f64> = scaled.collect();
        let linear = all.len();
        for a in 0..linear {
            for b in 0..=a {
                all.push(all[a] * all[b]);
            }
        }
        all
    }

    /// Returns `true` if the surfaces depend on a metric.
    pub(crate) fn requires(&self, metric: usize) -> bool {
        self.largest(metric).is_some()
    }

    /// Returns the largest value of a competitors' metric in the campaign, if the surfaces depend on it.
    pub(crate) fn largest(&self, metric: usize) -> Option<f64> {
        let entry = self.entries.iter().find(|of| of.metric == metric);
        entry.map(|of| of.range.1)
    }

    /// Replaces the values of `own` that the campaign measured by those beside competitors with the vector `with`.
    pub(crate) fn apply(&self, with: &[Option<f64>], own: &mut [Option<f64>]) {
        // The schema of a file has all metrics of its response.
        let terms = self.terms(|metric| with.get(metric).copied().flatten().unwrap_or(0.0));
        for surface in &self.surfaces {
            let value = value(&surface.weights, &terms).clamp(surface.range.0, surface.range.1);
            if let Some(own) = own.get_mut(surface.metric) {
                *own = Some(value);
            }
        }
    }
}

fn range(column: &[f64]) -> (f64, f64) {
    let ends = (f64::INFINITY, f64::NEG_INFINITY);
    column
        .iter()
        .fold(ends, |(low, high), of| (low.min(*of), high.max(*of)))
}

fn value(weights: &[f64], terms: &[f64]) -> f64 {
    let [intercept, weights @ ..] = weights else {
        return 0.0;
    };
    intercept
        + weights
            .iter()
            .zip(terms)
            .map(|(weight, term)| weight * term)
            .sum::<f64>()
}

/// Fits each column to the terms of some rows.
fn fit(inputs: &[Vec<f64>], columns: &[(usize, Vec<f64>)], rows: &[usize], penalty: f64) -> Vec<Vec<f64>> {
    let width = inputs.first().map_or(0, Vec::len);
    let count = rows.len() as f64;
    let centers: Vec<f64> = (0..width)
        .map(|at| rows.iter().map(|row| inputs[*row][at]).sum::<f64>() / count)
        .collect();
    // With fewer rows than terms, the dual form is smaller.
    let centered: Vec<Vec<f64>> = rows
        .iter()
        .map(|row| {
            inputs[*row]
                .iter()
                .zip(&centers)
                .map(|(of, center)| of - center)
                .collect()
        })
        .collect();
    let gram: Vec<Vec<f64>> = centered
        .iter()
        .enumerate()
        .map(|(at, a)| {
            let product = |b: &Vec<f64>| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let mut row: Vec<f64> = centered.iter().map(product).collect();
            row[at] += penalty * count;
            row
        })
        .collect();
    let means: Vec<f64> = columns
        .iter()
        .map(|(_, column)| rows.iter().map(|row| column[*row]).sum::<f64>() / count)
        .collect();
    let centered_columns = columns
        .iter()
        .zip(&means)
        .map(|((_, column), mean)| rows.iter().map(|row| column[*row] - mean).collect());
    let duals = solve_all(gram, centered_columns.collect());
    let weights = |(dual, mean): (Vec<f64>, f64)| {
        let mut weights: Vec<f64> = (0..width)
            .map(|at| centered.iter().zip(&dual).map(|(row, dual)| row[at] * dual).sum())
            .collect();
        let shift: f64 = weights
            .iter()
            .zip(&centers)
            .map(|(weight, center)| weight * center)
            .sum();
        weights.insert(0, mean - shift);
        weights
    };
    duals.into_iter().zip(means).map(weights).collect()
}
