//! Choice of the runs that count, where some had interference.

use super::repeats::{ENOUGH_RUNS, Measured, RepeatRule, Repeats};
use crate::interference::{Conditions, Speed};

/// Maximum number of disturbed runs of a value that are replaced; after them, all count.
pub(crate) const MOST_DISTURBED: usize = 6;
/// Maximum number of further runs of a value whose noise hides a bend.
const FURTHER: usize = 4;

/// A value that is measured several times. Runs with interference are replaced by others, as far as the bounds permit.
///
/// The core's best speed becomes known while measuring. So each run keeps its [`Conditions`], and every decision judges
/// them anew: a run that seemed undisturbed may turn out to have been slow.
#[derive(Clone, Debug)]
pub(crate) struct Attempts {
    rule: RepeatRule,
    runs: Vec<(f64, Conditions)>,
}

impl Attempts {
    /// Starts a measurement.
    pub(crate) fn new(rule: RepeatRule) -> Attempts {
        Attempts { rule, runs: Vec::new() }
    }

    /// Returns the maximum number of undisturbed runs.
    pub(crate) fn most(&self) -> usize {
        self.rule.most
    }

    /// Adds a run's value with its conditions. NaN is ignored.
    pub(crate) fn tell(&mut self, figure: f64, conditions: Conditions) {
        if figure.is_finite() {
            self.runs.push((figure, conditions));
        }
    }

    /// Requires at least one more run, and permits a few, for a value whose noise hides a bend.
    pub(crate) fn extend(&mut self, best: Option<Speed>) {
        let runs = self.undisturbed(best).len();
        self.rule.least = self.rule.least.max(runs + 1);
        self.rule.most = self.rule.most.max(runs + FURTHER);
    }

    /// Returns `true` if the noise is low enough, or the bounds are reached. `may_repeat`: there is time to replace
    /// disturbed runs.
    pub(crate) fn enough(&self, best: Option<Speed>, may_repeat: bool) -> bool {
        let undisturbed = self.undisturbed(best);
        let disturbed = self.runs.len() - undisturbed.len();
        if self.repeats(undisturbed).enough() {
            return true;
        }
        let is_bounded = !may_repeat || disturbed >= MOST_DISTURBED;
        is_bounded && self.repeats(self.all()).enough()
    }

    /// Returns the value so far: of the undisturbed runs, or of all if these are too few. `None` before the first run.
    pub(crate) fn outcome(&self, best: Option<Speed>) -> Option<Measured> {
        let undisturbed = self.undisturbed(best);
        let disturbed = self.runs.len() - undisturbed.len();
        if undisturbed.len() >= ENOUGH_RUNS as usize {
            return self.repeats(undisturbed).outcome();
        }
        let measured = self.repeats(self.all()).outcome()?;
        Some(Measured {
            disturbed: disturbed as u32,
            ..measured
        })
    }

    fn all(&self) -> Vec<f64> {
        self.runs.iter().map(|(figure, _)| *figure).collect()
    }

    /// Returns the values of the runs without interference, if this is the core's best speed.
    fn undisturbed(&self, best: Option<Speed>) -> Vec<f64> {
        let runs = self.runs.iter();
        let good = runs.filter(|(_, conditions)| conditions.interference(best).is_none());
        good.map(|(figure, _)| *figure).collect()
    }

