//! How many ways an instance has a use for, from what is seen of it tick by tick.

use super::situation::{Cache, Config, Observed};
use crate::slo::ISOLATED;

/// Demands are kept in parts of a way: instances that share a class may want less than one.
const PARTS: f64 = 4.0;
/// A load that differs from the smoothed one by more than this part is another load, and no noise.
const JUMP: f64 = 0.2;
/// How much of a new measurement enters the smoothed one.
const WEIGHT: f64 = 0.5;
/// An instance whose percentile is below this part of its objective may try to do with less.
const EASY: f64 = 0.8;
/// The longest that a failed trial keeps the next one waiting, in times of the first.
const MOST_BACKOFF: u32 = 64;

/// What is remembered of an instance.
#[derive(Clone, Debug)]
pub(super) struct Want {
    /// Ways that it has a use for, with hysteresis.
    held: f64,
    /// Whether more cache than there is on this server would let it keep its objective, or none would.
    pub(super) enough: Enough,
    /// The load, smoothed.
    load: Option<f64>,
    /// Ticks in a row with less need than is held, and the most that was needed in them.
    low: (u32, f64),
    /// Ticks in a row in which its packets were late, or were not.
    pub(super) late: u32,
    pub(super) on_time: u32,
    /// Whether so few of its references miss that cache is not what it lacks.
    pub(super) few_misses: bool,
    trial: Option<Trial>,
    /// Ways more than its curves say, as trials have shown.
    more: f64,
    /// Ticks until the next trial, and times that the last wait is to be longer.
    wait: u32,
    backoff: u32,
    /// It has a use for no more ways than this: with more it was no sooner.
    useless: Option<f64>,
}

/// Whether there is any number of ways with which an objective is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enough {
    /// With so many as it wants.
    Here,
    /// By its curves, with none: the load is too much for one instance.
    Nowhere,
    /// Nothing was measured of it.
    Unknown,
}

/// A way more or less, to see what it does.
#[derive(Clone, Copy, Debug)]
struct Trial {
    /// Whether it is one more.
    up: bool,
    /// How late packets were before, in nanoseconds, and the part of references that missed.
    before: (f64, Option<f64>),
    /// Ticks until it is judged.
    left: u32,
}

impl Want {
    pub(super) fn new() -> Self {
        Want {
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

    /// Ways that it has a use for.
    pub(super) fn ways(&self) -> f64 {
        let all = self.held + self.more;
        self.useless.map_or(all, |most| all.min(most)).max(1.0 / PARTS)
    }

    /// What was seen in a tick. `class` is how many ways the class has that it is alone in, if it is; `fair` its part
    /// of the on-demand ways, `short` whether anybody has a use for more than there is.
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
            // What was learnt holds for another load.
            (self.trial, self.useless, self.wait, self.backoff) = (None, None, 0, 1);
            self.more = self.more.max(0.0);
        }
        self.load = Some(load);
        let needs = self.needs(seen, config, load, fair, class.is_some());
        self.hold(needs, config);
        match class {
            Some(ways) => self.learn(seen, config, ways, short),
            None => self.trial = None,
        }
    }

    /// Ways that it needs now, with little room above the load, and with much.
    fn needs(&mut self, seen: &Observed, config: &Config, load: f64, fair: f64, alone: bool) -> (f64, f64) {
        if let Some(curves) = &seen.curves {
            let within = curves.load.load_within(seen.objective);
            let rate = |ways: u16| {
                let bytes = u64::from(ways) * config.cache.way_bytes;
                curves.cache.rate(bytes) * within * ISOLATED
            };
            let need = |room: f64| (1..=config.cache.ways).find(|&ways| rate(ways) >= load * (1.0 + room));
            // As many as make it faster, where none is enough.
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
            return (f64::from(low), f64::from(high.max(low)));
        }
        self.enough = Enough::Unknown;
        let held = match (seen.occupancy, alone) {
            // Alone in a class an instance holds all of it in the end, whatever it has a use for: trials tell.
            (_, true) if self.held > 0.0 => self.held,
            (Some(bytes), _) => config.cache.in_ways(bytes),
            (None, _) => fair,
        };
        // One that is late for want of cache has a use for its fair share, at least.
        match self.late >= config.patience && !self.few_misses && !alone {
            true => (held.max(fair), held.max(fair)),
            false => (held, held),
        }
    }

    /// Up at once, down only after a while: loads that go up and down move no ways.
    fn hold(&mut self, (low, high): (f64, f64), config: &Config) {
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

    /// What curves do not tell, or tell wrongly: a way more, or less, and whether that made a difference.
    fn learn(&mut self, seen: &Observed, config: &Config, has: u16, short: bool) {
        self.wait = self.wait.saturating_sub(1);
        let late = seen.latency.map_or(0.0, |latency| latency.0 as f64);
        if let Some(trial) = &mut self.trial {
            trial.left -= 1;
            let trial = *trial;
            let misses = trial.before.1.zip(seen.misses).map(|(before, now)| now - before);
            if !trial.up {
                // Too little: the way back at once.
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
    /// Bytes as ways.
    pub(super) fn in_ways(&self, bytes: u64) -> f64 {
        bytes as f64 / self.way_bytes as f64
    }
}
