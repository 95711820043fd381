//! Comparison of measured runs: which figures differ by more than chance explains.
//!
//! With three or more runs on each side, the runs are the sample: Welch's interval of the difference of their means,
//! on the logarithms of latencies, throughput and cores. With fewer, the steps of the runs over time are: a
//! block bootstrap, with Student's t for the few blocks. It covers the variation within a run, not the one
//! from run to run. All intervals of a chain hold together with the requested confidence (Bonferroni).
//!
//! Latency percentiles of resampled runs are approximate, since a step has no histogram but six points of its
//! distribution. Only the spread is taken from them; the figures are those of the reports.

mod bootstrap;
mod document;
mod figure;
mod series;
mod student;
#[cfg(test)]
mod tests;

pub use document::{Counts, DocumentError, MAX_BYTES, RunFigures, Step, parse};
pub use figure::Figure;

use bootstrap::{Spread, resample, welch};
use serde::Serialize;
use std::collections::BTreeSet;

/// Number of runs on each side from which the runs themselves are the sample.
pub const RUNS_FOR_WELCH: usize = 3;

/// Minimum number of steps of a run, for one with fewer runs.
pub const STEPS_FOR_BOOTSTRAP: usize = bootstrap::FEWEST_STEPS;

/// Largest difference on a figure's scale that the order of additions can make between means of the same runs.
const ROUNDING: f64 = 1e-12;

/// Maximum number of causes and reasons compared, the most frequent first.
const MOST_DETAILS: usize = 32;

/// Parameters of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct CompareOptions {
    /// Probability with which all intervals of a chain contain the true changes, 0 to 1 exclusive.
    pub confidence: f64,
    /// Changes of at most this share of the figure do not count as differences.
    pub tolerance: f64,
}

/// Source of the intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Welch's t over runs.
    Runs,
    /// Block bootstrap over the steps of the runs.
    BlockBootstrap,
    /// None: there are too few runs and steps.
    None,
}

/// Outcome for a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeVerdict {
    /// The figure is higher after.
    Higher,
    /// The figure is lower after.
    Lower,
    /// The interval contains zero: these runs can show no difference.
    NoDifferenceShown,
    /// There is a difference, within the tolerance.
    WithinTolerance,
    /// There is no interval.
    NotJudged,
}

/// A compared figure.
#[derive(Clone, Debug, PartialEq)]
pub struct FigureChange {
    /// The figure.
    pub figure: Figure,
    /// Mean of the runs before: a geometric one, except for shares. `None` if the figure does not exist.
    pub before: Option<f64>,
    /// The same for the runs after.
    pub after: Option<f64>,
    /// Change from before to after: for shares the difference, otherwise a ratio minus one.
    pub change: Option<f64>,
    /// Interval of the change.
    pub interval: Option<(f64, f64)>,
    /// Outcome.
    pub verdict: ChangeVerdict,
}

/// Comparison of a chain.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainComparison {
    /// Name of the chain.
    pub chain: String,
    /// Numbers of runs before and after.
    pub runs: (usize, usize),
    /// Source of the intervals.
    pub method: Method,
    /// Steps of the runs before and after were compared in pairs, since the traffic is the same.
    pub paired: bool,
    /// Length of a block in steps, with a bootstrap.
    pub block: usize,
    /// The figures.
    pub changes: Vec<FigureChange>,
}

impl ChainComparison {
    /// Figures that differ.
    pub fn differences(&self) -> impl Iterator<Item = &FigureChange> {
        let differs = |change: &&FigureChange| matches!(change.verdict, ChangeVerdict::Higher | ChangeVerdict::Lower);
        self.changes.iter().filter(differs)
    }
}

/// Compares the runs of one chain. Both groups have at least one.
pub fn compare(before: &[&RunFigures], after: &[&RunFigures], options: &CompareOptions) -> ChainComparison {
    let figures = figures(before, after);
    let (method, spreads, paired, block) = match before.len().min(after.len()) >= RUNS_FOR_WELCH {
        true => {
            let spreads = figures.iter().map(|figure| between_runs(figure, before, after));
            (Method::Runs, spreads.collect(), false, 0)
        }
        false => match resample(before, after, &figures) {
            Some(found) => (Method::BlockBootstrap, found.spreads, found.paired, found.block),
            None => (Method::None, vec![None; figures.len()], false, 0),
        },
    };
    // A figure that never varies, such as no loss at all, cannot differ by chance.
    let varies = |spread: &&Spread| spread.variance > 0.0;
    let judged = spreads.iter().flatten().filter(varies).count().max(1);
    let alpha = (1.0 - options.confidence) / judged as f64;
    let changes = figures.into_iter().zip(spreads);
    let changes = changes.map(|(figure, spread)| {
        let [before, after] = [mean(&figure, before), mean(&figure, after)];
        change(figure, before, after, spread, alpha, options.tolerance)
    });
    ChainComparison {
        chain: before.first().map(|run| run.chain.clone()).unwrap_or_default(),
        runs: (before.len(), after.len()),
        method,
        paired,
        block,
        changes: changes.collect(),
    }
}

