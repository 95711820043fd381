//! Runs with their interference, and the time that is left to replace those that had some.

use super::AGAIN;
use crate::error::TrainError;
use crate::interference::{Conditions, Monitor, Speed};
use crate::measurement_core::{has_few_windows, lost};
use std::cell::Cell;
use tailwater_dataplane::report::RunReport;
use tailwater_net::Nanos;

/// Conditions of a curve's runs, and the time that is left to replace disturbed ones.
pub(super) struct Watch {
    monitor: Monitor,
    whole: Nanos,
    left: Cell<Nanos>,
}

impl Watch {
    /// Watches runs of this length on a core; `beside` if another core is kept busy meanwhile.
    pub(super) fn new(core: usize, beside: bool, run: Nanos) -> Watch {
        let whole = Nanos(run.0 * AGAIN);
        Watch {
            monitor: Monitor::new(core, beside),
            whole,
            left: Cell::new(whole),
        }
    }

    /// Returns the core's best speed so far.
    pub(super) fn best(&self) -> Option<Speed> {
        self.monitor.best()
    }

    /// Returns `true` if there is time to replace disturbed runs.
    pub(super) fn may_repeat(&self) -> bool {
        self.left.get() > Nanos::ZERO
    }

    /// Spends time on a run that others replace, or that is one more than the rule requires.
    pub(super) fn spend(&self, length: Nanos) {
        self.left.set(self.left.get().saturating_sub(length));
    }

    /// Starts anew with the whole time.
    pub(super) fn renew(&self) {
        self.left.set(self.whole);
    }

    /// Runs with the reference loops before and after.
    pub(super) fn run<R>(
        &self,
        run: impl FnOnce() -> Result<R, TrainError>,
        report: impl FnOnce(&R) -> &RunReport,
    ) -> Result<(R, Conditions), TrainError> {
        let before = self.monitor.begin()?;
        let outcome = run()?;
        let report = report(&outcome);
        let conditions = Conditions {
            length: Nanos::from_secs_f64(report.duration_s),
            lost: lost(report),
            has_few_windows: has_few_windows(report),
            ..self.monitor.end(&before)?
        };
        Ok((outcome, conditions))
    }
}
