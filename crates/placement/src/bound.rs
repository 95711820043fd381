//! Lower bound on the number of servers, and shadow prices of cores, cache and its classes.
//!
//! Cores, ways of cache and classes are priced such that a whole server costs 1. Then an SLO costs at least as much as
//! its cheapest choice, and all servers together at least as much as all SLOs. This is a bound for any prices. The best
//! prices are those of the linear program that treats the three resources as pools and ignores the packing. They are
//! also the value of cores, cache and classes for the present SLOs.
//!
//! Anti-affinity rules give a second bound: instances of an SLO with `spread` are on different servers, and so are SLOs
//! of a group. The larger bound holds.

use crate::choices::Choices;
use crate::cluster::{Cluster, ServerKind};
use crate::demand::{Demand, Slot};
use crate::slo::Slo;
use std::collections::BTreeMap;

/// Steps of the weight of cores where classes cost nothing.
const STEPS: usize = 64;
/// Steps of the weights of cores and classes where classes cost something.
const COARSE: usize = 16;
/// Number of price combinations tried: a line without a price of classes, and a triangle with one.
const POINTS: usize = STEPS + 1 + COARSE * (COARSE + 1) / 2;
/// Price combinations, ordered by the weight of classes, then of cores.
const WEIGHTS: [Weights; POINTS] = weights();
/// Price of a server as an integer: sums do not depend on the order, and removing an SLO restores them exactly.
const SERVER: f64 = (1u64 << 32) as f64;

/// Shares of a server's price that its cores and its classes cost. Ways of cache cost the rest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weights {
    /// Share of the cores.
    pub cores: f64,
    /// Share of the classes.
    pub classes: f64,
}

const fn weights() -> [Weights; POINTS] {
    let mut all = [Weights {
        cores: 0.0,
        classes: 0.0,
    }; POINTS];
    let mut next = 0;
    while next <= STEPS {
        all[next].cores = next as f64 / STEPS as f64;
        next += 1;
    }
    let mut classes = 1;
    while classes <= COARSE {
        let mut cores = 0;
        while cores + classes <= COARSE {
            all[next] = Weights {
                cores: cores as f64 / COARSE as f64,
                classes: classes as f64 / COARSE as f64,
            };
            next += 1;
            cores += 1;
        }
        classes += 1;
    }
    all
}

/// Shares of a server's cores, ways and classes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Shares {
    cores: f64,
    ways: f64,
    classes: f64,
}

impl Shares {
    /// Returns the shares that these resources are of a server of a kind.
    pub(crate) fn new(kind: &ServerKind, cores: u16, ways: u16, classes: u16) -> Self {
        let share = |part: u16, all: u16| f64::from(part) / f64::from(all) / f64::from(kind.nodes);
        Shares {
            cores: share(cores, kind.cores),
            ways: share(ways, kind.ways),
            classes: share(classes, kind.classes),
        }
    }

    /// Returns the shares of an instance.
    pub(crate) fn of(kind: &ServerKind, slot: Slot) -> Self {
        Shares::new(kind, slot.cores, slot.ways, 1)
    }

    /// Returns the price, in servers.
    pub(crate) fn price(self, weights: Weights) -> f64 {
        let ways = 1.0 - weights.cores - weights.classes;
        weights.cores * self.cores + ways * self.ways + weights.classes * self.classes
    }

    fn plus(self, other: Shares) -> Shares {
        Shares {
            cores: self.cores + other.cores,
            ways: self.ways + other.ways,
            classes: self.classes + other.classes,
        }
    }

    fn times(self, factor: f64) -> Shares {
        Shares {
            cores: self.cores * factor,
            ways: self.ways * factor,
            classes: self.classes * factor,
        }
    }

    /// Returns `true` if these shares cost no more than others at any prices.
    fn is_within(self, other: Shares) -> bool {
        self.cores <= other.cores && self.ways <= other.ways && self.classes <= other.classes
    }
}

/// Minimum cost of SLOs, for each price combination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MinimumCost([i64; POINTS]);

impl Default for MinimumCost {
    fn default() -> Self {
        MinimumCost([0; POINTS])
    }
}

