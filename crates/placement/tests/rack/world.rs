//! A rack that executes plans: servers admit, resize and drop instances by themselves, and nothing takes place that an
//! invariant forbids.

use std::collections::BTreeMap;
use std::sync::Arc;
use tailwater_net::Nanos;
use tailwater_placement::core_shares::{Claim, Occupant, SharedCores, Wanted};
use tailwater_placement::curve::{CacheCurve, LoadCurve};
use tailwater_placement::rack::*;
use tailwater_placement::slo::{Curves, ISOLATED};

/// Packets per second on a whole core.
pub const CORE: f64 = 1e6;

/// Curves of a chain of 1 us a packet. 10 us up to half of the load, 50 us at 90 %.
pub fn curves(machine: &str) -> Arc<Curves> {
    let load = vec![
        (0.5, Nanos::from_micros(10)),
        (0.9, Nanos::from_micros(50)),
        (1.0, Nanos::from_micros(1000)),
    ];
    Arc::new(Curves {
        machine: machine.into(),
        cores: 1,
        cache: CacheCurve::new(vec![(10, CORE / ISOLATED)]).expect("a curve"),
        load: LoadCurve::new(load).expect("a curve"),
    })
}

pub fn server(name: &str, cores: u32) -> ServerView {
    ServerView {
        name: name.into(),
        machine: "m".into(),
        state: ServerState::Ready,
        cores: (1..=cores).collect(),
        cache_bytes: 1000,
        headroom: 0.1,
        pools: Vec::new(),
    }
}

/// Chain on demand that is offered `cores` times what a core processes, with an objective of 1 ms.
pub fn chain(name: &str, cores: f64) -> ChainView {
    ChainView {
        name: name.into(),
        promise: Some(RackPromise {
            throughput: RackThroughput::OnDemand,
            latency: Nanos::from_millis(1),
            curves: vec![curves("m")],
        }),
        objective: Some(Nanos::from_millis(1)),
        cores: 1,
        least: 1,
        most: 16,
        redundancy: 1,
        pool: None,
        is_bound: false,
        demand: demand(cores),
    }
}

pub fn demand(cores: f64) -> ChainDemand {
    ChainDemand {
        offered: cores * CORE,
        smoothed: cores * CORE,
        peak: cores * CORE,
    }
}

pub fn reserved(name: &str, cores: f64) -> ChainView {
    let mut chain = chain(name, cores);
    if let Some(promise) = &mut chain.promise {
        promise.throughput = RackThroughput::Reserved(cores * CORE);
    }
    chain
}

/// Options without room for growth, so that tables have round numbers.
pub fn options() -> RackOptions {
    RackOptions {
        lost_after: Nanos::from_secs(3),
        moves: 2,
        retry: Nanos::from_secs(5),
        hold: Nanos::from_secs(10),
        band: 0.0,
    }
}

pub fn exact() -> TailwaterScaling {
    TailwaterScaling {
        peak: 1.0,
        ..TailwaterScaling::default()
    }
}

/// Rack with its controller.
pub struct World<P> {
    pub view: RackView,
    pub controller: RackController<P>,
    pub options: RackOptions,
    /// Rounds from the creation to readiness, and from drain to the end of the last flow.
    pub delay: u64,
    round: u64,
    since: BTreeMap<String, u64>,
}

impl<P: ScalingPolicy> World<P> {
    pub fn new(options: RackOptions, policy: P, servers: Vec<ServerView>, chains: Vec<ChainView>) -> Self {
        World {
            view: RackView {
                now: Nanos::from_secs(100),
                servers,
                chains,
                instances: Vec::new(),
            },
            controller: RackController::new(options, policy),
            options,
            delay: 1,
            round: 0,
            since: BTreeMap::new(),
        }
    }

    /// A round: decides, executes the plan, and lets a second pass.
    pub fn step(&mut self) -> RackPlan {
        let plan = self.controller.decide(&self.view);
        for action in &plan.actions {
            self.execute(action);
        }
        self.check_moves();
        self.round += 1;
        self.view.now += Nanos::from_secs(1);
        let is_due = |since: Option<&u64>| since.is_none_or(|since| self.round >= since + self.delay);
        for instance in &mut self.view.instances {
            let due = is_due(self.since.get(&instance.name));
            let next = match instance.phase {
                InstancePhase::Starting if due => InstancePhase::Ready,
                InstancePhase::Draining if due => InstancePhase::Drained,
                phase => phase,
            };
            instance.phase = next;
        }
        plan
    }

