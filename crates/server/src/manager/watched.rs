//! Promises of chains as they are compared with the chains' windows.

use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_placement::core_shares::{Claim, DriftMonitor};

/// Promise of a chain that is compared with its windows.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) claim: Arc<Claim>,
    /// Index of the window that was compared last.
    pub(super) window: Option<u64>,
    pub(super) monitor: DriftMonitor,
    /// Time from which its profile may be measured anew.
    pub(super) again_at: Nanos,
}

impl Watched {
    pub(super) fn new(claim: &Arc<Claim>) -> Watched {
        Watched {
            claim: Arc::clone(claim),
            window: None,
            monitor: DriftMonitor::default(),
            again_at: Nanos::ZERO,
        }
    }
}
