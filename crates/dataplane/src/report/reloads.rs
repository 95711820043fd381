//! Reloads of a chain's files during a run.

use serde::Serialize;
use tailwater_net::Nanos;

/// Maximum number of reloads that a report lists.
const MAX_LISTED: usize = 100;
/// Maximum number of lines of one reload.
const MAX_LINES: usize = 10;

/// Outcome of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ReloadOutcome {
    /// A new configuration is in force.
    Applied,
    /// A file has a mistake: the configuration stays as it was.
    Rejected,
    /// The files have the configuration in force.
    Unchanged,
}

/// Counters of reloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReloadCounters {
    /// Reloads after which a new configuration was in force.
    pub applied: u64,
    /// Reloads rejected because of a mistake in a file.
    pub rejected: u64,
    /// Reloads without a change of the configuration.
    pub unchanged: u64,
    /// The last reload was rejected: the files differ from the configuration in force.
    pub last_rejected: bool,
}

/// Reloads of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ReloadReport {
    /// Their number by outcome.
    #[serde(flatten)]
    pub counters: ReloadCounters,
    /// Reloads in order. The first ones if there were more than 100; the counters include the others.
    pub list: Vec<ReloadEvent>,
}

/// A reload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReloadEvent {
    /// Time from the run's start, in seconds, when the reload was noticed.
    pub at_s: f64,
    /// Its outcome.
    pub outcome: ReloadOutcome,
    /// Configuration in force, or mistakes: the first ten lines.
    pub lines: Vec<String>,
}

impl ReloadReport {
    /// Adds a reload at a time of the run.
    pub(crate) fn add(&mut self, at: Nanos, outcome: ReloadOutcome, mut lines: Vec<String>) {
        let counters = &mut self.counters;
        counters.last_rejected = outcome == ReloadOutcome::Rejected;
        *match outcome {
            ReloadOutcome::Applied => &mut counters.applied,
            ReloadOutcome::Rejected => &mut counters.rejected,
            ReloadOutcome::Unchanged => &mut counters.unchanged,
        } += 1;
        if self.list.len() < MAX_LISTED {
            lines.truncate(MAX_LINES);
            self.list.push(ReloadEvent {
                at_s: at.as_secs_f64(),
                outcome,
                lines,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_many_reloads_is_bounded_and_counts_all() {
        let mut report = ReloadReport::default();
        for number in 0..250 {
            let outcome = [ReloadOutcome::Applied, ReloadOutcome::Rejected][number % 2];
            report.add(Nanos::from_secs(number as u64), outcome, vec!["line".to_owned(); 20]);
        }
        report.add(Nanos::ZERO, ReloadOutcome::Unchanged, Vec::new());
        let counters = ReloadCounters {
            applied: 125,
            rejected: 125,
            unchanged: 1,
            last_rejected: false,
        };
        assert_eq!((report.counters, report.list.len()), (counters, MAX_LISTED));
        assert_eq!((report.list[99].at_s, report.list[99].lines.len()), (99.0, MAX_LINES));
    }
}
