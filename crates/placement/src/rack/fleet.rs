//! Servers of a rack with their instances, as each of them predicts its own cores, and the search for a place.
//!
//! The search compares a request first with a bound for each core: its load and batches as if nobody shared the cache.
//! The exact prediction, which is a server's own, is made only where this bound has room, and only if the server, as it
//! is, has not refused as few packets of a chain with the same curves. An index by the free share of the roomiest core
//! bounds the servers that are compared. Servers of other pools are never compared.

use super::actions::RackWork;
use super::view::{ChainView, RackPromise, ServerState, ServerView, is_for};
use crate::core_shares::{Claim, Occupant, SharedCores, Wanted, predicted};
use crate::slo::ISOLATED;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use tailwater_net::Nanos;

/// Packets of a turn, at most, as in the prediction.
const BATCH: f64 = 32.0;
/// Rounding of loads and of times, by which the bound is wider than the prediction.
const LOAD_ROUNDING: f64 = 1e-9;
const TIME_ROUNDING: u64 = 4;
/// Steps of a core's share in the index.
const STEPS: f64 = 1024.0;

/// Request for an instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    /// Name of the instance.
    pub name: &'a str,
    /// Pool of its chain.
    pub pool: Option<&'a str>,
    /// Number of cores.
    pub cores: u16,
    /// Promise of its chain.
    pub promise: Option<&'a RackPromise>,
    /// Packets per second.
    pub rate: f64,
    /// `true` if it has its cores for itself.
    pub exclusive: bool,
}

/// Place of an instance.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    /// Index of the server.
    pub server: usize,
    /// Its cores.
    pub cores: Vec<u32>,
    /// Predicted share of each, 1 of an exclusive one, 0 without a promise.
    pub share: f64,
}

/// A server with the instances on it.
#[derive(Debug)]
pub(super) struct Server<'v> {
    pub view: &'v ServerView,
    /// Not yet lost for good.
    pub alive: bool,
    /// Takes new instances.
    pub takes: bool,
    shared: SharedCores,
    occupants: Vec<Occupant>,
    exclusive: Vec<Occupant>,
    /// By core of the view.
    bounds: Vec<CoreBound>,
    /// Least packets per second that were refused as it is now, by curves (their address), latency and cores.
    refusals: HashMap<(usize, Nanos, u16), f64>,
}

/// Bound for a core: nobody shares the cache.
#[derive(Clone, Debug, Default)]
struct CoreBound {
    /// Least promised share.
    load: f64,
    /// Least time of a batch of each chain, in nanoseconds.
    batches: f64,
    /// Chains with a promise there, with the time of a batch of each.
    claims: Vec<(Arc<Claim>, f64)>,
}

type Key = (u32, u32, usize);
/// Pools and machine of servers.
type Class<'v> = (&'v [String], &'v str);

/// Servers of a class.
#[derive(Debug, Default)]
struct Index {
    /// Servers with instances: free share of the roomiest core, of all cores, index.
    used: BTreeSet<Key>,
    empty: BTreeSet<usize>,
}

/// All servers of a rack.
#[derive(Debug)]
pub(super) struct Fleet<'v> {
    pub servers: Vec<Server<'v>>,
    by_name: HashMap<&'v str, usize>,
    /// Servers that take instances.
    classes: BTreeMap<Class<'v>, Index>,
    pub work: RackWork,
    /// Servers that had room by the bound and refused all the same.
    refused: u64,
}

impl Index {
    fn roomiest(&self) -> impl Iterator<Item = usize> {
        let used = self.used.iter().rev().map(|key| key.2);
        self.empty.first().copied().into_iter().chain(used)
    }
}

impl Request<'_> {
    fn claim_on(&self, machine: &str) -> Option<Arc<Claim>> {
        self.promise?.claim(machine, self.rate).map(Arc::new)
    }

    fn wanted<'c>(&'c self, claim: Option<&'c Arc<Claim>>, before: &'c [u32]) -> Wanted<'c> {
        Wanted {
            name: self.name,
            cores: usize::from(self.cores),
            claim,
            before,
        }
    }
}

impl<'v> Server<'v> {
    fn new(view: &'v ServerView, now: Nanos, lost_after: Nanos) -> Self {
        let alive = match view.state {
            ServerState::Lost { since } => now.saturating_sub(since) < lost_after,
            _ => true,
        };
        let mut server = Server {
            view,
            alive,
            takes: view.state == ServerState::Ready && !view.cores.is_empty(),
            shared: SharedCores {
                cores: view.cores.clone(),
                cache_bytes: view.cache_bytes,
                headroom: view.headroom,
            },
            occupants: Vec::new(),
            exclusive: Vec::new(),
            bounds: Vec::new(),
            refusals: HashMap::new(),
        };
        server.account();
        server
    }

