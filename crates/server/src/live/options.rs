//! Options of a machine.

use super::reading::ChainReader;
use super::{LiveMachine, Profiler, ReadIsolated};
use std::path::PathBuf;
use tailwater_dataplane::kept_packets::{KeptConfig, KeptObserver};
use tailwater_functions::spec::ChainSpec;

impl LiveMachine {
    /// Runs functions in processes of their own where a chain requests it; `read` reads such a chain. Without this, it
    /// is refused.
    #[must_use]
    pub fn isolating(mut self, read: ReadIsolated) -> LiveMachine {
        self.reader = ChainReader::isolating(read);
        self
    }

    /// Measures profiles that are missing by `profiler`.
    #[must_use]
    pub fn profiling(mut self, profiler: Box<dyn Profiler>) -> LiveMachine {
        self.profiler = Some(profiler);
        self
    }

    /// Keeps late, lost and dropped packets of chains in `directory`, if there is one: each chain's in a folder of its
    /// own. `observer` gets them as well.
    #[must_use]
    pub fn keeping_packets(mut self, directory: Option<PathBuf>, observer: Option<KeptObserver>) -> LiveMachine {
        self.keep_packets = directory.map(|directory| KeptConfig { directory, observer });
        self
    }

    /// Where a chain's packets are kept; `None` if they are not, as with external functions.
    pub(super) fn kept(&self, spec: &ChainSpec) -> Option<KeptConfig> {
        let kept = self
            .keep_packets
            .as_ref()
            .filter(|_| spec.externals().next().is_none())?;
        Some(KeptConfig {
            directory: kept.directory.join(&spec.name),
            observer: kept.observer.clone(),
        })
    }
}
