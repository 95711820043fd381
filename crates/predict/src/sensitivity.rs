//! Performance of a target as a function of its competitors' vector, with calibrated intervals.

use crate::campaign::Campaign;
use crate::dataset::{Dataset, Goal};
use crate::metric::{MetricError, Schema, Scope, Vector};
use crate::model::{FitError, Fitted, Kind, MIN_ROWS, Regressor, Training, fit, tune};
use crate::select::{Selection, mean, select};
use std::sync::Arc;

/// Share of a range by which an input may lie beyond it; below a positive range at most this share of its lower end.
const MARGIN: f64 = 0.05;
/// Maximum number of scores that a model keeps.
pub(crate) const MAX_SCORES: usize = 2000;

/// Options of a training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainOptions {
    /// Method.
    pub kind: Kind,
    /// Choice of metrics; the single-metric methods use their own.
    pub selection: Selection,
    /// Folds of the cross-validation that calibrates intervals.
    pub folds: usize,
    /// Seed of all random choices.
    pub seed: u64,
}

impl Default for TrainOptions {
    fn default() -> Self {
        TrainOptions {
            kind: Kind::Boosted,
            selection: Selection::default(),
            folds: 10,
            seed: 1,
        }
    }
}

/// Predicted value with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Predicted value.
    pub value: f64,
    /// Lower end of the interval. Placement relies on this one for throughput.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Probability with which the value lies in the interval.
    pub confidence: f64,
}

/// Reason why there is no prediction.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PredictError {
    /// An input lies outside of the range on which the model was trained.
    #[error("{what} is {value}, outside of what was measured ({low} to {high}): expected a campaign that covers it")]
    OutsideRange {
        /// Name and unit of the input.
        what: String,
        /// Its value.
        value: f64,
        /// Smallest value of the campaign.
        low: f64,
        /// Largest value.
        high: f64,
    },
    /// Metrics do not fit together.
    #[error(transparent)]
    Metric(#[from] MetricError),
    /// The interval is wider than the campaign can tell.
    #[error(
        "expected a confidence above 0 and at most {:.1} % (the model has {points} observations), found {} %",
        100.0 * most,
        (1e4 * found).round() / 100.0
    )]
    Confidence {
        /// Confidence of the request.
        found: f64,
        /// Largest possible confidence.
        most: f64,
        /// Number of observations that calibrate the interval.
        points: usize,
    },
    /// The models belong to different machines.
    #[error("expected models of one machine, found {first:?} and {other:?}")]
    OtherMachine {
        /// The target's machine.
        first: String,
        /// The other one.
        other: String,
    },
}

/// Function from the competitors' vector to the target's performance.
#[derive(Clone, Debug, PartialEq)]
pub struct Sensitivity {
    pub(crate) kind: Kind,
    /// Inputs, with their source.
    pub(crate) schema: Arc<Schema>,
    pub(crate) ranges: Vec<(f64, f64)>,
    /// Inputs without competition: reference of attributions. Properties of the target have their median.
    pub(crate) baseline: Vec<f64>,
    /// Performance without competition, in the goal's unit.
    pub(crate) reference: f64,
    pub(crate) fitted: Fitted,
    /// Absolute logarithms of measured over predicted, of rows outside of each fit, in increasing order.
    pub(crate) scores: Vec<f64>,
    pub(crate) notes: Vec<String>,
}

/// Observation beside its prediction by a model that did not see its group, in the goal's unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldOut {
    /// Measured value.
    pub measured: f64,
    /// Predicted value.
    pub predicted: f64,
}

/// A model with the observations of its training, to look at: a file keeps the model only.
#[derive(Clone, Debug)]
pub struct Evaluation {
    /// The model.
    pub model: Sensitivity,
    /// Its observations, each beside a prediction.
    pub held_out: Vec<HeldOut>,
    rows: Vec<Vec<f64>>,
}

impl Evaluation {
    /// Returns the mean performance over the observations if one input, by its position in the model's schema, had each
    /// of these values, in the goal's unit (partial dependence, Friedman 2001).
    ///
    /// # Panics
    /// There is no such input.
    pub fn response(&self, input: usize, values: &[f64]) -> Vec<f64> {
        let at = |value: &f64| {
            let changed = self.rows.iter().map(|row| {
                let mut row = row.clone();
                row[input] = *value;
                self.model.value_at(&row)
            });
            mean(&changed.collect::<Vec<f64>>())
        };
        values.iter().map(at).collect()
    }
}

