//! The highest rates that keep promises.

/// What a rate is to keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// At most so large a share of the packets is lost. With 0 this is the non-drop rate (NDR), with 0.005 the
    /// partial drop rate (PDR), as FD.io's CSIT has them.
    Loss(f64),
    /// The latency objective is kept, at its percentile; lost packets are late.
    Objective,
}

/// What came of packets at some rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trial {
    /// The share of packets that was lost.
    pub loss: f64,
    /// Whether the objective was kept.
    pub kept: bool,
}

impl Goal {
    fn keeps(&self, trial: &Trial) -> bool {
        match self {
            Goal::Loss(most) => trial.loss <= *most,
            Goal::Objective => trial.kept,
        }
    }
}

/// Trials at one rate: two that agree decide.
const DECIDES: usize = 2;

/// Between which rates the highest lies that keeps a goal.
#[derive(Clone, Copy, Debug, Default)]
struct Bracket {
    keeps: Option<f64>,
    fails: Option<f64>,
}

/// Binary search for the highest rates that keep several goals; each trial counts for all of them. As a machine
/// that others use too loses packets now and then at any rate, a rate keeps a goal if two trials of at most three
/// do.
#[derive(Clone, Debug)]
pub struct RateSearch {
    lowest: f64,
    highest: f64,
    /// As a share of the highest.
    precision: f64,
    goals: Vec<(Goal, Bracket)>,
    /// The rate that is tried, and its trials.
    at: f64,
    trials: Vec<Trial>,
}

impl RateSearch {
    /// Between these rates, until each goal's rate is known to `precision` of the highest.
    pub fn new(lowest: f64, highest: f64, precision: f64, goals: &[Goal]) -> RateSearch {
        RateSearch {
            lowest,
            highest: highest.max(lowest),
            precision: precision.max(1e-6),
            goals: goals.iter().map(|goal| (*goal, Bracket::default())).collect(),
            at: highest.max(lowest),
            trials: Vec::new(),
        }
    }

    /// The rate to try next; `None` when all goals' rates are known.
    pub fn next(&self) -> Option<f64> {
        let of = |bracket: &Bracket| self.wanted(bracket);
        let undecided = self.goals.iter().filter_map(|(goal, bracket)| {
            let decided = self.decided(goal).is_some();
            of(bracket).map(|rate| (rate, decided))
        });
        let undecided: Vec<(f64, bool)> = undecided.collect();
        // What is tried is tried until it is decided for whoever wants it.
        let again = undecided.iter().find(|(rate, decided)| *rate == self.at && !decided);
        again.or(undecided.first()).map(|(rate, _)| *rate)
    }

    /// What came of the packets at the rate that was to be tried.
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
            let inside =
                bracket.keeps.is_none_or(|keeps| rate > keeps) && bracket.fails.is_none_or(|fails| rate < fails);
            match keeps {
                true if inside => bracket.keeps = Some(rate),
                false if inside => bracket.fails = Some(rate),
                _ => {}
            }
        }
    }

    /// The highest rate that was seen to keep each goal, in their order; `None` where even the lowest did not.
    pub fn rates(&self) -> Vec<Option<f64>> {
        self.goals.iter().map(|(_, bracket)| bracket.keeps).collect()
    }

    /// Whether the rate that is tried keeps the goal, if that is decided.
    fn decided(&self, goal: &Goal) -> Option<bool> {
        let keep = self.trials.iter().filter(|trial| goal.keeps(trial)).count();
        match (keep, self.trials.len() - keep) {
            (DECIDES.., _) => Some(true),
            (_, DECIDES..) => Some(false),
            _ => None,
        }
    }

    /// The rate that says more of a goal.
    fn wanted(&self, bracket: &Bracket) -> Option<f64> {
        match (bracket.keeps, bracket.fails) {
            (None, None) => Some(self.highest),
            (Some(_), None) => None,
            (None, Some(fails)) => (fails > self.lowest).then_some(self.lowest),
            (Some(keeps), Some(fails)) => {
                let wide = fails - keeps > self.precision * self.highest;
                wide.then_some(keeps + (fails - keeps) / 2.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GOALS: [Goal; 3] = [Goal::Loss(0.0), Goal::Loss(0.005), Goal::Objective];

    fn search(mut trial: impl FnMut(f64) -> Trial) -> (RateSearch, usize) {
        let mut search = RateSearch::new(0.1, 1.0, 0.01, &GOALS);
        let mut trials = 0;
        while let Some(rate) = search.next() {
            assert!((0.1..=1.0).contains(&rate), "{rate}");
            search.tell(trial(rate));
            trials += 1;
            assert!(trials < 1000, "it does not end: {search:?}");
        }
        (search, trials)
    }

    /// Three goals take at most the ends and seven halvings each, thrice.
    const MOST: usize = 3 * (2 + 3 * 7);

    proptest! {
        #[test]
        fn rates_are_found_to_the_precision(ndr in 0.11f64..0.99, more in 0.0f64..0.5, kept in 0.11f64..0.99) {
            let pdr = (ndr + more).min(1.0);
            let (search, trials) = search(|rate| Trial {
                loss: if rate <= ndr { 0.0 } else if rate <= pdr { 0.004 } else { 0.1 },
                kept: rate <= kept,
            });
            for (rate, expected) in search.rates().into_iter().zip([ndr, pdr, kept]) {
                let rate = rate.unwrap();
                prop_assert!(rate <= expected && expected - rate <= 0.01, "{} for {}", rate, expected);
            }
            prop_assert!(trials <= MOST, "{}", trials);
        }

        /// One bad trial at each rate changes nothing.
        #[test]
        fn a_hiccup_at_each_rate_is_outvoted(ndr in 0.11f64..0.99) {
            let mut last = None;
            let (search, trials) = search(|rate| {
                let first = last.replace(rate) != Some(rate);
                let good = rate <= ndr && !first;
                Trial { loss: if good { 0.0 } else { 0.01 }, kept: good }
            });
            let rate = search.rates()[0].unwrap();
            prop_assert!(rate <= ndr && ndr - rate <= 0.01, "{} for {}", rate, ndr);
            prop_assert!(trials <= MOST, "{}", trials);
        }

        /// Whatever comes, it ends, and a rate that is told was seen to keep its goal twice.
        #[test]
        fn it_ends_whatever_is_told(told in proptest::collection::vec((0u8..3, any::<bool>()), 64)) {
            let mut seen = Vec::new();
            let (search, trials) = search(|rate| {
                let (loss, kept) = told[seen.len() % 64];
                let trial = Trial { loss: f64::from(loss) * 0.005, kept };
                seen.push((rate, trial));
                trial
            });
            prop_assert!(trials <= MOST, "{}", trials);
            for (goal, rate) in GOALS.iter().zip(search.rates()) {
                let Some(rate) = rate else { continue };
                let kept = seen.iter().filter(|(at, trial)| *at == rate && goal.keeps(trial));
                prop_assert!(kept.count() >= 2);
            }
        }
    }

    #[test]
    fn what_no_rate_keeps_and_what_all_do_takes_few_trials() {
        let (search, trials) = search(|_| Trial { loss: 0.0, kept: false });
        assert_eq!(search.rates(), [Some(1.0), Some(1.0), None]);
        assert_eq!(trials, 4);
    }
}
