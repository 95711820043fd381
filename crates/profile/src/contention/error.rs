//! Errors of measuring contention.

use super::source::SourceError;
use crate::error::TrainError;
use crate::sweep::SweepError;
use tailwater_api::SpecError;
use tailwater_predict::{CampaignError, MetricError, PlanError};

/// Reason why contention cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum ContentionError {
    /// A run failed, or measuring was stopped.
    #[error(transparent)]
    Sweep(#[from] SweepError),
    /// The source of metrics cannot be used.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A competitor's chain is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A measured value cannot be part of a campaign.
    #[error(transparent)]
    Campaign(#[from] CampaignError),
    /// The plan of the points does not fit the campaign.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A point of the plan is not of a synthetic load.
    #[error("the plan lacks the parameter {0} of the synthetic competitor")]
    Parameter(&'static str),
    /// No other core shares the cache with the target's.
    #[error(
        "no other core shares the last-level cache of core {core}: expected an available one, on which competitors run"
    )]
    Alone {
        /// The target's core.
        core: usize,
    },
    /// There are fewer cores than competitors.
    #[error("expected at most {cores} competitors, one a core beside the target's, found {found}")]
    Competitors {
        /// Cores for competitors.
        cores: usize,
        /// Number of competitors.
        found: usize,
    },
    /// A competitor processed nothing.
    #[error("the competitor on core {core} processes no packets")]
    NoPackets {
        /// Its core.
        core: usize,
    },
    /// A thread cannot be started.
    #[error("cannot start a competitor: {0}")]
    Thread(std::io::Error),
}

impl ContentionError {
    /// Error of a measurement that the caller stopped.
    pub(super) fn stopped() -> ContentionError {
        SweepError::Run(TrainError::Stopped).into()
    }

    /// Returns `true` if the caller stopped the measurement.
    pub fn is_stopped(&self) -> bool {
        matches!(self, ContentionError::Sweep(SweepError::Run(TrainError::Stopped)))
    }
}

impl From<MetricError> for ContentionError {
    fn from(error: MetricError) -> Self {
        ContentionError::Campaign(error.into())
    }
}
