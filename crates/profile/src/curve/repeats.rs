//! Figures that are measured again and again, until they are sure.

/// A figure, and how sure it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The median of the runs.
    pub value: f64,
    /// Half the width of the interval that holds the true median nine times in ten, whatever the figures'
    /// distribution; of fewer than five runs, half of what lies between the least and the most (three times in
    /// four, and seven in eight). In the value's unit.
    pub noise: f64,
    /// How often it was measured.
    pub runs: u32,
}

impl Measured {
    /// The noise as a share of the value; none of nothing.
    pub fn relative_noise(&self) -> f64 {
        match self.value {
            0.0 => 0.0,
            value => self.noise / value.abs(),
        }
    }
}

/// How often to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RepeatRule {
    /// Runs that are always made, at least 1.
    pub least: usize,
    /// Runs after which the noise is taken as it is.
    pub most: usize,
    /// The noise, as a share of the value, that is low enough.
    pub wanted: f64,
}

/// A figure that is being measured.
#[derive(Clone, Debug)]
pub struct Repeats {
    rule: RepeatRule,
    /// In order of size.
    runs: Vec<f64>,
}

impl Repeats {
    /// Nothing measured yet.
    pub fn new(rule: RepeatRule) -> Repeats {
        Repeats {
            rule,
            runs: Vec::with_capacity(rule.most),
        }
    }

    /// A run's figure. What is no number does not count.
    pub fn tell(&mut self, figure: f64) {
        if figure.is_finite() {
            let at = self.runs.partition_point(|run| *run <= figure);
            self.runs.insert(at, figure);
        }
    }

    /// Whether it is sure enough, or was measured as often as it may be.
    pub fn enough(&self) -> bool {
        let runs = self.runs.len();
        runs >= self.rule.most.max(1) || (runs >= self.rule.least.max(1) && self.steady())
    }

    /// Whether its noise is as low as is wanted.
    pub fn steady(&self) -> bool {
        let measured = self.outcome();
        measured.is_some_and(|measured| measured.relative_noise() <= self.rule.wanted)
    }

    /// What was measured so far; `None` before the first run.
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

/// How many of so many figures may be left out at either end, so that the median lies between the others nine
/// times in ten: it lies below so many figures as often as so many coins show heads.
fn outside(runs: usize) -> usize {
    let (mut outside, mut ways, mut beyond) = (0, 1.0, 1.0);
    let all = 2f64.powi(runs.min(1000) as i32);
    // Leaving out one more is wrong if at most so many coins show heads, or as many tails.
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
        // Tables of the binomial distribution: the interval of 7 is all of them (98.4 %; without its ends 87.5),
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
