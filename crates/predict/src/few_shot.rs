//! Models of functions of which only few co-runs were measured: a prior from the campaigns of others.

use crate::campaign::{Campaign, CampaignError, Key, Observation};
use crate::dataset::Goal;
use crate::metric::{Metric, MetricError, Schema, Scope, Vector};
use crate::model::{FitError, Fitted, Scaled};
use crate::random::Random;
use crate::select::mean;
use crate::sensitivity::{PredictError, Sensitivity, TrainOptions};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Prefix of the inputs that describe a function by its own vector alone.
const ALONE: &str = "alone.";
/// Co-runs that the prior weighs as much as: how slowly an adapted model leaves it.
const PRIOR_WEIGHT: f64 = 4.0;

/// Mistake in the use of a prior.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PriorError {
    /// A campaign lacks the target's performance or vector alone.
    #[error("{function}: expected observations without competitors, with the function's own vector, found none")]
    NotAlone {
        /// The function.
        function: String,
    },
    /// There are too few campaigns.
    #[error("expected campaigns of at least 2 functions, found {found}")]
    TooFew {
        /// Number of campaigns.
        found: usize,
    },
    /// The pooled model cannot be trained.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// Campaigns do not fit together.
    #[error(transparent)]
    Campaign(#[from] CampaignError),
    /// A measured co-run is outside of what the prior covers.
    #[error(transparent)]
    Predict(#[from] PredictError),
}

impl From<MetricError> for PriorError {
    fn from(error: MetricError) -> Self {
        PriorError::Campaign(error.into())
    }
}

/// Model over functions: slowdown by the competitors' vector and the target's own vector alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Prior {
    pooled: Sensitivity,
    machine: String,
}

impl Prior {
    /// Trains a prior on the campaigns of several functions on one machine. Each function is a group, so the intervals
    /// of the prior are those for a function that it never saw.
    ///
    /// # Errors
    /// If there are fewer than 2 campaigns, one lacks observations without competitors, or their metrics or machines
    /// differ.
    pub fn train(campaigns: &[&Campaign], options: &TrainOptions) -> Result<Prior, PriorError> {
        let [first, others @ ..] = campaigns else {
            return Err(PriorError::TooFew { found: 0 });
        };
        if others.is_empty() {
            return Err(PriorError::TooFew { found: 1 });
        }
        let machine = first.key().machine.clone();
        let mut metrics = first.schema().metrics().to_vec();
        metrics.retain(|metric| metric.scope == Scope::Competitors);
        let described: Vec<Metric> = metrics.iter().map(alone).collect();
        metrics.extend(described);
        let schema = Arc::new(Schema::new(first.schema().source(), metrics)?);
        let key = Key {
            function: "pooled".to_owned(),
            ..first.key().clone()
        };
        let mut pooled = Campaign::new(key, schema.clone());
        for (group, campaign) in campaigns.iter().enumerate() {
            if campaign.key().machine != machine {
                return Err(PredictError::OtherMachine {
                    first: machine,
                    other: campaign.key().machine.clone(),
                }
                .into());
            }
            let description = description(campaign)?;
            let solo = campaign.solo().map_or(1.0, |solo| solo.throughput);
            for observation in campaign.usable().filter(|of| of.competitors > 0) {
                pooled.push(Observation {
                    group: group as u32,
                    competition: described_vector(&schema, &observation.competition, &description)?,
                    throughput: observation.throughput / solo,
                    p99_us: None,
                    own: None,
                    ..observation.clone()
                })?;
            }
        }
        let options = TrainOptions {
            folds: campaigns.len(),
            ..*options
        };
        Ok(Prior {
            pooled: Sensitivity::train(&pooled, Goal::Throughput, 1.0, &options)?,
            machine,
        })
    }

    /// Returns the mean relative error for a function that the prior never saw, and of which no co-run was measured.
    pub fn error(&self) -> f64 {
        self.pooled.error()
    }

    /// Adapts the prior to a function, by its observations: those without competitors, and any number of co-runs.
    ///
    /// The logarithm of the prior's slowdown gets a factor (how sensitive the function is) and an offset. Both are
    /// fitted to the co-runs, with the prior weighing as much as a few of them. Without co-runs the prior stays as it
    /// is. The intervals are those of the prior; with more than 20 co-runs, those of the co-runs, each predicted from
    /// the others.
    ///
    /// # Errors
    /// If the campaign lacks observations without competitors, or is of another machine or source.
    pub fn adapt(&self, campaign: &Campaign) -> Result<Sensitivity, PriorError> {
        if campaign.key().machine != self.machine {
            return Err(PredictError::OtherMachine {
                first: self.machine.clone(),
                other: campaign.key().machine.clone(),
            }
            .into());
        }
        let description = description(campaign)?;
        let solo = campaign.solo().map_or(1.0, |solo| solo.throughput);
        let schema = self.pooled.schema();
        let mut points = Vec::new();
        for observation in campaign.usable().filter(|of| of.competitors > 0) {
            let vector = described_vector(schema, &observation.competition, &description)?;
            let inputs = self.pooled.inputs(&vector)?;
            let prior = self.pooled.value_at(&inputs).ln();
            points.push((prior, (observation.throughput / solo).ln()));
        }
        let (factor, offset) = adaptation(&points);
        let mut adapted = self.pooled.clone();
        for (at, metric) in schema.metrics().iter().enumerate() {
            if let Some(value) = description.get(&metric.name) {
                adapted.baseline[at] = *value;
            }
        }
        adapted.reference = solo;
        adapted.fitted = Fitted::Scaled(Box::new(Scaled {
            factor,
            offset,
            model: adapted.fitted,
        }));
        if points.len() > 20 {
            adapted.scores = left_out(&points);
        }
        let count = points.len();
        adapted.notes = vec![format!("prior from other functions, adapted by {count} co-runs")];
        Ok(adapted)
    }
}

