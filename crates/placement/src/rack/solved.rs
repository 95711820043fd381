//! Better plans by the solver: the mixed-integer program of [`milp`](crate::milp), for cores that instances share.
//!
//! The program assigns whole cores. Here its cores are parts of a core: an instance takes as many as its predicted
//! share. Which core of a server an instance is on, and who shares a cache, is left out. So each move is
//! predicted afterwards, in an order in which all can be made one after the other; those that do not fit are left out.

use super::fleet::Fleet;
use super::options::RackOptions;
use super::rearrange::Rearrangement;
use super::round::{Group, Round};
use super::view::RackView;
use crate::cluster::{Cluster, MAX_CORES, MAX_KINDS, MAX_WAYS, Server, ServerKind};
use crate::curve::{CacheCurve, LoadCurve};
use crate::milp::{Effort, SolveError, optimise};
use crate::schedule::Request;
use crate::slo::{ChainProfile, Curves, ISOLATED, Slo, Target};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tailwater_net::Nanos;

/// Parts of a core, at most.
const PARTS: u16 = 64;

/// Instance that may move.
struct Movable {
    group: usize,
    name: String,
    server: usize,
    rate: f64,
}

/// Servers that take part: all of their instances may move.
struct Part<'v> {
    instances: Vec<Movable>,
    /// Servers, and the kind of each.
    servers: Vec<(usize, usize)>,
    /// A server of each kind, as an example, with the parts of each core that can be promised.
    kinds: Vec<(usize, u16)>,
    fleet: &'v Fleet<'v>,
}

/// Returns a plan with as few servers as the solver finds within its effort. Servers on which something starts, moves,
/// runs without a promise or has whole cores stay as they are. May return a plan without moves.
///
/// # Errors
/// The solver failed, or found no plan in its time.
pub fn solved(view: &RackView, options: &RackOptions, effort: Effort) -> Result<Rearrangement, SolveError> {
    let (mut round, mut groups) = Round::new(options, view);
    let part = Part::new(&round.fleet, &groups);
    if part.servers.len() < 2 {
        return Ok(Rearrangement::default());
    }
    let targets = part.targets(&groups, effort)?;
    let wanted: Vec<(Movable, usize)> = part
        .instances
        .into_iter()
        .filter_map(|one| Some((targets.get(&one.name).copied()?, one)))
        .filter(|(to, one)| *to != one.server)
        .map(|(to, one)| (one, to))
        .collect();
    Ok(applicable(&mut round.fleet, &mut groups, wanted))
}

/// Returns those of the moves that can be made, one after the other.
fn applicable(fleet: &mut Fleet<'_>, groups: &mut [Group<'_>], mut left: Vec<(Movable, usize)>) -> Rearrangement {
    let mut servers = BTreeMap::new();
    loop {
        let before = left.len();
        left.retain(|(one, to)| {
            let group = &mut groups[one.group];
            let others = group.servers(Some(&one.name));
            let redundancy = usize::from(group.chain.redundancy).min(group.servers(None).len());
            if others.len() + usize::from(!others.contains(to)) < redundancy {
                return true;
            }
            let moved = format!("{}+", one.name);
            let request = group.request(&moved, one.rate, false);
            let Some((server, cores)) = fleet.find(&request, 1, &|server| server == *to) else {
                return true;
            };
            fleet.put(&request, server, cores);
            let (mut occupants, exclusive) = fleet.occupants(one.server);
            occupants.retain(|occupant| occupant.name != one.name);
            fleet.restore(one.server, (occupants, exclusive));
            for slot in group.slots.iter_mut().filter(|slot| slot.name == one.name) {
                slot.server = server;
            }
            servers.insert(one.name.clone(), fleet.servers[server].view.name.clone());
            false
        });
        if left.len() == before || left.is_empty() {
            return Rearrangement { servers };
        }
    }
}