impl Sensitivity {
    /// Trains a model of a campaign; `reference` is the performance without competition.
    ///
    /// # Errors
    /// If there are too few usable observations, or the method's metric is absent.
    pub fn train(campaign: &Campaign, goal: Goal, reference: f64, options: &TrainOptions) -> Result<Self, FitError> {
        Sensitivity::evaluated(campaign, goal, reference, options).map(|evaluation| evaluation.model)
    }

    /// [`train`](Self::train), and keeps the observations.
    ///
    /// # Errors
    /// Same as [`train`](Self::train).
    pub fn evaluated(
        campaign: &Campaign,
        goal: Goal,
        reference: f64,
        options: &TrainOptions,
    ) -> Result<Evaluation, FitError> {
        let data = Dataset::new(campaign, goal);
        let source = campaign.schema().source();
        let data = inputs_of(data, goal, options)?;
        let schema = Schema::new(source, data.inputs.clone()).map_err(|_| FitError::NoInputs)?;
        let folds = data.folds(options.folds, options.seed);
        if data.len() < MIN_ROWS || folds.len() < 2 {
            return Err(FitError::TooFew { found: data.len() });
        }
        let kind = options.kind;
        let training = Training::new(kind.is_logarithmic(), &data, goal, reference);
        let tuned = tune(kind, &training, &folds, options.seed);
        let mut held_out = Vec::new();
        for fold in &folds {
            let model = fit(kind, &training, &data.outside(fold), tuned, options.seed);
            let pair = |at: &usize| HeldOut {
                measured: data.targets[*at],
                predicted: unscaled(kind, model.value(&data.row(*at)), reference),
            };
            held_out.extend(fold.iter().map(pair));
        }
        let scores = held_out.iter().map(|of| (of.measured / of.predicted).ln().abs());
        let scores = thinned(scores.collect());
        let all: Vec<usize> = (0..data.len()).collect();
        let rows = all.iter().map(|at| data.row(*at)).collect();
        let model = Sensitivity {
            kind,
            schema: Arc::new(schema),
            ranges: data.ranges(),
            baseline: baseline(&data, goal),
            reference,
            fitted: fit(kind, &training, &all, tuned, options.seed),
            scores,
            notes: data.notes,
        };
        Ok(Evaluation { model, held_out, rows })
    }

    /// Returns the method.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the inputs, with their source.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Returns the smallest and largest value of each input in training.
    pub fn ranges(&self) -> &[(f64, f64)] {
        &self.ranges
    }

    /// Returns the performance without competition.
    pub fn reference(&self) -> f64 {
        self.reference
    }

    /// Returns notes on metrics and observations that were left out.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the mean relative error on observations outside of each fit.
    pub fn error(&self) -> f64 {
        mean(&self.scores.iter().map(|score| score.exp() - 1.0).collect::<Vec<f64>>())
    }

    /// Predicts beside competitors with the vector `competition`. Properties of the target that it lacks have their
    /// median in the campaign.
    ///
    /// # Errors
    /// If the vector has another source, lacks a metric, or is outside of the range of the training, or the confidence
    /// is beyond what the observations can tell.
    pub fn predict(&self, competition: &Vector, confidence: f64) -> Result<Estimate, PredictError> {
        self.predict_at(&self.inputs(competition)?, confidence)
    }

    /// Returns the inputs that a vector holds.
    ///
    /// # Errors
    /// Same as [`predict`](Self::predict), without checking ranges.
    pub fn inputs(&self, competition: &Vector) -> Result<Vec<f64>, PredictError> {
        let positions = self.schema.positions_in(competition.schema())?;
        let metrics = self.schema.metrics().iter().zip(positions).zip(&self.baseline);
        let input = |((metric, at), baseline): ((&crate::metric::Metric, Option<usize>), &f64)| {
            let value = match metric.scope {
                Scope::Competitors => at.and_then(|at| competition.values()[at]),
                Scope::Target => Some(competition.get(&metric.name).unwrap_or(*baseline)),
            };
            value.ok_or_else(|| {
                let name = metric.name.clone();
                PredictError::Metric(MetricError::Missing { name })
            })
        };
        metrics.map(input).collect()
    }

