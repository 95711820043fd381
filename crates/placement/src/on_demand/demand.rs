//! Demand of an instance in ways, estimated from its observations tick by tick.

use super::situation::{Cache, Config, Observed};
use crate::slo::ISOLATED;

/// Fractions of a way in which demands are stored: instances that share a class may need less than one.
const PARTS: f64 = 4.0;
/// Relative deviation from the smoothed load above which the load has changed, and is not just noise.
const JUMP: f64 = 0.2;
/// Weight of a new measurement in the smoothed load.
const WEIGHT: f64 = 0.5;
/// Share of its objective below which an instance may try to use less cache.
const EASY: f64 = 0.8;
/// Maximum backoff after failed trials, as a multiple of the first wait.
const MOST_BACKOFF: u32 = 64;

/// State of an instance.
#[derive(Clone, Debug)]
pub(super) struct DemandEstimator {
    /// Demand in ways, with hysteresis.
    held: f64,
    /// Sufficiency of this server's cache for the objective.
    pub(super) enough: Enough,
    /// Smoothed load.
    load: Option<f64>,
    /// Consecutive ticks with a demand below `held`, and the maximum demand in them.
    low: (u32, f64),
    /// Consecutive ticks in which its packets were late, or on time.
    pub(super) late: u32,
    pub(super) on_time: u32,
    /// `true` if so few references miss that the cache is not the bottleneck.
    pub(super) few_misses: bool,
    trial: Option<Trial>,
    /// Correction of its curves in ways, learnt from trials.
    more: f64,
    /// Ticks until the next trial, and the backoff factor of the last wait.
    wait: u32,
    backoff: u32,
    /// Number of ways beyond which latency did not improve.
    useless: Option<f64>,
}

/// Sufficiency of a cache for an objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enough {
    /// The demanded ways suffice.
    Here,
    /// No number of ways suffices by its curves: the load is too high for one instance.
    Nowhere,
    /// There are no curves.
    Unknown,
}

/// Ways that an instance needs for its load.
#[derive(Clone, Copy, Debug)]
struct NeededWays {
    /// With the margin below which the demand is raised.
    low: f64,
    /// With the margin that the demand is raised to.
    high: f64,
}

/// Trial of one way more or less.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// `true` for one way more.
    up: bool,
    /// Latency before the trial, in nanoseconds, and the share of references that missed.
    before: (f64, Option<f64>),
    /// Ticks until its evaluation.
    left: u32,
}

impl DemandEstimator {
    pub(super) fn new() -> Self {
        DemandEstimator {
            held: 0.0,
            enough: Enough::Unknown,
            load: None,
            low: (0, 0.0),
            late: 0,
            on_time: 0,
            few_misses: false,
            trial: None,
            more: 0.0,
            wait: 0,
            backoff: 1,
            useless: None,
        }
    }

    /// Returns the demand in ways.
    pub(super) fn ways(&self) -> f64 {
        let all = self.held + self.more;
        self.useless.map_or(all, |most| all.min(most)).max(1.0 / PARTS)
    }

    /// Processes the observations of a tick. `class` is the number of ways of its class if it is alone in one, `fair`
    /// its part of the on-demand ways. `short` is `true` if the total demand exceeds the available ways.
    pub(super) fn observe(&mut self, seen: &Observed, config: &Config, class: Option<u16>, fair: f64, short: bool) {
        let is_late = seen.latency.is_some_and(|latency| latency > seen.objective);
        match is_late {
            true => (self.late, self.on_time) = (self.late.saturating_add(1), 0),
            false => (self.late, self.on_time) = (0, self.on_time.saturating_add(1)),
        }
        self.few_misses = seen.misses.is_some_and(|part| part < config.few_misses);
        let load = match self.load {
            Some(load) if (seen.offered - load).abs() <= JUMP * load => load + WEIGHT * (seen.offered - load),
            _ => seen.offered,
        };
        let changed = self.load.is_some_and(|before| (load - before).abs() > JUMP * before);
        if changed {
            // Learnt values apply to a different load.
            (self.trial, self.useless, self.wait, self.backoff) = (None, None, 0, 1);
            self.more = self.more.max(0.0);
        }
        self.load = Some(load);
        let needed = self.needed(seen, config, load, fair, class.is_some());
        self.hold(needed, config);
        match class {
            Some(ways) => self.learn(seen, config, ways, short),
            None => self.trial = None,
        }
    }

