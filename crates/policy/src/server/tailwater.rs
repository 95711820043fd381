//! Tailwater's own server mapper: as few dedicated cores as hold the mean load, all of them equally full.
//!
//! Auxiliary cores absorb load above the mean for a while. An activated one is paid for until it is released, and the
//! frequency of activations grows steeply with a core's load. So for a given number of dedicated cores, the fewest
//! auxiliary cores are needed if all are equally full. NetBlaze's mapper uses first fit, which fills most of them to
//! the brim and leaves the last one nearly empty.
//!
//! **Pools.** A dedicated core can own the load of [several](TailwaterServerConfig::pooled) if offloading is cheap
//! compared with processing, and other cores serve as auxiliary cores. Most of the load then goes to auxiliary cores.
//! One dispatcher fills them one after the other, so only the last of them is not full. As a server fills up, fewer
//! cores are left to share, and more of its cores become dedicated. At half the server's capacity, every second core in
//! use is dedicated.
//!
//! **Headroom.** How full cores may be depends on how bursty the traffic is, what the chain costs at its worst, and how
//! often the machine takes a core away. None of it is known beforehand. So the share to which cores are filled is
//! learnt: where more packets were late than [`late`](TailwaterServerConfig::late), it becomes slightly less than what
//! the cores had; where many were, all cores are dedicated at once. After a while without late packets, which doubles
//! with each failure, it grows again. With all cores dedicated there is nothing to learn, but for one thing: if many
//! packets are late nevertheless, all cores get the same number of buckets for a while, whatever their rates. Where a
//! few flows exceed a core, or all of them all cores, equal rates make every packet late instead of some.
//!
//! **Whales.** More dedicated cores do not help a bucket that exceeds one: it is on one of them, however many.
//! If auxiliary cores can take [functions](TailwaterServerConfig::divides) of it, as many cores as its parts take
//! stay auxiliary, whatever is late, and one more for bursts of the others. Not if fewer dedicated cores than whales
//! would be left, nor if the server is nearly full, nor for a while after many packets were late nevertheless.
//!
//! **Giving back.** A core is given back once the loads of all of the last eight periods would have fit on fewer. What
//! it costs to take it again, tens of milliseconds of late packets, is more than it saves between two waves of load.
//!
//! **Overload.** A backlog that lasts [`backlog`](TailwaterServerConfig::backlog), much longer than any burst that
//! auxiliary cores are for, does not wait for the period's end: after a start at full load, for example. Such a
//! decision dedicates cores and relieves full ones, and never gives a core back.

use super::{BucketLoad, CoreNumber, Move, ServerMapper, ServerView};
use crate::capacity::RateFrontier;
use tailwater_net::Nanos;

/// Parameters of [`TailwaterServerMapper`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TailwaterServerConfig {
    /// Time between two mappings.
    pub period: Nanos,
    /// Share of their capacity to which cores are filled, on average, before another is dedicated.
    pub fill: f64,
    /// Share of their capacity to which the other cores may be filled when one is given back.
    pub reclaim_fill: f64,
    /// Load, in cores, that a dedicated core can own if auxiliary cores process most of it.
    pub pooled: f64,
    /// Auxiliary cores can run functions of a bucket that exceeds a core.
    pub divides: bool,
    /// Excess of a core's load over the average, as a share of the average, above which buckets move.
    pub uneven: f64,
    /// Excess of a core's load over the average up to which buckets are spread evenly once all cores are dedicated.
    pub spread: f64,
    /// Share of late packets that more cores can remedy above which cores were too full. An objective of 99 % allows
    /// 1 %; the default leaves the rest to flows that are late whatever else there is, and to bursts that a period of
    /// measurement did not have.
    pub late: f64,
    /// Time for which a backlog must last for a decision before the period's end, in addition to four epochs.
    pub backlog: Nanos,
}

impl Default for TailwaterServerConfig {
    fn default() -> Self {
        TailwaterServerConfig {
            period: Nanos::from_millis(250),
            fill: 0.97,
            reclaim_fill: 0.93,
            pooled: 1.0,
            divides: false,
            uneven: 0.02,
            spread: 0.2,
            late: 0.003,
            backlog: Nanos::from_millis(50),
        }
    }
}