    fn repeats(&self, figures: Vec<f64>) -> Repeats {
        let mut repeats = Repeats::new(self.rule);
        figures.into_iter().for_each(|figure| repeats.tell(figure));
        repeats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULE: RepeatRule = RepeatRule {
        least: 3,
        most: 7,
        wanted: 0.01,
    };
    const BEST: Option<Speed> = Some(Speed {
        compute: 100.0,
        private: Some(50.0),
    });

    fn at(compute: f64) -> Conditions {
        Conditions {
            speed: Some(Speed {
                compute,
                private: Some(50.0),
            }),
            ..Conditions::default()
        }
    }

    /// Runs of a core that others used gave 256 kpps ± 9 % instead of 1.1 Mpps, and no warning.
    #[test]
    fn disturbed_runs_are_replaced() {
        let mut attempts = Attempts::new(RULE);
        for figure in [256.0, 250.0, 260.0] {
            attempts.tell(figure, at(140.0));
            assert!(!attempts.enough(BEST, true));
        }
        for figure in [1140.0, 1141.0, 1142.0] {
            assert!(!attempts.enough(BEST, true));
            attempts.tell(figure, at(101.0));
        }
        assert!(attempts.enough(BEST, true));
        let measured = attempts.outcome(BEST).unwrap();
        assert_eq!((measured.value, measured.runs, measured.disturbed), (1141.0, 3, 0));
    }

    #[test]
    fn runs_that_stay_disturbed_count_and_are_flagged() {
        let mut attempts = Attempts::new(RULE);
        for run in 0..MOST_DISTURBED + 1 {
            assert!(!attempts.enough(BEST, true), "{run}");
            attempts.tell(256.0 + 40.0 * run as f64, at(140.0));
        }
        assert!(attempts.enough(BEST, true));
        let measured = attempts.outcome(BEST).unwrap();
        assert_eq!((measured.runs, measured.disturbed), (7, 7));
        assert!(measured.is_all_disturbed());
        // Two undisturbed ones are too few for a noise.
        attempts.tell(1140.0, at(100.0));
        attempts.tell(1140.0, at(100.0));
        let measured = attempts.outcome(BEST).unwrap();
        assert_eq!((measured.runs, measured.disturbed), (9, 7));
        attempts.tell(1140.0, at(100.0));
        let measured = attempts.outcome(BEST).unwrap();
        assert_eq!((measured.value, measured.runs, measured.disturbed), (1140.0, 3, 0));
    }

    #[test]
    fn without_time_disturbed_runs_count_at_once() {
        let mut attempts = Attempts::new(RULE);
        for figure in [256.0, 256.0, 256.5] {
            assert!(!attempts.enough(BEST, false));
            attempts.tell(figure, at(140.0));
        }
        assert!(attempts.enough(BEST, false) && !attempts.enough(BEST, true));
        assert_eq!(attempts.outcome(BEST).unwrap().disturbed, 3);
    }

    /// The whole first half of a measurement may be slow, as its best speed is.
    #[test]
    fn a_better_speed_judges_earlier_runs_anew() {
        let mut attempts = Attempts::new(RULE);
        for figure in [256.0, 256.5, 257.0] {
            attempts.tell(figure, at(140.0));
        }
        let slow = at(140.0).speed;
        assert!(attempts.enough(slow, true));
        assert_eq!(attempts.outcome(slow).unwrap().disturbed, 0);
        assert!(!attempts.enough(BEST, true));
        assert_eq!(attempts.outcome(BEST).unwrap().disturbed, 3);
    }

    #[test]
    fn a_hidden_bend_takes_a_few_further_runs() {
        let mut attempts = Attempts::new(RULE);
        let tell = |attempts: &mut Attempts, runs: usize| {
            for run in 0..runs {
                assert!(!attempts.enough(BEST, true), "{run}");
                attempts.tell(100.0 + 10.0 * (run % 2) as f64, at(100.0));
            }
            assert!(attempts.enough(BEST, true));
        };
        tell(&mut attempts, RULE.most);
        attempts.extend(BEST);
        tell(&mut attempts, FURTHER);
    }

    proptest! {
        /// Whatever is told, a value is complete after a bounded number of runs.
        #[test]
        fn it_ends(runs in proptest::collection::vec((1.0f64..1e6, 90.0f64..200.0), 40)) {
            let mut attempts = Attempts::new(RULE);
            let mut best: Option<Speed> = None;
            let mut done = 0;
            for (figure, compute) in runs {
                if attempts.enough(best, true) {
                    break;
                }
                let conditions = at(compute);
                best = Speed::best_of(best, conditions.speed);
                attempts.tell(figure, conditions);
                done += 1;
            }
            prop_assert!(done <= RULE.most + MOST_DISTURBED);
            let measured = attempts.outcome(best).unwrap();
            prop_assert!(measured.disturbed <= measured.runs && measured.runs as usize <= done);
        }
    }
}
