//! Drift: predictions of a function beside observations of it while it runs.
//!
//! Two things can be wrong, and each has a test of its own:
//!
//! - **The model.** The first observations of each co-run are compared with its prediction. A co-run counts once: its
//!   error is the same as long as it lasts, and an interval of 90 % misses every tenth co-run by design.
//! - **The function** has changed since, by its rules, flows or traffic. Later observations of a co-run are compared
//!   with its own first ones, by the width of the same interval. That interval covers the error of the model and the
//!   noise of an observation; the difference of two observations of one co-run is only noise.
//!
//! In both, an observation is within the interval with a probability of at least the confidence, unless something has
//! changed. Page's cumulative sum (1954) of the log-likelihood ratios decides: it is 0 at least, and crosses the
//! logarithm of the [run length](DriftOptions::run_length) within n observations with a probability of at most n
//! divided by that run length, by Ville's inequality from each start. Every observation enters one of the two tests, so
//! that bound holds for both together.

use crate::sensitivity::Estimate;
use std::collections::BTreeMap;

/// Maximum number of co-runs of a function that are remembered. Beyond it, the one that was not seen for longest is
/// forgotten.
pub const MAX_CO_RUNS: usize = 1024;

/// Options of a [`DriftMonitor`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DriftOptions {
    /// Share of observations outside of their interval that is to be detected; above 1 less the confidence, at most 1.
    pub missed: f64,
    /// Bound on false requests: within n observations, one is made with a probability of at most n divided by this.
    pub run_length: f64,
    /// Number of observations of a co-run whose mean is its first.
    pub first: u32,
}

impl Default for DriftOptions {
    fn default() -> Self {
        DriftOptions {
            missed: 0.3,
            run_length: 100_000.0,
            first: 8,
        }
    }
}

/// Mistake in an observation or in options.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DriftError {
    /// An option cannot be used.
    #[error("expected {expected}, found {found}")]
    Option {
        /// Expected value.
        expected: &'static str,
        /// Value found.
        found: f64,
    },
    /// The observed or predicted value is no performance.
    #[error("expected a finite value above 0, found {found}")]
    Value {
        /// Value found.
        found: f64,
    },
    /// A prediction has another confidence than the monitor.
    #[error("expected a prediction with confidence {expected}, found {found}")]
    Confidence {
        /// Confidence of the monitor.
        expected: f64,
        /// Confidence of the prediction.
        found: f64,
    },
}

/// Reason to profile a function again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Drift {
    /// Co-runs are outside of their intervals more often than the confidence permits: the model is wrong.
    Model {
        /// Co-runs that were compared.
        co_runs: u64,
        /// Those outside of their intervals.
        outside: u64,
    },
    /// Co-runs are no longer as they were: the function, its rules or its traffic have changed.
    Function {
        /// Observations that were compared.
        observations: u64,
        /// Those further from their co-run's first than the interval is wide.
        outside: u64,
    },
}

impl std::fmt::Display for Drift {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Drift::Model { co_runs, outside } => write!(
                f,
                "{outside} of {co_runs} co-runs were outside of their predicted intervals: measure a new campaign"
            ),
            Drift::Function { observations, outside } => write!(
                f,
                "{outside} of {observations} observations differ from the same co-run before: the chain, its rules or \
                 its traffic have changed; measure a new campaign"
            ),
        }
    }
}

/// A function beside certain co-runners: its prediction, and the observations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoRun {
    /// Prediction.
    pub predicted: Estimate,
    /// Number of observations.
    pub observations: u64,
    /// Mean of the first observations: geometric, in the unit of the prediction. Complete after as many as the option
    /// says.
    pub first: f64,
    /// Last observation.
    pub last: f64,
    /// Time of the last observation, in observations of the function.
    seen: u64,
}

impl CoRun {
    /// Returns `true` if the mean of the first observations is outside of the interval.
    pub fn is_outside(&self) -> bool {
        !(self.predicted.low..=self.predicted.high).contains(&self.first)
    }
}

/// Page's cumulative sum over observations that are inside or outside of their interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sum {
    value: f64,
    count: u64,
    outside: u64,
}

impl Sum {
    /// Returns `true` if the sum crosses the threshold.
    fn add(&mut self, is_outside: bool, weights: &Weights) -> bool {
        self.count += 1;
        self.outside += u64::from(is_outside);
        let step = if is_outside { weights.outside } else { weights.inside };
        self.value = (self.value + step).max(0.0);
        self.value >= weights.threshold
    }
}

/// Log-likelihood ratios of one observation.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Weights {
    outside: f64,
    inside: f64,
    threshold: f64,
}

/// Predictions of a function, kept beside observations of what runs.
#[derive(Clone, Debug, PartialEq)]
pub struct DriftMonitor {
    confidence: f64,
    options: DriftOptions,
    weights: Weights,
    model: Sum,
    function: Sum,
    co_runs: BTreeMap<Vec<String>, CoRun>,
    observations: u64,
    drift: Option<Drift>,
}

