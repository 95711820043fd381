//! Servers and instances of a simulated rack: plans are executed, and a second of load is processed.

use super::options::ClusterOptions;
use super::report::ClusterReport;
use std::collections::HashMap;
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_placement::core_shares::{Claim, Occupant, SharedCores, Wanted, predicted};
use tailwater_placement::rack::{
    DrainReason, InstanceLoad, InstancePhase, InstanceView, NewInstance, RackAction, RackPlan, RackView, ServerState,
};
use tailwater_placement::slo::ISOLATED;

/// Packets of a turn, as in the prediction.
const BATCH: f64 = 32.0;

/// State of an instance beside its view.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub chain: usize,
    pub server: usize,
    /// Seconds left in its phase.
    left: u64,
    /// Nanoseconds of a packet in its present company.
    cost: f64,
    /// Packets per second in this second.
    pub offered: f64,
}

/// A simulated rack.
#[derive(Debug)]
pub(super) struct World<'o> {
    options: &'o ClusterOptions,
    pub view: RackView,
    pub live: Vec<Live>,
    /// Instances of each chain, as indices.
    pub of_chain: Vec<Vec<usize>>,
    on_server: Vec<Vec<usize>>,
    /// Servers that work.
    works: Vec<bool>,
    /// Servers on which instances have changed.
    changed: Vec<bool>,
    chains: HashMap<String, usize>,
    servers: HashMap<String, usize>,
}

/// Result of a second.
#[derive(Clone, Debug, Default)]
pub(super) struct Second {
    /// By chain: the objective was kept.
    pub kept: Vec<bool>,
    pub cores: usize,
    pub servers: usize,
}

impl<'o> World<'o> {
    pub fn new(options: &'o ClusterOptions, view: RackView) -> Self {
        let chains = view
            .chains
            .iter()
            .enumerate()
            .map(|(at, chain)| (chain.name.clone(), at));
        let servers = view
            .servers
            .iter()
            .enumerate()
            .map(|(at, server)| (server.name.clone(), at));
        World {
            options,
            live: Vec::new(),
            of_chain: vec![Vec::new(); view.chains.len()],
            on_server: vec![Vec::new(); view.servers.len()],
            works: vec![true; view.servers.len()],
            changed: vec![false; view.servers.len()],
            chains: chains.collect(),
            servers: servers.collect(),
            view,
        }
    }

    /// Returns the servers with instances.
    pub fn used(&self) -> Vec<usize> {
        (0..self.on_server.len())
            .filter(|server| !self.on_server[*server].is_empty())
            .collect()
    }

    /// A server stops, and reports no more. Returns the chains that have instances there.
    pub fn fail(&mut self, server: usize) -> Vec<usize> {
        self.works[server] = false;
        self.view.servers[server].state = ServerState::Lost { since: self.view.now };
        self.on_server[server].iter().map(|&at| self.live[at].chain).collect()
    }

    /// Returns `true` if an instance processes packets.
    pub fn processes(&self, at: usize) -> bool {
        self.view.instances[at].phase == InstancePhase::Ready
    }

    fn index(&mut self) {
        self.of_chain.iter_mut().chain(&mut self.on_server).for_each(Vec::clear);
        for (at, live) in self.live.iter().enumerate() {
            self.of_chain[live.chain].push(at);
            self.on_server[live.server].push(at);
        }
    }

