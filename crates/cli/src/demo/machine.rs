//! Check of the machine: a live comparison takes two cores with little CPU interference.

use super::Experiment;
use crate::error::CliError;
use serde::Serialize;
use tailwater_dataplane::cores::{available, default_core};
use tailwater_doctor::{Gaps, Purpose, measure_gaps};
use tailwater_net::Nanos;

/// Time for which cores are watched.
const WATCHED: Nanos = Nanos::from_millis(500);

/// Upper bound of the share of time for which a core may be preempted. Beyond it most windows of a run have CPU interference.
const MOST_AWAY: f64 = 0.03;

/// Cores of the machine, and their CPU interference. Field names are stable.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Number of cores that this program may use.
    pub usable_cores: usize,
    /// Core that receives packets.
    pub dedicated_core: usize,
    /// Auxiliary core; `None` with one usable core.
    pub auxiliary_core: Option<usize>,
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
        let gaps = match auxiliary_core {
            None => Vec::new(),
            Some(auxiliary) => {
                let purpose = Purpose {
                    slo: experiment.spec.slo.budget(),
                    cores: vec![dedicated_core, auxiliary],
                };
                let gaps = measure_gaps(&purpose, WATCHED, &experiment.stop);
                gaps.map_err(|source| CliError::System {
                    what: "cores cannot be watched",
                    source,
                })?
            }
        };
        Ok(Machine {
            usable_cores: cores.len(),
            dedicated_core,
            auxiliary_core,
            gaps,
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
        let away = |gaps: &Gaps| gaps.all.as_secs_f64() / gaps.watched.as_secs_f64().max(1e-9);
        let worst = self.gaps.iter().max_by(|a, b| away(a).total_cmp(&away(b)))?;
        (away(worst) > MOST_AWAY).then(|| {
            format!(
                "this machine is too busy to judge: core {} was taken away for {:.1} % of {} ms (limit {:.0} %)",
                worst.core,
                100.0 * away(worst),
                worst.watched.0 / 1_000_000,
                100.0 * MOST_AWAY
            )
        })
    }
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
            gaps: vec![gaps(1, 5), gaps(0, 10)],
        };
        assert_eq!(machine.why_not(), None);
        machine.gaps[1] = gaps(0, 100);
        let why = machine.why_not().unwrap();
        assert!(
            why.contains("core 0 was taken away for 20.0 % of 500 ms (limit 3 %)"),
            "{why}"
        );
    }

    #[test]
    fn one_core_is_too_few() {
        let machine = Machine {
            usable_cores: 1,
            dedicated_core: 0,
            auxiliary_core: None,
            gaps: Vec::new(),
        };
        assert!(machine.why_not().unwrap().contains("may use 1 core"));
    }
}