/// Part of the share that cores had when packets were late, to which they are filled from then on.
const LESS: f64 = 0.9;
/// Factor by which that share grows after a while without late packets.
const MORE: f64 = 1.03;
/// Number of periods whose loads all fit on fewer cores before one is given back.
const PERIODS: usize = 8;
/// Share of the capacity of all cores beyond which an even spread is tried.
const FULL: f64 = 0.6;
/// Least share.
const LEAST_FILL: f64 = 0.1;
/// Multiple of the tolerated share of late packets from which on all cores are dedicated.
const MANY: f64 = 7.0;
/// Share of a core's capacity from which on a bucket needs another core.
const WHALE: f64 = 0.95;
/// Share of late packets from which on leaving cores to whales has not helped, and number of periods in a row.
const HOPELESS: (f64, u32) = (0.1, 3);
/// Cores that a whale takes divided, as a multiple of its load: parts differ, and handing over costs time.
const DIVIDED: f64 = 1.35;
/// Share of the capacity of all cores beyond which none is left to whales.
const NEARLY_FULL: f64 = 0.9;
/// Shortest and longest time without late packets after which the share grows, in periods.
const HOLD: std::ops::RangeInclusive<u32> = 4..=64;

/// Tailwater's server mapper. See the module.
#[derive(Debug)]
pub struct TailwaterServerMapper {
    config: TailwaterServerConfig,
    capacity: RateFrontier,
    /// Share to which cores are filled: that of the configuration, or less where it was too much.
    fill: f64,
    /// Periods without late packets until it grows, and the length of this time after the next failure.
    hold: u32,
    next_hold: u32,
    /// Periods in a row in which leaving cores to whales did not help, and periods for which none are left to them.
    hopeless: u32,
    without_whales: u32,
    /// Periods for which all cores get the same number of buckets, whatever their rates.
    even: u32,
    /// Cores that the last periods' loads would have left.
    enough: [usize; PERIODS],
    /// Time of the last call, and of the last one that was not early.
    last_call: Option<Nanos>,
    last_regular: Option<Nanos>,
    /// Seconds since then, and the integral of the share of late packets over them.
    seconds: f64,
    late_seconds: f64,
    /// The last plan changed the number of dedicated cores, for which packets may be late now.
    changed: bool,
    /// All cores have the same number of buckets.
    is_even: bool,
    owner: Vec<CoreNumber>,
    /// Packets per second by core.
    rates: Vec<f64>,
    dedicated: Vec<bool>,
    /// Buckets, the largest first.
    order: Vec<u16>,
}

impl TailwaterServerMapper {
    /// Creates a mapper for cores of capacity `capacity` each.
    ///
    /// # Panics
    /// If not 0 < `reclaim_fill` ≤ `fill`.
    pub fn new(config: TailwaterServerConfig, capacity: RateFrontier) -> Self {
        assert!(
            0.0 < config.reclaim_fill && config.reclaim_fill <= config.fill,
            "0 < reclaim_fill <= fill"
        );
        TailwaterServerMapper {
            fill: config.fill,
            hold: 0,
            next_hold: *HOLD.start(),
            hopeless: 0,
            without_whales: 0,
            even: 0,
            enough: [usize::MAX; PERIODS],
            last_call: None,
            last_regular: None,
            seconds: 0.0,
            late_seconds: 0.0,
            changed: false,
            is_even: false,
            config,
            capacity,
            owner: Vec::new(),
            rates: Vec::new(),
            dedicated: Vec::new(),
            order: Vec::new(),
        }
    }

    /// Returns the fewest cores, at most `most`, that these flows with `rate` packets per second fill to at most
    /// `fill`, if all are equally full.
    fn fewest(&self, flows: f64, rate: f64, fill: f64, most: usize) -> usize {
        let holds = |cores: &usize| self.fullness(flows, rate, *cores, most) <= fill;
        (1..most).find(holds).unwrap_or(most)
    }

    /// Returns the share to which these flows with `rate` packets per second fill `cores` dedicated cores of `most`
    /// cores, and those that they share.
    fn fullness(&self, flows: f64, rate: f64, cores: usize, most: usize) -> f64 {
        let each = cores.max(1) as f64;
        let load = rate / self.capacity.rate(flows / each).max(f64::MIN_POSITIVE);
        let pooled = (most as f64 / load.max(f64::MIN_POSITIVE)).clamp(1.0, self.config.pooled.max(1.0));
        load / (each * pooled)
    }