    /// Executes a plan, and counts what was done.
    pub fn execute(&mut self, plan: &RackPlan, report: &mut ClusterReport) {
        let names = self.view.instances.iter().enumerate();
        let mut names: HashMap<String, usize> = names.map(|(at, one)| (one.name.clone(), at)).collect();
        let mut deleted = Vec::new();
        for action in &plan.actions {
            match action {
                RackAction::Create(new) => match self.create(new) {
                    true => {
                        report.created += 1;
                        report.moved += u64::from(new.replaces.is_some());
                        names.insert(new.name.clone(), self.live.len() - 1);
                    }
                    false => report.refused += 1,
                },
                RackAction::Resize { instance, rate, .. } => match self.resize(names[instance], *rate) {
                    true => report.resized += 1,
                    false => report.refused += 1,
                },
                RackAction::Drain { instance, reason } => {
                    let at = names[instance];
                    self.view.instances[at].phase = InstancePhase::Draining;
                    self.live[at].left = self.options.drain + 1;
                    report.retired += u64::from(*reason == DrainReason::Idle);
                }
                RackAction::Delete { instance, .. } => deleted.push(names[instance]),
            }
        }
        deleted.sort_unstable();
        for at in deleted.into_iter().rev() {
            self.changed[self.live[at].server] = true;
            self.view.instances.remove(at);
            self.live.remove(at);
        }
        self.index();
    }

    fn shared(&self, server: usize, without: Option<usize>) -> (SharedCores, Vec<Occupant>) {
        let view = &self.view.servers[server];
        let here = || self.on_server[server].iter().copied().filter(|at| Some(*at) != without);
        let exclusive = |at: &usize| self.view.instances[*at].exclusive;
        let taken = |core: &u32| {
            here()
                .filter(exclusive)
                .any(|at| self.view.instances[at].cores.contains(core))
        };
        let shared = SharedCores {
            cores: view.cores.iter().copied().filter(|core| !taken(core)).collect(),
            cache_bytes: view.cache_bytes,
            headroom: view.headroom,
        };
        let occupants = here().filter(|at| !exclusive(at)).map(|at| {
            let one = &self.view.instances[at];
            Occupant {
                name: one.name.clone(),
                cores: one.cores.clone(),
                claim: self.claim(self.live[at].chain, server, one.promised),
            }
        });
        (shared, occupants.collect())
    }

    fn claim(&self, chain: usize, server: usize, rate: f64) -> Option<Arc<Claim>> {
        let promise = self.view.chains[chain].promise.as_ref()?;
        promise.claim(&self.view.servers[server].machine, rate).map(Arc::new)
    }

    fn create(&mut self, new: &NewInstance) -> bool {
        let (server, chain) = (self.servers[&new.server], self.chains[&new.chain]);
        let (shared, others) = self.shared(server, None);
        let number = usize::from(new.cores);
        let cores = if new.exclusive {
            let is_idle = |core: &u32| !others.iter().any(|other| other.cores.contains(core));
            let idle: Vec<u32> = shared.cores.iter().copied().filter(is_idle).take(number).collect();
            Some(idle).filter(|idle| idle.len() == number)
        } else {
            let claim = self.claim(chain, server, new.rate);
            let wanted = Wanted {
                name: &new.name,
                cores: number,
                claim: claim.as_ref(),
                before: &[],
            };
            shared.cores_for(&others, wanted).ok()
        };
        let Some(cores) = cores.filter(|_| self.works[server]) else {
            return false;
        };
        self.view.instances.push(InstanceView {
            name: new.name.clone(),
            chain: new.chain.clone(),
            server: new.server.clone(),
            phase: InstancePhase::Starting,
            cores,
            promised: new.rate,
            exclusive: new.exclusive,
            replaces: new.replaces.clone(),
            load: InstanceLoad::default(),
        });
        self.live.push(Live {
            chain,
            server,
            left: self.options.start + 1,
            cost: 0.0,
            offered: 0.0,
        });
        self.changed[server] = true;
        // Later actions of the plan see it.
        self.on_server[server].push(self.live.len() - 1);
        true
    }

    fn resize(&mut self, at: usize, rate: f64) -> bool {
        let server = self.live[at].server;
        let (shared, others) = self.shared(server, Some(at));
        let claim = self.claim(self.live[at].chain, server, rate);
        let one = &self.view.instances[at];
        let wanted = Wanted {
            name: &one.name,
            cores: one.cores.len(),
            claim: claim.as_ref(),
            before: &one.cores,
        };
        let Ok(cores) = shared.cores_for(&others, wanted) else {
            return false;
        };
        let one = &mut self.view.instances[at];
        (one.cores, one.promised) = (cores, rate);
        self.changed[server] = true;
        true
    }

