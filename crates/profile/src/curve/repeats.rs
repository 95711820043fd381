//! Repeated measurement of a value until its noise is low.

/// Minimum number of runs whose differences are a noise. One run has none, and seems exact.
pub(super) const ENOUGH_RUNS: u32 = 3;

/// Half-width of the 95 % interval of the median as a share of the range, by the number of runs: the 95th percentile of
/// |median| / range of so many values of a normal distribution, from a million samples each. One run has no range.
const WIDTHS: [f64; 6] = [0.0, 0.0, 6.38, 1.34, 0.739, 0.562];

/// A measured value with its noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Median of the runs.
    pub value: f64,
    /// Half-width of the 95 % interval of the median, in the value's unit. From six runs on it is independent of the
    /// distribution. No two of five runs bracket the median so often, so up to five runs it is a multiple of their
    /// range, which assumes a normal distribution.
    pub noise: f64,
    /// Number of runs that count.
    pub runs: u32,
    /// Number of them that had [interference](crate::interference), because no others could be had.
    pub disturbed: u32,
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

    /// Returns the lower end of the interval; 0 if that would be negative.
    pub fn lower(&self) -> f64 {
        (self.value - self.noise).max(0.0)
    }

    /// Returns the upper end of the interval.
    pub fn upper(&self) -> f64 {
        self.value + self.noise
    }

    /// Returns `true` if all runs had interference.
    pub fn is_all_disturbed(&self) -> bool {
        self.disturbed >= self.runs
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
        let range = self.runs[runs - 1 - outside] - self.runs[outside];
        Some(Measured {
            value: middle,
            noise: range * WIDTHS.get(runs).copied().unwrap_or(0.5),
            runs: runs as u32,
            disturbed: 0,
        })
    }
}

/// Returns the number of values that may be left out at either end of `runs` values, so that the rest brackets the
/// median with 95 % confidence. The number of values below the median is distributed as the heads of fair coin tosses.
fn outside(runs: usize) -> usize {
    let (mut outside, mut ways, mut beyond) = (0, 1.0, 1.0);
    let all = 2f64.powi(runs.min(1000) as i32);
    // Leaving out one more is wrong if at most `outside` of the coins show heads, or at most as many tails.
    loop {
        ways *= (runs - outside) as f64 / (outside + 1) as f64;
        beyond += ways;
        if 2.0 * beyond / all > 0.05 || 2 * (outside + 1) >= runs {
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
        // From tables of the binomial distribution. The interval of 6 is all of them (96.9 %), of 8, too (without its
        // ends 92.97 %), of 9 without its ends 96.1 %, of 12 without two at either end 96.1 %.
        let expected = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 2];
        for (runs, expected) in (1..=12).zip(expected) {
            assert_eq!(outside(runs), expected, "{runs}");
        }
    }

    #[test]
    fn what_is_steady_is_measured_thrice_and_what_is_not_is_told() {
        let mut repeats = Repeats::new(RULE);
        assert_eq!(repeats.outcome(), None);
        for figure in [100.0, 100.25, 99.75] {
            assert!(!repeats.enough());
            repeats.tell(figure);
        }
        assert!(repeats.enough() && repeats.steady());
        let expected = Measured {
            value: 100.0,
            noise: 0.5 * 1.34,
            runs: 3,
            disturbed: 0,
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

    /// Half the range of three runs contained the median of the distribution in 75 of 100 measurements, so that
    /// repeated measurements of one curve differed by more than their noise.
    #[test]
    fn the_interval_contains_the_median_in_95_of_100_measurements() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut uniform = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        for runs in 3..=9 {
            let covered = (0..4000).filter(|_| {
                let mut repeats = Repeats::new(RULE);
                for _ in 0..runs {
                    // Sum of twelve: nearly normal, with median 100 and deviation 1.
                    repeats.tell(94.0 + (0..12).map(|_| uniform()).sum::<f64>());
                }
                let measured = repeats.outcome().unwrap();
                (measured.value - 100.0).abs() <= measured.noise
            });
            let share = covered.count() as f64 / 4000.0;
            assert!((0.94..=0.995).contains(&share), "{share} with {runs} runs");
        }
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
            let factor = WIDTHS.get(figures.len()).map_or(0.5, |factor| factor.max(0.5));
            prop_assert!(measured.noise <= factor * (sorted[sorted.len() - 1] - sorted[0]) + 1e-3);
            prop_assert_eq!(measured.runs as usize, figures.len());
        }
    }
}
