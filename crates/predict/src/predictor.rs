//! Models of functions, and the prediction for a target beside competitors.

use crate::attribution::{Attribution, attribute};
use crate::campaign::{Campaign, Key, Solo};
use crate::compose::{Composition, Contentiousness, compose};
use crate::dataset::Goal;
use crate::metric::{MetricError, Schema};
use crate::model::FitError;
use crate::sensitivity::{Estimate, PredictError, Sensitivity, TrainOptions};
use std::sync::Arc;

/// Everything that predictions use of a function, as target and as competitor.
#[derive(Clone, Debug, PartialEq)]
pub struct ContentionModel {
    pub(crate) key: Key,
    /// Checksum of the campaign's file.
    pub(crate) campaign: String,
    pub(crate) solo: Solo,
    pub(crate) contentiousness: Contentiousness,
    pub(crate) throughput: Sensitivity,
    pub(crate) p99: Option<Sensitivity>,
}

impl ContentionModel {
    /// Trains the models of a campaign. There is no model of the p99 where too few observations have one.
    ///
    /// # Errors
    /// If there is no model of the throughput.
    pub fn train(campaign: &Campaign, options: &TrainOptions) -> Result<ContentionModel, FitError> {
        let solo = campaign.solo().ok_or(FitError::TooFew { found: 0 })?;
        let mut throughput = Sensitivity::train(campaign, Goal::Throughput, solo.throughput, options)?;
        if !solo.measured {
            let note = "the target was not measured alone: its best co-run stands for that";
            throughput.notes.push(note.to_owned());
        }
        let delay = |reference| Sensitivity::train(campaign, Goal::P99, reference, options).ok();
        let p99 = solo.p99_us.and_then(delay);
        let measured = campaign.usable().filter(|of| of.p99_us.is_some()).count();
        if p99.is_none() && measured > 0 {
            throughput.notes.push(format!(
                "no prediction of the p99: only {measured} co-runs measured one"
            ));
        }
        Ok(ContentionModel {
            key: campaign.key().clone(),
            campaign: campaign.checksum(),
            solo,
            contentiousness: Contentiousness::new(campaign),
            throughput,
            p99,
        })
    }

    /// Returns the scope.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the checksum of the campaign that the model was trained on.
    pub fn campaign(&self) -> &str {
        &self.campaign
    }

    /// Returns the performance without competitors.
    pub fn solo(&self) -> Solo {
        self.solo
    }

    /// Returns the metrics of the campaign.
    pub fn schema(&self) -> &Arc<Schema> {
        self.contentiousness.schema()
    }

    /// Returns the function's pressure on others.
    pub fn contentiousness(&self) -> &Contentiousness {
        &self.contentiousness
    }

    /// Replaces the function's pressure on others, such as by one measured later.
    ///
    /// # Errors
    /// If its metrics are not those of the model.
    pub fn with_contentiousness(self, contentiousness: Contentiousness) -> Result<ContentionModel, MetricError> {
        if self.schema() != contentiousness.schema() {
            self.schema().positions_in(contentiousness.schema())?;
            let found = "other metrics".to_owned();
            return Err(MetricError::Value { found });
        }
        Ok(ContentionModel {
            contentiousness,
            ..self
        })
    }

    /// Returns the model of the throughput.
    pub fn throughput(&self) -> &Sensitivity {
        &self.throughput
    }

    /// Returns the model of the 99th percentile of latency.
    pub fn p99(&self) -> Option<&Sensitivity> {
        self.p99.as_ref()
    }
}

/// Options of a prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictOptions {
    /// Probability with which the interval holds.
    pub confidence: f64,
    /// Composition of the competitors.
    pub composition: Composition,
    /// Properties of the target that differ from the median of its campaign, by metric.
    pub properties: Vec<(String, f64)>,
}

impl Default for PredictOptions {
    fn default() -> Self {
        PredictOptions {
            confidence: 0.9,
            composition: Composition::Equilibrium,
            properties: Vec::new(),
        }
    }
}

/// Prediction for a target beside competitors.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Packets per second.
    pub throughput: Estimate,
    /// The 99th percentile of latency in microseconds, if the campaign measured it.
    pub p99_us: Option<Estimate>,
    /// Throughput relative to that without competitors.
    pub relative: f64,
    /// Resources by their part of the loss, largest first. Empty without competitors or loss.
    pub attributions: Vec<Attribution>,
}

impl Prediction {
    /// Returns the resource that binds: the largest part of the loss.
    pub fn binds(&self) -> Option<&Attribution> {
        self.attributions.first()
    }
}

/// Predicted performance, without the reasons for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Performance {
    /// Packets per second.
    pub throughput: Estimate,
    /// The 99th percentile of latency in microseconds, if the campaign measured it.
    pub p99_us: Option<Estimate>,
}

/// Predicts a target's performance beside competitors.
///
/// # Errors
/// If the models belong to different machines or sources, or the competitors are outside of what the target's campaign
/// covers.
pub fn predict(
    target: &ContentionModel,
    competitors: &[&ContentionModel],
    options: &PredictOptions,
) -> Result<Prediction, PredictError> {
    let Performance { throughput, p99_us } = performance(target, competitors, options)?;
    let mut prediction = Prediction {
        throughput,
        p99_us,
        relative: throughput.value / target.solo.throughput,
        attributions: Vec::new(),
    };
    if !competitors.is_empty() {
        let inputs = inputs_beside(target, &target.throughput, competitors, options)?;
        prediction.attributions = attribute(&target.throughput, &inputs);
    }
    Ok(prediction)
}

/// Predicts as [`predict`] does, without attributions: for the inner loop of a planner.
///
/// # Errors
/// Same as [`predict`].
pub fn performance(
    target: &ContentionModel,
    competitors: &[&ContentionModel],
    options: &PredictOptions,
) -> Result<Performance, PredictError> {
    if let Some(other) = competitors.iter().find(|of| of.key.machine != target.key.machine) {
        return Err(PredictError::OtherMachine {
            first: target.key.machine.clone(),
            other: other.key.machine.clone(),
        });
    }
    if competitors.is_empty() {
        let alone = |value: f64| Estimate {
            value,
            low: value,
            high: value,
            confidence: options.confidence,
        };
        return Ok(Performance {
            throughput: alone(target.solo.throughput),
            p99_us: target.solo.p99_us.map(alone),
        });
    }
    let estimate = |model: &Sensitivity| {
        let inputs = inputs_beside(target, model, competitors, options)?;
        model.predict_at(&inputs, options.confidence)
    };
    Ok(Performance {
        throughput: estimate(&target.throughput)?,
        p99_us: target.p99.as_ref().map(estimate).transpose()?,
    })
}

/// Returns the inputs of one of a target's models beside competitors. Only these are composed: metrics that the model
/// does not use may be missing.
pub(crate) fn inputs_beside(
    target: &ContentionModel,
    model: &Sensitivity,
    competitors: &[&ContentionModel],
    options: &PredictOptions,
) -> Result<Vec<f64>, PredictError> {
    let parts: Vec<&Contentiousness> = competitors.iter().map(|of| &of.contentiousness).collect();
    let mut vector = compose(&model.schema, &target.contentiousness, &parts, options.composition)?;
    for (name, value) in &options.properties {
        vector.set(name, *value);
    }
    model.inputs(&vector)
}