    /// Lets instances start and end, and updates costs where instances have changed.
    pub fn advance(&mut self) {
        for (live, one) in self.live.iter_mut().zip(&mut self.view.instances) {
            live.left = live.left.saturating_sub(1);
            if live.left > 0 || !self.works[live.server] {
                continue;
            }
            one.phase = match one.phase {
                InstancePhase::Starting => InstancePhase::Ready,
                InstancePhase::Draining => InstancePhase::Drained,
                phase => phase,
            };
        }
        for server in 0..self.changed.len() {
            if !std::mem::take(&mut self.changed[server]) {
                continue;
            }
            let (shared, occupants) = self.shared(server, None);
            let mut all = predicted(shared.cache_bytes, &occupants).into_iter();
            for &at in &self.on_server[server] {
                let chain = &self.view.chains[self.live[at].chain];
                let curves = chain.promise.as_ref().map(|promise| &promise.curves[0]);
                let alone = curves.map_or(0.0, |curves| 1e9 / (curves.cache.most() * ISOLATED));
                self.live[at].cost = match self.view.instances[at].exclusive {
                    true => alone,
                    false => all.next().flatten().map_or(alone, |predicted| predicted.cost),
                };
            }
        }
    }

    /// Processes a second of what the instances are offered. `lost` chains have packets that no instance gets.
    pub fn process(&mut self, lost: &[bool]) -> Second {
        let mut second = Second {
            kept: lost.iter().map(|lost| !lost).collect(),
            ..Second::default()
        };
        let most = self
            .view
            .servers
            .iter()
            .flat_map(|server| server.cores.iter().copied())
            .max()
            .unwrap_or(0);
        // By core: load, nanoseconds of a batch of each chain with packets, and if there is an instance.
        let mut cores = vec![(0.0, 0.0, false); most as usize + 1];
        for (server, here) in self.on_server.iter().enumerate().filter(|(_, here)| !here.is_empty()) {
            if !self.works[server] {
                for &at in here.iter().filter(|at| self.live[**at].offered > 0.0) {
                    second.kept[self.live[at].chain] = false;
                }
                continue;
            }
            cores.fill((0.0, 0.0, false));
            for &at in here {
                let (live, one) = (&self.live[at], &self.view.instances[at]);
                for &core in &one.cores {
                    let (load, batches, used) = &mut cores[core as usize];
                    *load += live.offered * live.cost / 1e9 / one.cores.len() as f64;
                    *batches += if live.offered > 0.0 { BATCH * live.cost } else { 0.0 };
                    *used = true;
                }
            }
            second.servers += 1;
            second.cores += cores.iter().filter(|core| core.2).count();
            for &at in here {
                let (live, one) = (&self.live[at], &mut self.view.instances[at]);
                let promise = self.view.chains[live.chain].promise.as_ref();
                let Some(promise) = promise.filter(|_| live.offered > 0.0) else {
                    one.load = InstanceLoad::default();
                    continue;
                };
                let mut latency = Nanos::ZERO;
                for &core in &one.cores {
                    let (load, batches, _) = cores[core as usize];
                    let others = (batches - BATCH * live.cost).max(0.0) as u64;
                    let own = promise.curves[0].load.latency(load);
                    latency = latency.max(Nanos(own.0 + others));
                    if load > 1.0 {
                        second.kept[live.chain] = false;
                    }
                }
                if latency > promise.latency {
                    second.kept[live.chain] = false;
                }
                one.load = InstanceLoad {
                    offered: live.offered,
                    p99: Some(latency),
                    batch_p99: Nanos(latency.0 / 2),
                    busy: None,
                };
            }
        }
        self.view.now += Nanos::from_secs(1);
        second
    }
}
