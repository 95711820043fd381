//! Chains on the cores of a divided cache, and what the agent observes of them.

use crate::chain::AppliedChain;
use crate::machine::{ChainObservation, ChainState};
use std::collections::BTreeMap;
use std::sync::Arc;
use tailwater_cache_agent::Watched;
use tailwater_net::Nanos;
use tailwater_placement::core_shares::{Claim, Occupant};
use tailwater_placement::on_demand::Observed;
use tailwater_placement::slo::Curves;

/// Chains by name.
pub(super) type Chains = BTreeMap<String, PlacedChain>;

/// Chain on its cores.
#[derive(Clone, Debug)]
pub(super) struct PlacedChain {
    cores: Vec<u32>,
    claim: Option<Arc<Claim>>,
    /// Curves, with or without a promise.
    curves: Option<Arc<Curves>>,
    load: Option<Load>,
}

/// Load and latency of a running chain in its last window.
#[derive(Clone, Copy, Debug)]
struct Load {
    offered: f64,
    latency: Option<Nanos>,
    objective: Nanos,
}

impl PlacedChain {
    /// Chain as it was placed, in the place of `before`; `curves` are used without a promise.
    pub(super) fn new(
        chain: &AppliedChain,
        before: Option<&PlacedChain>,
        curves: impl FnOnce() -> Option<Arc<Curves>>,
    ) -> PlacedChain {
        let claim = chain.placement.claim.clone();
        let of_claim = claim.as_ref().map(|claim| Arc::clone(&claim.curves));
        PlacedChain {
            cores: chain.placement.cores.clone(),
            curves: of_claim.or_else(curves),
            claim,
            // Its core keeps its cache until the first window.
            load: before.and_then(|before| before.load),
        }
    }

    /// First core of the chain.
    pub(super) fn core(&self) -> Option<u32> {
        self.cores.first().copied()
    }

    /// Returns `true` if it has a promise.
    pub(super) fn is_promised(&self) -> bool {
        self.claim.is_some()
    }

    /// Stores the observation of its last window.
    pub(super) fn observe(&mut self, observation: &ChainObservation) {
        let runs = observation.state == ChainState::Running;
        let latency = &observation.latency;
        let objective = latency.objective;
        // The percentile of the objective may be another one: the verdict is that of the objective, and counts losses.
        let measured = match (latency.p99, latency.met) {
            (p99, Some(true)) => p99.map(|p99| p99.min(objective)),
            (p99, Some(false)) => Some(p99.unwrap_or_default().max(objective + Nanos(1))),
            (p99, None) => p99,
        };
        self.load = runs.then_some(Load {
            offered: observation.rates.map_or(0.0, |rates| rates.offered),
            latency: measured,
            objective,
        });
    }
}

/// Chains on these cores, as the reservation takes them.
pub(super) fn occupants(chains: &Chains, is_here: impl Fn(u32) -> bool) -> Vec<Occupant> {
    let here = chains
        .iter()
        .filter(|(_, chain)| chain.cores.iter().any(|core| is_here(*core)));
    let occupants = here.map(|(name, chain)| Occupant {
        name: name.clone(),
        cores: chain.cores.clone(),
        claim: chain.claim.clone(),
    });
    occupants.collect()
}

/// Observation of a core without reserved ways: that of its chain with the largest part of its objective, at the load
/// of all. `None` if none of its chains runs.
pub(super) fn observed(name: String, core: u32, tasks: &[u32], chains: &Chains) -> Option<Watched> {
    let here = || chains.values().filter(|chain| chain.cores.contains(&core));
    // Each core of a chain has the same part of its packets.
    let part_of = |chain: &PlacedChain| {
        let load = chain.load?;
        Some(Load {
            offered: load.offered / chain.cores.len() as f64,
            ..load
        })
    };
    let loads: Vec<Load> = here().filter_map(part_of).collect();
    let part = |load: &Load| load.latency.unwrap_or_default().0 as f64 / load.objective.0.max(1) as f64;
    let latest = loads.iter().max_by(|one, two| part(one).total_cmp(&part(two)))?;
    let mut only = here();
    let alone = only.next().filter(|_| only.next().is_none());
    Some(Watched {
        seen: Observed {
            name,
            tasks: tasks.to_vec(),
            latency: latest.latency,
            objective: latest.objective,
            offered: loads.iter().map(|load| load.offered).sum(),
            occupancy: None,
            misses: None,
            // Curves of one chain say nothing about several on the same core.
            curves: alone.and_then(|chain| chain.curves.clone()),
            instances: 1,
            most: 1,
        },
        references: None,
    })
}