    /// Returns the most cores that may be dedicated of `all`: the others are left to buckets that exceed a core.
    fn room(&self, buckets: &[BucketLoad], all: usize) -> usize {
        let cores = |bucket: &BucketLoad| {
            let capacity = self.capacity.rate(bucket.flows.max(1.0)).max(f64::MIN_POSITIVE);
            bucket.rate.max(0.0) / capacity
        };
        let sum: f64 = buckets.iter().map(cores).sum();
        if !self.config.divides || self.without_whales > 0 || sum > NEARLY_FULL * all as f64 {
            return all;
        }
        let whales = || buckets.iter().map(cores).filter(|cores| *cores > WHALE);
        let count = whales().count();
        let parts: usize = whales().map(|cores| (cores * DIVIDED).ceil() as usize).sum();
        // Bursts of the others would take the last one from a whale.
        let left = if count > 0 { parts + 1 } else { 0 };
        // Whales that share a dedicated core are worse off than whole ones.
        match all.checked_sub(left) {
            Some(room) if room >= count => room,
            _ => all,
        }
    }

    /// Learns from a period in which a share `late` of the packets was late, and cores were `left` to whales or not.
    fn judge_room(&mut self, late: f64, left: bool) {
        self.without_whales = self.without_whales.saturating_sub(1);
        self.hopeless = if left && late > HOPELESS.0 {
            self.hopeless + 1
        } else {
            0
        };
        if self.hopeless == HOPELESS.1 {
            (self.hopeless, self.without_whales) = (0, *HOLD.end());
        }
    }

    /// Learns from a period in which `had` cores, of at most `most`, were filled to `full`, and a share `late` of the
    /// packets was late.
    fn learn(&mut self, full: f64, late: f64, (had, most): (usize, usize)) {
        let was_even = self.even > 0;
        self.even = self.even.saturating_sub(1);
        if late > self.config.late {
            // After an even time, and after a change of cores, the other way is tried once more.
            let is_many = late > MANY * self.config.late;
            if had == most && is_many && full > FULL && !was_even && !self.changed {
                self.even = *HOLD.end();
            }
            if had < most {
                let less = if late > MANY * self.config.late {
                    0.0
                } else {
                    self.fill.min(full) * LESS
                };
                self.fill = less.max(LEAST_FILL.min(self.config.fill));
                self.hold = self.next_hold;
                self.next_hold = (2 * self.next_hold).min(*HOLD.end());
            }
        } else if self.hold > 0 {
            self.hold -= 1;
        } else if self.fill < self.config.fill {
            self.fill = (self.fill * MORE).min(self.config.fill);
            self.hold = *HOLD.start();
        } else {
            self.next_hold = *HOLD.start();
        }
    }

    /// Gives each core the same number of buckets, in turn, if no core then has more than
    /// [`spread`](TailwaterServerConfig::spread) beyond the `mean`. Returns `true` if so.
    ///
    /// Equal rates need not be equally bursty: a core with a few buckets of large flows has longer queues than one with
    /// many of small flows. Where nothing is to be saved, an even spread has shorter ones.
    fn spread_evenly(&mut self, view: &ServerView<'_>, mean: f64) -> bool {
        let cores = self.rates.len();
        self.rates.fill(0.0);
        for (bucket, load) in view.buckets.iter().enumerate() {
            self.rates[bucket % cores] += load.rate.max(0.0);
        }
        // Leaving it takes more than it takes to begin.
        let spread = self.config.spread * if self.is_even { 1.0 } else { 0.5 };
        self.is_even = self.rates.iter().all(|rate| *rate <= mean * (1.0 + spread));
        if self.is_even {
            for (bucket, owner) in self.owner.iter_mut().enumerate() {
                *owner = (bucket % cores) as CoreNumber;
            }
            return true;
        }
        self.rates.fill(0.0);
        for (owner, load) in self.owner.iter().zip(view.buckets) {
            self.rates[usize::from(*owner)] += load.rate.max(0.0);
        }
        false
    }

    fn append_moves(&self, view: &ServerView<'_>, moves: &mut Vec<Move>) {
        for (bucket, (&to, load)) in self.owner.iter().zip(view.buckets).enumerate() {
            if to != load.core {
                let bucket = bucket as u16;
                moves.push(Move { bucket, to });
            }
        }
    }

    fn least(&self) -> usize {
        let cores = (0..self.rates.len()).filter(|core| self.dedicated[*core]);
        let least = cores.min_by(|a, b| self.rates[*a].total_cmp(&self.rates[*b]));
        least.unwrap_or(0)
    }

    fn give(&mut self, bucket: u16, rate: f64, to: usize) {
        let from = std::mem::replace(&mut self.owner[usize::from(bucket)], to as CoreNumber);
        self.rates[usize::from(from)] -= rate;
        self.rates[to] += rate;
    }
}

