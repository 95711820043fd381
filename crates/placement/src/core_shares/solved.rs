//! Fewest cores for chains with promises, by the solver: the mixed-integer program of [`milp`](crate::milp).
//!
//! The program places instances on servers. Here its servers are the cores, and its cores parts of one: a chain takes
//! as many as its predicted share. Latency, and the cache that all share, are left out: [`SharedCores::gathering`]
//! predicts each move afterwards, and leaves out those that do not fit.

use super::{Occupant, SharedCores, predicted};
use crate::cluster::{Cluster, MAX_WAYS, Server, ServerKind};
use crate::curve::{CacheCurve, LoadCurve};
use crate::milp::{Effort, SolveError, optimise};
use crate::schedule::Request;
use crate::slo::{ChainProfile, Curves, Slo, Target};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tailwater_net::Nanos;

/// Parts of a core: fine enough that rounding wastes little.
const PARTS: u16 = 1000;
/// Name of the machine in the program.
const MACHINE: &str = "core";

/// Chain that may move: its name, its core, and the parts of a core that it takes.
struct Movable<'c> {
    name: &'c str,
    core: u32,
    parts: u16,
}

impl SharedCores {
    /// Returns a core for each chain that takes part in a plan with as few cores as the solver finds within its effort.
    /// Cores on which a chain has no promise, several cores, or a name among those `fixed`, take no part.
    ///
    /// # Errors
    /// The solver failed, or found no plan in its time.
    pub fn solved(
        &self,
        chains: &[Occupant],
        fixed: &BTreeSet<String>,
        effort: Effort,
    ) -> Result<BTreeMap<String, u32>, SolveError> {
        let promised = (f64::from(PARTS) * (1.0 - self.headroom) + 1e-9).floor().max(1.0) as u16;
        let all = predicted(self.cache_bytes, chains);
        let mut on: BTreeMap<u32, Option<Vec<Movable<'_>>>> = BTreeMap::new();
        for (chain, predicted) in chains.iter().zip(all) {
            let share = predicted.filter(|_| chain.cores.len() == 1 && !fixed.contains(&chain.name));
            let parts = share.map(|predicted| {
                let parts = predicted.share / (1.0 - self.headroom) * f64::from(promised);
                (parts - 1e-9).ceil().max(1.0)
            });
            for &core in &chain.cores {
                let here = on.entry(core).or_insert_with(|| Some(Vec::new()));
                match (here.as_mut(), parts.filter(|parts| *parts <= f64::from(promised))) {
                    (Some(movable), Some(parts)) if movable.len() < usize::from(MAX_WAYS) => movable.push(Movable {
                        name: &chain.name,
                        core,
                        parts: parts as u16,
                    }),
                    _ => *here = None,
                }
            }
        }
        on.retain(|core, movable| movable.is_some() && self.cores.contains(core));
        if on.len() < 2 {
            return Ok(BTreeMap::new());
        }
        let cores: Vec<u32> = on.keys().copied().collect();
        let movable: Vec<Movable<'_>> = on.into_values().flatten().flatten().collect();
        let planned = plan(cores.len(), &movable, promised, effort)?;
        Ok(identified(&cores, &movable, planned))
    }
}

/// Chains together on each core of a plan, by their indices.
fn plan(cores: usize, chains: &[Movable<'_>], promised: u16, effort: Effort) -> Result<Vec<Vec<usize>>, SolveError> {
    let wrong = |what: &str| SolveError::Solver(what.to_owned());
    let kind = ServerKind {
        machine: MACHINE.to_owned(),
        nodes: 1,
        cores: promised,
        ways: MAX_WAYS,
        way_bytes: 1,
        classes: MAX_WAYS,
    };
    let servers = (0..cores).map(|core| Server {
        name: core.to_string(),
        kind: 0,
    });
    let cluster = Cluster::new(vec![kind], servers.collect()).map_err(|error| wrong(&error.to_string()))?;
    let mut profiles: BTreeMap<u16, Arc<ChainProfile>> = BTreeMap::new();
    let mut requests = Vec::with_capacity(chains.len());
    for (at, chain) in chains.iter().enumerate() {
        let profile = match profiles.get(&chain.parts) {
            Some(profile) => Arc::clone(profile),
            None => {
                let profile = Arc::new(profile(chain.parts).ok_or_else(|| wrong("a curve is wrong"))?);
                profiles.insert(chain.parts, Arc::clone(&profile));
                profile
            }
        };
        let slo = Slo {
            name: at.to_string(),
            chain: profile,
            target: Target::Reserved { throughput: 1.0 },
            latency: Nanos::from_secs(1),
            cap: None,
            spread: false,
            apart: None,
        };
        requests.push(Request::new(slo, &cluster).map_err(|_| SolveError::NoPlan)?);
    }
    let plan = optimise(&cluster, &requests, effort)?.plan;
    let mut planned = vec![Vec::new(); cores];
    for placed in plan.placed() {
        for instance in &placed.instances {
            let chain = placed.slo.name.parse().map_err(|_| wrong("a chain is unknown"))?;
            planned[instance.server].push(chain);
        }
    }
    Ok(planned)
}

/// Profile of a chain that takes so many parts of a core, and one way of the cache: so many chains fit on a core.
fn profile(parts: u16) -> Option<ChainProfile> {
    let curves = Curves {
        machine: MACHINE.to_owned(),
        cores: parts,
        cache: CacheCurve::new(vec![(1, 2.0)]).ok()?,
        load: LoadCurve::new(vec![(0.5, Nanos(1)), (1.0, Nanos(2))]).ok()?,
    };
    Some(ChainProfile {
        name: String::new(),
        configuration: None,
        traffic: None,
        percentile: None,
        curves: vec![curves],
    })
}

/// Chooses a core for each of a plan: the one that has most of its chains.
fn identified(cores: &[u32], chains: &[Movable<'_>], mut planned: Vec<Vec<usize>>) -> BTreeMap<String, u32> {
    planned.retain(|together| !together.is_empty());
    // Full ones first.
    planned.sort_by_key(|together| (Reverse(together.len()), together.first().copied()));
    let mut free: BTreeSet<u32> = cores.iter().copied().collect();
    let mut targets = BTreeMap::new();
    for together in planned {
        let count = |core: u32| together.iter().filter(|chain| chains[**chain].core == core).count();
        let best = free.iter().copied().max_by_key(|core| (count(*core), Reverse(*core)));
        let Some(core) = best else {
            break;
        };
        free.remove(&core);
        targets.extend(together.iter().map(|chain| (chains[*chain].name.to_owned(), core)));
    }
    targets
}
