//! Retries of watched files whose steps failed.

use crate::configuration::ControlError;
use crate::error::ServeError;
use std::time::{Duration, Instant};

/// First and longest wait. Each failure doubles it.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// Time at which the chains of watched files are applied again, although the files have not changed: a step failed,
/// such as the start of a chain whose predecessor was still draining. Wrong files and chains that do not fit are not
/// tried again.
#[derive(Debug, Default)]
pub(super) struct FolderRetry {
    at: Option<Instant>,
    failures: u32,
}

impl FolderRetry {
    /// Notes the result of an attempt. Returns the time until the next one, if there will be one.
    pub(super) fn note(&mut self, result: &Result<(), ServeError>, now: Instant) -> Option<Duration> {
        match result {
            Err(ServeError::Chains(ControlError::Failed(_))) => {
                let wait = FIRST.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
                self.failures += 1;
                self.at = Some(now + wait);
                Some(wait)
            }
            _ => {
                *self = FolderRetry::default();
                None
            }
        }
    }

    /// Returns `true` once when it is time for the next attempt.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        self.at.take_if(|at| now >= *at).is_some()
    }

    /// Files have changed: the next attempt is the first one of these.
    pub(super) fn restart(&mut self) {
        *self = FolderRetry::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_steps_are_tried_again_and_wrong_files_are_not() {
        let failed = || Err(ServeError::Chains(ControlError::Failed("a step".into())));
        let refused = || Err(ServeError::Chains(ControlError::Refused("too large".into())));
        let (mut retry, began) = (FolderRetry::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        assert!(!retry.is_due(at(100)));
        let waits: Vec<_> = (0..8)
            .map(|_| retry.note(&failed(), at(0)).unwrap().as_secs())
            .collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert!(!retry.is_due(at(59)) && retry.is_due(at(60)) && !retry.is_due(at(61)));
        for result in [Ok(()), refused()] {
            retry.note(&failed(), at(0));
            assert_eq!(retry.note(&result, at(0)), None);
            assert!(!retry.is_due(at(1000)));
        }
        assert_eq!(retry.note(&failed(), at(0)), Some(FIRST));
        retry.restart();
        assert!(!retry.is_due(at(1000)));
    }
}