impl MinimumCost {
    /// Returns the minimum cost of one SLO.
    pub fn new(demand: &Demand, choices: &Choices, cluster: &Cluster) -> Self {
        let mut least: Vec<Shares> = Vec::new();
        for shares in occupied(demand, choices, cluster) {
            if !least.iter().any(|other| other.is_within(shares)) {
                least.retain(|other| !shares.is_within(*other));
                least.push(shares);
            }
        }
        // An SLO that no number of instances meets is never placed.
        if least.is_empty() {
            return MinimumCost::default();
        }
        MinimumCost(WEIGHTS.map(|weights| {
            let prices = least.iter().map(|shares| shares.price(weights));
            // Rounding down preserves the bound.
            (prices.fold(f64::INFINITY, f64::min) * SERVER) as i64
        }))
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

    /// Returns the best prices. Of several, those with the lowest price of classes, and among these the middle.
    pub fn weights(&self) -> Weights {
        let most = self.most();
        let best = || self.0.iter().zip(WEIGHTS).filter(|&(&cost, _)| cost == most);
        let Some((_, first)) = best().next() else {
            return WEIGHTS[0];
        };
        let last = best().rfind(|(_, weights)| weights.classes == first.classes);
        Weights {
            cores: (first.cores + last.map_or(first.cores, |(_, last)| last.cores)) / 2.0,
            classes: first.classes,
        }
    }

    fn most(&self) -> i64 {
        self.0.iter().copied().fold(0, i64::max)
    }
}

/// Returns the shares of servers that each choice occupies. If the list of choices is incomplete, it assumes that
/// fractions of an instance are available.
fn occupied<'a>(demand: &'a Demand, choices: &'a Choices, cluster: &'a Cluster) -> Vec<Shares> {
    let shares = |slot: Slot| Shares::of(&cluster.kinds()[slot.kind], slot);
    if choices.complete {
        let sum = |choice: &Vec<Slot>| {
            choice
                .iter()
                .map(|&slot| shares(slot))
                .fold(Shares::default(), Shares::plus)
        };
        return choices.list.iter().map(sum).collect();
    }
    // As `choices`, which finds none, says that no number of instances suffices.
    if choices.list.is_empty() {
        return Vec::new();
    }
    let sizes = demand.offers.iter().flat_map(|offer| {
        let ways = offer.least_ways()..=offer.rates.len() as u16;
        ways.map(|ways| shares(offer.slot(ways)).times(demand.need / offer.rate(ways)))
    });
    sizes.collect()
}

/// Returns a lower bound on the servers for SLOs, given with their minimum costs, by their anti-affinity rules.
pub fn separate_servers<'a>(cluster: &Cluster, slos: impl Iterator<Item = (&'a Slo, &'a MinimumCost)>) -> usize {
    let mut most = 0;
    let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
    for (slo, cost) in slos {
        let group = slo.apart.as_deref();
        if !slo.spread && group.is_none() {
            continue;
        }
        let mut servers = whole(cost.servers()).max(1);
        if slo.spread {
            servers = servers.max(spread_servers(cluster, slo));
        }
        // Servers of a group's SLOs are all different.
        let sum = group.map_or(servers, |group| {
            let sum = groups.entry(group).or_default();
            *sum += servers;
            *sum
        });
        most = most.max(sum);
    }
    most
}

/// Returns the fewest servers on which one instance each meets an SLO: those with the highest rates.
fn spread_servers(cluster: &Cluster, slo: &Slo) -> usize {
    let Ok(demand) = Demand::new(slo, cluster) else {
        return 0;
    };
    let counts = cluster.counts();
    let mut rates: Vec<(f64, usize)> = demand
        .offers
        .iter()
        .map(|offer| (offer.rate(offer.rates.len() as u16), counts[offer.kind]))
        .collect();
    rates.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut servers, mut sum) = (0, 0.0);
    for (rate, count) in rates {
        if demand.is_met(sum + rate * count as f64) {
            let fits = |more: &usize| demand.is_met(sum + rate * *more as f64);
            return servers + (1..count).find(fits).unwrap_or(count);
        }
        (servers, sum) = (servers + count, sum + rate * count as f64);
    }
    servers
}

/// Rounds up to whole servers. An excess due to rounding errors is ignored.
pub fn whole(servers: f64) -> usize {
    (servers - 1e-6).ceil().max(0.0) as usize
}

