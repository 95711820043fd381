//! Chains that share the cores of one server: admission, and the cores of each.
//!
//! Unlike an instance of a [plan](crate::plan), a chain here has a share of cores and no cache partition. The inputs
//! are the same curves, and a denial has the same [reasons](Reason) and [alternatives](Nearest).
//!
//! The prediction, for a chain with a promise beside all others with one:
//! - its cache is its part by the [model](crate::contention) of a shared cache, and its rate on a whole core follows
//!   from its curve there, with the [discount](crate::slo::ISOLATED) of isolation;
//! - its share of a core is its throughput by that rate; a chain on several cores has its share in equal parts;
//! - its latency is that of its curve at the load of its core, plus one batch of each other chain on that core, since
//!   turns are not interrupted; the worst of its cores counts.
//!
//! Chains without a promise get the time that is left; they count by their number only. The prediction knows neither
//! their cache nor their batches.
//!
//! Where the cache can be divided, cores [reserve](SharedCores::reserved_ways) the fewest ways by which the prediction
//! keeps the promises of their chains.

mod drift;
mod gather;
mod occupant;
mod predict;
#[cfg(feature = "milp")]
mod solved;
mod ways;
mod weight;

pub use drift::{DriftCause, DriftChange, DriftMonitor, DriftPromise, DriftWindow, TOLERANCE};
pub use gather::{CoreMove, Gathering};
pub use occupant::{Claim, Occupant};
pub use predict::{Predicted, predicted};
pub use ways::ReservableCache;
pub use weight::weight;

use crate::admit::{HALVINGS, Nearest, Reason};
use crate::check::Violation;
use crate::demand::Unfit;
use crate::plan::Resource;
use std::cmp::Ordering;
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

/// Chain that wants cores.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'c> {
    /// Name.
    pub name: &'c str,
    /// Number of cores.
    pub cores: usize,
    /// Promise, if it wants one.
    pub claim: Option<&'c Arc<Claim>>,
    /// Cores that it has now, if it runs.
    pub before: &'c [u32],
}

/// Reason why a chain is not admitted, with the figures that a message needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// Reason.
    pub reason: Reason,
    /// Share that the chain needs of each of its cores beside the others.
    pub share: f64,
    /// Of the cores with the most room, as many as the chain wants, the one with the least, and the share of it that
    /// can still be promised.
    pub core: u32,
    /// Free share of that core.
    pub free: f64,
    /// First violation there, if the share would suffice.
    pub violation: Option<Violation>,
    /// Alternatives that would be admitted now.
    pub nearest: Vec<Nearest>,
}

impl SharedCores {
    /// Returns the cores for a chain. The others stay where they are, and so does the chain where it fits. Otherwise, a
    /// chain with a promise gets the cores with the least promised time on which it fits, and one without it those with
    /// the fewest chains; the first of several. Of more than one core, only neighbours in the order of promised time
    /// are tried together.
    ///
    /// # Errors
    /// With a promise: no cores keep it, and those of the others.
    ///
    /// # Panics
    /// If it wants no core, or more than there are.
    pub fn admit(&self, others: &[Occupant], wanted: Wanted<'_>) -> Result<Vec<u32>, Box<Refused>> {
        self.cores_for(others, wanted).map_err(|claim| {
            let reason = match beyond_curves(claim) {
                Some(least) => Reason::Unfit(Unfit::Latency { least }),
                None => Reason::Room(Vec::new()),
            };
            Box::new(self.refused(others, wanted, claim, reason))
        })
    }