    /// Steps until nothing is decided any more for longer than anything is held back. Returns the last plan.
    pub fn settle(&mut self) -> RackPlan {
        let quiet = self.options.hold.as_secs_f64() as u64 + 2 * self.delay + 4;
        let mut silent = 0;
        for _ in 0..2000 {
            let plan = self.step();
            silent = if plan.actions.is_empty() { silent + 1 } else { 0 };
            if silent > quiet {
                return plan;
            }
        }
        panic!("the rack does not settle");
    }

    pub fn of(&self, chain: &str) -> Vec<&InstanceView> {
        self.view.instances.iter().filter(|one| one.chain == chain).collect()
    }

    pub fn promised(&self, chain: &str) -> f64 {
        let of = self.of(chain).into_iter().filter(|one| one.is_active());
        of.map(|one| one.promised).sum()
    }

    /// Servers of the active instances of a chain, sorted.
    pub fn places(&self, chain: &str) -> Vec<&str> {
        let active = self.of(chain).into_iter().filter(|one| one.is_active());
        let mut places: Vec<&str> = active.map(|one| &*one.server).collect();
        places.sort_unstable();
        places
    }

    pub fn server(&mut self, name: &str) -> &mut ServerView {
        let found = self.view.servers.iter_mut().find(|server| server.name == name);
        found.expect("a server")
    }

    pub fn chain(&mut self, name: &str) -> &mut ChainView {
        let found = self.view.chains.iter_mut().find(|chain| chain.name == name);
        found.expect("a chain")
    }

    /// Cores of a server that chains share, with its instances but one.
    pub fn shared(&self, server: &str, without: &str) -> (SharedCores, Vec<Occupant>) {
        let view = self
            .view
            .servers
            .iter()
            .find(|view| view.name == server)
            .expect("a server");
        let here = self
            .view
            .instances
            .iter()
            .filter(|one| one.server == server && one.name != without);
        let (exclusive, sharing): (Vec<&InstanceView>, Vec<&InstanceView>) = here.partition(|one| one.exclusive);
        let taken: Vec<u32> = exclusive.iter().flat_map(|one| one.cores.iter().copied()).collect();
        let occupants = sharing.iter().map(|one| Occupant {
            name: one.name.clone(),
            cores: one.cores.clone(),
            claim: self.claim(&one.chain, &view.machine, one.promised),
        });
        let cores = view.cores.iter().copied().filter(|core| !taken.contains(core));
        let shared = SharedCores {
            cores: cores.collect(),
            cache_bytes: view.cache_bytes,
            headroom: view.headroom,
        };
        (shared, occupants.collect())
    }

    pub fn claim(&self, chain: &str, machine: &str, rate: f64) -> Option<Arc<Claim>> {
        let chain = self.view.chains.iter().find(|view| view.name == chain)?;
        chain.promise.as_ref()?.claim(machine, rate).map(Arc::new)
    }

    fn index(&self, instance: &str) -> usize {
        let found = self.view.instances.iter().position(|one| one.name == instance);
        found.unwrap_or_else(|| panic!("there is no instance {instance}"))
    }

    fn execute(&mut self, action: &RackAction) {
        match action {
            RackAction::Create(new) => self.create(new),
            RackAction::Resize { instance, rate, .. } => {
                let at = self.index(instance);
                let one = self.view.instances[at].clone();
                let (shared, others) = self.shared(&one.server, instance);
                let machine = self.machine(&one.server);
                let claim = self.claim(&one.chain, &machine, *rate);
                let wanted = Wanted {
                    name: instance,
                    cores: one.cores.len(),
                    claim: claim.as_ref(),
                    before: &one.cores,
                };
                let cores = shared.admit(&others, wanted).expect("a server accepts the change");
                let changed = &mut self.view.instances[at];
                (changed.cores, changed.promised) = (cores, *rate);
            }
            RackAction::Drain { instance, reason } => self.drain(instance, *reason),
            RackAction::Delete { instance, reason } => {
                let at = self.index(instance);
                let one = self.view.instances.remove(at);
                self.since.remove(instance);
                let state = self.state(&one.server);
                match reason {
                    DeleteReason::Drained => assert_eq!(one.phase, InstancePhase::Drained),
                    DeleteReason::Failed => assert_eq!(one.phase, InstancePhase::Lost),
                    DeleteReason::Cancelled => assert_eq!(one.phase, InstancePhase::Starting),
                    DeleteReason::ServerLost => match state {
                        Some(ServerState::Lost { since }) => {
                            assert!(self.view.now.saturating_sub(since) >= self.options.lost_after);
                        }
                        state => assert_eq!(state, None, "{instance}"),
                    },
                }
            }
        }
    }

