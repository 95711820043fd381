//! NetBlaze's server mapper, and its ablations.
//!
//! The paper (section 3.3): every second, the mapper uses each bucket's average flows and rate, and a core's capacity.
//! (1) Each overloaded core sheds the fewest buckets that bring it inside its capacity. They go to the first other
//! dedicated core that has room, or else to a new one. (2) Starting from the least loaded, a core whose buckets all
//! find room elsewhere is emptied and reclaimed, until none can be. Few moves preserve cache contents. A mixed-integer
//! programme would take hundreds of milliseconds.
//!
//! Not published, and chosen here:
//!
//! - *Hysteresis.* A core takes buckets only up to a share of its capacity ([`fill`](NetBlazeServerConfig::fill)), so
//!   that the next small change does not overload it. In reclaiming, a lower share applies
//!   ([`reclaim_fill`](NetBlazeServerConfig::reclaim_fill)). A bucket that was moved stays for some time
//!   ([`settle`](NetBlazeServerConfig::settle)) unless its core is overloaded, and so do the others of the core that it
//!   left. No core is reclaimed when a new one was needed.
//! - *Orders.* Cores are tried by number. Buckets are placed from the largest rate on. Of equally loaded cores the
//!   highest number is emptied first.
//! - *Whale buckets.* A bucket that exceeds a core by itself moves only to a core of its own. One that is alone on its
//!   core stays there.
//! - *No core left.* An overloaded core sheds only the buckets that fit elsewhere.
//!
//! The ablations of section 4.5 differ in their inputs. One kind uses a capacity that is the same for all flow counts,
//! [the lowest](RateFrontier::static_safe) or [the highest](RateFrontier::static_unsafe). The other, on-demand RSS,
//! sets [`on_overload`](NetBlazeServerConfig::on_overload), which replaces the boost mode of the core mapper.

use super::shed::{Item, Shedder};
use tailwater_net::Nanos;
use tailwater_policy::capacity::RateFrontier;
use tailwater_policy::server::{CoreNumber, Move, ServerMapper, ServerView};

/// Number of epochs from which on a lasting backlog is an overload.
const OVERLOAD: u64 = 4;

/// Parameters of [`NetBlazeServerMapper`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetBlazeServerConfig {
    /// Time between two mappings.
    pub period: Nanos,
    /// `true` if the mapper also runs at once when a core is overloaded.
    pub on_overload: bool,
    /// Share of its capacity up to which a core takes buckets.
    pub fill: f64,
    /// Share of its capacity up to which a core takes the buckets of a core that is reclaimed.
    pub reclaim_fill: f64,
    /// Time for which a bucket stays after a move, unless its core is overloaded. It also applies to the other buckets
    /// of the overloaded core that it left.
    pub settle: Nanos,
}

impl Default for NetBlazeServerConfig {
    /// Returns the paper's period of a second. The other values are Tailwater's.
    fn default() -> Self {
        NetBlazeServerConfig {
            period: Nanos::from_secs(1),
            on_overload: false,
            fill: 0.95,
            reclaim_fill: 0.85,
            settle: Nanos::from_secs(3),
        }
    }
}

/// Total load of a core.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    flows: f64,
    rate: f64,
    buckets: usize,
}

impl Sum {
    fn with(self, item: Item) -> Sum {
        Sum {
            flows: self.flows + item.flows,
            rate: self.rate + item.rate,
            buckets: self.buckets + 1,
        }
    }

    /// Removes a bucket. A core without buckets has exactly zero load, despite rounding.
    fn without(self, item: Item) -> Sum {
        if self.buckets <= 1 {
            return Sum::default();
        }
        Sum {
            flows: (self.flows - item.flows).max(0.0),
            rate: (self.rate - item.rate).max(0.0),
            buckets: self.buckets - 1,
        }
    }
}

/// NetBlaze's server mapper.
#[derive(Debug)]
pub struct NetBlazeServerMapper {
    config: NetBlazeServerConfig,
    limit: Limit,
    owner: Vec<CoreNumber>,
    cores: Vec<Sum>,
    dedicated: Vec<bool>,
    /// Time until which each bucket stays, unless its core is overloaded.
    stays: Vec<Nanos>,
    shedder: Shedder,
    shed: Vec<Item>,
    order: Vec<CoreNumber>,
}