/// Returns the minimum cost of a demand at these prices of instances. If its list of choices is incomplete, it assumes
/// that fractions of an instance are available at its price.
#[cfg(feature = "milp")]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn price_combinations_are_parts_of_one_server() {
        assert_eq!(
            WEIGHTS[POINTS - 1],
            Weights {
                cores: 0.0,
                classes: 1.0
            }
        );
        for (number, weights) in WEIGHTS.iter().enumerate() {
            assert!(weights.cores >= 0.0 && weights.classes >= 0.0 && weights.cores + weights.classes <= 1.0);
            assert!(!WEIGHTS[..number].contains(weights), "{weights:?}");
        }
    }

    #[test]
    fn price_combinations_reach_both_ends_of_each_line() {
        let at = |cores, classes| WEIGHTS.iter().filter(|w| **w == Weights { cores, classes }).count();
        assert_eq!(
            WEIGHTS[0],
            Weights {
                cores: 0.0,
                classes: 0.0
            }
        );
        assert_eq!(
            WEIGHTS[STEPS],
            Weights {
                cores: 1.0,
                classes: 0.0
            }
        );
        for classes in 1..=COARSE {
            let part = |of: usize| of as f64 / COARSE as f64;
            assert_eq!(at(0.0, part(classes)), 1);
            assert_eq!(at(part(COARSE - classes), part(classes)), 1);
        }
    }

    #[test]
    fn the_best_prices_are_the_middle_of_those_that_cost_most() {
        let of = |best: &[usize]| {
            let mut cost = MinimumCost::default();
            best.iter().for_each(|&at| cost.0[at] = 7);
            cost.weights()
        };
        let cores = |step: f64| Weights {
            cores: step / STEPS as f64,
            classes: 0.0,
        };
        assert_eq!(of(&[10]), cores(10.0));
        assert_eq!(of(&[10, 11, 12]), cores(11.0));
        assert_eq!(of(&[10, 13]), cores(11.5));
        // A price of classes only where it costs more.
        assert_eq!(of(&[10, 20, STEPS + 1]), cores(15.0));
        assert_eq!(of(&[STEPS + 1]), WEIGHTS[STEPS + 1]);
    }

    #[test]
    fn servers_are_rounded_up_except_for_rounding_errors() {
        for (servers, expected) in [
            (0.0, 0),
            (-1.0, 0),
            (1.0, 1),
            (1.0 + 1e-9, 1),
            (1.001, 2),
            (1.999_999_9, 2),
        ] {
            assert_eq!(whole(servers), expected, "{servers}");
        }
    }

    /// Servers of two kinds, on which an instance with all ways has a rate of 50 or 100, before the discount.
    fn spread(slow: usize, fast: usize, throughput: f64) -> usize {
        use crate::cluster::Server;
        use crate::curve::{CacheCurve, LoadCurve};
        use crate::slo::{ChainProfile, Curves, Target};
        use tailwater_net::Nanos;
        let kind = |machine: &str| ServerKind {
            machine: machine.into(),
            nodes: 1,
            cores: 4,
            ways: 4,
            way_bytes: 10,
            classes: 4,
        };
        let servers = (0..slow + fast).map(|number| Server {
            name: format!("s-{number}"),
            kind: usize::from(number >= slow),
        });
        let cluster = Cluster::new(vec![kind("slow"), kind("fast")], servers.collect()).expect("a cluster");
        let curves = [("slow", 50.0), ("fast", 100.0)].map(|(machine, rate)| Curves {
            machine: machine.into(),
            cores: 1,
            cache: CacheCurve::new(vec![(10, rate)]).expect("a curve"),
            load: LoadCurve::new(vec![(1.0, Nanos(100))]).expect("a curve"),
        });
        let slo = Slo {
            name: "s".into(),
            chain: std::sync::Arc::new(ChainProfile {
                name: "c".into(),
                configuration: None,
                traffic: None,
                percentile: None,
                curves: curves.into(),
            }),
            target: Target::Reserved { throughput },
            latency: Nanos(100),
            cap: None,
            spread: true,
            apart: None,
        };
        spread_servers(&cluster, &slo)
    }

    #[test]
    fn spread_instances_are_counted_on_the_fastest_servers_first() {
        // 97 packets per second on each fast server, 48.5 on each slow one.
        for (throughput, expected) in [
            (1.0, 1),
            (97.0, 1),
            (97.1, 2),
            (194.0, 2),
            (194.1, 3),
            (242.5, 3),
            (242.6, 4),
            (339.5, 5),
            // Less than needed: all servers.
            (1000.0, 5),
        ] {
            assert_eq!(spread(3, 2, throughput), expected, "{throughput}");
        }
    }
}
