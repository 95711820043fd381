//! Figures of all running chains, for readers on other threads.

use std::sync::{Arc, Mutex, PoisonError};
use tailwater_api::Slo;
use tailwater_dataplane::run::Progress;

/// Latest progress of a run.
pub(super) type Latest = Arc<Mutex<Option<Box<Progress>>>>;

/// Chain whose figures can be read at any time. They are those of its last window, which its watching thread collected:
/// readers never wait for the data path.
#[derive(Clone, Debug)]
pub struct ChainFigures {
    /// Name of the chain.
    pub name: String,
    /// Name of its port.
    pub port: String,
    /// Its objective.
    pub slo: Slo,
    /// Its dedicated cores.
    pub cores: Vec<usize>,
    pub(super) latest: Latest,
}

impl ChainFigures {
    /// Latest progress, if there has been some.
    pub fn progress(&self) -> Option<Progress> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.as_deref().cloned()
    }
}

/// Chains of a machine as they come and go.
#[derive(Clone, Debug, Default)]
pub struct Figures(Arc<Mutex<Vec<ChainFigures>>>);

impl Figures {
    /// Chains that run, sorted by name.
    pub fn chains(&self) -> Vec<ChainFigures> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn replace(&self, chains: Vec<ChainFigures>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = chains;
    }
}
