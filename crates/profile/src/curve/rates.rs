//! Search for the highest rates that meet goals.

/// Goal of a rate. Whatever the goal, the chain must [keep up](Trial::keeps_up).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// Loss ratio of at most this. 0 gives the non-drop rate (NDR), 0.005 the partial drop rate (PDR), as in FD.io's
    /// CSIT.
    Loss(f64),
    /// The latency objective is met at its percentile; lost packets count as late.
    Objective,
}

/// Result of a trial at some rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// Loss ratio.
    pub loss: f64,
    /// `true` if the objective was met.
    pub met: bool,
    /// `true` if the packets left as fast as they came. A trial is short: at a rate that is too high, packets that wait
    /// in the receive ring would be lost, or late, only after its end.
    pub keeps_up: bool,
}

impl Goal {
    fn meets_objective(&self, trial: &Trial) -> bool {
        let meets = match self {
            Goal::Loss(most) => trial.loss <= *most,
            Goal::Objective => trial.met,
        };
        meets && trial.keeps_up
    }
}

/// Number of equal trials that decide on a rate.
const DECIDES: usize = 2;

/// Bounds of the highest rate that meets a goal.
#[derive(Clone, Copy, Debug, Default)]
struct Bracket {
    meets_objective: Option<f64>,
    fails: Option<f64>,
}

/// Binary search for the highest rates that meet several goals; each trial counts for all of them. A shared machine
/// occasionally loses packets at any rate. So a rate meets a goal if two trials of at most three do.
#[derive(Clone, Debug)]
pub struct RateSearch {
    lowest: f64,
    highest: f64,
    /// Width of the bounds at which they are known, as a share of the lowest rate that failed.
    width: f64,
    goals: Vec<(Goal, Bracket)>,
    /// Current rate, and its trials.
    at: f64,
    trials: Vec<Trial>,
}

impl RateSearch {
    /// Starts a search between two rates. It ends when, for each goal, a rate that meets it and one that does not are
    /// at most `width` of the latter apart, or the highest rate meets it, or the lowest does not.
    pub fn new(lowest: f64, highest: f64, width: f64, goals: &[Goal]) -> RateSearch {
        RateSearch {
            lowest,
            highest: highest.max(lowest),
            width: width.max(1e-6),
            goals: goals.iter().map(|goal| (*goal, Bracket::default())).collect(),
            at: highest.max(lowest),
            trials: Vec::new(),
        }
    }

    /// Returns the rate to try next; `None` when all goals' rates are known.
    pub fn next(&self) -> Option<f64> {
        let of = |bracket: &Bracket| self.wanted(bracket);
        let undecided = self.goals.iter().filter_map(|(goal, bracket)| {
            let decided = self.decided(goal).is_some();
            of(bracket).map(|rate| (rate, decided))
        });
        let undecided: Vec<(f64, bool)> = undecided.collect();
        // The current rate is repeated until it is decided for every goal that requires it.
        let again = undecided.iter().find(|(rate, decided)| *rate == self.at && !decided);
        again.or(undecided.first()).map(|(rate, _)| *rate)
    }

    /// Adds the result of a trial at the current rate.
    pub fn tell(&mut self, trial: Trial) {
        let Some(rate) = self.next() else {
            return;
        };
        if rate != self.at {
            self.at = rate;
            self.trials.clear();
        }
        self.trials.push(trial);
        for number in 0..self.goals.len() {
            let (goal, _) = self.goals[number];
            let Some(keeps) = self.decided(&goal) else {
                continue;
            };
            let bracket = &mut self.goals[number].1;
            let inside = bracket.meets_objective.is_none_or(|keeps| rate > keeps)
                && bracket.fails.is_none_or(|fails| rate < fails);
            match keeps {
                true if inside => bracket.meets_objective = Some(rate),
                false if inside => bracket.fails = Some(rate),
                _ => {}
            }
        }
    }

    /// Returns the highest rate that met each goal, in their order; `None` where even the lowest did not. Where it is
    /// the highest rate of the search, the goal may be met by higher ones, too.
    pub fn rates(&self) -> Vec<Option<f64>> {
        self.goals.iter().map(|(_, bracket)| bracket.meets_objective).collect()
    }

    /// Returns `true` if the current rate meets the goal; `None` while undecided.
    fn decided(&self, goal: &Goal) -> Option<bool> {
        let keep = self.trials.iter().filter(|trial| goal.meets_objective(trial)).count();
        match (keep, self.trials.len() - keep) {
            (DECIDES.., _) => Some(true),
            (_, DECIDES..) => Some(false),
            _ => None,
        }
    }

