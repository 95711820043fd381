//! Traffic of a chain as rates and events.
//!
//! Each RSS bucket of each section (a server, or the rack) has a rate, which changes every [`TICK`] as flows begin and
//! end: for each class of lifetimes a log-normal process with the mean, the variance and the correlation time of the
//! flows that are active at a time. Huge flows are followed one by one. Fast trains and minnow bursts are events
//! within steps.

use super::random::Draws;
use std::net::IpAddr;
use tailwater_net::toeplitz::BUCKETS;
use tailwater_traffic::generate::{Crowds, FlowClass, MinnowBursts, Stay, TrafficStatistics};

/// Time in which the rates of buckets are constant, in nanoseconds.
pub(super) const TICK: f64 = 100e6;
/// Lifetimes in seconds below which a class does not vary between ticks.
const SHORT: f64 = 0.05;
/// Steps of a table of a log-normal distribution, and their number per deviation.
const TABLE: usize = 128;
const PER_DEVIATION: f32 = 16.0;

/// Rates of a section's buckets.
#[derive(Debug)]
pub(super) struct Levels {
    /// Share of the flows that go to this section.
    pub share: f64,
    /// Share for which the tables were computed.
    tabled: f64,
    classes: Vec<Level>,
    /// Packets per nanosecond of each bucket.
    pub rates: Box<[f32; BUCKETS]>,
}

#[derive(Debug)]
struct Level {
    class: FlowClass,
    /// Correlation from a tick to the next, and the share that is new.
    keep: f32,
    change: f32,
    /// Rate of a bucket, by deviation.
    table: Box<[f32; TABLE]>,
    state: Box<[f32; BUCKETS]>,
}

impl Levels {
    fn new(statistics: &TrafficStatistics, draws: &mut Draws) -> Levels {
        let varied = statistics.classes.iter().filter(|class| class.lifetime >= SHORT);
        let level = |class: &FlowClass| {
            let keep = libm::exp(-TICK / 1e9 / class.lifetime);
            Level {
                class: *class,
                keep: keep as f32,
                change: libm::sqrt(1.0 - keep * keep) as f32,
                table: Box::new([0.0; TABLE]),
                state: Box::new([0.0; BUCKETS]),
            }
        };
        let mut levels = Levels {
            share: 0.0,
            tabled: 0.0,
            classes: varied.map(level).collect(),
            rates: Box::new([0.0; BUCKETS]),
        };
        for level in &mut levels.classes {
            level.state.iter_mut().for_each(|state| *state = draws.normal() as f32);
        }
        levels
    }

    /// Computes the tables for the current share of the flows.
    fn tabulate(&mut self) {
        let part = self.share / BUCKETS as f64;
        for Level { class, table, .. } in &mut self.classes {
            let mean = part * class.packets;
            let variance = part * class.variance;
            let sigma = libm::sqrt(libm::log(1.0 + variance / (mean * mean).max(f64::MIN_POSITIVE)));
            let mut sum = 0.0;
            let at = |step: usize| (step as f64 + 0.5 - TABLE as f64 / 2.0) / f64::from(PER_DEVIATION);
            let mut weights = 0.0;
            for step in 0..TABLE {
                let weight = libm::exp(-at(step) * at(step) / 2.0);
                weights += weight;
                sum += weight * libm::exp(sigma * at(step));
            }
            for (step, rate) in table.iter_mut().enumerate() {
                *rate = (mean / 1e9 * libm::exp(sigma * at(step)) * weights / sum) as f32;
            }
        }
        self.tabled = self.share;
    }