impl DriftMonitor {
    /// Creates a monitor for predictions with intervals of `confidence`.
    ///
    /// # Errors
    /// If an option cannot be used.
    pub fn new(confidence: f64, options: DriftOptions) -> Result<DriftMonitor, DriftError> {
        let permitted = 1.0 - confidence;
        let option = |is_valid: bool, expected, found| match is_valid {
            true => Ok(()),
            false => Err(DriftError::Option { expected, found }),
        };
        option(
            confidence > 0.0 && confidence < 1.0,
            "a confidence above 0 and below 1",
            confidence,
        )?;
        option(
            options.missed > permitted && options.missed <= 1.0,
            "a share of missed observations above 1 less the confidence and at most 1",
            options.missed,
        )?;
        option(
            options.run_length.is_finite() && options.run_length > 1.0,
            "a run length above 1",
            options.run_length,
        )?;
        option(options.first > 0, "at least one first observation", 0.0)?;
        // At a share of 1 a single observation inside would rule drift out for ever.
        let missed = options.missed.min(0.999);
        Ok(DriftMonitor {
            confidence,
            options,
            weights: Weights {
                outside: (missed / permitted).ln(),
                inside: ((1.0 - missed) / confidence).ln(),
                threshold: options.run_length.ln(),
            },
            model: Sum::default(),
            function: Sum::default(),
            co_runs: BTreeMap::new(),
            observations: 0,
            drift: None,
        })
    }

    /// Adds an observation of the function beside co-runners (their names, in any order), of the predicted quantity.
    /// Returns the reason to profile the function again, which stays until [`reset`](Self::reset).
    ///
    /// A co-run with another prediction than before, such as by a new model, starts over.
    ///
    /// # Errors
    /// If a value is not finite and above 0, or the prediction has another confidence. Nothing is added then.
    pub fn observe(
        &mut self,
        co_runners: &[&str],
        predicted: &Estimate,
        observed: f64,
    ) -> Result<Option<Drift>, DriftError> {
        for value in [observed, predicted.value, predicted.low, predicted.high] {
            if !(value.is_finite() && value > 0.0) {
                return Err(DriftError::Value { found: value });
            }
        }
        if (predicted.confidence - self.confidence).abs() > 1e-9 {
            return Err(DriftError::Confidence {
                expected: self.confidence,
                found: predicted.confidence,
            });
        }
        let mut names: Vec<String> = co_runners.iter().map(|name| (*name).to_owned()).collect();
        names.sort_unstable();
        self.observations += 1;
        if !self.co_runs.contains_key(&names) {
            self.forget_oldest();
        }
        let start = CoRun {
            predicted: *predicted,
            observations: 0,
            first: 1.0,
            last: observed,
            seen: 0,
        };
        let co_run = self.co_runs.entry(names).or_insert(start);
        if co_run.predicted != *predicted {
            *co_run = start;
        }
        co_run.observations += 1;
        (co_run.last, co_run.seen) = (observed, self.observations);
        let (count, first) = (co_run.observations, u64::from(self.options.first));
        let crossed = if count <= first {
            // Geometric mean of the observations so far.
            let share = 1.0 / count as f64;
            co_run.first = (co_run.first.ln() * (1.0 - share) + observed.ln() * share).exp();
            count == first && self.model.add(co_run.is_outside(), &self.weights)
        } else {
            let width = (predicted.high / predicted.value).ln().abs();
            let moved = (observed / co_run.first).ln().abs();
            self.function.add(moved > width, &self.weights)
        };
        if crossed && self.drift.is_none() {
            self.drift = Some(match count <= first {
                true => Drift::Model {
                    co_runs: self.model.count,
                    outside: self.model.outside,
                },
                false => Drift::Function {
                    observations: self.function.count,
                    outside: self.function.outside,
                },
            });
        }
        Ok(self.drift)
    }

    /// Returns the reason to profile the function again, if there is one.
    pub fn drift(&self) -> Option<Drift> {
        self.drift
    }

    /// Returns the co-runs, by the sorted names of the co-runners.
    pub fn co_runs(&self) -> impl ExactSizeIterator<Item = (&[String], &CoRun)> {
        self.co_runs.iter().map(|(names, co_run)| (&names[..], co_run))
    }

    /// Forgets everything, because the function was profiled again.
    pub fn reset(&mut self) {
        (self.model, self.function) = (Sum::default(), Sum::default());
        self.co_runs.clear();
        (self.observations, self.drift) = (0, None);
    }

    fn forget_oldest(&mut self) {
        if self.co_runs.len() < MAX_CO_RUNS {
            return;
        }
        let oldest = self.co_runs.iter().min_by_key(|(_, co_run)| co_run.seen);
        if let Some(names) = oldest.map(|(names, _)| names.clone()) {
            self.co_runs.remove(&names);
        }
    }
}