    /// Returns the same cores as [`admit`](Self::admit), without a search for reasons and alternatives.
    ///
    /// # Errors
    /// The promise, if no cores keep it and those of the others.
    ///
    /// # Panics
    /// If it wants no core, or more than there are.
    pub fn cores_for<'c>(&self, others: &[Occupant], wanted: Wanted<'c>) -> Result<Vec<u32>, &'c Arc<Claim>> {
        assert!(
            (1..=self.cores.len()).contains(&wanted.cores),
            "as many cores as there are"
        );
        let kept = wanted.before.iter().copied().filter(|core| self.cores.contains(core));
        let kept: Vec<u32> = kept.take(wanted.cores).collect();
        let Some(claim) = wanted.claim else {
            return Ok(filled(kept, wanted.cores, self.by_chains(others)));
        };
        if beyond_curves(claim).is_some() {
            return Err(claim);
        }
        let fits = |cores: &[u32]| self.violations(&with(others, wanted.name, claim, cores)).is_empty();
        let by_time = self.by_time(others);
        if !kept.is_empty() {
            let first = filled(kept, wanted.cores, by_time.clone());
            if fits(&first) {
                return Ok(first);
            }
        }
        let found = by_time.windows(wanted.cores).find(|cores| fits(cores));
        found.map(<[u32]>::to_vec).ok_or(claim)
    }

    /// Cores in the order of their promised time; of equal ones the one with fewer chains, then the first.
    fn by_time(&self, others: &[Occupant]) -> Vec<u32> {
        self.ordered(others, |one, two| one.0.total_cmp(&two.0).then(one.1.cmp(&two.1)))
    }

    /// Cores in the order of their number of chains; of equal ones the one with less promised time, then the first.
    fn by_chains(&self, others: &[Occupant]) -> Vec<u32> {
        self.ordered(others, |one, two| one.1.cmp(&two.1).then(one.0.total_cmp(&two.0)))
    }

    /// Cores in the order of their promised time and number of chains. Stable.
    fn ordered(&self, others: &[Occupant], order: impl Fn(&(f64, usize), &(f64, usize)) -> Ordering) -> Vec<u32> {
        let predicted = predicted(self.cache_bytes, others);
        let load = |core: u32| {
            let here = predicted.iter().zip(others);
            let here = here.filter(|(_, other)| other.cores.contains(&core));
            here.fold((0.0, 0), |(time, chains), (predicted, _)| {
                (time + predicted.map_or(0.0, |predicted| predicted.share), chains + 1)
            })
        };
        let mut cores: Vec<((f64, usize), u32)> = self.cores.iter().map(|&core| (load(core), core)).collect();
        cores.sort_by(|one, two| order(&one.0, &two.0));
        cores.into_iter().map(|(_, core)| core).collect()
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

    fn refused(&self, others: &[Occupant], wanted: Wanted<'_>, claim: &Arc<Claim>, reason: Reason) -> Refused {
        let mut roomiest = self.by_time(others);
        roomiest.truncate(wanted.cores);
        let chains = with(others, wanted.name, claim, &roomiest);
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
            core: roomiest.last().copied().unwrap_or_default(),
            free,
            violation: violations.into_iter().next().filter(|_| !exceeds),
            nearest: self.nearest(others, wanted, claim),
        }
    }

    /// Returns the same promise with less throughput, or with more latency, that would be admitted.
    fn nearest(&self, others: &[Occupant], wanted: Wanted<'_>, claim: &Claim) -> Vec<Nearest> {
        let by_time = self.by_time(others);
        let fits = |claim: Claim| {
            let claim = Arc::new(claim);
            let on = |cores: &[u32]| self.violations(&with(others, wanted.name, &claim, cores)).is_empty();
            beyond_curves(&claim).is_none() && by_time.windows(wanted.cores).any(on)
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

/// Adds cores in this order, up to a number.
fn filled(mut cores: Vec<u32>, number: usize, order: Vec<u32>) -> Vec<u32> {
    for core in order {
        if cores.len() < number && !cores.contains(&core) {
            cores.push(core);
        }
    }
    cores
}

/// Longest objective that a chain can have.
const MOST_LATENCY: Nanos = Nanos::from_secs(10);

/// The lowest latency of a claim's curves, if it exceeds the objective at any load.
fn beyond_curves(claim: &Claim) -> Option<Nanos> {
    let least = claim.curves.load.least();
    (least > claim.latency).then_some(least)
}

/// The chains with one more on these cores, which is last.
fn with(others: &[Occupant], name: &str, claim: &Arc<Claim>, cores: &[u32]) -> Vec<Occupant> {
    let new = Occupant {
        name: name.to_owned(),
        cores: cores.to_vec(),
        claim: Some(Arc::clone(claim)),
    };
    others.iter().cloned().chain([new]).collect()
}

#[cfg(test)]
mod tests;
