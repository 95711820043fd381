//! Repeated measurement of a value until its noise is low.

/// Minimum number of runs whose differences are a noise. One run has none, and seems exact.
const ENOUGH_RUNS: u32 = 3;

/// A measured value with its noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Median of the runs.
    pub value: f64,
    /// Half-width of the 90 % confidence interval of the median, independent of the distribution, in the value's unit.
    /// For three and four runs, half the range of the values (confidence 75 % and 87.5 %).
    pub noise: f64,
    /// Number of runs.
    pub runs: u32,
}

impl Measured {
    /// Returns the noise as a share of the value; 0 for the value 0.
    pub fn relative_noise(&self) -> f64 {
        match self.value {
            0.0 => 0.0,
            value => self.noise / value.abs(),
        }
    }

    /// Returns `true` if there are enough runs for a noise, and it is at most this share of the value.
    pub fn is_repeatable(&self, most_noise: f64) -> bool {
        self.runs >= ENOUGH_RUNS && self.relative_noise() <= most_noise
    }
}

/// Number of repetitions of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RepeatRule {
    /// Minimum number of runs, at least 1.
    pub least: usize,
    /// Maximum number of runs, whatever the noise.
    pub most: usize,
    /// Target noise, as a share of the value.
    pub wanted: f64,
}

/// A measurement in progress.
#[derive(Clone, Debug)]
pub struct Repeats {
    rule: RepeatRule,
    /// Values in increasing order.
    runs: Vec<f64>,
}

impl Repeats {
    /// Starts a measurement.
    pub fn new(rule: RepeatRule) -> Repeats {
        Repeats {
            rule,
            runs: Vec::with_capacity(rule.most),
        }
    }

    /// Adds a run's value. NaN is ignored.
    pub fn tell(&mut self, figure: f64) {
        if figure.is_finite() {
            let at = self.runs.partition_point(|run| *run <= figure);
            self.runs.insert(at, figure);
        }
    }

    /// Returns `true` if the noise is low enough, or the maximum number of runs is reached.
    pub fn enough(&self) -> bool {
        let runs = self.runs.len();
        runs >= self.rule.most.max(1) || (runs >= self.rule.least.max(1) && self.steady())
    }

    /// Returns `true` if the noise has reached its target.
    pub fn steady(&self) -> bool {
        let measured = self.outcome();
        measured.is_some_and(|measured| measured.relative_noise() <= self.rule.wanted)
    }

    /// Returns the value so far; `None` before the first run.
    pub fn outcome(&self) -> Option<Measured> {
        let runs = self.runs.len();
        let middle = match runs {
            0 => return None,
            runs if runs % 2 == 1 => self.runs[runs / 2],
            runs => (self.runs[runs / 2 - 1] + self.runs[runs / 2]) / 2.0,
        };
        let outside = outside(runs);
        Some(Measured {
            value: middle,
            noise: (self.runs[runs - 1 - outside] - self.runs[outside]) / 2.0,
            runs: runs as u32,
        })
    }
}

/// Returns the number of values that may be left out at either end of `runs` values, so that the rest brackets the
/// median with 90 % confidence. The number of values below the median is distributed as the heads of fair coin tosses.
fn outside(runs: usize) -> usize {
    let (mut outside, mut ways, mut beyond) = (0, 1.0, 1.0);
    let all = 2f64.powi(runs.min(1000) as i32);
    // Leaving out one more is wrong if at most `outside` of the coins show heads, or at most as many tails.
    loop {
        ways *= (runs - outside) as f64 / (outside + 1) as f64;
        beyond += ways;
        if 2.0 * beyond / all > 0.1 || 2 * (outside + 1) >= runs {
            return outside;
        }
        outside += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULE: RepeatRule = RepeatRule {
        least: 3,
        most: 9,
        wanted: 0.01,
    };

    #[test]
    fn so_many_lie_outside() {
        // From tables of the binomial distribution. The interval of 7 is all of them (98.4 %; without its ends 87.5),
        // of 8 without its ends 92.97 %, of 11 without two at either end 93.46.
        let expected = [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2];
        for (runs, expected) in (1..=12).zip(expected) {
            assert_eq!(outside(runs), expected, "{runs}");
        }
    }

    #[test]
    fn what_is_steady_is_measured_thrice_and_what_is_not_is_told() {
        let mut repeats = Repeats::new(RULE);
        assert_eq!(repeats.outcome(), None);
        for figure in [100.0, 101.0, 99.5] {
            assert!(!repeats.enough());
            repeats.tell(figure);
        }
        assert!(repeats.enough() && repeats.steady());
        let expected = Measured {
            value: 100.0,
            noise: 0.75,
            runs: 3,
        };
        assert_eq!(repeats.outcome(), Some(expected));
        let mut repeats = Repeats::new(RULE);
        for run in 0..9 {
            assert!(!repeats.enough(), "{run}");
            repeats.tell(100.0 + 10.0 * f64::from(run % 3));
            repeats.tell(f64::NAN);
        }
        assert!(repeats.enough() && !repeats.steady());
        assert_eq!(repeats.outcome().unwrap().noise, 10.0);
    }

    proptest! {
        #[test]
        fn the_median_lies_within_its_noise_of_a_run(figures in proptest::collection::vec(-1e9f64..1e9, 1..40)) {
            let mut repeats = Repeats::new(RepeatRule { most: 1000, ..RULE });
            figures.iter().for_each(|figure| repeats.tell(*figure));
            let measured = repeats.outcome().unwrap();
            let mut sorted = figures.clone();
            sorted.sort_by(f64::total_cmp);
            let below = sorted.iter().filter(|figure| **figure <= measured.value).count();
            let above = sorted.iter().filter(|figure| **figure >= measured.value).count();
            prop_assert!(2 * below >= figures.len() && 2 * above >= figures.len());
            prop_assert!(measured.noise >= 0.0);
            prop_assert!(2.0 * measured.noise <= sorted[sorted.len() - 1] - sorted[0] + 1e-3);
            prop_assert_eq!(measured.runs as usize, figures.len());
        }
    }
}
