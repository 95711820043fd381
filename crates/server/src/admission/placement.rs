//! Cores and promise of a chain.

use std::sync::Arc;
use tailwater_placement::core_shares::{Claim, Predicted};
use tailwater_placement::policing::Policed;

/// Cores and cache that the chains of a machine share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Numbers of the cores.
    pub cores: Vec<u32>,
    /// Bytes of the last-level cache.
    pub cache_bytes: u64,
}

/// Promise to a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Promise {
    /// Its throughput within its latency objective, by its profile.
    Promised,
    /// None: the chain gets the time that others leave.
    None,
    /// The server did not check whether it fits.
    #[default]
    Unchecked,
}

/// Cores and promise of a chain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placement {
    /// Numbers of its cores; none before they are decided.
    pub cores: Vec<u32>,
    /// Promise.
    pub promise: Promise,
    /// Reason of a missing promise: one line, possibly empty.
    pub reason: String,
    /// Throughput, latency and curves of a promise.
    pub claim: Option<Arc<Claim>>,
    /// Prediction beside the other chains, for a promise.
    pub predicted: Option<Predicted>,
    /// Cap of a promised chain, if promised chains are capped.
    pub cap: Option<Policed>,
    /// Weight among the chains of each of its cores; 0 if it was not decided.
    pub weight: u32,
}

impl Placement {
    /// Placement of a stored chain, which is decided anew.
    pub(crate) fn on(cores: Vec<u32>) -> Placement {
        Placement {
            cores,
            ..Placement::default()
        }
    }
}