    /// Returns `true` if instances on it can change their promise.
    pub fn resizes(&self) -> bool {
        matches!(self.view.state, ServerState::Ready | ServerState::Cordoned)
    }

    fn class(&self) -> Class<'v> {
        (&self.view.pools, &self.view.machine)
    }

    fn is_empty(&self) -> bool {
        self.occupants.is_empty() && self.exclusive.is_empty()
    }

    /// Share of each core that can be promised.
    fn most(&self) -> f64 {
        1.0 - self.view.headroom
    }

    fn account(&mut self) {
        let is_exclusive = |core: &u32| self.exclusive.iter().any(|one| one.cores.contains(core));
        self.shared.cores = self
            .view
            .cores
            .iter()
            .copied()
            .filter(|core| !is_exclusive(core))
            .collect();
        let mut bounds = vec![CoreBound::default(); self.view.cores.len()];
        for (bound, core) in bounds.iter_mut().zip(&self.view.cores) {
            if is_exclusive(core) {
                bound.load = f64::INFINITY;
            }
        }
        for occupant in &self.occupants {
            let Some(claim) = &occupant.claim else { continue };
            let rate = alone(claim, self.view.cache_bytes);
            let share = claim.throughput / occupant.cores.len().max(1) as f64 / rate;
            for core in &occupant.cores {
                if let Some(at) = self.view.cores.iter().position(|other| other == core) {
                    let batch = BATCH / rate * 1e9;
                    bounds[at].load += share;
                    bounds[at].batches += batch;
                    bounds[at].claims.push((Arc::clone(claim), batch));
                }
            }
        }
        self.bounds = bounds;
        self.refusals.clear();
    }

    /// Free share of the roomiest core, and of all, in steps. Rounded up.
    fn key(&self, index: usize) -> Key {
        let free = self.bounds.iter().map(|bound| (self.most() - bound.load).max(0.0));
        let (roomiest, all) = free.fold((0.0f64, 0.0), |(most, all), free| (most.max(free), all + free));
        ((roomiest * STEPS).ceil() as u32, (all * STEPS) as u32, index)
    }

    /// Returns `false` if the instance certainly does not fit.
    fn may_hold(&self, request: &Request<'_>, claim: Option<&Arc<Claim>>) -> bool {
        let cores = usize::from(request.cores);
        if request.exclusive {
            return self.idle_cores().nth(cores - 1).is_some();
        }
        let Some(claim) = claim else {
            return self.shared.cores.len() >= cores;
        };
        let rate = alone(claim, self.view.cache_bytes);
        let (share, batch) = (claim.throughput / cores as f64 / rate, BATCH / rate * 1e9);
        let has_room = |bound: &&CoreBound| {
            let load = bound.load + share;
            let is_kept = |claim: &Claim, others: f64| {
                let latency = claim.curves.load.latency(load).0 + others.max(0.0) as u64;
                latency <= claim.latency.0.saturating_add(TIME_ROUNDING)
            };
            load <= self.most() * (1.0 + LOAD_ROUNDING) + LOAD_ROUNDING
                && is_kept(claim, bound.batches)
                && bound
                    .claims
                    .iter()
                    .all(|(claim, own)| is_kept(claim, bound.batches + batch - own))
        };
        self.bounds.iter().filter(has_room).nth(cores - 1).is_some()
    }

    /// Cores without any instance.
    fn idle_cores(&self) -> impl Iterator<Item = u32> {
        let is_idle = |core: &u32| !self.occupants.iter().any(|one| one.cores.contains(core));
        self.shared.cores.iter().copied().filter(is_idle)
    }

    /// Returns the cores for an instance, as the server itself would decide.
    fn cores_for(&self, request: &Request<'_>, claim: Option<&Arc<Claim>>) -> Option<Vec<u32>> {
        if request.exclusive {
            return Some(self.idle_cores().take(usize::from(request.cores)).collect());
        }
        let wanted = request.wanted(claim, &[]);
        self.shared.cores_for(&self.occupants, wanted).ok()
    }

    /// Predicted share of each core of an instance.
    pub fn share(&self, name: &str) -> f64 {
        if self.exclusive.iter().any(|one| one.name == name) {
            return 1.0;
        }
        let at = self.occupants.iter().position(|one| one.name == name);
        let all = predicted(self.shared.cache_bytes, &self.occupants);
        let predicted = at.and_then(|at| all.get(at).copied().flatten());
        predicted.map_or(0.0, |predicted| predicted.share)
    }

    fn occupied(&mut self, exclusive: bool) -> &mut Vec<Occupant> {
        match exclusive {
            true => &mut self.exclusive,
            false => &mut self.occupants,
        }
    }
}

