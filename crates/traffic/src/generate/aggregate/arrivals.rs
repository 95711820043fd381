//! Arrival process of flows: a Poisson process whose rate changes between two states.

use tailwater_net::Nanos;

use crate::TrafficError;
use crate::generate::random::Random;

/// Arrival rate of flows: a Poisson process modulated by a two-state chain, calm and crowded. Both the mean and the
/// maximum number per second can be set.
///
/// Flows in excess of the calm rate are short: a scan, a flash crowd.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowArrivals {
    /// Mean number of new flows per second, over long times.
    pub mean_per_second: f64,
    /// New flows per second in the crowded state, at least the mean. If equal to it, arrivals are a plain Poisson
    /// process.
    pub max_per_second: f64,
    /// Mean duration of the calm state.
    pub calm: Nanos,
    /// Mean duration of the crowded state.
    pub crowded: Nanos,
    /// Distribution of the states' durations.
    pub stay: Stay,
}

/// Distribution of a state's duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// Exponential: the chain is a Markov chain.
    Exponential,
    /// Uniform within 10 % of the mean: all minutes are similar.
    Steady,
}

impl FlowArrivals {
    /// Plain Poisson process.
    pub fn poisson(per_second: f64) -> Self {
        FlowArrivals {
            mean_per_second: per_second,
            max_per_second: per_second,
            calm: Nanos::from_secs(1),
            crowded: Nanos::from_secs(1),
            stay: Stay::Exponential,
        }
    }

    /// Returns the new flows per second in the calm state, which follow from the mean.
    pub fn calm_per_second(&self) -> f64 {
        let share = self.crowded_share();
        (self.mean_per_second - share * self.max_per_second) / (1.0 - share)
    }

    /// Returns the fraction of time in the crowded state.
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
            "1e-6 <= mean <= max <= 1e8 flows per second, times of 1us to a day, and bursts short enough for the \
             mean",
        ))
    }
}

/// Start of a flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Start {
    /// Time in nanoseconds. A float, so that rounding errors do not add up.
    pub(super) time: f64,
    /// `true`: the flow is in excess of the calm rate.
    pub(super) crowd: bool,
}

/// Process of flow starts.
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
        // The process begins in the middle of a calm state.
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

    /// Returns the next start.
    pub(super) fn next(&mut self, random: &mut Random) -> Start {
        let calm = self.config.calm_per_second();
        loop {
            let rate = match self.crowded {
                true => self.config.max_per_second,
                false => calm,
            };
            let time = self.time + random.exponential(1e9 / rate);
            // A Poisson process is memoryless: an arrival beyond the state's end is drawn again.
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
            // With exponential durations, about 49 crowded states vary by a seventh, and make up 45 % of the flows.
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
