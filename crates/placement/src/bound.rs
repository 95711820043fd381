//! Fewer servers than this cannot do, and what cores and cache are worth.
//!
//! Cores and ways of cache are given prices such that all of a server costs 1. Then an SLO costs no less than its
//! cheapest choice does, and all servers together no less than all SLOs: a bound, for any prices. The best prices
//! are those of the linear program in which cores and ways are two heaps, whatever the packing. They are also
//! what cores and cache are worth to the SLOs that there are.

use crate::choices::Choices;
use crate::cluster::{Cluster, ServerKind};
use crate::demand::{Demand, Slot};

/// Prices that are tried, from all for ways to all for cores.
const STEPS: usize = 65;
/// What a server costs, in whole numbers: sums do not depend on the order, and come back when an SLO goes.
const SERVER: f64 = (1u64 << 32) as f64;

/// What SLOs cost at least, at each of the prices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cheapest([i64; STEPS]);

impl Default for Cheapest {
    fn default() -> Self {
        Cheapest([0; STEPS])
    }
}

impl Cheapest {
    /// What one SLO costs.
    pub fn new(demand: &Demand, choices: &Choices, cluster: &Cluster) -> Self {
        // What cannot be kept by any number of instances is never placed.
        if choices.list.is_empty() {
            return Cheapest::default();
        }
        let at = |step: usize| {
            let price = |slot: Slot| price(&cluster.kinds()[slot.kind], slot, part(step));
            // Rounded down, it is still a bound.
            (cheapest(demand, choices, price) * SERVER) as i64
        };
        Cheapest(std::array::from_fn(at))
    }

    /// One more.
    pub fn add(&mut self, other: &Cheapest) {
        for (sum, cost) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(cost);
        }
    }

    /// One less, that was added before.
    pub fn subtract(&mut self, other: &Cheapest) {
        for (sum, cost) in self.0.iter_mut().zip(other.0) {
            *sum -= cost;
        }
    }

    /// Servers, at the best prices; not rounded up.
    pub fn servers(&self) -> f64 {
        self.most() as f64 / SERVER
    }

    /// The part of a server's price that is its cores', at the best prices; the middle of them if there are
    /// several.
    pub fn part_of_cores(&self) -> f64 {
        let most = self.most();
        let first = self.0.iter().position(|&cost| cost == most).unwrap_or(0);
        let last = self.0.iter().rposition(|&cost| cost == most);
        (part(first) + part(last.unwrap_or(first))) / 2.0
    }

    fn most(&self) -> i64 {
        self.0.iter().copied().fold(0, i64::max)
    }
}

/// Whole servers: what is above a whole number by rounding only is that number.
pub fn whole(servers: f64) -> usize {
    (servers - 1e-6).ceil().max(0.0) as usize
}

fn part(step: usize) -> f64 {
    step as f64 / (STEPS - 1) as f64
}

/// The price of an instance, in servers, if this part of a server's price is that of its cores.
pub(crate) fn price(kind: &ServerKind, slot: Slot, part: f64) -> f64 {
    let cores = f64::from(slot.cores) / f64::from(kind.cores);
    let ways = f64::from(slot.ways) / f64::from(kind.ways);
    (part * cores + (1.0 - part) * ways) / f64::from(kind.nodes)
}

/// What a demand costs at least at such prices of instances. Where its choices are not all known, any part of an
/// instance may be had at its price.
pub(crate) fn cheapest(demand: &Demand, choices: &Choices, price: impl Fn(Slot) -> f64) -> f64 {
    if choices.complete {
        let sums = choices.list.iter();
        return sums
            .map(|choice| choice.iter().map(|&slot| price(slot)).sum())
            .fold(f64::INFINITY, f64::min);
    }
    let sizes = demand.offers.iter().flat_map(|offer| {
        let ways = offer.least_ways()..=offer.rates.len() as u16;
        ways.map(|ways| price(offer.slot(ways)) / offer.rate(ways))
    });
    sizes.fold(f64::INFINITY, f64::min) * demand.need
}
