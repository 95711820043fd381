//! Chains that share the cores of one server: admission, and the core of each.
//!
//! Unlike an instance of a [plan](crate::plan), a chain here has a share of one core and no cache partition. The inputs
//! are the same curves, and a denial has the same [reasons](Reason) and [alternatives](Nearest).
//!
//! The prediction, for a chain with a promise beside all others with one:
//! - its cache is its part by the [model](crate::contention) of a shared cache, and its rate on a whole core follows
//!   from its curve there, with the [discount](crate::slo::ISOLATED) of isolation;
//! - its share of a core is its throughput by that rate;
//! - its latency is that of its curve at the load of its core, plus one batch of each other chain on that core, since
//!   turns are not interrupted.
//!
//! Chains without a promise get the time that is left; they count by their number only. The prediction knows neither
//! their cache nor their batches.
//!
//! Where the cache can be divided, cores [reserve](SharedCores::reserved_ways) the fewest ways by which the prediction
//! keeps the promises of their chains.

mod occupant;
mod predict;
mod ways;
mod weight;

pub use occupant::{Claim, Occupant};
pub use predict::{Predicted, predicted};
pub use ways::ReservableCache;
pub use weight::weight;

use crate::admit::{HALVINGS, Nearest, Reason};
use crate::check::Violation;
use crate::demand::Unfit;
use crate::plan::Resource;
use std::sync::Arc;
use tailwater_net::Nanos;

/// Cores that chains share.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedCores {
    /// Numbers of the cores, in order of preference.
    pub cores: Vec<u32>,
    /// Bytes of the cache that all of them share.
    pub cache_bytes: u64,
    /// Part of each core that is not promised: 0 to below 1.
    pub headroom: f64,
}

/// Reason why a chain is not admitted, with the figures that a message needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// Reason.
    pub reason: Reason,
    /// Share of a core that the chain needs beside the others.
    pub share: f64,
    /// Core with the most room, and the share of it that can still be promised.
    pub core: u32,
    /// Free share of that core.
    pub free: f64,
    /// First violation there, if the share would suffice.
    pub violation: Option<Violation>,
    /// Alternatives that would be admitted now.
    pub nearest: Vec<Nearest>,
}

impl SharedCores {
    /// Returns the core for a chain. The others stay where they are. `before` is the core that it has now: it stays
    /// there if it fits. Otherwise, a chain with a promise gets the core with the least promised time, and one without
    /// it the core with the fewest chains; the first of several.
    ///
    /// # Errors
    /// With a promise: no core keeps it, and those of the others.
    ///
    /// # Panics
    /// Without cores.
    pub fn admit(
        &self,
        others: &[Occupant],
        name: &str,
        claim: Option<&Arc<Claim>>,
        before: Option<u32>,
    ) -> Result<u32, Box<Refused>> {
        let before = before.filter(|core| self.cores.contains(core));
        let Some(claim) = claim else {
            return Ok(before.unwrap_or_else(|| self.lightest(others)));
        };
        if let Some(least) = beyond_curves(claim) {
            return Err(Box::new(self.refused(
                others,
                name,
                claim,
                Reason::Unfit(Unfit::Latency { least }),
            )));
        }
        let fits = |core: u32| self.violations(&with(others, name, claim, core)).is_empty();
        if let Some(core) = before.filter(|core| fits(*core)) {
            return Ok(core);
        }
        let mut cores: Vec<(f64, usize, u32)> = self.cores.iter().map(|&core| self.load(others, core)).collect();
        // Stable: of equal cores the first.
        cores.sort_by(|one, two| one.0.total_cmp(&two.0).then(one.1.cmp(&two.1)));
        match cores.iter().find(|(.., core)| fits(*core)) {
            Some((.., core)) => Ok(*core),
            None => Err(Box::new(self.refused(others, name, claim, Reason::Room(Vec::new())))),
        }
    }

    /// Core with the fewest chains; of several the one with the least promised time, then the first.
    fn lightest(&self, others: &[Occupant]) -> u32 {
        let mut lightest: Option<(f64, usize, u32)> = None;
        for &core in &self.cores {
            let next = self.load(others, core);
            if lightest.is_none_or(|best| (next.1, next.0) < (best.1, best.0)) {
                lightest = Some(next);
            }
        }
        lightest.map_or_else(|| unreachable!("a server has a core"), |(.., core)| core)
    }