impl ServerMapper for TailwaterServerMapper {
    fn period(&self) -> Nanos {
        self.config.period
    }

    fn on_backlog_of(&self, epoch: Nanos) -> Option<Nanos> {
        Some(Nanos(4 * epoch.0).max(self.config.backlog))
    }

    fn remap(&mut self, view: &ServerView<'_>, moves: &mut Vec<Move>) {
        let since = |last: Option<Nanos>| last.map_or(self.config.period, |last| view.now.saturating_sub(last));
        let is_early = since(self.last_regular) < self.config.period;
        let elapsed = since(self.last_call).as_secs_f64();
        self.late_seconds += view.late * elapsed;
        self.seconds += elapsed;
        self.last_call = Some(view.now);
        let mut late = view.late;
        if !is_early {
            // Early calls have seen a part of the period.
            late = std::mem::take(&mut self.late_seconds) / std::mem::take(&mut self.seconds).max(f64::MIN_POSITIVE);
            self.last_regular = Some(view.now);
        }
        let rate = |bucket: usize| view.buckets[bucket].rate.max(0.0);
        self.owner.clear();
        self.owner.extend(view.buckets.iter().map(|b| b.core));
        self.rates.clear();
        self.rates.resize(view.cores.len(), 0.0);
        self.dedicated.clear();
        self.dedicated.extend(view.cores.iter().map(|c| c.dedicated));
        for bucket in 0..view.buckets.len() {
            let core = usize::from(self.owner[bucket]);
            self.dedicated[core] = true;
            self.rates[core] += rate(bucket);
        }
        let flows: f64 = view.buckets.iter().map(|b| b.flows.max(0.0)).sum();
        let all: f64 = self.rates.iter().sum();
        let had = self.dedicated.iter().filter(|d| **d).count();
        let most = self.room(view.buckets, view.cores.len());
        if !is_early || late > MANY * self.config.late {
            let full = self.fullness(flows, all, had, most);
            self.learn(full, late, (had, most));
            if most < view.cores.len() {
                self.even = 0;
            }
            if !is_early {
                self.judge_room(late, most < view.cores.len());
            }
        }
        let needed = self.fewest(flows, all, self.fill, most);
        let reclaim_fill = self.fill * self.config.reclaim_fill / self.config.fill;
        let enough = self.fewest(flows, all, reclaim_fill, most);
        if !is_early {
            self.enough.rotate_left(1);
            self.enough[PERIODS - 1] = enough;
        }
        let enough = self.enough.iter().copied().max().unwrap_or(most);
        let cores = match is_early {
            true => had.max(needed),
            false => had.max(needed).min(enough.max(needed)).min(most),
        };
        self.changed = cores != had;
        for core in 0..view.cores.len() {
            let count = self.dedicated.iter().filter(|d| **d).count();
            if count < cores && !self.dedicated[core] {
                self.dedicated[core] = true;
            }
        }
        self.order.clear();
        self.order.extend(0..view.buckets.len() as u16);
        self.order.sort_unstable_by(|a, b| {
            let (x, y) = (rate(usize::from(*a)), rate(usize::from(*b)));
            y.total_cmp(&x).then(a.cmp(b))
        });
        let order = std::mem::take(&mut self.order);
        for _ in cores..had {
            let gone = self.least();
            self.dedicated[gone] = false;
            for &bucket in &order {
                if usize::from(self.owner[usize::from(bucket)]) == gone {
                    let to = self.least();
                    self.give(bucket, rate(usize::from(bucket)), to);
                }
            }
        }
        let mean = all / cores as f64;
        let limit = mean * (1.0 + self.config.uneven);
        if cores == view.cores.len() && self.spread_evenly(view, if self.even > 0 { f64::MAX } else { mean }) {
            self.order = order;
            self.append_moves(view, moves);
            return;
        }
        self.is_even = false;
        // The largest bucket that the core can give away.
        for &bucket in &order {
            let b = usize::from(bucket);
            let from = usize::from(self.owner[b]);
            let load = rate(b);
            if self.rates[from] <= limit || load <= 0.0 {
                continue;
            }
            let to = self.least();
            let after = self.rates[to] + load;
            if after <= limit && self.rates[from] - load >= mean * (1.0 - self.config.uneven)
                || after < self.rates[from] && self.rates[from] - load >= mean
            {
                self.give(bucket, load, to);
            }
        }
        self.order = order;
        self.append_moves(view, moves);
    }
}