impl<'v> Fleet<'v> {
    pub fn new(servers: &'v [ServerView], now: Nanos, lost_after: Nanos) -> Self {
        let models: Vec<_> = servers.iter().map(|view| Server::new(view, now, lost_after)).collect();
        let mut fleet = Fleet {
            by_name: HashMap::new(),
            classes: BTreeMap::new(),
            servers: models,
            work: RackWork::default(),
            refused: 0,
        };
        for (index, view) in servers.iter().enumerate() {
            fleet.by_name.entry(&view.name).or_insert(index);
            fleet.index(index);
        }
        fleet
    }

    pub fn named(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    fn index(&mut self, server: usize) {
        let model = &self.servers[server];
        if model.takes {
            let index = self.classes.entry(model.class()).or_default();
            match model.is_empty() {
                true => index.empty.insert(server),
                false => index.used.insert(model.key(server)),
            };
        }
    }

    fn unindex(&mut self, server: usize) {
        let model = &self.servers[server];
        if let Some(index) = self.classes.get_mut(&model.class()) {
            index.empty.remove(&server);
            index.used.remove(&model.key(server));
        }
    }

    fn change<T>(&mut self, server: usize, change: impl FnOnce(&mut Server<'v>) -> T) -> T {
        self.unindex(server);
        let result = change(&mut self.servers[server]);
        self.servers[server].account();
        self.index(server);
        result
    }

    /// Adds instances that run on a server, of which some have cores that it has not reported yet.
    pub fn fill(&mut self, server: usize, instances: &[(Request<'_>, &[u32])]) {
        self.change(server, |model| {
            for pass in [true, false] {
                for (request, cores) in instances.iter().filter(|(_, cores)| cores.is_empty() != pass) {
                    let claim = request.claim_on(&model.view.machine).filter(|_| !request.exclusive);
                    let fits = usize::from(request.cores) <= model.shared.cores.len() && request.cores > 0;
                    let cores = match cores.is_empty() && fits {
                        false => cores.to_vec(),
                        true => model.cores_for(request, claim.as_ref()).unwrap_or_else(|| {
                            let anyhow = request.wanted(None, &[]);
                            model.shared.cores_for(&model.occupants, anyhow).unwrap_or_default()
                        }),
                    };
                    model.occupied(request.exclusive).push(Occupant {
                        name: request.name.to_owned(),
                        cores,
                        claim,
                    });
                    if request.exclusive || !pass {
                        model.account();
                    }
                }
            }
        });
    }

    /// Returns a place among the servers of the pool that are `allowed`: of used ones with the least room that
    /// suffices, else of an empty one. Ends after the prediction has refused it on `most` servers.
    pub fn find(
        &mut self,
        request: &Request<'_>,
        most: usize,
        allowed: &dyn Fn(usize) -> bool,
    ) -> Option<(usize, Vec<u32>)> {
        match (request.cores, request.promise, request.exclusive) {
            (0, ..) => None,
            (_, None, false) => self.fewest_chains(request, allowed),
            _ => self.fullest(request, most, allowed),
        }
    }

    /// Puts the instance where [`find`](Self::find) finds a place.
    pub fn place(&mut self, request: &Request<'_>, most: usize, allowed: &dyn Fn(usize) -> bool) -> Option<Found> {
        let (server, cores) = self.find(request, most, allowed)?;
        Some(self.put(request, server, cores))
    }

    fn exact(&mut self, request: &Request<'_>, server: usize) -> Option<Vec<u32>> {
        let model = &self.servers[server];
        self.work.compared += 1;
        let claim = request.claim_on(&model.view.machine);
        let is_measured = request.exclusive || claim.is_some() == request.promise.is_some();
        if !is_measured || !model.may_hold(request, claim.as_ref()) {
            return None;
        }
        let key = claim.as_ref().filter(|_| !request.exclusive).map(|claim| {
            let curves = Arc::as_ptr(&claim.curves) as usize;
            (curves, claim.latency, request.cores)
        });
        let least = key.and_then(|key| model.refusals.get(&key)).copied();
        if least.is_some_and(|least| request.rate >= least) {
            debug_assert_eq!(model.cores_for(request, claim.as_ref()), None, "less was refused");
            self.refused += 1;
            return None;
        }
        self.work.predicted += 1;
        let found = model.cores_for(request, claim.as_ref());
        if found.is_none() {
            self.refused += 1;
            if let Some(key) = key {
                self.servers[server].refusals.insert(key, request.rate);
            }
        }
        found
    }

    fn fewest_chains(&mut self, request: &Request<'_>, allowed: &dyn Fn(usize) -> bool) -> Option<(usize, Vec<u32>)> {
        let fits = |&server: &usize| {
            let model = &self.servers[server];
            model.takes && model.view.is_for(request.pool) && allowed(server) && model.may_hold(request, None)
        };
        self.work.compared += self.servers.len() as u64;
        // Used servers come first, up to one chain for each of their cores.
        let key = |&server: &usize| {
            let model = &self.servers[server];
            let chains = model.occupants.len() as f64 / model.shared.cores.len() as f64;
            (chains as u64, model.is_empty(), (chains * STEPS) as u64, server)
        };
        let server = (0..self.servers.len()).filter(fits).min_by_key(key)?;
        Some((server, self.servers[server].cores_for(request, None)?))
    }

    fn fullest(
        &mut self,
        request: &Request<'_>,
        most: usize,
        allowed: &dyn Fn(usize) -> bool,
    ) -> Option<(usize, Vec<u32>)> {
        let refused_before = self.refused;
        let mut candidates: Vec<(bool, Key)> = Vec::new();
        let mut refused = BTreeSet::new();
        let classes = self.classes.keys().copied();
        let classes: Vec<Class<'v>> = classes.filter(|(pools, _)| is_for(pools, request.pool)).collect();
        // Used servers of all machines come first.
        for class in &classes {
            let least = self.least_free(request, class.1);
            let Some((least, used)) = least.zip(self.classes.get(class)) else {
                continue;
            };
            candidates.extend(used.used.range((least, 0, 0)..).map(|key| (false, *key)));
        }
        candidates.sort_unstable();
        for class in &classes {
            if self.least_free(request, class.1).is_some() {
                let empty = self.classes[class].empty.iter();
                candidates.extend(empty.map(|&server| (true, (0, 0, server))));
            }
        }
        for (empty, (_, _, server)) in candidates {
            if !allowed(server) {
                continue;
            }
            // Empty servers of the same size refuse the same.
            let view = self.servers[server].view;
            let size = (
                &view.machine,
                view.cores.len(),
                view.cache_bytes,
                view.headroom.to_bits(),
            );
            if empty && refused.contains(&size) {
                continue;
            }
            match self.exact(request, server) {
                Some(cores) => return Some((server, cores)),
                None if empty => _ = refused.insert(size),
                None => {}
            }
            if self.refused - refused_before >= most as u64 {
                return None;
            }
        }
        None
    }

    /// Least step of the roomiest core that can have room on a machine. `None` if its curves do not permit an instance.
    fn least_free(&self, request: &Request<'_>, machine: &str) -> Option<u32> {
        if request.exclusive {
            return Some(1);
        }
        let claim = request.claim_on(machine)?;
        let fastest = (claim.curves.cache.most() * ISOLATED).max(1.0);
        let share = claim.throughput / f64::from(request.cores.max(1)) / fastest;
        let is_kept = claim.curves.load.least() <= claim.latency;
        is_kept.then_some(((share - LOAD_ROUNDING) * STEPS).max(0.0) as u32)
    }

    /// Puts an instance on a server that has room for it there.
    pub fn put(&mut self, request: &Request<'_>, server: usize, cores: Vec<u32>) -> Found {
        let share = self.change(server, |model| {
            let claim = request.claim_on(&model.view.machine).filter(|_| !request.exclusive);
            model.occupied(request.exclusive).push(Occupant {
                name: request.name.to_owned(),
                cores: cores.clone(),
                claim,
            });
            model.share(request.name)
        });
        Found { server, cores, share }
    }

    /// Changes the promise of an instance that shares its cores, and returns its share; `None` if it does not fit, and
    /// nothing has changed.
    pub fn resize(&mut self, server: usize, name: &str, rate: f64) -> Option<f64> {
        let model = &self.servers[server];
        let at = model.occupants.iter().position(|one| one.name == name)?;
        let old = &model.occupants[at];
        let claim = Arc::new(Claim {
            throughput: rate,
            ..Claim::clone(old.claim.as_deref()?)
        });
        let mut others = model.occupants.clone();
        let old = others.remove(at);
        if old.cores.is_empty() || old.cores.len() > model.shared.cores.len() {
            return None;
        }
        self.work.predicted += 1;
        let wanted = Wanted {
            name,
            cores: old.cores.len(),
            claim: Some(&claim),
            before: &old.cores,
        };
        let cores = model.shared.cores_for(&others, wanted).ok()?;
        Some(self.change(server, |model| {
            model.occupants[at] = Occupant {
                cores,
                claim: Some(claim),
                ..old
            };
            model.share(name)
        }))
    }

    /// Takes back what [`resize`](Self::resize) or [`put`](Self::put) did: the occupants of a server.
    pub fn restore(&mut self, server: usize, (occupants, exclusive): (Vec<Occupant>, Vec<Occupant>)) {
        self.change(server, |model| {
            (model.occupants, model.exclusive) = (occupants, exclusive);
        });
    }

    /// Copies the occupants of a server.
    pub fn occupants(&self, server: usize) -> (Vec<Occupant>, Vec<Occupant>) {
        let model = &self.servers[server];
        (model.occupants.clone(), model.exclusive.clone())
    }

    /// Most packets per second that an instance of a chain can be promised on a machine, at least one server of which
    /// takes instances, or on any if `None`; 0 if that is impossible. The bound is not exact.
    pub fn most_rate(&self, chain: &ChainView, machine: Option<&str>) -> f64 {
        let Some(promise) = &chain.promise else { return 0.0 };
        let chosen = self.classes_for(chain.pool.as_deref());
        let chosen = chosen.filter(|(name, _)| machine.is_none_or(|machine| machine == *name));
        let rates = chosen.filter_map(|(name, index)| {
            let curves = promise.on(name)?;
            let some = index.empty.first().copied();
            let server = some.or_else(|| index.used.first().map(|key| key.2))?;
            let load = curves
                .load
                .load_within(promise.latency)
                .min(self.servers[server].most());
            Some(f64::from(chain.cores) * load * curves.cache.most() * ISOLATED)
        });
        rates.fold(0.0, f64::max)
    }

    /// Packets per second of an instance of a chain with whole cores on the fastest of the machines, 0 without a
    /// promise.
    pub fn whole_rate(&self, chain: &ChainView) -> f64 {
        let Some(promise) = &chain.promise else { return 0.0 };
        let classes = self.classes_for(chain.pool.as_deref());
        let curves = classes.filter_map(|(machine, _)| promise.on(machine));
        let rates = curves.map(|curves| f64::from(chain.cores) * curves.cache.most() * ISOLATED);
        rates.fold(0.0, f64::max)
    }

    /// Machines of the servers that chains of a pool, or those without one, may use.
    fn classes_for(&self, pool: Option<&str>) -> impl Iterator<Item = (&'v str, &Index)> {
        let classes = self.classes.iter().filter(move |((pools, _), _)| is_for(pools, pool));
        classes.map(|((_, machine), index)| (*machine, index))
    }

    /// Servers that take instances: the emptiest of each machine and pool, then the second of each, and so on.
    pub fn roomiest(&self) -> impl Iterator<Item = usize> {
        let classes = self.classes.values().map(Index::roomiest);
        let mut all: Vec<(usize, usize)> = classes.flat_map(Iterator::enumerate).collect();
        all.sort_by_key(|(at, _)| *at);
        all.into_iter().map(|(_, server)| server)
    }

    /// Servers that chains of a pool, or those without one, may use, the emptiest first of each machine.
    pub fn roomiest_for(&self, pool: Option<&str>) -> impl Iterator<Item = usize> {
        self.classes_for(pool).flat_map(|(_, index)| index.roomiest())
    }

    /// Returns the cores of a server for a search of alternatives.
    pub fn parts(&self, server: usize) -> (&SharedCores, &[Occupant]) {
        (&self.servers[server].shared, &self.servers[server].occupants)
    }
}

/// Packets per second on a whole core with all of the cache.
fn alone(claim: &Claim, cache_bytes: u64) -> f64 {
    (claim.curves.cache.extended(cache_bytes as f64) * ISOLATED).max(1.0)
}
