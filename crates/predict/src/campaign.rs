//! Observations of a function beside competitors.

use crate::metric::{MetricError, Schema, Vector};
use std::sync::Arc;

/// Maximum number of observations of a campaign.
pub const MAX_OBSERVATIONS: usize = 20_000;
/// Maximum number of competitors.
pub const MAX_COMPETITORS: u32 = 1024;

/// Scope of a campaign: measurements of another one say nothing about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// The function or chain, an RFC 1123 label.
    pub function: String,
    /// Fingerprint of its configuration.
    pub configuration: String,
    /// Its traffic.
    pub traffic: String,
    /// The machine.
    pub machine: String,
}

/// Co-run of the target and its competitors.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Setting of the competitors. Observations of a group are in the same fold of a cross-validation.
    pub group: u32,
    /// Number of competitors; 0 when the target ran alone.
    pub competitors: u32,
    /// The competitors' vector V, with the target's properties.
    pub competition: Vector,
    /// The target's packets per second.
    pub throughput: f64,
    /// Its 99th percentile of latency, microseconds.
    pub p99_us: Option<f64>,
    /// The target's own vector in this co-run.
    pub own: Option<Vector>,
    /// The measurement was disturbed, and is not used.
    pub flagged: bool,
}

/// Mistake in a campaign.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CampaignError {
    /// Metrics do not fit together.
    #[error(transparent)]
    Metric(#[from] MetricError),
    /// A value cannot be used.
    #[error("observation {at}: expected {expected}, found {found}")]
    Value {
        /// Number of the observation, from 1.
        at: usize,
        /// Expected value.
        expected: &'static str,
        /// Value found.
        found: String,
    },
    /// There are too many observations.
    #[error("expected at most {MAX_OBSERVATIONS} observations")]
    TooMany,
}

/// All observations of a target.
#[derive(Clone, Debug, PartialEq)]
pub struct Campaign {
    key: Key,
    schema: Arc<Schema>,
    observations: Vec<Observation>,
}

impl Campaign {
    /// Creates a campaign without observations.
    pub fn new(key: Key, schema: Arc<Schema>) -> Campaign {
        Campaign {
            key,
            schema,
            observations: Vec::new(),
        }
    }

    /// Adds an observation.
    ///
    /// # Errors
    /// If its metrics are not the campaign's, or a value is not finite and above 0.
    pub fn push(&mut self, observation: Observation) -> Result<(), CampaignError> {
        if self.observations.len() >= MAX_OBSERVATIONS {
            return Err(CampaignError::TooMany);
        }
        for vector in [Some(&observation.competition), observation.own.as_ref()]
            .into_iter()
            .flatten()
        {
            // The order of the values is that of the schema, so the whole schema must be the same.
            if **vector.schema() != *self.schema {
                self.schema.positions_in(vector.schema())?;
                let found = "metrics in another order".to_owned();
                return Err(MetricError::Value { found }.into());
            }
        }
        let at = self.observations.len() + 1;
        let checks = [
            ("packets/s above 0", Some(observation.throughput)),
            ("a p99 in microseconds above 0", observation.p99_us),
        ];
        for (expected, value) in checks {
            if let Some(value) = value
                && !(value.is_finite() && (1e-9..=1e15).contains(&value))
            {
                let found = value.to_string();
                return Err(CampaignError::Value { at, expected, found });
            }
        }
        if observation.competitors > MAX_COMPETITORS {
            return Err(CampaignError::Value {
                at,
                expected: "at most 1024 competitors",
                found: observation.competitors.to_string(),
            });
        }
        self.observations.push(observation);
        Ok(())
    }

    /// Returns the scope.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the metrics.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Returns the observations.
    pub fn observations(&self) -> &[Observation] {
        &self.observations
    }

    /// Returns the observations that were not disturbed.
    pub fn usable(&self) -> impl Iterator<Item = &Observation> {
        self.observations.iter().filter(|of| !of.flagged)
    }

    /// Returns the target's performance alone: the median of the observations without competitors. Where there are
    /// none, the best of all observations stands for it. `None` without observations.
    pub fn solo(&self) -> Option<Solo> {
        let alone: Vec<&Observation> = self.usable().filter(|of| of.competitors == 0).collect();
        let rates = |of: &[&Observation]| of.iter().map(|of| of.throughput).collect::<Vec<f64>>();
        let delays = |of: &[&Observation]| of.iter().filter_map(|of| of.p99_us).collect::<Vec<f64>>();
        if !alone.is_empty() {
            return Some(Solo {
                throughput: median(rates(&alone))?,
                p99_us: median(delays(&alone)),
                measured: true,
            });
        }
        let all: Vec<&Observation> = self.usable().collect();
        let least = delays(&all).into_iter().reduce(f64::min);
        Some(Solo {
            throughput: rates(&all).into_iter().reduce(f64::max)?,
            p99_us: least,
            measured: false,
        })
    }

    /// Returns a campaign of some of the observations, by position.
    pub fn subset(&self, positions: &[usize]) -> Campaign {
        let chosen = positions.iter().filter_map(|at| self.observations.get(*at));
        Campaign {
            key: self.key.clone(),
            schema: self.schema.clone(),
            observations: chosen.cloned().collect(),
        }
    }
}

/// Performance without competitors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Solo {
    /// Packets per second.
    pub throughput: f64,
    /// The 99th percentile of latency, microseconds.
    pub p99_us: Option<f64>,
    /// `false` if it is the best co-run, because the target was not measured alone.
    pub measured: bool,
}

/// Returns the median; `None` of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() % 2 {
        1 => values.get(middle).copied(),
        _ if values.is_empty() => None,
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}
