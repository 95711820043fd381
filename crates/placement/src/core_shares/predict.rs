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
    /// Share of its core that its throughput takes.
    pub share: f64,
    /// Share of its core that all promises there take, its own among them.
    pub core_load: f64,
    /// Time of a packet on the core, in nanoseconds.
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
    let on_core = |core: u32| {
        let here = chains.iter().zip(&rates).filter(move |(chain, _)| chain.core == core);
        here.filter_map(|(chain, rate)| Some((chain.claim.as_deref()?, (*rate)?)))
    };
    let each = chains.iter().zip(&rates).map(|(chain, rate)| {
        let (claim, rate) = (chain.claim.as_deref()?, (*rate)?);
        let core_load: f64 = on_core(chain.core).map(|(claim, rate)| claim.throughput / rate).sum();
        let batches: f64 = on_core(chain.core).map(|(_, rate)| BATCH / rate).sum();
        let others = batches - BATCH / rate;
        Some(Predicted {
            share: claim.throughput / rate,
            core_load,
            cost: 1e9 / rate,
            latency: Nanos(claim.curves.load.latency(core_load).0 + (others.max(0.0) * 1e9).round() as u64),
        })
    });
    each.collect()
}
