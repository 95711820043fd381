//! Load of chains by the second.

use crate::flow_level::random::Draws;
use tailwater_traffic::generate::{FlowClass, TrafficStatistics};

/// Lifetimes of flows, in seconds, below which their number does not vary from second to second.
const SHORT: f64 = 0.05;
/// Part of the mean by which a day's curve rises and falls.
const AMPLITUDE: f64 = 0.5;
/// Deviation of the time of a chain's peak, as a part of a day.
const PEAK_TIMES: f64 = 0.08;
/// Mean time between surges of a chain, and mean length of one, in seconds.
const SURGES: (f64, f64) = (600.0, 20.0);
/// Factors of surges: evenly distributed between these.
const SURGE_FACTORS: (f64, f64) = (1.3, 2.5);

/// Load of one chain: packets per second, second by second.
///
/// - Day: the mean times 1 ± 0.5 as a sine, with a peak whose time deviates by 8 % of a day from chain to chain.
/// - Flows: for each class of lifetimes of a [preset's statistics](TrafficStatistics), a log-normal process with the
///   variance and the correlation time of the active flows, averaged over a second. A chain with a part of the preset's
///   packets has that part of its flows.
/// - Surges: every 600 s on average, for 20 s on average, by a factor of 1.3 to 2.5.
#[derive(Debug)]
pub struct ClusterLoad {
    mean: f64,
    day: f64,
    peak_at: f64,
    levels: Vec<Level>,
    /// Factor of the current surge, and seconds left of it or until the next one.
    surge: Option<f64>,
    left: f64,
    second: u64,
    draws: Draws,
}

/// Flows of similar lifetimes.
#[derive(Debug)]
struct Level {
    part: f64,
    sigma: f64,
    keep: f64,
    state: f64,
}

impl Level {
    /// Returns a class of a preset, of which the chain has `scale` times the flows.
    fn new(class: &FlowClass, all: f64, scale: f64, draws: &mut Draws) -> Level {
        let lifetimes = 1.0 / class.lifetime;
        let keep = libm::exp(-lifetimes);
        // Variance of an average over a second.
        let average = 2.0 * (lifetimes - 1.0 + keep) / (lifetimes * lifetimes);
        let (mean, variance) = (class.packets * scale, class.variance * scale * average);
        Level {
            part: class.packets / all,
            sigma: libm::sqrt(libm::log(1.0 + variance / (mean * mean).max(f64::MIN_POSITIVE))),
            keep,
            state: draws.normal(),
        }
    }

    fn next(&mut self, draws: &mut Draws) -> f64 {
        self.state = self.state * self.keep + draws.normal() * libm::sqrt(1.0 - self.keep * self.keep);
        self.part * libm::exp(self.sigma * (self.state - self.sigma / 2.0))
    }
}

impl ClusterLoad {
    /// Creates the load of a chain of `mean` packets per second, with days of `day` seconds.
    pub fn new(statistics: &TrafficStatistics, mean: f64, day: u64, seed: u64) -> Self {
        let mut draws = Draws::new(seed);
        let all: f64 = statistics.classes.iter().map(|class| class.packets).sum();
        let scale = mean / all.max(f64::MIN_POSITIVE);
        let levels = statistics.classes.iter().filter(|class| class.lifetime >= SHORT);
        let levels = levels.map(|class| Level::new(class, all, scale, &mut draws)).collect();
        ClusterLoad {
            mean,
            day: day.max(1) as f64,
            peak_at: 0.5 + PEAK_TIMES * draws.normal(),
            levels,
            surge: None,
            left: draws.exponential(SURGES.0),
            second: 0,
            draws,
        }
    }

    /// Returns the packets per second of the next second.
    pub fn step(&mut self) -> f64 {
        let angle = (self.second as f64 / self.day - self.peak_at) * std::f64::consts::TAU;
        let day = 1.0 + AMPLITUDE * libm::cos(angle);
        self.second += 1;
        let draws = &mut self.draws;
        let short: f64 = 1.0 - self.levels.iter().map(|level| level.part).sum::<f64>();
        let flows = short + self.levels.iter_mut().map(|level| level.next(draws)).sum::<f64>();
        self.left -= 1.0;
        if self.left <= 0.0 {
            (self.surge, self.left) = match self.surge {
                Some(_) => (None, draws.exponential(SURGES.0)),
                None => {
                    let factor = SURGE_FACTORS.0 + draws.unit() * (SURGE_FACTORS.1 - SURGE_FACTORS.0);
                    (Some(factor), draws.exponential(SURGES.1).max(2.0))
                }
            };
        }
        self.mean * day * flows * self.surge.unwrap_or(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_traffic::generate::preset;

    #[test]
    fn load_has_its_mean_its_day_and_its_surges() {
        let statistics = TrafficStatistics::of(&preset("backbone").expect("a preset"));
        let (mut sum, mut noon, mut midnight, mut most) = (0.0, 0.0, 0.0, 0.0f64);
        for seed in 0..40 {
            let mut load = ClusterLoad::new(&statistics, 1e6, 3600, seed);
            for second in 0..3600 {
                let rate = load.step();
                sum += rate;
                most = most.max(rate);
                match second {
                    1700..1900 => noon += rate,
                    0..100 | 3500..3600 => midnight += rate,
                    _ => {}
                }
            }
        }
        // Surges add 0.9 in 20 of 620 s, that is 3 %.
        let mean = sum / 40.0 / 3600.0;
        assert!((0.99e6..1.07e6).contains(&mean), "{mean}");
        assert!((2.1..2.8).contains(&(noon / midnight)), "{}", noon / midnight);
        assert!((2.5e6..5e6).contains(&most), "{most}");
    }

    #[test]
    fn equal_seeds_give_equal_loads_and_small_chains_vary_more() {
        let statistics = TrafficStatistics::of(&preset("as").expect("a preset"));
        let load = |mean: f64, seed: u64| {
            let mut load = ClusterLoad::new(&statistics, mean, 3600, seed);
            (0..300).map(|_| load.step() / mean).collect::<Vec<f64>>()
        };
        assert_eq!(load(1e6, 3), load(1e6, 3));
        assert_ne!(load(1e6, 3), load(1e6, 4));
        let changes = |rates: Vec<f64>| rates.windows(2).map(|pair| (pair[1] - pair[0]).abs()).sum::<f64>();
        assert!(changes(load(1e4, 3)) > 2.0 * changes(load(1e6, 3)));
    }
}