    /// Predicts for inputs in the order of the schema.
    ///
    /// # Errors
    /// Same as [`predict`](Self::predict).
    pub fn predict_at(&self, inputs: &[f64], confidence: f64) -> Result<Estimate, PredictError> {
        self.check_range(inputs)?;
        let width = self.quantile(confidence)?.exp();
        let value = self.value_at(inputs);
        Ok(Estimate {
            value,
            low: value / width,
            high: value * width,
            confidence,
        })
    }

    /// Checks that intervals of a confidence are within what the observations can tell.
    ///
    /// # Errors
    /// [`PredictError::Confidence`] if they are not.
    pub fn check_confidence(&self, confidence: f64) -> Result<(), PredictError> {
        self.quantile(confidence).map(|_| ())
    }

    /// Returns the value at any inputs, also outside of the range: a building block of the extrapolation.
    pub(crate) fn value_at(&self, inputs: &[f64]) -> f64 {
        unscaled(self.kind, self.fitted.value(inputs), self.reference)
    }

    /// Checks that inputs are at most 5 % of a range beyond it.
    pub(crate) fn check_range(&self, inputs: &[f64]) -> Result<(), PredictError> {
        if inputs.len() != self.ranges.len() {
            let found = format!("{} inputs for {}", inputs.len(), self.ranges.len());
            return Err(MetricError::Value { found }.into());
        }
        for ((metric, value), (low, high)) in self.schema.metrics().iter().zip(inputs).zip(&self.ranges) {
            let margin = MARGIN * (high - low);
            // Below a range of flows from 200 to a million, 0 is not near.
            let below = if *low > 0.0 { margin.min(MARGIN * low) } else { margin };
            if !(low - below..=high + margin).contains(value) {
                return Err(PredictError::OutsideRange {
                    what: format!("{} ({})", metric.name, metric.unit),
                    value: *value,
                    low: *low,
                    high: *high,
                });
            }
        }
        Ok(())
    }

    /// Returns the score that a new observation does not exceed with the given probability: the ceiling of
    /// (n + 1) times it, by cross-conformal prediction (Vovk, 2015).
    pub(crate) fn quantile(&self, confidence: f64) -> Result<f64, PredictError> {
        let points = self.scores.len();
        let rank = ((points + 1) as f64 * confidence).ceil();
        match self.scores.get((rank as usize).wrapping_sub(1)) {
            Some(score) if confidence > 0.0 && confidence < 1.0 => Ok(*score),
            _ => Err(PredictError::Confidence {
                found: confidence,
                most: points as f64 / (points + 1) as f64,
                points,
            }),
        }
    }
}

/// Converts a model's value to the goal's unit. A straight line may fall below 0, where no performance is.
fn unscaled(kind: Kind, value: f64, reference: f64) -> f64 {
    match kind.is_logarithmic() {
        true => reference * value.clamp(-50.0, 50.0).exp(),
        false => reference * value.max(1e-3),
    }
}

/// Chooses the columns of a method.
fn inputs_of(data: Dataset, goal: Goal, options: &TrainOptions) -> Result<Dataset, FitError> {
    if let Some(metric) = options.kind.required_metric() {
        let at = data.inputs.iter().position(|input| input.name == metric);
        let at = at.ok_or(FitError::Metric {
            kind: options.kind,
            metric,
        })?;
        return Ok(data.select(&[at]));
    }
    match data.inputs.is_empty() {
        true => Err(FitError::NoInputs),
        false => Ok(select(data, goal, options.selection, options.seed)),
    }
}

/// Returns the inputs of the row with the best performance, with medians for properties of the target.
fn baseline(data: &Dataset, goal: Goal) -> Vec<f64> {
    let value = |at: &usize| -goal.direction() * data.targets[*at];
    let best = (0..data.len()).max_by(|a, b| value(a).total_cmp(&value(b)));
    let inputs = data.inputs.iter().zip(&data.columns);
    let input = inputs.map(|(metric, column)| match metric.scope {
        Scope::Competitors => best.map_or(0.0, |at| column[at]),
        Scope::Target => crate::campaign::median(column.clone()).unwrap_or(0.0),
    });
    input.collect()
}

/// Sorts scores, and thins many of them without lowering any quantile.
fn thinned(mut scores: Vec<f64>) -> Vec<f64> {
    scores
        .iter_mut()
        .for_each(|score| *score = if score.is_finite() { *score } else { 50.0 });
    scores.sort_by(f64::total_cmp);
    let step = scores.len().div_ceil(MAX_SCORES).max(1);
    // The last of each step is its largest.
    let last = scores.chunks(step).filter_map(|chunk| chunk.last().copied());
    last.collect()
}