    fn state(&self, server: &str) -> Option<ServerState> {
        self.view
            .servers
            .iter()
            .find(|view| view.name == server)
            .map(|view| view.state)
    }

    /// Returns `true` if a chain may have instances on a server.
    pub fn is_in_pool(&self, chain: &str, server: &str) -> bool {
        let chain = self.view.chains.iter().find(|view| view.name == chain);
        let server = self.view.servers.iter().find(|view| view.name == server);
        let pool = chain.and_then(|chain| chain.pool.as_deref());
        server.is_some_and(|server| server.is_for(pool))
    }

    fn machine(&self, server: &str) -> String {
        let view = self.view.servers.iter().find(|view| view.name == server);
        view.expect("a server").machine.clone()
    }

    fn create(&mut self, new: &NewInstance) {
        assert_eq!(self.state(&new.server), Some(ServerState::Ready), "{new:?}");
        assert!(self.is_in_pool(&new.chain, &new.server), "{new:?}");
        assert!(self.view.instances.iter().all(|one| one.name != new.name), "{new:?}");
        let (shared, others) = self.shared(&new.server, "");
        let machine = self.machine(&new.server);
        let cores = if new.exclusive {
            let is_idle = |core: &u32| !others.iter().any(|other| other.cores.contains(core));
            let idle = shared.cores.iter().copied().filter(is_idle);
            idle.take(usize::from(new.cores)).collect()
        } else {
            let claim = self.claim(&new.chain, &machine, new.rate);
            let wanted = Wanted {
                name: &new.name,
                cores: usize::from(new.cores),
                claim: claim.as_ref(),
                before: &[],
            };
            shared.admit(&others, wanted).expect("a server accepts the instance")
        };
        assert_eq!(cores.len(), usize::from(new.cores), "{new:?}");
        if let Some(old) = &new.replaces {
            assert_eq!(self.view.instances[self.index(old)].chain, new.chain);
        }
        self.since.insert(new.name.clone(), self.round);
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
    }

    /// Drains a ready instance. Enough ready ones remain.
    fn drain(&mut self, instance: &str, reason: DrainReason) {
        let at = self.index(instance);
        let one = &mut self.view.instances[at];
        assert_eq!(one.phase, InstancePhase::Ready, "{instance}");
        one.phase = InstancePhase::Draining;
        self.since.insert(instance.to_owned(), self.round);
        let name = one.chain.clone();
        let ready = self.of(&name);
        let ready: Vec<_> = ready
            .into_iter()
            .filter(|one| one.phase == InstancePhase::Ready)
            .collect();
        let chain = self.view.chains.iter().find(|chain| chain.name == name);
        match (reason, chain) {
            (DrainReason::ChainGone, chain) => assert!(chain.is_none(), "{instance}"),
            (DrainReason::Replaced, _) => {
                let takes_over = |one: &&InstanceView| one.replaces.as_deref() == Some(instance);
                assert!(ready.iter().any(takes_over), "{instance} has no ready replacement");
            }
            (DrainReason::Idle, None) => panic!("{instance} is idle without a chain"),
            (DrainReason::Idle, Some(chain)) => {
                assert!(
                    ready.len() >= usize::from(chain.least.max(1).min(chain.most)),
                    "{instance}"
                );
                let rate = match chain.promise.as_ref().map(|promise| promise.throughput) {
                    Some(RackThroughput::Reserved(rate)) => rate,
                    Some(RackThroughput::OnDemand) => chain.demand.peak,
                    None => 0.0,
                };
                let is_exclusive = ready.iter().any(|one| one.exclusive);
                let promised: f64 = ready.iter().map(|one| one.promised).sum();
                assert!(is_exclusive || promised >= rate, "{instance}: {promised} of {rate}");
            }
        }
    }

    /// No more moves at a time than permitted.
    fn check_moves(&self) {
        let exists = |name: &String| self.view.instances.iter().any(|one| one.name == *name);
        let is_move = |one: &&InstanceView| one.replaces.as_ref().is_some_and(exists);
        let moves = self.view.instances.iter().filter(is_move).count();
        assert!(moves <= self.options.moves, "{moves} moves");
    }
}