impl<'v> Part<'v> {
    fn new(fleet: &'v Fleet<'v>, groups: &[Group<'_>]) -> Self {
        let mut on: BTreeMap<usize, Vec<Movable>> = BTreeMap::new();
        for (at, group) in groups.iter().enumerate() {
            let is_promised = group.chain.promise.is_some();
            for slot in &group.slots {
                if is_promised && slot.settled && slot.ready && !slot.exclusive && slot.rate > 0.0 {
                    on.entry(slot.server).or_default().push(Movable {
                        group: at,
                        name: slot.name.clone(),
                        server: slot.server,
                        rate: slot.rate,
                    });
                }
            }
        }
        let mut part = Part {
            instances: Vec::new(),
            servers: Vec::new(),
            kinds: Vec::new(),
            fleet,
        };
        for (server, movable) in on {
            let (occupants, exclusive) = fleet.occupants(server);
            let is_whole = exclusive.is_empty() && occupants.len() == movable.len();
            if fleet.servers[server].takes
                && is_whole
                && movable.len() <= MAX_WAYS.into()
                && let Some(kind) = part.kind_of(server)
            {
                part.servers.push((server, kind));
                part.instances.extend(movable);
            }
        }
        part
    }

    /// Number of a server's kind. `None` if there are too many, or it has too many cores.
    fn kind_of(&mut self, server: usize) -> Option<usize> {
        let facts = |server: usize| {
            let view = self.fleet.servers[server].view;
            let cores = view.cores.len();
            let size = (cores, view.cache_bytes, view.headroom.to_bits());
            (&view.pools, &view.machine, size)
        };
        let own = facts(server);
        if let Some(kind) = self.kinds.iter().position(|(example, _)| facts(*example) == own) {
            return Some(kind);
        }
        let (cores, _, headroom) = own.2;
        let cores = u16::try_from(cores).ok()?;
        let parts = (MAX_CORES / cores).min(PARTS);
        let promised = (f64::from(parts) * (1.0 - f64::from_bits(headroom)) + 1e-9).floor() as u16;
        (self.kinds.len() < MAX_KINDS && promised > 0).then(|| {
            self.kinds.push((server, promised));
            self.kinds.len() - 1
        })
    }

    /// Name of the machine of a kind, in the program.
    fn machine(kind: usize) -> String {
        format!("kind-{kind}")
    }

    /// Parts of cores that an instance takes on a server of a kind; `None` if it cannot be there.
    fn parts_on(&self, kind: usize, one: &Movable, group: &Group<'_>) -> Option<u16> {
        let (example, promised) = self.kinds[kind];
        let view = self.fleet.servers[example].view;
        let is_own = self
            .servers
            .iter()
            .any(|(server, of)| *server == one.server && *of == kind);
        let share = match is_own {
            true => self.fleet.servers[one.server].share(&one.name),
            false if !view.is_for(group.chain.pool.as_deref()) => return None,
            false => {
                let curves = group.chain.promise.as_ref()?.on(&view.machine)?;
                let core = curves.cache.extended(view.cache_bytes as f64) * ISOLATED;
                one.rate / f64::from(group.chain.cores.max(1)) / core.max(1.0)
            }
        };
        // Of a core, `promised` parts can be promised.
        let parts = (share / (1.0 - view.headroom) * f64::from(promised) - 1e-9)
            .ceil()
            .max(1.0);
        (parts <= f64::from(promised)).then_some(parts as u16 * group.chain.cores)
    }

    /// Returns the server of each instance by the solver's plan. Of servers of a kind, each has as many of its
    /// instances as possible already.
    fn targets(&self, groups: &[Group<'_>], effort: Effort) -> Result<HashMap<String, usize>, SolveError> {
        let wrong = |what: &str| SolveError::Solver(what.to_owned());
        let kinds = self
            .kinds
            .iter()
            .enumerate()
            .map(|(kind, (example, promised))| ServerKind {
                machine: Self::machine(kind),
                nodes: 1,
                cores: promised * self.fleet.servers[*example].view.cores.len() as u16,
                ways: MAX_WAYS,
                way_bytes: 1,
                classes: MAX_WAYS,
            });
        let servers = self.servers.iter().map(|(server, kind)| Server {
            name: self.fleet.servers[*server].view.name.clone(),
            kind: *kind,
        });
        let cluster = Cluster::new(kinds.collect(), servers.collect()).map_err(|error| wrong(&error.to_string()))?;
        let mut requests = Vec::with_capacity(self.instances.len());
        let mut profiles: HashMap<Vec<Option<u16>>, Arc<ChainProfile>> = HashMap::new();
        for one in &self.instances {
            let group = &groups[one.group];
            let parts: Vec<Option<u16>> = (0..self.kinds.len())
                .map(|kind| self.parts_on(kind, one, group))
                .collect();
            let profile = match profiles.get(&parts) {
                Some(profile) => Arc::clone(profile),
                None => {
                    let profile = Arc::new(profile(&parts).ok_or_else(|| wrong("a curve is wrong"))?);
                    profiles.insert(parts, Arc::clone(&profile));
                    profile
                }
            };
            let is_apart = group.chain.redundancy > 1 && group.servers(None).len() == group.slots.len();
            let slo = Slo {
                name: one.name.clone(),
                chain: profile,
                target: Target::Reserved { throughput: 1.0 },
                latency: Nanos::from_secs(1),
                cap: None,
                spread: false,
                apart: is_apart.then(|| group.chain.name.clone()),
            };
            requests.push(Request::new(slo, &cluster).map_err(|_| SolveError::NoPlan)?);
        }
        let plan = optimise(&cluster, &requests, effort)?.plan;
        let mut by_server: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for placed in plan.placed() {
            for instance in &placed.instances {
                by_server.entry(instance.server).or_default().push(&placed.slo.name);
            }
        }
        Ok(self.identified(by_server))
    }

    /// Chooses a server for each of a plan: one of its kind, the one that has most of the instances.
    fn identified(&self, by_server: BTreeMap<usize, Vec<&str>>) -> HashMap<String, usize> {
        let at: HashMap<&str, usize> = self.instances.iter().map(|one| (&*one.name, one.server)).collect();
        let mut free: BTreeSet<(usize, usize)> = self.servers.iter().map(|(server, kind)| (*kind, *server)).collect();
        let mut planned: Vec<(usize, Vec<&str>)> = by_server.into_iter().collect();
        // Full ones first.
        planned.sort_by_key(|(server, names)| (std::cmp::Reverse(names.len()), *server));
        let mut targets = HashMap::new();
        for (server, names) in planned {
            let kind = self.servers[server].1;
            let mut common: BTreeMap<usize, usize> = BTreeMap::new();
            for name in &names {
                *common.entry(at[name]).or_default() += 1;
            }
            let known = common.iter().filter(|(server, _)| free.contains(&(kind, **server)));
            let best = known.max_by_key(|(server, count)| (**count, std::cmp::Reverse(**server)));
            let first = || free.range((kind, 0)..(kind + 1, 0)).next().map(|(_, server)| *server);
            let Some(chosen) = best.map(|(server, _)| *server).or_else(first) else {
                continue;
            };
            free.remove(&(kind, chosen));
            targets.extend(names.iter().map(|name| ((*name).to_owned(), chosen)));
        }
        targets
    }
}

/// Profile of an instance that takes so many parts of cores on servers of each kind, and needs one way of the cache.
fn profile(parts: &[Option<u16>]) -> Option<ChainProfile> {
    let mut curves = Vec::new();
    for (kind, parts) in parts.iter().enumerate() {
        let Some(cores) = parts else { continue };
        curves.push(Curves {
            machine: Part::machine(kind),
            cores: *cores,
            cache: CacheCurve::new(vec![(1, 2.0)]).ok()?,
            load: LoadCurve::new(vec![(0.5, Nanos(1)), (1.0, Nanos(2))]).ok()?,
        });
    }
    Some(ChainProfile {
        name: String::new(),
        configuration: None,
        traffic: None,
        percentile: None,
        curves,
    })
}
