//! Flags of a run.

use std::sync::atomic::{AtomicBool, Ordering};

/// Flags of a run that its workers poll.
#[derive(Debug, Default)]
pub(crate) struct WorkerFlags {
    /// The run is to end.
    pub(crate) stop: AtomicBool,
    /// A thread did not start, or panicked: the others end.
    pub(crate) failed: AtomicBool,
}

impl WorkerFlags {
    /// Ends the run's other workers.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn are_set(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.failed.load(Ordering::Relaxed)
    }
}
