//! Document of `tailwater simulate`.

use serde::Serialize;
use tailwater_sim::{OracleReport, SimReport};

/// Document of `--output json`. Field names are stable.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// Name of the rack.
    pub rack: String,
    /// Model of the simulation: `packets` or `flows`.
    pub model: &'static str,
    /// Number of its servers.
    pub servers: usize,
    /// Number of all their cores.
    pub cores: usize,
    /// At flow level, bytes of the state of the largest chain in progress. Each thread has one chain.
    pub chain_state_bytes: Option<usize>,
    /// `true` if runs are missing, since the command was interrupted.
    pub interrupted: bool,
    /// Results by policy, objective and seed, each in the order of the command line.
    pub runs: Vec<Run>,
    /// Lower bounds for all policies by objective and seed, if requested.
    pub bounds: Vec<Bound>,
}

/// Result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Name of the policy.
    pub policy: &'static str,
    /// Report of the simulation.
    #[serde(flatten)]
    pub report: SimReport,
}

/// Lower bound for all policies.
#[derive(Clone, Debug, Serialize)]
pub struct Bound {
    /// Seed of the run.
    pub seed: u64,
    /// Report of the oracle.
    #[serde(flatten)]
    pub report: OracleReport,
}
