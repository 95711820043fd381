//! Choice of the metrics that a model uses.

use crate::dataset::{Dataset, Goal};
use crate::metric::Scope;
use crate::model::{Kind, Regressor, Training, Tuned, fit};
use crate::random::Random;

/// Rule of the choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Selection {
    /// Minimum absolute rank correlation of a competitors' metric with the performance.
    pub correlation: f64,
    /// Leaves out metrics whose permutation does not raise the error.
    pub permutation: bool,
}

impl Default for Selection {
    fn default() -> Self {
        Selection {
            correlation: 0.05,
            permutation: false,
        }
    }
}

/// Returns the rank correlation (Spearman) of each input with the target.
pub fn correlations(data: &Dataset) -> Vec<f64> {
    let target = ranks(&data.targets);
    data.columns
        .iter()
        .map(|column| pearson(&ranks(column), &target))
        .collect()
}

/// Returns the increase of the mean absolute error (of the logarithm) when an input's values are permuted among rows
/// outside of the fit, by input. 0.05 stands for about 5 % more error.
pub fn importances(data: &Dataset, goal: Goal, seed: u64) -> Vec<f64> {
    let kind = Kind::Boosted;
    let training = Training::new(kind.is_logarithmic(), data, goal, mean(&data.targets));
    let tuned = Tuned {
        rounds: 80,
        ..Tuned::default()
    };
    let mut random = Random::new(seed);
    let mut sums = vec![0.0; data.inputs.len()];
    for fold in data.folds(5, seed) {
        let model = fit(kind, &training, &data.outside(&fold), tuned, seed);
        let error = |inputs: &[f64], at: usize| (model.value(inputs) - training.targets[at]).abs();
        let plain: f64 = fold.iter().map(|at| error(&data.row(*at), *at)).sum();
        for (column, sum) in sums.iter_mut().enumerate() {
            let mut from = fold.clone();
            random.shuffle(&mut from);
            let permuted = fold.iter().zip(&from).map(|(at, from)| {
                let mut inputs = data.row(*at);
                inputs[column] = data.columns[column][*from];
                error(&inputs, *at)
            });
            *sum += permuted.sum::<f64>() - plain;
        }
    }
    sums.iter().map(|sum| sum / data.len().max(1) as f64).collect()
}

/// Applies the rule; at least the best input stays. Notes name what is left out.
pub(crate) fn select(data: Dataset, goal: Goal, rule: Selection, seed: u64) -> Dataset {
    let correlations = correlations(&data);
    let mut notes = Vec::new();
    let best = (0..data.inputs.len()).max_by(|a, b| correlations[*a].abs().total_cmp(&correlations[*b].abs()));
    let related = |at: &usize| {
        let is_property = data.inputs[*at].scope == Scope::Target;
        let stays = is_property || Some(*at) == best || correlations[*at].abs() >= rule.correlation;
        if !stays {
            let (name, correlation) = (&data.inputs[*at].name, correlations[*at]);
            notes.push(format!(
                "{name}: left out, rank correlation {correlation:.2} with the performance"
            ));
        }
        stays
    };
    let kept: Vec<usize> = (0..data.inputs.len()).filter(related).collect();
    let mut selected = data.select(&kept);
    if rule.permutation && selected.inputs.len() > 1 {
        let gains = importances(&selected, goal, seed);
        let best = (0..gains.len()).max_by(|a, b| gains[*a].total_cmp(&gains[*b]));
        let matters = |at: &usize| {
            let stays = Some(*at) == best || gains[*at] > 0.0;
            if !stays {
                let name = &selected.inputs[*at].name;
                notes.push(format!("{name}: left out, its permutation does not raise the error"));
            }
            stays
        };
        let kept: Vec<usize> = (0..gains.len()).filter(matters).collect();
        selected = selected.select(&kept);
    }
    selected.notes.extend(notes);
    selected
}

pub(crate) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns ranks, with the mean rank of equal values.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    while start < order.len() {
        let same = order[start..]
            .iter()
            .take_while(|at| values[**at] == values[order[start]])
            .count();
        for at in &order[start..start + same] {
            ranks[*at] = start as f64 + (same - 1) as f64 / 2.0;
        }
        start += same;
    }
    ranks
}

fn pearson(a: &[f64], b: &[f64]) -> f64 {
    let (mean_a, mean_b) = (mean(a), mean(b));
    let pairs = a.iter().zip(b);
    let covariance: f64 = pairs.map(|(a, b)| (a - mean_a) * (b - mean_b)).sum();
    let spread = |values: &[f64], mean: f64| values.iter().map(|v| (v - mean).powi(2)).sum::<f64>().sqrt();
    let spreads = spread(a, mean_a) * spread(b, mean_b);
    if spreads > 0.0 { covariance / spreads } else { 0.0 }
}
