//! Prediction of chains that share cores and a cache.

use super::occupant::Occupant;
use crate::contention::{Shared, shares};
use crate::slo::ISOLATED;
use tailwater_net::Nanos;

/// Packets of a turn, at most.
const BATCH: f64 = 32.0;

/// Prediction for a chain with a promise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicted {
    /// Share of each of its cores that its throughput takes.
    pub share: f64,
    /// Share that all promises take of a core, its own among them: the greatest of its cores.
    pub core_load: f64,
    /// Time of a packet on a core, in nanoseconds.
    pub cost: f64,
    /// Latency at the percentile of its curves.
    pub latency: Nanos,
}

/// Returns the prediction for each chain with a promise, in their order.
pub fn predicted(cache_bytes: u64, chains: &[Occupant]) -> Vec<Option<Predicted>> {
    let claims: Vec<_> = chains.iter().filter_map(|chain| chain.claim.as_deref()).collect();
    let shared = claims.iter().map(|claim| Shared {
        cache: &claim.curves.cache,
        // References are not part of a profile: a packet of each chain counts the same.
        references: 1.0,
        offered: claim.throughput,
    });
    let held = shares(&shared.collect::<Vec<_>>(), cache_bytes);
    let mut rates = claims.iter().zip(held).map(|(claim, bytes)| {
        // A curve falls no lower than to one packet per second.
        (claim.curves.cache.extended(bytes) * ISOLATED).max(1.0)
    });
    let rates: Vec<Option<f64>> = chains
        .iter()
        .map(|chain| chain.claim.as_ref().and_then(|_| rates.next()))
        .collect();
    let share = |chain: &Occupant, rate: f64| {
        let claim = chain.claim.as_deref()?;
        Some(claim.throughput / chain.cores.len().max(1) as f64 / rate)
    };
    // Load of a core, and the time of a batch of each chain there.
    let on_core = |core: u32| {
        let here = chains
            .iter()
            .zip(&rates)
            .filter(|(chain, _)| chain.cores.contains(&core));
        let here = here.filter_map(|(chain, rate)| Some((share(chain, (*rate)?)?, BATCH / (*rate)?)));
        here.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    };
    let each = chains.iter().zip(&rates).map(|(chain, rate)| {
        let (claim, rate) = (chain.claim.as_deref()?, (*rate)?);
        let (mut core_load, mut latency) = (0.0f64, Nanos::ZERO);
        for &core in &chain.cores {
            let (load, batches) = on_core(core);
            let others = (batches - BATCH / rate).max(0.0);
            core_load = core_load.max(load);
            latency = latency.max(Nanos(claim.curves.load.latency(load).0 + (others * 1e9).round() as u64));
        }
        Some(Predicted {
            share: share(chain, rate)?,
            core_load,
            cost: 1e9 / rate,
            latency,
        })
    });
    each.collect()
}
