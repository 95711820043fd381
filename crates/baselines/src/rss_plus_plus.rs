//! Balancer of RSS buckets in the manner of RSS++ (Barbette et al., CoNEXT 2019).
//!
//! In RSS++, a bucket's load is its core's CPU load in proportion to the bucket's packets. At 1 to 10 Hz it solves an
//! optimisation problem that weighs the squared imbalance of the cores against the number of buckets moved. The
//! solution moves few buckets from overloaded to underloaded cores. RSS++ adds a core when the load requires it, and
//! removes one when fewer suffice. The timer starts at 100 ms and backs off to 1 s while the cores are balanced.
//! Imbalances of 2 % are ignored, and the target load of a core is 80 %: both are defaults of the public code.
//!
//! The solver is not part of this project. Steepest descent was chosen instead. Each step moves one bucket from the
//! most loaded core that has a movable one to the least loaded core. It picks the bucket that lowers the sum of squared
//! loads most, so large buckets go first and few move. Each bucket moves at most once in a plan, and no step raises the
//! imbalance. Cores are added by number until the mean load is at the target. One core at a time, the least loaded, is
//! removed when the others' mean stays below the target by a margin.

use tailwater_net::Nanos;
use tailwater_policy::server::{CoreNumber, Move, ServerMapper, ServerView};

/// Parameters of [`RssPlusPlus`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RssPlusPlusConfig {
    /// Time between two plans, after a plan that moved something.
    pub shortest_period: Nanos,
    /// Longest time between two plans. Each plan that moves nothing doubles the time up to this.
    pub longest_period: Nanos,
    /// Distance from the mean, as a share of a core, within which loads count as balanced.
    pub threshold: f64,
    /// Mean load above which a core is added, or `None` for a fixed number of cores.
    pub target: Option<f64>,
    /// Distance below the target that the others' mean load must keep for a core to be removed.
    pub margin: f64,
}

impl Default for RssPlusPlusConfig {
    fn default() -> Self {
        RssPlusPlusConfig {
            shortest_period: Nanos::from_millis(100),
            longest_period: Nanos::from_secs(1),
            threshold: 0.02,
            target: Some(0.8),
            margin: 0.1,
        }
    }
}

/// Server mapper that balances buckets over the cores.
#[derive(Clone, Debug)]
pub struct RssPlusPlus {
    config: RssPlusPlusConfig,
    period: Nanos,
    owner: Vec<CoreNumber>,
    /// Loads of buckets and cores, as shares of a core.
    buckets: Vec<f64>,
    cores: Vec<f64>,
    rates: Vec<f64>,
    used: Vec<CoreNumber>,
    order: Vec<CoreNumber>,
}

impl RssPlusPlus {
    /// Creates a mapper without any observation.
    pub fn new(config: RssPlusPlusConfig) -> RssPlusPlus {
        RssPlusPlus {
            period: config.shortest_period,
            config,
            owner: Vec::new(),
            buckets: Vec::new(),
            cores: Vec::new(),
            rates: Vec::new(),
            used: Vec::new(),
            order: Vec::new(),
        }
    }

    fn look(&mut self, view: &ServerView<'_>) {
        let cores = view.cores.len();
        self.owner.clear();
        self.owner.extend(view.buckets.iter().map(|bucket| bucket.core));
        self.rates.clear();
        self.rates.resize(cores, 0.0);
        for bucket in view.buckets {
            self.rates[usize::from(bucket.core)] += bucket.rate;
        }
        self.cores.clear();
        self.cores.resize(cores, 0.0);
        self.buckets.clear();
        for bucket in view.buckets {
            let core = usize::from(bucket.core);
            let share = if self.rates[core] > 0.0 {
                bucket.rate / self.rates[core]
            } else {
                0.0
            };
            let load = share * view.cores[core].busy;
            self.buckets.push(load);
            self.cores[core] += load;
        }
        let used = (0..cores).filter(|&core| view.cores[core].dedicated);
        self.used.clear();
        self.used.reserve(cores);
        self.used.extend(used.map(|core| core as CoreNumber));
    }

