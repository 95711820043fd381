//! When flows start: a Poisson process whose rate changes between two states.

use tailwater_net::Nanos;

use crate::TrafficError;
use crate::generate::random::Random;

/// How many flows start: a Poisson process that is modulated by a chain of two states, calm and
/// crowded, so that both the mean and the largest number a second can be set.
///
/// The flows by which crowded times exceed calm ones are short: a scan, a flash crowd.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowArrivals {
    /// New flows a second, on average over long times.
    pub mean_per_second: f64,
    /// New flows a second in the crowded state, at least the mean. Equal to it, arrivals are a
    /// plain Poisson process.
    pub max_per_second: f64,
    /// The mean time in the calm state.
    pub calm: Nanos,
    /// The mean time in the crowded state.
    pub crowded: Nanos,
    /// How times in a state are distributed.
    pub stay: Stay,
}

/// How long a state lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// Exponentially distributed: the chain is a Markov chain.
    Exponential,
    /// Evenly within 10 % of the mean: minutes are like each other.
    Steady,
}

impl FlowArrivals {
    /// A plain Poisson process.
    pub fn poisson(per_second: f64) -> Self {
        FlowArrivals {
            mean_per_second: per_second,
            max_per_second: per_second,
            calm: Nanos::from_secs(1),
            crowded: Nanos::from_secs(1),
            stay: Stay::Exponential,
        }
    }

    /// New flows a second in the calm state: what makes the mean come true.
    pub fn calm_per_second(&self) -> f64 {
        let share = self.crowded_share();
        (self.mean_per_second - share * self.max_per_second) / (1.0 - share)
    }

    /// The part of the time that is crowded.
    fn crowded_share(&self) -> f64 {
        let (calm, crowded) = (self.calm.as_secs_f64(), self.crowded.as_secs_f64());
        crowded / (calm + crowded)
    }

    pub(super) fn validate(&self) -> Result<(), TrafficError> {
        let rate = |rate: f64| (1e-6..=1e8).contains(&rate);
        let stay = |time: Nanos| (Nanos::from_micros(1)..=Nanos::from_secs(86_400)).contains(&time);
        if rate(self.mean_per_second)
            && rate(self.max_per_second)
            && self.max_per_second >= self.mean_per_second
            && stay(self.calm)
            && stay(self.crowded)
            && self.calm_per_second() >= 0.0
        {
            return Ok(());
        }
        Err(TrafficError::setting(
            "arrivals",
            format!("{self:?}"),
            "1e-6 <= mean <= max <= 1e8 flows per second, times of 1us to a day, and a crowded \
             state short enough for the mean",
        ))
    }
}

/// A flow that starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Start {
    /// When, in nanoseconds. A float, so that rounding does not add up.
    pub(super) time: f64,
    /// Whether it is one of those by which crowded times exceed calm ones.
    pub(super) crowd: bool,
}

/// The process of starts.
#[derive(Debug)]
pub(super) struct Starts {
    config: FlowArrivals,
    time: f64,
    crowded: bool,
    state_ends: f64,
}

impl Starts {
    pub(super) fn new(config: FlowArrivals, random: &mut Random) -> Self {
        let mut starts = Starts {
            config,
            time: 0.0,
            crowded: false,
            state_ends: 0.0,
        };
        // Somewhere within a calm time.
        starts.state_ends = starts.stay(random) * random.unit();
        starts
    }

    fn stay(&self, random: &mut Random) -> f64 {
        let mean = match self.crowded {
            true => self.config.crowded.0,
            false => self.config.calm.0,
        } as f64;
        match self.config.stay {
            Stay::Exponential => random.exponential(mean),
            Stay::Steady => mean * (0.9 + 0.2 * random.unit()),
        }
    }

    /// The next start.
    pub(super) fn next(&mut self, random: &mut Random) -> Start {
        let calm = self.config.calm_per_second();
        loop {
            let rate = match self.crowded {
                true => self.config.max_per_second,
                false => calm,
            };
            let time = self.time + random.exponential(1e9 / rate);
            // The process forgets: what would come after the state's end is drawn anew.
            if time >= self.state_ends {
                self.time = self.state_ends;
                self.crowded = !self.crowded;
                self.state_ends += self.stay(random);
                continue;
            }
            self.time = time;
            let crowd = self.crowded && random.unit() > calm / rate;
            return Start { time, crowd };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn per_second(config: FlowArrivals, seconds: usize) -> Vec<f64> {
        let mut random = Random::new(11);
        let mut starts = Starts::new(config, &mut random);
        let mut counts = vec![0.0; seconds];
        loop {
            let start = starts.next(&mut random);
            match counts.get_mut((start.time / 1e9) as usize) {
                Some(count) => *count += 1.0,
                None => return counts,
            }
        }
    }

    #[test]
    fn mean_and_maximum_are_as_set() {
        for stay in [Stay::Steady, Stay::Exponential] {
            let config = FlowArrivals {
                mean_per_second: 2_000.0,
                max_per_second: 8_000.0,
                calm: Nanos::from_secs(18),
                crowded: Nanos::from_millis(2_400),
                stay,
            };
            let counts = per_second(config, 1_000);
            let mean = counts.iter().sum::<f64>() / 1_000.0;
            let most = counts.iter().copied().fold(0.0, f64::max);
            // Exponential stays: about 49 crowded times vary by a seventh, and they make 45 %
            // of the flows.
            let tolerance = if stay == Stay::Steady { 0.03 } else { 0.2 };
            assert!((mean / 2_000.0 - 1.0).abs() < tolerance, "{stay:?} {mean}");
            assert!((most / 8_000.0 - 1.0).abs() < 0.06, "{stay:?} {most}");
        }
    }

    #[test]
    fn every_minute_of_steady_stays_has_the_maximum() {
        let config = FlowArrivals {
            mean_per_second: 1_000.0,
            max_per_second: 4_000.0,
            calm: Nanos::from_secs(18),
            crowded: Nanos::from_millis(2_300),
            stay: Stay::Steady,
        };
        for minute in per_second(config, 600).chunks(60) {
            let most = minute.iter().copied().fold(0.0, f64::max);
            assert!((most / 4_000.0 - 1.0).abs() < 0.08, "{most}");
        }
    }

    #[test]
    fn without_modulation_it_is_poisson() {
        let counts = per_second(FlowArrivals::poisson(400.0), 2_000);
        let mean = counts.iter().sum::<f64>() / counts.len() as f64;
        let square = counts.iter().map(|n| (n - mean) * (n - mean)).sum::<f64>();
        let dispersion = square / counts.len() as f64 / mean;
        assert!((mean - 400.0).abs() < 2.0, "{mean}");
        assert!((dispersion - 1.0).abs() < 0.13, "{dispersion}");
    }

    #[test]
    fn impossible_rates_are_refused() {
        let sound = FlowArrivals::poisson(10.0);
        sound.validate().unwrap();
        for wrong in [
            FlowArrivals::poisson(0.0),
            FlowArrivals::poisson(f64::NAN),
            FlowArrivals {
                max_per_second: 5.0,
                ..sound
            },
            FlowArrivals {
                max_per_second: 100.0,
                ..sound
            },
            FlowArrivals {
                calm: Nanos::ZERO,
                ..sound
            },
        ] {
            assert!(wrong.validate().is_err(), "{wrong:?}");
        }
    }
}
