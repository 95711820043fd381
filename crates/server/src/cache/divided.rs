//! One cache, divided among the cores that use it.

use super::load::{Chains, observed, occupants};
use super::ways::{CacheClass, CacheWays};
use crate::events::Severity;
use crate::machine::MachineNote;
use std::collections::BTreeMap;
use tailwater_cache_agent::{Agent, CachePartitioner, Controller, Local, Seen, Settings, Tick};
use tailwater_net::Nanos;
use tailwater_placement::core_shares::{ReservableCache, SharedCores};
use tailwater_placement::lease::{Amount, Terms};
use tailwater_placement::on_demand::{AskKind, Kind, Reserved};

/// Time for which chains are late before it is reported: trials of more ways may still go on.
const LASTING: Nanos = Nanos::from_secs(20);

/// Ways that cores have reserved.
pub(super) type Reservations = BTreeMap<u32, u16>;

/// Parameters of a division.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheConfig {
    /// Part of each core that is not promised: 0 to below 1.
    pub headroom: f64,
    /// Ways that cores without a promise have at least, together.
    pub on_demand: u16,
}

/// Cache that several cores use.
#[derive(Debug)]
pub struct SharedCache<A> {
    /// Divides the cache.
    pub partitioner: A,
    /// Kernel's numbers of the threads of each core that uses it.
    pub cores: BTreeMap<u32, Vec<u32>>,
}

/// Cache that is divided among the cores that use it.
#[derive(Debug)]
pub struct DividedCache<A> {
    agent: Agent<A>,
    /// Leases ways that no promise needs to cores without one.
    controller: Local,
    /// Threads of the cores that use the cache.
    cores: BTreeMap<u32, Vec<u32>>,
    config: CacheConfig,
    reserved: Reservations,
    /// Cores whose chains are late with all cache that they can get.
    short: BTreeMap<u32, Short>,
    /// Last refusal that was reported.
    refused: Option<String>,
}

/// Core that needs more than it can get.
#[derive(Clone, Copy, Debug)]
struct Short {
    reason: &'static str,
    /// Time of the agent's first request since its chains were last in time.
    since: Nanos,
    is_reported: bool,
}

/// Name of a core among the agent's instances.
fn name_of(core: u32) -> String {
    format!("core-{core}")
}

fn core_of(name: &str) -> Option<u32> {
    name.strip_prefix("core-")?.parse().ok()
}