    fn load(&self, core: CoreNumber) -> f64 {
        self.cores[usize::from(core)]
    }

    fn give(&mut self, bucket: usize, to: CoreNumber) {
        let from = std::mem::replace(&mut self.owner[bucket], to);
        self.cores[usize::from(from)] -= self.buckets[bucket];
        self.cores[usize::from(to)] += self.buckets[bucket];
    }

    /// Returns the core in use with the least load.
    fn least(&self) -> Option<CoreNumber> {
        let cores = self.used.iter().copied();
        cores.min_by(|&a, &b| self.load(a).total_cmp(&self.load(b)).then(a.cmp(&b)))
    }

    /// Adds or removes cores.
    fn scale(&mut self, target: f64, view: &ServerView<'_>) {
        let total: f64 = self.cores.iter().sum();
        let mean = |cores: usize| total / cores as f64;
        let count = self.used.len();
        if mean(count) > target {
            let free = |&core: &usize| !view.cores[core].dedicated;
            for core in (0..view.cores.len()).filter(free) {
                if mean(self.used.len()) <= target {
                    break;
                }
                self.used.push(core as CoreNumber);
            }
        } else if count > 1 && mean(count - 1) < target - self.config.margin {
            let Some(removed) = self.least() else { return };
            self.used.retain(|&core| core != removed);
            for bucket in 0..self.owner.len() {
                if self.owner[bucket] == removed
                    && let Some(to) = self.least()
                {
                    self.give(bucket, to);
                }
            }
        }
    }

    /// Returns the move from `from` to `to` that balances the two best: the bucket nearest to half of their difference.
    fn best(&self, from: CoreNumber, to: CoreNumber, view: &ServerView<'_>) -> Option<usize> {
        let difference = self.load(from) - self.load(to);
        let gain = |bucket: usize| self.buckets[bucket] * (difference - self.buckets[bucket]);
        (0..self.owner.len())
            .filter(|&bucket| self.owner[bucket] == from && view.buckets[bucket].core == from)
            .filter(|&bucket| gain(bucket) > 0.0)
            .max_by(|&a, &b| gain(a).total_cmp(&gain(b)).then(b.cmp(&a)))
    }

    fn balance(&mut self, view: &ServerView<'_>) {
        // Each bucket moves at most once, which bounds the loop.
        for _ in 0..self.owner.len() {
            let Some(to) = self.least() else { return };
            let mean = self.used.iter().map(|&core| self.load(core)).sum::<f64>() / self.used.len() as f64;
            self.order.clear();
            self.order.extend_from_slice(&self.used);
            let cores = &self.cores;
            let load = |core: CoreNumber| cores[usize::from(core)];
            self.order
                .sort_unstable_by(|&a, &b| load(b).total_cmp(&load(a)).then(a.cmp(&b)));
            let off = |core: CoreNumber| (load(core) - mean).abs() > self.config.threshold;
            if !off(to) && !off(self.order[0]) {
                return;
            }
            let above = self.order.iter().take_while(|&&core| load(core) > mean);
            let wrong = above.filter(|&&core| off(to) || off(core));
            let found = wrong.map(|&from| self.best(from, to, view)).find(Option::is_some);
            let Some(bucket) = found.flatten() else {
                return;
            };
            self.give(bucket, to);
        }
    }
}

impl ServerMapper for RssPlusPlus {
    fn period(&self) -> Nanos {
        self.period
    }

    fn remap(&mut self, view: &ServerView<'_>, moves: &mut Vec<Move>) {
        self.look(view);
        if let Some(target) = self.config.target {
            self.scale(target, view);
        }
        self.balance(view);
        for (bucket, (&to, load)) in self.owner.iter().zip(view.buckets).enumerate() {
            if to != load.core {
                moves.push(Move {
                    bucket: bucket as u16,
                    to,
                });
            }
        }
        self.period = if moves.is_empty() {
            Nanos(self.period.0 * 2).min(self.config.longest_period)
        } else {
            self.config.shortest_period
        };
    }
}