impl NetBlazeServerMapper {
    /// Creates a mapper for cores of capacity `capacity` each.
    ///
    /// # Panics
    /// If not 0 < `reclaim_fill` ≤ `fill` ≤ 1.
    pub fn new(config: NetBlazeServerConfig, capacity: RateFrontier) -> Self {
        assert!(
            0.0 < config.reclaim_fill && config.reclaim_fill <= config.fill && config.fill <= 1.0,
            "0 < reclaim_fill <= fill <= 1"
        );
        NetBlazeServerMapper {
            config,
            limit: Limit(capacity),
            owner: Vec::new(),
            cores: Vec::new(),
            dedicated: Vec::new(),
            stays: Vec::new(),
            shedder: Shedder::default(),
            shed: Vec::new(),
            order: Vec::new(),
        }
    }

    /// Copies the loads from the view.
    fn load_view(&mut self, view: &ServerView<'_>) {
        let (buckets, cores) = (view.buckets.len(), view.cores.len());
        self.stays.resize(buckets, Nanos::ZERO);
        self.shedder.reserve(buckets);
        self.shed.clear();
        self.shed.reserve(buckets);
        self.order.clear();
        self.order.reserve(cores);
        self.owner.clear();
        self.owner.extend(view.buckets.iter().map(|bucket| bucket.core));
        self.dedicated.clear();
        self.dedicated.extend(view.cores.iter().map(|core| core.dedicated));
        self.cores.clear();
        self.cores.resize(cores, Sum::default());
        for bucket in 0..buckets {
            let core = usize::from(self.owner[bucket]);
            self.dedicated[core] = true;
            self.cores[core] = self.cores[core].with(item(view, bucket));
        }
    }

    /// Moves `item` to `to`.
    fn give(&mut self, item: Item, to: CoreNumber, now: Nanos) {
        let bucket = usize::from(item.bucket);
        let from = usize::from(std::mem::replace(&mut self.owner[bucket], to));
        let to = usize::from(to);
        self.cores[from] = self.cores[from].without(item);
        self.cores[to] = self.cores[to].with(item);
        self.dedicated[to] = true;
        self.stays[bucket] = now + self.config.settle;
    }

    /// Returns the first dedicated core except `from` that has room for `item`.
    fn first_fit(&self, item: Item, from: usize, fill: f64) -> Option<CoreNumber> {
        let fits = |core: &usize| {
            *core != from && self.dedicated[*core] && self.limit.fits(self.cores[*core].with(item), fill)
        };
        (0..self.cores.len()).find(fits).map(|core| core as CoreNumber)
    }

    /// Returns the first core that can be dedicated.
    fn new_core(&self) -> Option<CoreNumber> {
        let core = self.dedicated.iter().position(|dedicated| !dedicated)?;
        Some(core as CoreNumber)
    }

    /// Brings core `core` inside its capacity, if there are enough cores. Returns `true` if a new one was needed.
    fn relieve(&mut self, core: usize, view: &ServerView<'_>) -> bool {
        let owner = &self.owner;
        let mine = (0..owner.len()).filter(|&bucket| usize::from(owner[bucket]) == core);
        let items = mine.map(|bucket| item(view, bucket));
        let limit = &self.limit;
        let fits = |flows, rate| limit.holds(flows, rate, 1.0);
        self.shed.clear();
        self.shed.extend(self.shedder.fewest(items, fits));
        self.shed.sort_unstable_by(largest_first);
        if self.shed.len() == self.cores[core].buckets {
            // None of them fits a core, so the largest stays.
            self.shed.remove(0);
        }
        let (mut needed_new, mut out_of_cores) = (false, false);
        for i in 0..self.shed.len() {
            let item = self.shed[i];
            if let Some(to) = self.first_fit(item, core, self.config.fill) {
                self.give(item, to, view.now);
            } else if let Some(to) = self.new_core() {
                self.give(item, to, view.now);
                needed_new = true;
            } else {
                out_of_cores = true;
            }
        }
        if out_of_cores {
            self.shed.clear();
            let mine = (0..self.owner.len()).filter(|&bucket| usize::from(self.owner[bucket]) == core);
            self.shed.extend(mine.map(|bucket| item(view, bucket)));
            self.shed.sort_unstable_by(largest_first);
            for i in 0..self.shed.len() {
                if !self.overloaded(core) {
                    break;
                }
                if let Some(to) = self.first_fit(self.shed[i], core, self.config.fill) {
                    self.give(self.shed[i], to, view.now);
                }
            }
        }
        for (owner, stays) in self.owner.iter().zip(&mut self.stays) {
            if usize::from(*owner) == core {
                *stays = view.now + self.config.settle;
            }
        }
        needed_new
    }

