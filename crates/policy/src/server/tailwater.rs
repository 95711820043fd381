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

use super::{CoreNumber, Move, ServerMapper, ServerView};
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
    /// Excess of a core's load over the average, as a share of the average, above which buckets move.
    pub uneven: f64,
}

impl Default for TailwaterServerConfig {
    fn default() -> Self {
        TailwaterServerConfig {
            period: Nanos::from_secs(1),
            fill: 0.97,
            reclaim_fill: 0.93,
            pooled: 1.0,
            uneven: 0.02,
        }
    }
}

/// Tailwater's server mapper. See the module.
#[derive(Debug)]
pub struct TailwaterServerMapper {
    config: TailwaterServerConfig,
    capacity: RateFrontier,
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
        let holds = |cores: &usize| {
            let each = *cores as f64;
            let load = rate / self.capacity.rate(flows / each).max(f64::MIN_POSITIVE);
            let pooled = (most as f64 / load).clamp(1.0, self.config.pooled.max(1.0));
            load <= each * pooled * fill
        };
        (1..most).find(holds).unwrap_or(most)
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

    fn remap(&mut self, view: &ServerView<'_>, moves: &mut Vec<Move>) {
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
        let most = view.cores.len();
        let needed = self.fewest(flows, all, self.config.fill, most);
        let enough = self.fewest(flows, all, self.config.reclaim_fill, most);
        let cores = had.max(needed).min(enough.max(needed));
        for core in 0..most {
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
        for (bucket, (&to, load)) in self.owner.iter().zip(view.buckets).enumerate() {
            if to != load.core {
                moves.push(Move {
                    bucket: bucket as u16,
                    to,
                });
            }
        }
    }
}