    /// Returns the next rate that narrows a goal's bounds.
    fn wanted(&self, bracket: &Bracket) -> Option<f64> {
        match (bracket.meets_objective, bracket.fails) {
            (None, None) => Some(self.highest),
            (Some(_), None) => None,
            (None, Some(fails)) => (fails > self.lowest).then_some(self.lowest),
            (Some(keeps), Some(fails)) => {
                let wide = fails - keeps > self.width * fails;
                wide.then_some(keeps + (fails - keeps) / 2.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WIDTH: f64 = 0.02;
    const GOALS: [Goal; 3] = [Goal::Loss(0.0), Goal::Loss(0.005), Goal::Objective];

    fn search(mut trial: impl FnMut(f64) -> Trial) -> (RateSearch, usize) {
        let mut search = RateSearch::new(0.05, 1.0, WIDTH, &GOALS);
        let mut trials = 0;
        while let Some(rate) = search.next() {
            assert!((0.05..=1.0).contains(&rate), "{rate}");
            search.tell(trial(rate));
            trials += 1;
            assert!(trials < 1000, "it does not end: {search:?}");
        }
        (search, trials)
    }

    /// Upper bound for three goals: the ends and ten bisection steps each, three trials per rate.
    const MOST: usize = 3 * (2 + 3 * 10);

    proptest! {
        #[test]
        fn rates_are_found_to_the_width(ndr in 0.06f64..0.99, more in 0.0f64..0.5, kept in 0.06f64..0.99) {
            let pdr = (ndr + more).min(1.0);
            let (search, trials) = search(|rate| Trial {
                loss: if rate <= ndr { 0.0 } else if rate <= pdr { 0.004 } else { 0.1 },
                met: rate <= kept,
                keeps_up: true,
            });
            for (rate, expected) in search.rates().into_iter().zip([ndr, pdr, kept]) {
                let rate = rate.unwrap();
                prop_assert!(rate <= expected && expected * (1.0 - WIDTH) <= rate, "{} for {}", rate, expected);
            }
            prop_assert!(trials <= MOST, "{}", trials);
        }

        /// One failed trial at each rate changes nothing.
        #[test]
        fn a_hiccup_at_each_rate_is_outvoted(ndr in 0.06f64..0.99) {
            let mut last = None;
            let (search, trials) = search(|rate| {
                let first = last.replace(rate) != Some(rate);
                let good = rate <= ndr && !first;
                Trial { loss: if good { 0.0 } else { 0.01 }, met: good, keeps_up: good }
            });
            let rate = search.rates()[0].unwrap();
            prop_assert!(rate <= ndr && ndr * (1.0 - WIDTH) <= rate, "{} for {}", rate, ndr);
            prop_assert!(trials <= MOST, "{}", trials);
        }

        /// The search terminates for all inputs, and a reported rate met its goal twice.
        #[test]
        fn it_ends_whatever_is_told(told in proptest::collection::vec((0u8..3, any::<bool>(), any::<bool>()), 64)) {
            let mut seen = Vec::new();
            let (search, trials) = search(|rate| {
                let (loss, met, keeps_up) = told[seen.len() % 64];
                let trial = Trial { loss: f64::from(loss) * 0.005, met, keeps_up };
                seen.push((rate, trial));
                trial
            });
            prop_assert!(trials <= MOST, "{}", trials);
            for (goal, rate) in GOALS.iter().zip(search.rates()) {
                let Some(rate) = rate else { continue };
                let kept = seen.iter().filter(|(at, trial)| *at == rate && goal.meets_objective(trial));
                prop_assert!(kept.count() >= 2);
            }
        }
    }

    #[test]
    fn what_no_rate_keeps_and_what_all_do_takes_few_trials() {
        let (search, trials) = search(|_| Trial {
            loss: 0.0,
            met: false,
            keeps_up: true,
        });
        assert_eq!(search.rates(), [Some(1.0), Some(1.0), None]);
        assert_eq!(trials, 4);
    }

    /// Whatever else a trial shows, a rate at which packets accumulate is too high for every goal.
    #[test]
    fn a_growing_backlog_fails_every_goal() {
        let (search, _) = search(|rate| Trial {
            loss: 0.0,
            met: true,
            keeps_up: rate <= 0.7,
        });
        for rate in search.rates() {
            let rate = rate.unwrap();
            assert!((0.7 * (1.0 - WIDTH)..=0.7).contains(&rate), "{rate}");
        }
    }
}