    /// Returns `true` if `core` exceeds its capacity, and moving buckets away could help.
    fn overloaded(&self, core: usize) -> bool {
        self.cores[core].buckets > 1 && !self.limit.fits(self.cores[core], 1.0)
    }

    /// Empties `core` if all its buckets find room elsewhere.
    fn reclaim(&mut self, core: usize, view: &ServerView<'_>) {
        self.shed.clear();
        for (bucket, &owner) in self.owner.iter().enumerate() {
            if usize::from(owner) == core {
                if self.stays[bucket] > view.now {
                    return;
                }
                self.shed.push(item(view, bucket));
            }
        }
        self.shed.sort_unstable_by(largest_first);
        // Tentative placement, undone if a bucket finds no room.
        for i in 0..self.shed.len() {
            if let Some(to) = self.first_fit(self.shed[i], core, self.config.reclaim_fill) {
                self.owner[usize::from(self.shed[i].bucket)] = to;
                self.cores[usize::from(to)] = self.cores[usize::from(to)].with(self.shed[i]);
            } else {
                for item in self.shed[..i].iter().rev() {
                    let to = std::mem::replace(&mut self.owner[usize::from(item.bucket)], core as CoreNumber);
                    self.cores[usize::from(to)] = self.cores[usize::from(to)].without(*item);
                }
                return;
            }
        }
        for item in &self.shed {
            self.stays[usize::from(item.bucket)] = view.now + self.config.settle;
        }
        self.cores[core] = Sum::default();
        self.dedicated[core] = false;
    }
}

impl ServerMapper for NetBlazeServerMapper {
    fn period(&self) -> Nanos {
        self.config.period
    }

    fn on_backlog_of(&self, epoch: Nanos) -> Option<Nanos> {
        self.config.on_overload.then_some(Nanos(epoch.0 * OVERLOAD))
    }

    fn remap(&mut self, view: &ServerView<'_>, moves: &mut Vec<Move>) {
        self.load_view(view);
        let mut needed_new = false;
        for core in 0..self.cores.len() {
            if self.overloaded(core) {
                needed_new |= self.relieve(core, view);
            }
        }
        if !needed_new {
            let dedicated = (0..self.cores.len()).filter(|&core| self.dedicated[core]);
            self.order.clear();
            self.order.extend(dedicated.map(|core| core as CoreNumber));
            let (cores, limit) = (&self.cores, &self.limit);
            let load = |core: CoreNumber| limit.load(cores[usize::from(core)]);
            self.order
                .sort_unstable_by(|&a, &b| load(a).total_cmp(&load(b)).then(b.cmp(&a)));
            // One pass suffices: room elsewhere only shrinks as others are placed.
            for i in 0..self.order.len() {
                self.reclaim(usize::from(self.order[i]), view);
            }
        }
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

/// Capacity of a core.
#[derive(Debug)]
struct Limit(RateFrontier);

impl Limit {
    fn holds(&self, flows: f64, rate: f64, fill: f64) -> bool {
        rate <= 0.0 || rate <= self.0.rate(flows) * fill
    }

    fn fits(&self, sum: Sum, fill: f64) -> bool {
        self.holds(sum.flows, sum.rate, fill)
    }

    /// Returns the share of its capacity that a core uses.
    fn load(&self, sum: Sum) -> f64 {
        if sum.rate <= 0.0 {
            return 0.0;
        }
        sum.rate / self.0.rate(sum.flows)
    }
}

/// Returns a bucket of the view. Values that are not finite count as zero.
fn item(view: &ServerView<'_>, bucket: usize) -> Item {
    let load = &view.buckets[bucket];
    Item {
        bucket: bucket as u16,
        flows: load.flows.max(0.0),
        rate: load.rate.max(0.0),
    }
}

fn largest_first(a: &Item, b: &Item) -> std::cmp::Ordering {
    let larger = b.rate.total_cmp(&a.rate).then(b.flows.total_cmp(&a.flows));
    larger.then(a.bucket.cmp(&b.bucket))
}