    fn tick(&mut self, even: f64, draws: &mut Draws) {
        if self.share != self.tabled {
            self.tabulate();
        }
        self.rates.fill((even * self.share / BUCKETS as f64) as f32);
        for level in &mut self.classes {
            let Level { keep, change, .. } = *level;
            for (state, rate) in level.state.iter_mut().zip(self.rates.iter_mut()) {
                *state = *state * keep + draws.normal() as f32 * change;
                let step = *state * PER_DEVIATION + (TABLE / 2) as f32;
                *rate += level.table[(step.max(0.0) as usize).min(TABLE - 1)];
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Huge {
    section: u32,
    bucket: u16,
    rate: f32,
    ends: f64,
}

/// Packets of one flow or of many that arrive evenly within some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Burst {
    /// Section and bucket of a flow, or `None` for new flows of all sections and buckets.
    pub at: Option<(usize, usize)>,
    pub starts: f64,
    pub lasts: f64,
    pub packets: f64,
}

/// Traffic of a chain.
#[derive(Debug)]
pub(super) struct Source {
    pub statistics: TrafficStatistics,
    draws: Draws,
    pub levels: Vec<Levels>,
    huge: Vec<Huge>,
    crowded: bool,
    state_ends: f64,
    next_tick: f64,
    /// By class of trains, and of minnow bursts: time of the next one.
    next_train: Vec<f64>,
    next_minnows: f64,
    /// Flows per second of minnow bursts.
    in_bursts: f64,
    /// Destinations not seen so far: time of the first packet, address, share. The last is the next.
    pub unseen: Vec<(f64, IpAddr, f64)>,
}

impl Source {
    pub fn new(statistics: TrafficStatistics, sections: usize, seed: u64) -> Source {
        let mut draws = Draws::new(seed);
        let levels = (0..sections).map(|_| Levels::new(&statistics, &mut draws)).collect();
        let in_bursts = |minnows: MinnowBursts| minnows.per_second * minnows.flows.mean();
        let in_bursts = statistics.minnows.map_or(0.0, in_bursts);
        let mut next = |per_second: f64| draws.exponential(1e9 / per_second.max(1e-12));
        let next_train = statistics.trains.iter().map(|train| next(train.per_second)).collect();
        let next_minnows = statistics.minnows.map_or(f64::MAX, |minnows| next(minnows.per_second));
        let first = |(address, share): &(IpAddr, f64)| (next(share * statistics.flows), *address, *share);
        let mut unseen: Vec<_> = statistics.destinations.iter().map(first).collect();
        unseen.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut source = Source {
            levels,
            huge: Vec::new(),
            crowded: false,
            state_ends: f64::MAX,
            next_tick: 0.0,
            next_train,
            next_minnows,
            in_bursts,
            unseen,
            statistics,
            draws,
        };
        if let Some(crowds) = source.statistics.crowds {
            source.state_ends = stay(&crowds, false, &mut source.draws) * source.draws.unit();
        }
        if let Some(huge) = source.statistics.huge {
            // Those that are active at the beginning.
            for _ in 0..source.draws.poisson(huge.per_second * huge.lifetime) {
                source.start_huge(0.0);
            }
        }
        source
    }

    fn start_huge(&mut self, now: f64) {
        let Some(huge) = self.statistics.huge else { return };
        let lifetime = self.draws.exponential(huge.lifetime * 1e9);
        let flow = Huge {
            section: 0,
            bucket: self.draws.below(BUCKETS) as u16,
            rate: (huge.packets / 1e9) as f32,
            ends: now + lifetime,
        };
        let section = self.section() as u32;
        self.huge.push(Huge { section, ..flow });
    }

    /// Draws the section of a flow.
    fn section(&mut self) -> usize {
        if self.levels.len() == 1 {
            return 0;
        }
        let all: f64 = self.levels.iter().map(|levels| levels.share).sum();
        let mut at = self.draws.unit() * all;
        let found = self.levels.iter().position(|levels| {
            at -= levels.share;
            at < 0.0
        });
        found.unwrap_or(0)
    }

    /// Changes the rates of all buckets, if it is time. Returns `true` if so.
    pub fn tick(&mut self, now: f64) -> bool {
        if now < self.next_tick {
            return false;
        }
        self.next_tick = now + TICK;
        if let Some(crowds) = self.statistics.crowds {
            while now >= self.state_ends {
                self.crowded = !self.crowded;
                self.state_ends += stay(&crowds, self.crowded, &mut self.draws);
            }
        }
        if let Some(huge) = self.statistics.huge {
            self.huge.retain(|flow| flow.ends > now);
            for _ in 0..self.draws.poisson(huge.per_second * TICK / 1e9) {
                self.start_huge(now);
            }
        }
        let short = self.statistics.classes.iter().filter(|class| class.lifetime < SHORT);
        let mut even: f64 = short.map(|class| class.packets).sum();
        if self.crowded
            && let Some(crowds) = self.statistics.crowds
        {
            even += crowds.packets;
        }
        for levels in &mut self.levels {
            levels.tick(even / 1e9, &mut self.draws);
        }
        for flow in &self.huge {
            self.levels[flow.section as usize].rates[usize::from(flow.bucket)] += flow.rate;
        }
        true
    }

    /// Makes the next tick come now, since shares of sections have changed.
    pub fn retick(&mut self) {
        self.next_tick = self.next_tick.min(0.0);
    }

    /// Moves a share of all flows from a section to another, and huge flows as likely as others.
    pub fn shift(&mut self, from: usize, to: usize, share: f64) {
        let part = share / self.levels[from].share.max(f64::MIN_POSITIVE);
        for flow in &mut self.huge {
            if flow.section as usize == from && self.draws.unit() < part {
                flow.section = to as u32;
            }
        }
        self.levels[from].share = (self.levels[from].share - share).max(0.0);
        self.levels[to].share += share;
    }

    /// Returns the flows per second that begin, those of minnow bursts excepted.
    pub fn flows(&self) -> f64 {
        let bursts = self.in_bursts;
        match self.statistics.crowds {
            Some(Crowds { arrivals, .. }) if self.crowded => arrivals.max_per_second - bursts,
            Some(Crowds { arrivals, .. }) => arrivals.calm_per_second() - bursts,
            None => self.statistics.flows - bursts,
        }
    }

    /// Appends the bursts that start up to `end`, in no order.
    pub fn bursts(&mut self, end: f64, bursts: &mut Vec<Burst>) {
        for class in 0..self.next_train.len() {
            while self.next_train[class] < end {
                let section = self.section();
                let bucket = self.draws.below(BUCKETS);
                let train = &self.statistics.trains[class];
                let packets = f64::from(train.sizes[self.draws.below(train.sizes.len())]);
                bursts.push(Burst {
                    at: Some((section, bucket)),
                    starts: self.next_train[class],
                    lasts: packets * 1e9 / train.rate,
                    packets,
                });
                self.next_train[class] += self.draws.exponential(1e9 / train.per_second);
            }
        }
        while self.next_minnows < end
            && let Some(minnows) = self.statistics.minnows
        {
            let quantile = self.draws.unit();
            bursts.push(Burst {
                at: None,
                starts: self.next_minnows,
                lasts: minnows.spread.0.max(1) as f64,
                packets: minnows.flows.quantile(quantile),
            });
            self.next_minnows += self.draws.exponential(1e9 / minnows.per_second);
        }
    }
}

fn stay(crowds: &Crowds, crowded: bool, draws: &mut Draws) -> f64 {
    let mean = match crowded {
        true => crowds.arrivals.crowded,
        false => crowds.arrivals.calm,
    };
    let mean = mean.0 as f64;
    match crowds.arrivals.stay {
        Stay::Exponential => draws.exponential(mean).max(1.0),
        Stay::Steady => mean * (0.9 + 0.2 * draws.unit()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tailwater_traffic::generate::preset;

    #[test]
    fn rates_and_bursts_add_up_to_the_mean() {
        for name in ["backbone", "as", "smooth", "bursty"] {
            let statistics = TrafficStatistics::of(&preset(name).unwrap());
            let expected = statistics.packets;
            let mut source = Source::new(statistics, 2, 7);
            source.levels[0].share = 0.7;
            source.levels[1].share = 0.3;
            let (mut sum, mut now, mut bursts) = (0.0, 0.0, Vec::new());
            const SECONDS: f64 = 120.0;
            while now < SECONDS * 1e9 {
                assert!(source.tick(now));
                let rates = source.levels.iter().flat_map(|levels| levels.rates.iter());
                sum += rates.map(|rate| f64::from(*rate)).sum::<f64>() * TICK;
                now += TICK;
                source.bursts(now, &mut bursts);
            }
            sum += bursts.iter().map(|burst| burst.packets).sum::<f64>();
            let ratio = sum / SECONDS / expected;
            assert!((0.95..1.05).contains(&ratio), "{name}: {ratio}");
        }
    }
}
