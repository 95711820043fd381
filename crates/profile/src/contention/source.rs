//! Sources of contention metrics, behind one interface: the `predict` crate decides by vectors, whatever measured them.

use std::path::Path;
use std::sync::Arc;
use tailwater_dataplane::cores::CoreError;
use tailwater_predict::{MetricError, Schema};

/// Cores during an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scene<'a> {
    /// Cores whose programs are observed.
    pub subjects: &'a [usize],
    /// Core under the same cache and memory on which nothing of ours runs.
    pub free: usize,
}

/// Values of an observation.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// A value for each metric of the schema; `None` if it could not be measured.
    pub values: Vec<Option<f64>>,
    /// `true` if other programs or guests disturbed the measurement.
    pub is_disturbed: bool,
}

/// Source of contention metrics: counters of the processor, or [probes](super::Probes).
pub trait MetricSource {
    /// Returns the metrics, with their source.
    fn schema(&self) -> &Arc<Schema>;

    /// Prepares observations with this free core, while nothing of ours runs. Returns `true` if the measurement was
    /// disturbed.
    ///
    /// # Errors
    /// The core cannot be used.
    fn prepare(&mut self, free: usize) -> Result<bool, SourceError>;

    /// Observes programs that run now.
    ///
    /// # Errors
    /// The core cannot be used, or was not prepared.
    fn observe(&mut self, scene: Scene<'_>) -> Result<Reading, SourceError>;
}

/// Reason why a source of metrics cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The machine has no counters of the processor.
    #[error("no performance counters: the kernel has no PMU of the processor ({folder}); expected probes")]
    NoCounters {
        /// Folder in which the kernel would list it.
        folder: String,
    },
    /// This program does not read the counters that exist.
    #[error("performance counters of {found} exist, but this version reads none: expected probes")]
    Unread {
        /// Name of the PMU.
        found: String,
    },
    /// The core of a probe cannot be used.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// The kernel does not describe the caches.
    #[error("the kernel reports no last-level cache (/sys/devices/system/cpu/cpu{core}/cache)")]
    Caches {
        /// Core to be measured.
        core: usize,
    },
    /// There is no memory for the probes.
    #[error("no memory for probes: {0}")]
    Memory(#[from] std::io::Error),
    /// The metrics are invalid.
    #[error(transparent)]
    Metrics(#[from] MetricError),
    /// An observation was requested before its preparation.
    #[error("core {core} was not prepared for an observation")]
    Unprepared {
        /// The core.
        core: usize,
    },
}

/// Folder in which the kernel lists counters.
const PMUS: &str = "/sys/bus/event_source/devices";

/// Opens the counters of the processor (perf events).
///
/// # Errors
/// Always: where the kernel has no PMU, as in most virtual machines, for that reason; elsewhere because nothing reads
/// them yet.
pub fn counters() -> Result<Box<dyn MetricSource>, SourceError> {
    Err(refusal(Path::new(PMUS)))
}

/// Returns the reason why counters are not used. PMUs of the processor are named `cpu`, or `cpu_core` and such on
/// hybrid processors.
fn refusal(folder: &Path) -> SourceError {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    match names.filter(|name| name.starts_with("cpu")).min() {
        Some(found) => SourceError::Unread { found },
        None => SourceError::NoCounters {
            folder: folder.display().to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_refused_with_the_reason() {
        let folder = std::env::temp_dir().join(format!("tailwater-pmus-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("software")).unwrap();
        let none = refusal(&folder).to_string();
        std::fs::create_dir_all(folder.join("cpu_core")).unwrap();
        let unread = refusal(&folder).to_string();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(none.starts_with("no performance counters: "), "{none}");
        assert!(unread.starts_with("performance counters of cpu_core exist"), "{unread}");
        let error = counters().map(drop).unwrap_err();
        assert!(error.to_string().ends_with("expected probes"), "{error}");
    }
}
