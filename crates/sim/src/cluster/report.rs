//! Report of a simulated rack.

use serde::Serialize;

/// Figures of a run, without its warm-up.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClusterReport {
    /// Seconds.
    pub seconds: u64,
    /// Core-seconds: each second, the cores that have an instance, those that are starting or draining included.
    pub core_seconds: f64,
    /// Lower bound of core-seconds for the same load: see the [module](super).
    pub oracle_core_seconds: f64,
    /// Servers with an instance, on average.
    pub servers: f64,
    /// Seconds times chains.
    pub chain_seconds: u64,
    /// Of these, those in which the objective was kept.
    pub kept: u64,
    /// Instances that were created, for any reason.
    pub created: u64,
    /// Instances that moved: created in place of another one.
    pub moved: u64,
    /// Promises that were changed in place.
    pub resized: u64,
    /// Instances that were drained because others sufficed.
    pub retired: u64,
    /// Actions that a server refused. The controller predicts as servers do, so there are none.
    pub refused: u64,
    /// Servers that failed.
    pub failed: usize,
    /// Chains that had an instance on one of these.
    pub affected: usize,
    /// Seconds from the failure until each of these kept its objective for three seconds, sorted.
    pub recovery: Vec<u64>,
    /// Instances at the end.
    pub instances: usize,
    /// Predictions of a server in a decision: mean and most.
    pub predictions: (f64, u64),
}

impl ClusterReport {
    /// Core-seconds as a multiple of the oracle's.
    pub fn over_oracle(&self) -> f64 {
        self.core_seconds / self.oracle_core_seconds.max(f64::MIN_POSITIVE)
    }

    /// Share of the chain-seconds in which the objective was kept.
    pub fn kept_share(&self) -> f64 {
        self.kept as f64 / self.chain_seconds.max(1) as f64
    }

    /// Moves per minute.
    pub fn moves_per_minute(&self) -> f64 {
        self.moved as f64 * 60.0 / self.seconds.max(1) as f64
    }

    /// Instances created and retired per minute, moves included.
    pub fn changes_per_minute(&self) -> f64 {
        (self.created + self.retired) as f64 * 60.0 / self.seconds.max(1) as f64
    }

    /// Seconds in which this share of the affected chains had recovered.
    pub fn recovered_within(&self, share: f64) -> u64 {
        let last = self.recovery.len().saturating_sub(1) as f64;
        self.recovery.get((last * share).round() as usize).copied().unwrap_or(0)
    }
}