impl<A: CachePartitioner> DividedCache<A> {
    /// Divides a cache.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn new(cache: SharedCache<A>, config: CacheConfig) -> Result<DividedCache<A>, A::Error> {
        let settings = Settings {
            own: config.on_demand,
            terms: Terms::DEFAULT,
            // No lease of an earlier start reaches it: its controller is in the same process.
            incarnation: 1,
            config: None,
        };
        let mut agent = Agent::new(cache.partitioner, &settings)?;
        let ways = agent.cache()?.ways;
        Ok(DividedCache {
            agent,
            controller: Local::new(Terms::DEFAULT, ways),
            cores: cache.cores,
            config,
            reserved: Reservations::new(),
            short: BTreeMap::new(),
            refused: None,
        })
    }

    /// Ways that cores have reserved.
    pub(super) fn reserved(&self) -> &Reservations {
        &self.reserved
    }

    /// Decides which ways the cores reserve for these chains.
    pub(super) fn plan(&mut self, chains: &Chains) -> Result<Reservations, A::Error> {
        let cache = self.agent.cache()?;
        let cores = SharedCores {
            cores: self.cores.keys().copied().collect(),
            cache_bytes: u64::from(cache.ways) * cache.way_bytes,
            headroom: self.config.headroom,
        };
        let reservable = ReservableCache {
            way_bytes: cache.way_bytes,
            ways: cache.usable().count_ones() as u16,
            least: cache.least,
            classes: cache.classes,
        };
        let here = occupants(chains, |core| self.cores.contains_key(&core));
        Ok(cores.reserved_ways(&here, &reservable, &self.reserved))
    }

    /// Reserves these ways, all or none.
    ///
    /// # Errors
    /// The reason, on one line: the cache is as before.
    pub(super) fn reserve(&mut self, now: Nanos, ways: Reservations, chains: &Chains) -> Result<(), String> {
        if ways == self.reserved {
            return Ok(());
        }
        let before = std::mem::replace(&mut self.reserved, ways);
        let failure = match self.agent.tick_or_undo(now, &self.seen(chains)) {
            Ok(Ok(tick)) => {
                self.drop_unplaced(&tick);
                return Ok(());
            }
            Ok(Err(refusal)) => refusal.why,
            Err(error) => error.to_string(),
        };
        self.reserved = before;
        Err(format!("ways of the cache cannot be reserved: {failure}"))
    }

    /// Reserves these ways by the next ticks, whatever is refused now.
    pub(super) fn reserve_later(&mut self, now: Nanos, ways: Reservations, chains: &Chains) {
        if self.reserve(now, ways.clone(), chains).is_err() {
            self.reserved = ways;
        }
    }

    /// Lets the agent decide and enact. Returns what an operator should know.
    pub(super) fn tick(&mut self, now: Nanos, chains: &Chains) -> Vec<MachineNote> {
        self.offer();
        let request = self.agent.request(now);
        for grant in self.controller.exchange(now, request.as_ref()) {
            self.agent.granted(now, &grant);
        }
        match self.agent.tick(now, &self.seen(chains)) {
            Err(error) => self.refused(error.to_string()).into_iter().collect(),
            Ok(tick) => {
                self.drop_unplaced(&tick);
                // After a refusal, ticks pass without steps.
                let is_enacted = tick.decision.allocation.classes.iter().all(|class| {
                    let in_force = tick.in_force.class(&class.name);
                    in_force.is_some_and(|in_force| {
                        let has = |task| in_force.tasks.contains(task);
                        in_force.mask == class.mask && class.tasks.iter().all(has)
                    })
                });
                let mut notes = self.relieved(now, &tick);
                let left_out = tick.left_out.into_iter().next();
                let left_out = left_out.map(|(task, why)| format!("thread {task} is left out: {why}"));
                match tick.refused.map(|refusal| refusal.why).or(left_out) {
                    Some(why) => notes.extend(self.refused(why)),
                    None if is_enacted => self.refused = None,
                    None => {}
                }
                notes
            }
        }
    }

    /// Ways that a core has; `None` if it uses another cache.
    pub(super) fn ways_of(&self, core: u32) -> Option<CacheWays> {
        self.cores.get(&core)?;
        let reason = self.short.get(&core).map_or("", |short| short.reason).to_owned();
        let class = self.agent.in_force().class_of(&name_of(core));
        Some(match class {
            None => CacheWays {
                class: CacheClass::None,
                ways: 0,
                cores: 0,
                reason,
            },
            Some(class) => CacheWays {
                class: match class.kind {
                    Kind::Reserved => CacheClass::Reserved,
                    Kind::Isolated => CacheClass::Isolated,
                    Kind::Shared => CacheClass::Shared,
                },
                ways: class.mask.ways(),
                cores: class.instances.len() as u16,
                reason,
            },
        })
    }

    /// Limits leases to the ways that no core has reserved.
    fn offer(&mut self) {
        // The policy limits them to the usable ways: other programs may have some.
        let Ok(cache) = self.agent.cache() else {
            return;
        };
        let promised: u16 = self.reserved.values().sum();
        let ways = (cache.usable().count_ones() as u16).saturating_sub(promised.saturating_add(self.config.on_demand));
        self.controller.server().offer(Amount { cores: 0, ways });
    }

    /// Cores as the agent takes them.
    fn seen(&self, chains: &Chains) -> Seen {
        let mut seen = Seen::default();
        for (core, tasks) in &self.cores {
            match self.reserved.get(core) {
                Some(ways) => seen.reserved.push(Reserved {
                    name: name_of(*core),
                    ways: *ways,
                    tasks: tasks.clone(),
                }),
                None => seen.on_demand.extend(observed(name_of(*core), *core, tasks, chains)),
            }
        }
        seen
    }

    /// Cores for whose ways there is no adjacent room get cache on demand, like those without a promise.
    fn drop_unplaced(&mut self, tick: &Tick) {
        for core in tick.decision.refused.iter().filter_map(|name| core_of(name)) {
            self.reserved.remove(&core);
        }
    }

    /// Reports cores that need more than they can get, once until they do not any more.
    fn relieved(&mut self, now: Nanos, tick: &Tick) -> Vec<MachineNote> {
        let is_late = |core: &u32| {
            let name = name_of(*core);
            let mut seen = tick.seen.iter();
            seen.any(|seen| seen.name == name && seen.latency.is_some_and(|latency| latency > seen.objective))
        };
        self.short.retain(|core, _| is_late(core));
        for ask in &tick.decision.asks {
            let reason = match ask.kind {
                AskKind::ScaleOut => continue,
                AskKind::Move { .. } => "late, and the other cores need the remaining cache",
                AskKind::Unmet => "late, and more cache does not help",
            };
            if let Some(core) = core_of(&ask.name) {
                let new = Short {
                    reason,
                    since: now,
                    is_reported: false,
                };
                self.short.entry(core).or_insert(new).reason = reason;
            }
        }
        let mut notes = Vec::new();
        for (core, short) in &mut self.short {
            if !short.is_reported && now.saturating_sub(short.since) >= LASTING {
                short.is_reported = true;
                notes.push(MachineNote {
                    severity: Severity::Warning,
                    chain: None,
                    reason: "CacheShort",
                    message: format!("chains on core {core} are {}", short.reason),
                });
            }
        }
        notes
    }

    /// Reports a refusal, unless it is that of the tick before.
    fn refused(&mut self, why: String) -> Option<MachineNote> {
        if self.refused.as_ref() == Some(&why) {
            return None;
        }
        let note = MachineNote {
            severity: Severity::Warning,
            chain: None,
            reason: "CacheRefused",
            message: format!("the cache stays as it is, and will be tried again: {why}"),
        };
        self.refused = Some(why);
        Some(note)
    }
}
