//! Chains whose profiles are measured before they are admitted.

use super::Manager;
use crate::admission;
use crate::chain::{AppliedChain, Manifest};
use crate::configuration::{Configuration, ControlError};
use crate::events::Severity;
use crate::generation::Store;
use crate::machine::{Machine, Refusal};
use crate::request::{Applied, ApplyRequest, Preview};
use std::sync::Arc;
use tailwater_net::Nanos;

impl<M: Machine, S: Store> Manager<M, S> {
    /// Returns the chains of an apply, without changing anything.
    ///
    /// # Errors
    /// A manifest is wrong, or two chains contradict each other.
    pub(crate) fn preview(&self, request: &ApplyRequest) -> Result<Preview, ControlError> {
        let failed = self.failed();
        Ok(self.preview_of(&self.with(&failed).apply(request)?))
    }

    /// Same, of the chains of the specification's files and folders.
    ///
    /// # Errors
    /// Same as [`preview`](Self::preview).
    pub(crate) fn preview_listed(&self, manifests: &[Manifest]) -> Result<Preview, ControlError> {
        let failed = self.failed();
        Ok(self.preview_of(&self.with(&failed).listed(manifests)?))
    }

    fn preview_of(&self, (next, applied): &(Configuration, Vec<Applied>)) -> Preview {
        Preview {
            names: applied.iter().map(|applied| applied.name.clone()).collect(),
            unprofiled: self.unprofiled(next),
        }
    }

    fn unprofiled(&self, next: &Configuration) -> Vec<Arc<AppliedChain>> {
        admission::unprofiled(&self.machine, self.server.admission.as_ref(), &self.current, next)
    }

    /// Checks that no chain still has to be profiled, unless nothing changes by a request.
    pub(super) fn profiled(
        &self,
        (next, applied): (Configuration, Vec<Applied>),
        dry_run: bool,
    ) -> Result<(Configuration, Vec<Applied>), ControlError> {
        let missing = if dry_run { Vec::new() } else { self.unprofiled(&next) };
        let lines = missing
            .iter()
            .map(|chain| format!("chain \"{}\": has no profile yet", chain.name));
        match missing.is_empty() {
            true => Ok((next, applied)),
            false => Err(ControlError::Refused(lines.collect::<Vec<_>>().join("\n"))),
        }
    }

    /// Begins to measure the profile of a chain.
    ///
    /// # Errors
    /// The machine cannot.
    pub fn begin_profile(&mut self, chain: &AppliedChain, now: Nanos) -> Result<(), Refusal> {
        let core = self.machine.begin_profile(chain)?;
        let time = self.server.admission.as_ref().map(|spec| spec.measure.time);
        let message = format!(
            "measures its profile on core {core}, for at most {}",
            time.unwrap_or_default()
        );
        self.table
            .event(now, Severity::Normal, Some(&chain.name), "Profiling", &message);
        self.table.publish(self.current.generation);
        Ok(())
    }

    /// Returns the result of the measurement of a chain's profile, once it has ended.
    pub fn poll_profile(&mut self, name: &str, now: Nanos) -> Option<Result<(), Refusal>> {
        let result = self.machine.poll_profile()?;
        let (severity, reason, message) = match &result {
            Ok(()) => (Severity::Normal, "Profiled", String::new()),
            Err(refusal) => (Severity::Warning, "ProfileFailed", refusal.to_string()),
        };
        self.table.event(now, severity, Some(name), reason, &message);
        self.table.publish(self.current.generation);
        Some(result)
    }
}