    /// Promised time of a core, the number of its chains, and the core.
    fn load(&self, others: &[Occupant], core: u32) -> (f64, usize, u32) {
        let here = predicted(self.cache_bytes, others).into_iter().zip(others);
        let here: Vec<f64> = here
            .filter(|(_, other)| other.core == core)
            .map(|(predicted, _)| predicted.map_or(0.0, |predicted| predicted.share))
            .collect();
        (here.iter().sum(), here.len(), core)
    }

    /// Returns the promises that are not kept with these chains, by the prediction: throughput on a core whose promised
    /// time exceeds it, and latency.
    pub fn violations(&self, chains: &[Occupant]) -> Vec<Violation> {
        let all = predicted(self.cache_bytes, chains);
        let mut violations = Vec::new();
        for (chain, predicted) in chains.iter().zip(&all) {
            let (Some(claim), Some(predicted)) = (&chain.claim, predicted) else {
                continue;
            };
            let most = 1.0 - self.headroom;
            // Shares are sums of quotients: an excess by rounding is none.
            if predicted.core_load > most * (1.0 + 1e-9) {
                violations.push(Violation::Throughput {
                    slo: chain.name.clone(),
                    rate: claim.throughput * most / predicted.core_load,
                    target: claim.throughput,
                });
            } else if predicted.latency > claim.latency {
                violations.push(Violation::Latency {
                    slo: chain.name.clone(),
                    latency: predicted.latency,
                    target: claim.latency,
                });
            }
        }
        violations
    }

    fn refused(&self, others: &[Occupant], name: &str, claim: &Arc<Claim>, reason: Reason) -> Refused {
        let loads = self.cores.iter().map(|&core| self.load(others, core));
        let roomiest = loads.min_by(|one, two| one.0.total_cmp(&two.0));
        let (_, _, core) = roomiest.unwrap_or_else(|| unreachable!("a server has a core"));
        let chains = with(others, name, claim, core);
        let own = predicted(self.cache_bytes, &chains).pop().flatten();
        let (share, load) = own.map_or((0.0, 0.0), |own| (own.share, own.core_load));
        // The others need a bit more beside it.
        let free = (1.0 - self.headroom - (load - share)).max(0.0);
        let exceeds = share > free;
        let violations = self.violations(&chains);
        Refused {
            reason: match reason {
                Reason::Room(_) if exceeds => Reason::Room(vec![Resource::Cores]),
                Reason::Room(_) => Reason::Room(vec![Resource::Quiet]),
                reason => reason,
            },
            share,
            core,
            free,
            violation: violations.into_iter().next().filter(|_| !exceeds),
            nearest: self.nearest(others, name, claim),
        }
    }

    /// Returns the same promise with less throughput, or with more latency, that would be admitted.
    fn nearest(&self, others: &[Occupant], name: &str, claim: &Claim) -> Vec<Nearest> {
        let fits = |claim: Claim| {
            let claim = Arc::new(claim);
            let core = |&core: &u32| self.violations(&with(others, name, &claim, core)).is_empty();
            beyond_curves(&claim).is_none() && self.cores.iter().any(core)
        };
        let mut found = Vec::new();
        let (mut low, mut high) = (0.0, claim.throughput);
        for _ in 0..HALVINGS {
            let throughput = (low + high) / 2.0;
            match fits(Claim {
                throughput,
                ..claim.clone()
            }) {
                true => low = throughput,
                false => high = throughput,
            }
        }
        if low > 0.0 {
            found.push(Nearest::Throughput(low));
        }
        let later = |latency| Claim {
            latency,
            ..claim.clone()
        };
        let (mut low, mut high) = (claim.latency.0, MOST_LATENCY.0);
        if !fits(later(MOST_LATENCY)) {
            return found;
        }
        while high - low > (low / 1000).max(1) {
            let middle = low + (high - low) / 2;
            match fits(later(Nanos(middle))) {
                true => high = middle,
                false => low = middle,
            }
        }
        found.push(Nearest::Latency(Nanos(high)));
        found
    }
}

/// Longest objective that a chain can have.
const MOST_LATENCY: Nanos = Nanos::from_secs(10);

/// The lowest latency of a claim's curves, if it exceeds the objective at any load.
fn beyond_curves(claim: &Claim) -> Option<Nanos> {
    let least = claim.curves.load.least();
    (least > claim.latency).then_some(least)
}

/// The chains with one more on a core, which is last.
fn with(others: &[Occupant], name: &str, claim: &Arc<Claim>, core: u32) -> Vec<Occupant> {
    let new = Occupant {
        name: name.to_owned(),
        core,
        claim: Some(Arc::clone(claim)),
    };
    others.iter().cloned().chain([new]).collect()
}

#[cfg(test)]
mod tests;
