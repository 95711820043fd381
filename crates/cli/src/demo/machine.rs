//! Check of the machine: a live comparison takes two cores with little CPU interference.

use super::experiment::{Experiment, MOST_PREEMPTED, WINDOW};
use crate::error::CliError;
use serde::Serialize;
use tailwater_dataplane::cores::{available, default_core};
use tailwater_doctor::{Gaps, GapsByWindow, Purpose, measure_gaps};
use tailwater_net::Nanos;

/// Time for which cores are watched.
const WATCHED: Nanos = Nanos::from_millis(500);

/// Cores of the machine, and their CPU interference. Field names are stable.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Number of cores that this program may use.
    pub usable_cores: usize,
    /// Core that receives packets.
    pub dedicated_core: usize,
    /// Auxiliary core; `None` with one usable core.
    pub auxiliary_core: Option<usize>,
    /// Windows for which the two cores were watched; 0 if there is one.
    pub windows: usize,
    /// Of those, windows with CPU interference on either core, by the rule that live runs are judged by.
    pub windows_with_interference: usize,
    /// Preemptions of a polling thread on each of the two cores; empty if there is one.
    pub gaps: Vec<Gaps>,
}

impl Machine {
    /// Chooses two cores and measures their CPU interference.
    ///
    /// # Errors
    /// A thread cannot be started or pinned.
    pub(super) fn watch(experiment: &Experiment) -> Result<Machine, CliError> {
        let cores = available();
        let dedicated_core = default_core();
        let auxiliary_core = cores.iter().copied().find(|core| *core != dedicated_core);
        let watched = match auxiliary_core {
            None => Vec::new(),
            Some(auxiliary) => {
                let purpose = Purpose {
                    slo: experiment.spec.slo.budget(),
                    cores: vec![dedicated_core, auxiliary],
                    has_dpdk: cfg!(feature = "dpdk"),
                };
                let watched = measure_gaps(&purpose, WATCHED, WINDOW, &experiment.stop);
                watched.map_err(|source| CliError::System {
                    what: "cores cannot be watched",
                    source,
                })?
            }
        };
        let interference = interference(&watched);
        Ok(Machine {
            usable_cores: cores.len(),
            dedicated_core,
            auxiliary_core,
            windows: interference.len(),
            windows_with_interference: interference.iter().filter(|window| **window).count(),
            gaps: watched.into_iter().map(|core| core.gaps).collect(),
        })
    }

    /// Reason against a live comparison, with the measured figure; `None` if there is none.
    pub fn why_not(&self) -> Option<String> {
        if self.auxiliary_core.is_none() {
            let cores = self.usable_cores;
            return Some(format!(
                "this program may use {cores} core, and the comparison takes two"
            ));
        }
        let limit = self.windows / 2;
        let away = |gaps: &Gaps| gaps.all.as_secs_f64() / gaps.watched.as_secs_f64().max(1e-9);
        let worst = self.gaps.iter().max_by(|a, b| away(a).total_cmp(&away(b)))?;
        (self.windows_with_interference > limit).then(|| {
            format!(
                "this machine is too busy to judge: {} of {} windows of {WINDOW} had CPU interference (limit {limit}), and core {} \
                 was taken away for {:.1} % of the time",
                self.windows_with_interference,
                self.windows,
                worst.core,
                100.0 * away(worst),
            )
        })
    }
}

/// For each window, whether a core was preempted in it or in the window before for too long.
fn interference(watched: &[GapsByWindow]) -> Vec<bool> {
    let most = MOST_PREEMPTED * WINDOW.as_secs_f64();
    let windows = watched.iter().map(|core| core.preempted.len()).min().unwrap_or(0);
    let preempted = |window: usize| watched.iter().any(|core| core.preempted[window].as_secs_f64() > most);
    (0..windows)
        .map(|window| preempted(window) || window.checked_sub(1).is_some_and(preempted))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(core: usize, away_ms: u64) -> Gaps {
        Gaps {
            core,
            watched: WATCHED,
            count: 1,
            all: Nanos::from_millis(away_ms),
            longest: Nanos::from_millis(away_ms),
            windows: 2,
            windows_missed: 0,
        }
    }

    #[test]
    fn a_busy_machine_says_which_core_and_how_much() {
        let mut machine = Machine {
            usable_cores: 2,
            dedicated_core: 1,
            auxiliary_core: Some(0),
            windows: 25,
            windows_with_interference: 12,
            gaps: vec![gaps(1, 5), gaps(0, 100)],
        };
        assert_eq!(machine.why_not(), None);
        machine.windows_with_interference = 13;
        let why = machine.why_not().unwrap();
        let figures = "13 of 25 windows of 20ms had CPU interference (limit 12), and core 0 was taken away for 20.0 %";
        assert!(why.contains(figures), "{why}");
    }

    #[test]
    fn a_window_inherits_the_interference_of_the_one_before() {
        let core = |preempted: &[u64]| GapsByWindow {
            gaps: gaps(0, 0),
            preempted: preempted.iter().map(|us| Nanos::from_micros(*us)).collect(),
        };
        // 1 % of 20 ms are 200 us. The last window of one core has no counterpart.
        let watched = [core(&[0, 0, 201, 0, 0, 0]), core(&[200, 0, 0, 0, 0, 9000, 9000])];
        assert_eq!(interference(&watched), [false, false, true, true, false, true]);
        assert!(interference(&[]).is_empty());
    }

    #[test]
    fn one_core_is_too_few() {
        let machine = Machine {
            usable_cores: 1,
            dedicated_core: 0,
            auxiliary_core: None,
            windows: 0,
            windows_with_interference: 0,
            gaps: Vec::new(),
        };
        assert!(machine.why_not().unwrap().contains("may use 1 core"));
    }
}