    /// Returns the current demand. `alone`: the instance is alone in its class.
    fn needed(&mut self, seen: &Observed, config: &Config, load: f64, fair: f64, alone: bool) -> NeededWays {
        if let Some(curves) = &seen.curves {
            let within = curves.load.load_within(seen.objective);
            let rate = |ways: u16| {
                let bytes = u64::from(ways) * config.cache.way_bytes;
                curves.cache.rate(bytes) * within * ISOLATED
            };
            let need = |room: f64| (1..=config.cache.ways).find(|&ways| rate(ways) >= load * (1.0 + room));
            // If no number suffices, as many ways as increase the rate.
            let useful = || {
                let most = rate(config.cache.ways) * (1.0 - config.gain);
                (1..=config.cache.ways).find(|&ways| rate(ways) >= most).unwrap_or(1)
            };
            self.enough = match rate(config.cache.ways) >= load {
                true => Enough::Here,
                false => Enough::Nowhere,
            };
            let low = need(config.headroom).unwrap_or_else(useful);
            let high = need(config.slack).unwrap_or_else(useful);
            return NeededWays {
                low: f64::from(low),
                high: f64::from(high.max(low)),
            };
        }
        self.enough = Enough::Unknown;
        let held = match (seen.occupancy, alone) {
            // An instance alone in a class finally occupies all of it, whatever its demand: only trials show the
            // demand.
            (_, true) if self.held > 0.0 => self.held,
            (Some(bytes), _) => config.cache.in_ways(bytes),
            (None, _) => fair,
        };
        // An instance that is late because of the cache demands at least its fair share.
        let held = match self.late >= config.patience && !self.few_misses && !alone {
            true => held.max(fair),
            false => held,
        };
        NeededWays { low: held, high: held }
    }

    /// Raises the demand at once, and lowers it only after a delay, so that fluctuating loads move no ways.
    fn hold(&mut self, NeededWays { low, high }: NeededWays, config: &Config) {
        let whole = |ways: f64| (ways * PARTS - 1e-6).ceil() / PARTS;
        if low > self.held {
            (self.held, self.low) = (whole(high), (0, 0.0));
            return;
        }
        if whole(high) >= self.held {
            self.low = (0, 0.0);
            return;
        }
        let (ticks, most) = self.low;
        self.low = (ticks + 1, most.max(high));
        if self.low.0 >= config.give_up {
            self.held = whole(self.low.1);
            self.low = (0, 0.0);
        }
    }

    /// Corrects missing or wrong curves by trials: one way more, or one less, and its effect.
    fn learn(&mut self, seen: &Observed, config: &Config, has: u16, short: bool) {
        self.wait = self.wait.saturating_sub(1);
        let late = seen.latency.map_or(0.0, |latency| latency.0 as f64);
        if let Some(trial) = &mut self.trial {
            trial.left -= 1;
            let trial = *trial;
            let misses = trial.before.1.zip(seen.misses).map(|(before, now)| now - before);
            if !trial.up {
                // Too few ways: revert at once.
                if self.late > 0 || misses.is_some_and(|more| more > config.few_misses) {
                    self.more += 1.0;
                    self.end(config, false);
                } else if trial.left == 0 {
                    self.end(config, true);
                }
            } else if trial.left == 0 {
                let sooner = late < trial.before.0 * (1.0 - config.gain);
                let fewer = misses.is_some_and(|more| more < -config.gain);
                if sooner || fewer || self.late == 0 {
                    self.end(config, true);
                } else {
                    self.more -= 1.0;
                    self.useless = Some(self.ways());
                    self.end(config, false);
                }
            }
            return;
        }
        let settled = f64::from(has) >= self.ways() - 1e-6;
        let before = (late, seen.misses);
        let trial = |up| Trial {
            up,
            before,
            left: config.patience.max(1) + 1,
        };
        let tries_more = self.enough != Enough::Nowhere && !self.few_misses && self.useless.is_none();
        if self.late >= config.patience && settled && self.wait == 0 && tries_more {
            if self.ways() + 1.0 <= f64::from(config.cache.ways) {
                self.more += 1.0;
                self.trial = Some(trial(true));
            }
        } else if self.more > 0.0 || seen.curves.is_none() {
            let easy = late < EASY * seen.objective.0 as f64;
            let may = short && easy && self.on_time >= config.give_up && self.wait == 0;
            if may && settled && self.ways() >= f64::from(config.cache.least) + 1.0 {
                self.more -= 1.0;
                self.trial = Some(trial(false));
            }
        }
    }

    fn end(&mut self, config: &Config, kept: bool) {
        self.trial = None;
        self.backoff = match kept {
            true => 1,
            false => (self.backoff * 2).min(MOST_BACKOFF),
        };
        self.wait = match kept {
            true => 0,
            false => config.give_up.saturating_mul(self.backoff),
        };
    }
}

impl Cache {
    /// Converts bytes to ways.
    pub(super) fn in_ways(&self, bytes: u64) -> f64 {
        bytes as f64 / self.way_bytes as f64
    }
}

#[cfg(test)]
mod tests;
