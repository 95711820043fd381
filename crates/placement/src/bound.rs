//! Lower bound on the number of servers, and shadow prices of cores and cache.
//!
//! Cores and ways of cache are priced such that a whole server costs 1. Then an SLO costs at least as much as its
//! cheapest choice, and all servers together at least as much as all SLOs. This is a bound for any prices. The best
//! prices are those of the linear program that treats cores and ways as two pools and ignores the packing. They are
//! also the value of cores and cache for the present SLOs.

use crate::choices::Choices;
use crate::cluster::{Cluster, ServerKind};
use crate::demand::{Demand, Slot};

/// Number of price combinations tried, from all for ways to all for cores.
const STEPS: usize = 65;
/// Price of a server as an integer: sums do not depend on the order, and removing an SLO restores them exactly.
const SERVER: f64 = (1u64 << 32) as f64;

/// Minimum cost of SLOs, for each price combination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MinimumCost([i64; STEPS]);

impl Default for MinimumCost {
    fn default() -> Self {
        MinimumCost([0; STEPS])
    }
}

impl MinimumCost {
    /// Returns the minimum cost of one SLO.
    pub fn new(demand: &Demand, choices: &Choices, cluster: &Cluster) -> Self {
        // An SLO that no number of instances meets is never placed.
        if choices.list.is_empty() {
            return MinimumCost::default();
        }
        let at = |step: usize| {
            let price = |slot: Slot| price(&cluster.kinds()[slot.kind], slot, part(step));
            // Rounding down preserves the bound.
            (cheapest(demand, choices, price) * SERVER) as i64
        };
        MinimumCost(std::array::from_fn(at))
    }

    /// Adds an SLO.
    pub fn add(&mut self, other: &MinimumCost) {
        for (sum, cost) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(cost);
        }
    }

    /// Subtracts an SLO that was added before.
    pub fn subtract(&mut self, other: &MinimumCost) {
        for (sum, cost) in self.0.iter_mut().zip(other.0) {
            *sum -= cost;
        }
    }

    /// Returns the number of servers at the best prices, not rounded up.
    pub fn servers(&self) -> f64 {
        self.most() as f64 / SERVER
    }

    /// Returns the cores' share of a server's price, at the best prices, or the middle of several best ones.
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

/// Rounds up to whole servers. An excess due to rounding errors is ignored.
pub fn whole(servers: f64) -> usize {
    (servers - 1e-6).ceil().max(0.0) as usize
}

fn part(step: usize) -> f64 {
    step as f64 / (STEPS - 1) as f64
}

/// Returns the price of an instance, in servers. `part` is the cores' share of a server's price.
pub(crate) fn price(kind: &ServerKind, slot: Slot, part: f64) -> f64 {
    let cores = f64::from(slot.cores) / f64::from(kind.cores);
    let ways = f64::from(slot.ways) / f64::from(kind.ways);
    (part * cores + (1.0 - part) * ways) / f64::from(kind.nodes)
}

/// Returns the minimum cost of a demand at these prices of instances. If its list of choices is incomplete, it assumes
/// that fractions of an instance are available at its price.
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