/// Figures of these runs: the main ones, and those of causes, reasons and external functions that occur.
fn figures(before: &[&RunFigures], after: &[&RunFigures]) -> Vec<Figure> {
    let all = || before.iter().chain(after);
    let mut figures = vec![
        Figure::Latency(50),
        Figure::Latency(99),
        Figure::Late,
        Figure::Loss,
        Figure::Throughput,
        Figure::Cores,
    ];
    let causes = all()
        .flat_map(|run| &run.counts.causes)
        .filter(|(_, count)| **count > 0);
    let causes: BTreeSet<&String> = causes.map(|(name, _)| name).collect();
    let reasons: BTreeSet<&String> = all().flat_map(|run| run.counts.reasons.keys()).collect();
    let causes = causes.into_iter().cloned().map(Figure::Cause);
    let reasons = reasons.into_iter().cloned().map(Figure::Reason);
    let mut details: Vec<Figure> = causes.chain(reasons).collect();
    if details.len() > MOST_DETAILS {
        let packets = |figure: &Figure| all().map(|run| figure.part(&run.counts)).sum::<f64>();
        details.sort_by(|a, b| packets(b).total_cmp(&packets(a)));
        details.truncate(MOST_DETAILS);
    }
    figures.extend(details);
    let externals: BTreeSet<&String> = all().flat_map(|run| run.externals.keys()).collect();
    figures.extend(externals.into_iter().take(MOST_DETAILS).cloned().map(Figure::External));
    figures
}

/// Values of the runs on the figure's scale, if all have one.
fn values(figure: &Figure, runs: &[&RunFigures]) -> Option<Vec<f64>> {
    let values = runs
        .iter()
        .map(|run| figure.of(run).map(|value| figure.to_scale(value)));
    values.collect()
}

/// Mean on the figure's scale.
fn mean(figure: &Figure, runs: &[&RunFigures]) -> Option<f64> {
    let values = values(figure, runs)?;
    Some(values.iter().sum::<f64>() / values.len() as f64)
}

/// Spread of the difference of two groups' means, by the variation between runs.
fn between_runs(figure: &Figure, before: &[&RunFigures], after: &[&RunFigures]) -> Option<Spread> {
    let of_mean = |runs: &[&RunFigures]| {
        let values = values(figure, runs)?;
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Some((squares / (count - 1.0) / count, count - 1.0))
    };
    let ((a, freedom_a), (b, freedom_b)) = (of_mean(before)?, of_mean(after)?);
    Some(welch(a, freedom_a, b, freedom_b))
}

/// Judges a figure. `before` and `after` are on its scale.
fn change(
    figure: Figure,
    before: Option<f64>,
    after: Option<f64>,
    spread: Option<Spread>,
    alpha: f64,
    tolerance: f64,
) -> FigureChange {
    let value = |scaled: f64| match figure.is_share() {
        true => scaled,
        false => scaled.exp(),
    };
    let difference = before.zip(after).map(|(before, after)| after - before);
    let half = spread.map(|spread| student::two_sided(alpha, spread.freedom) * spread.variance.sqrt());
    let verdict = match (difference, half) {
        (Some(difference), Some(half)) => {
            let least = match figure.is_share() {
                true => tolerance * before.unwrap_or(0.0).max(after.unwrap_or(0.0)),
                false => tolerance.ln_1p(),
            };
            if difference.abs() <= half.max(ROUNDING) {
                ChangeVerdict::NoDifferenceShown
            } else if difference.abs() <= least {
                ChangeVerdict::WithinTolerance
            } else if difference > 0.0 {
                ChangeVerdict::Higher
            } else {
                ChangeVerdict::Lower
            }
        }
        _ => ChangeVerdict::NotJudged,
    };
    let interval = difference.zip(half);
    FigureChange {
        before: before.map(value),
        after: after.map(value),
        change: difference.map(|difference| figure.change(difference)),
        interval: interval.map(|(at, half)| (figure.change(at - half), figure.change(at + half))),
        verdict,
        figure,
    }
}