/// Description of the target's own vector alone as an input.
fn alone(metric: &Metric) -> Metric {
    Metric::of_target(&format!("{ALONE}{}", metric.name), &metric.unit)
}

/// Returns the target's own vector alone by name of the input.
fn description(campaign: &Campaign) -> Result<BTreeMap<String, f64>, PriorError> {
    let mut description = BTreeMap::new();
    let owns: Vec<&Vector> = campaign
        .usable()
        .filter(|of| of.competitors == 0)
        .filter_map(|of| of.own.as_ref())
        .collect();
    for metric in campaign
        .schema()
        .metrics()
        .iter()
        .filter(|of| of.scope == Scope::Competitors)
    {
        let values: Vec<f64> = owns.iter().filter_map(|own| own.get(&metric.name)).collect();
        if !values.is_empty() {
            description.insert(alone(metric).name, mean(&values));
        }
    }
    match description.is_empty() {
        true => Err(PriorError::NotAlone {
            function: campaign.key().function.clone(),
        }),
        false => Ok(description),
    }
}

fn described_vector(
    schema: &Arc<Schema>,
    competition: &Vector,
    description: &BTreeMap<String, f64>,
) -> Result<Vector, MetricError> {
    let positions = schema.positions_in(competition.schema())?;
    let metrics = schema.metrics().iter().zip(positions);
    let values = metrics.map(|(metric, at)| match at {
        Some(at) => competition.values()[at],
        None => description.get(&metric.name).copied(),
    });
    Vector::new(schema.clone(), values.collect())
}

/// Returns factor and offset that fit the logarithms of slowdowns, shrunk towards 1 and 0.
fn adaptation(points: &[(f64, f64)]) -> (f64, f64) {
    if points.is_empty() {
        return (1.0, 0.0);
    }
    // The penalty of the factor is in units of a typical slowdown, so that few points near 1 cannot turn it.
    let typical = 0.2 * 0.2;
    let mut matrix = vec![vec![PRIOR_WEIGHT * typical, 0.0], vec![0.0, PRIOR_WEIGHT]];
    let mut right = vec![0.0; 2];
    for (prior, measured) in points {
        matrix[0][0] += prior * prior;
        matrix[0][1] += prior;
        matrix[1][0] += prior;
        matrix[1][1] += 1.0;
        right[0] += prior * (measured - prior);
        right[1] += measured - prior;
    }
    let solution = crate::model::solve(matrix, right);
    // A negative factor would turn contention into a gain.
    ((1.0 + solution[0]).max(0.0), solution[1])
}

/// Returns the scores of co-runs that are predicted from the others.
fn left_out(points: &[(f64, f64)]) -> Vec<f64> {
    let score = |at: usize| {
        let others: Vec<(f64, f64)> = points
            .iter()
            .enumerate()
            .filter(|(of, _)| *of != at)
            .map(|(_, of)| *of)
            .collect();
        let (factor, offset) = adaptation(&others);
        (points[at].1 - factor * points[at].0 - offset).abs()
    };
    let mut scores: Vec<f64> = (0..points.len()).map(score).collect();
    scores.sort_by(f64::total_cmp);
    scores
}

/// Error after a number of measured co-runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PointError {
    /// Co-runs that were measured.
    pub points: usize,
    /// Mean relative error on the other co-runs, with the prior.
    pub with_prior: f64,
    /// The same of a model of these co-runs alone; `None` where there are too few for one.
    pub alone: Option<f64>,
}

/// Returns the curve of the error over measured co-runs, as the mean of `repeats` random choices: of the prior, which
/// must not have seen the campaign, and of a model without it.
///
/// # Errors
/// Same as [`Prior::adapt`].
pub fn error_curve(
    prior: &Prior,
    campaign: &Campaign,
    points: &[usize],
    repeats: usize,
    options: &TrainOptions,
) -> Result<Vec<PointError>, PriorError> {
    let all = 0..campaign.observations().len();
    let (solo, mut co_runs): (Vec<usize>, Vec<usize>) = all
        .filter(|at| !campaign.observations()[*at].flagged)
        .partition(|at| campaign.observations()[*at].competitors == 0);
    let reference = campaign.solo().map_or(1.0, |solo| solo.throughput);
    let mut random = Random::new(options.seed);
    let mut curve = Vec::new();
    let total = co_runs.len();
    for &count in points.iter().filter(|count| **count < total) {
        let (mut with_prior, mut alone) = (Vec::new(), Vec::new());
        for _ in 0..repeats.max(1) {
            random.shuffle(&mut co_runs);
            let (known, unseen) = co_runs.split_at(count);
            let known = campaign.subset(&[&solo[..], known].concat());
            let unseen = || unseen.iter().map(|at| &campaign.observations()[*at]);
            let error = |model: &Sensitivity| {
                let errors = unseen().map(|of| {
                    let predicted = model.value_at(&model.inputs(&of.competition)?);
                    Ok::<f64, PredictError>((predicted / of.throughput - 1.0).abs())
                });
                errors
                    .collect::<Result<Vec<f64>, PredictError>>()
                    .map(|errors| mean(&errors))
            };
            with_prior.push(error(&prior.adapt(&known)?)?);
            if let Ok(model) = Sensitivity::train(&known, Goal::Throughput, reference, options) {
                alone.push(error(&model)?);
            }
        }
        curve.push(PointError {
            points: count,
            with_prior: mean(&with_prior),
            alone: (!alone.is_empty()).then(|| mean(&alone)),
        });
    }
    Ok(curve)
}
