//! Predictor by SLOMO's models, of the crate `predict`.

use super::predictor::{Band, Binding, CoRunPredictor, Effect, Member};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use tailwater_predict::{
    ContentionModel, Estimate, PredictError, PredictOptions, Schema, Sensitivity, performance, predict,
};

/// Maximum number of models.
pub const MAX_MODELS: usize = 4096;
/// Maximum number of predictions that are kept; then all are forgotten.
const MOST_KEPT: usize = 1 << 18;

/// Model of a chain on the servers of a machine.
#[derive(Clone, Debug)]
pub struct ChainModel {
    /// Name of the chain.
    pub chain: String,
    /// Machine of the cluster.
    pub machine: String,
    /// Its model.
    pub model: Arc<ContentionModel>,
}

/// Reason why models cannot be used together.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SlomoError {
    /// A chain has two models on a machine.
    #[error("expected one model of chain {chain} on machine {machine}, found two")]
    Twice {
        /// Name of the chain.
        chain: String,
        /// The machine.
        machine: String,
    },
    /// There are too many models.
    #[error("expected at most {MAX_MODELS} models")]
    TooMany,
    /// The model of a chain does not fit: its intervals, or its metrics beside those of another chain.
    #[error("model of chain {chain}: {error}")]
    Model {
        /// Name of the chain.
        chain: String,
        /// The mistake.
        error: PredictError,
    },
}

/// Prediction by the target, then the others in increasing order.
type Kept = HashMap<Box<[Member]>, Result<Effect, Arc<str>>>;

/// Predictor with the models of chains. Predictions are kept by the multiset of co-runners.
pub struct Slomo {
    models: Vec<ChainModel>,
    by_name: HashMap<String, HashMap<String, Member>>,
    options: PredictOptions,
    kept: RefCell<Kept>,
    key: RefCell<Vec<Member>>,
}

impl Slomo {
    /// Creates a predictor.
    ///
    /// # Errors
    /// Two models are of the same chain and machine, a model has too few observations for the confidence, or models of
    /// a machine have different metrics or sources.
    pub fn new(models: Vec<ChainModel>, confidence: f64) -> Result<Slomo, SlomoError> {
        if models.len() > MAX_MODELS {
            return Err(SlomoError::TooMany);
        }
        let mut by_name: HashMap<String, HashMap<String, Member>> = HashMap::new();
        for (number, ChainModel { chain, machine, .. }) in models.iter().enumerate() {
            let here = by_name.entry(chain.clone()).or_default();
            if here.insert(machine.clone(), Member(number as u32)).is_some() {
                let (chain, machine) = (chain.clone(), machine.clone());
                return Err(SlomoError::Twice { chain, machine });
            }
        }
        check(&models, confidence)?;
        Ok(Slomo {
            by_name,
            options: PredictOptions {
                confidence,
                ..PredictOptions::default()
            },
            kept: RefCell::default(),
            key: RefCell::default(),
            models,
        })
    }

    /// Returns the models.
    pub fn models(&self) -> &[ChainModel] {
        &self.models
    }

    fn model(&self, member: Member) -> &ContentionModel {
        &self.models[member.0 as usize].model
    }

    fn others(&self, others: &[Member]) -> Vec<&ContentionModel> {
        others.iter().map(|other| self.model(*other)).collect()
    }

    fn predicted(&self, target: Member, others: &[Member]) -> Result<Effect, Arc<str>> {
        let model = self.model(target);
        let found = performance(model, &self.others(others), &self.options).map_err(|error| {
            let chain = &self.models[target.0 as usize].chain;
            Arc::<str>::from(format!("model of chain {chain}: {error}"))
        })?;
        let solo = model.solo();
        let relative = |estimate: Estimate, to: f64, limit: fn(f64) -> f64| Band {
            low: limit(estimate.low / to),
            value: limit(estimate.value / to),
            high: limit(estimate.high / to),
        };
        // Others never make an instance faster than alone; an error of the model may say so.
        let throughput = relative(found.throughput, solo.throughput, |share| share.min(1.0));
        // At the same share of load, latency grows at least as the time for a packet does.
        let slower = Band {
            low: 1.0 / throughput.high,
            value: 1.0 / throughput.value,
            high: 1.0 / throughput.low,
        };
        let latency = match (found.p99_us, solo.p99_us) {
            (Some(p99), Some(alone)) => {
                let p99 = relative(p99, alone, |factor| factor);
                Band {
                    low: p99.low.max(slower.low),
                    value: p99.value.max(slower.value),
                    high: p99.high.max(slower.high),
                }
            }
            _ => slower,
        };
        Ok(Effect { throughput, latency })
    }
}

/// Checks that each model has intervals of a confidence, and its metrics in all others of its machine.
fn check(models: &[ChainModel], confidence: f64) -> Result<(), SlomoError> {
    // Of each machine the different schemas: usually one.
    let mut schemas: HashMap<&str, Vec<&Arc<Schema>>> = HashMap::new();
    for ChainModel { machine, model, .. } in models {
        let all = schemas.entry(machine).or_default();
        if !all.contains(&model.schema()) {
            all.push(model.schema());
        }
    }
    for ChainModel { chain, machine, model } in models {
        let fits = |sensitivity: &Sensitivity| -> Result<(), PredictError> {
            sensitivity.check_confidence(confidence)?;
            for other in schemas.get(&**machine).into_iter().flatten() {
                sensitivity.schema().positions_in(other)?;
            }
            Ok(())
        };
        let all = [Some(model.throughput()), model.p99()];
        all.into_iter()
            .flatten()
            .try_for_each(fits)
            .map_err(|error| SlomoError::Model {
                chain: chain.clone(),
                error,
            })?;
    }
    Ok(())
}

impl CoRunPredictor for Slomo {
    fn name(&self) -> &'static str {
        "slomo"
    }

    fn confidence(&self) -> f64 {
        self.options.confidence
    }

    fn member(&self, chain: &str, machine: &str) -> Option<Member> {
        self.by_name.get(chain)?.get(machine).copied()
    }

    fn alone(&self, member: Member) -> Option<f64> {
        Some(self.model(member).solo().throughput)
    }

    fn effect(&self, target: Member, others: &[Member]) -> Result<Effect, Arc<str>> {
        if others.is_empty() {
            return Ok(Effect::NONE);
        }
        let mut key = self.key.borrow_mut();
        key.clear();
        key.push(target);
        key.extend_from_slice(others);
        key[1..].sort_unstable();
        if let Some(found) = self.kept.borrow().get(&key[..]) {
            return found.clone();
        }
        let found = self.predicted(target, &key[1..]);
        let mut kept = self.kept.borrow_mut();
        if kept.len() >= MOST_KEPT {
            kept.clear();
        }
        kept.insert(key.as_slice().into(), found.clone());
        found
    }

    fn binding(&self, target: Member, others: &[Member]) -> Option<Binding> {
        let prediction = predict(self.model(target), &self.others(others), &self.options).ok()?;
        let binds = prediction.binds()?;
        Some(Binding {
            resource: binds.resource.to_string(),
            metric: binds.metric.clone(),
        })
    }
}
