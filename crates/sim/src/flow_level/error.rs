//! Errors of runs at flow level.

use super::limits::{MOST_WINDOWS, POLICIES};
use crate::chain::ChainError;

/// Reason why a run is impossible at flow level.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FlowLevelError {
    /// The model lacks the policy.
    #[error("policy \"{policy}\" places single flows, or is the bound: the flow-level model has {}", POLICIES.join(", "))]
    Policy {
        /// Name of the policy.
        policy: String,
    },
    /// The chains do not fit on the servers.
    #[error("chains: server {server} has {cores} cores for {chains} chains; at least one each is required")]
    Cores {
        /// Number of the server.
        server: usize,
        /// Its cores.
        cores: usize,
        /// Chains that are placed there.
        chains: usize,
    },
    /// Too many windows.
    #[error("window: {found} windows of all chains exceed {MOST_WINDOWS}; a longer window is required")]
    Windows {
        /// Number of windows.
        found: usize,
    },
    /// A setting is out of its range.
    #[error("{field}: expected {expected}")]
    Setting {
        /// Setting.
        field: &'static str,
        /// Expected value.
        expected: &'static str,
    },
    /// A chain is invalid.
    #[error("chain \"{name}\": {source}")]
    Chain {
        /// Name of the chain.
        name: String,
        /// Cause.
        source: ChainError,
    },
}
