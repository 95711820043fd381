//! The last-level cache, divided among the cores of a server while its chains run (ResQ §5.3).
//!
//! A class of service is that of a core's thread, so the chains of a core share it, and a chain that is alone on its
//! core has one of its own.
//!
//! - A core with promised chains reserves the fewest ways by which their curves keep the promises
//!   ([`SharedCores::reserved_ways`](tailwater_placement::core_shares::SharedCores::reserved_ways)), before the step of
//!   the chain. Ways that cannot be reserved refuse the step.
//! - The other cores are on-demand instances of an [`Agent`](tailwater_cache_agent::Agent), by the measured latency of
//!   their chains. A controller in the same process leases them the ways that no core has reserved.
//!
//! [`DividedMachine`] does this around any machine, on the server's own thread.

mod divided;
mod load;
pub(crate) mod ways;

pub use divided::{CacheConfig, DividedCache, SharedCache};
pub use ways::{CacheClass, CacheWays};

use crate::admission::Capacity;
use crate::chain::AppliedChain;
use crate::details::{CoreDetails, PortDetails};
use crate::events::Severity;
use crate::machine::{ChainObservation, ChainState, Machine, MachineNote, Refusal};
use crate::take_over::fields::{FinalCounts, HandedOver, MachineOffer, TakenOver};
use divided::Reservations;
use load::{Chains, PlacedChain};
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use tailwater_cache_agent::CachePartitioner;
use tailwater_net::Nanos;
use tailwater_placement::slo::Curves;

/// Time between two ticks: longer than a window of measurement, so that each tick has another one.
pub const INTERVAL: Nanos = Nanos::from_millis(500);

/// Machine whose cores have parts of their caches.
pub struct DividedMachine<M, A> {
    /// Dropped first, since its threads are in the classes.
    machine: M,
    caches: Vec<DividedCache<A>>,
    chains: Chains,
    clock: Box<dyn Fn() -> Nanos + Send>,
    next_tick: Nanos,
    notes: Vec<MachineNote>,
}

impl<M: fmt::Debug, A> fmt::Debug for DividedMachine<M, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DividedMachine")
            .field("machine", &self.machine)
            .field("chains", &self.chains)
            .finish_non_exhaustive()
    }
}

impl<M: Machine, A: CachePartitioner> DividedMachine<M, A> {
    /// Machine whose caches are not divided. `reason` is reported as an event.
    pub fn undivided(machine: M, reason: Option<String>) -> DividedMachine<M, A> {
        let began = Instant::now();
        let note = reason.map(|reason| MachineNote {
            severity: Severity::Normal,
            chain: None,
            reason: "CacheNotDivided",
            message: format!("the cache is not divided: {reason}"),
        });
        DividedMachine {
            machine,
            caches: Vec::new(),
            chains: Chains::new(),
            clock: Box::new(move || Nanos(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX))),
            next_tick: Nanos::ZERO,
            notes: note.into_iter().collect(),
        }
    }

    /// Machine whose cores have parts of these caches.
    pub fn new(machine: M, caches: Vec<DividedCache<A>>) -> DividedMachine<M, A> {
        DividedMachine {
            caches,
            ..DividedMachine::undivided(machine, None)
        }
    }

    /// Uses this clock, with any start, in place of the system's.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Fn() -> Nanos + Send + 'static) -> DividedMachine<M, A> {
        self.clock = Box::new(clock);
        self
    }

    /// Carries out a step that starts a chain, in the place of another one, once its ways are reserved.
    fn place(
        &mut self,
        replaced: Option<&str>,
        chain: &AppliedChain,
        step: impl FnOnce(&mut M) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        if self.caches.is_empty() {
            return step(&mut self.machine);
        }
        let mut next = self.chains.clone();
        let old = next.remove(replaced.unwrap_or(&chain.name));
        // Without curves, demand follows from trials.
        let curves = || self.machine.curves(chain).ok().flatten();
        let placed = PlacedChain::new(chain, old.as_ref(), curves);
        let is_promised = placed.is_promised();
        next.insert(chain.name.clone(), placed);
        let before: Vec<Reservations> = self.caches.iter().map(|cache| cache.reserved().clone()).collect();
        let now = (self.clock)();
        let reserved = self.reserve(now, &next);
        let is_reserved = reserved.is_ok();
        let done = match reserved {
            Err(reason) if is_promised => Err(Refusal::new(reason)),
            _ => step(&mut self.machine),
        };
        if done.is_err() {
            for (cache, before) in self.caches.iter_mut().zip(before) {
                cache.reserve_later(now, before, &self.chains);
            }
            return done;
        }
        self.chains = next;
        if !is_reserved {
            self.release();
        }
        Ok(())
    }

    /// Reserves the ways for these chains in all caches, up to the first failure.
    fn reserve(&mut self, now: Nanos, chains: &Chains) -> Result<(), String> {
        self.caches.iter_mut().try_for_each(|cache| {
            let ways = cache.plan(chains).map_err(|error| error.to_string())?;
            cache.reserve(now, ways, chains)
        })
    }

    /// Frees the ways of chains that are gone. What is refused is left to the next ticks.
    fn release(&mut self) {
        let now = (self.clock)();
        for cache in &mut self.caches {
            if let Ok(ways) = cache.plan(&self.chains) {
                cache.reserve_later(now, ways, &self.chains);
            }
        }
    }
}

impl<M: Machine, A: CachePartitioner> Machine for DividedMachine<M, A> {
    fn capacity(&self) -> Capacity {
        self.machine.capacity()
    }

    fn curves(&self, chain: &AppliedChain) -> Result<Option<Arc<Curves>>, Refusal> {
        self.machine.curves(chain)
    }

    fn profiling_core(&self) -> Result<u32, Refusal> {
        self.machine.profiling_core()
    }

    fn begin_profile(&mut self, chain: &AppliedChain) -> Result<u32, Refusal> {
        self.machine.begin_profile(chain)
    }

    fn poll_profile(&mut self) -> Option<Result<(), Refusal>> {
        self.machine.poll_profile()
    }

    fn cancel_profile(&mut self) {
        self.machine.cancel_profile();
    }

    fn check(&self, chain: &AppliedChain, beside: &[&AppliedChain]) -> Result<(), Refusal> {
        self.machine.check(chain, beside)
    }

    fn begin_change(&mut self, is_first: bool) {
        self.machine.begin_change(is_first);
    }

    fn complete_change(&mut self) {
        self.machine.complete_change();
    }

    fn start(&mut self, chain: &AppliedChain) -> Result<(), Refusal> {
        self.place(None, chain, |machine| machine.start(chain))
    }

    fn replace(&mut self, old: &str, chain: &AppliedChain) -> Result<(), Refusal> {
        self.place(Some(old), chain, |machine| machine.replace(old, chain))
    }

    fn change(&mut self, chain: &AppliedChain) -> Result<(), Refusal> {
        self.place(None, chain, |machine| machine.change(chain))
    }

    fn drain(&mut self, name: &str) -> Result<(), Refusal> {
        self.machine.drain(name)?;
        if self.chains.remove(name).is_some() {
            self.release();
        }
        Ok(())
    }

    fn observe(&mut self) -> Vec<ChainObservation> {
        let mut observed = self.machine.observe();
        if self.caches.is_empty() {
            return observed;
        }
        let count = self.chains.len();
        self.chains.retain(|name, _| {
            let mut of_chain = observed.iter().filter(|observation| observation.name == *name);
            of_chain.any(|observation| observation.state != ChainState::Ended)
        });
        if self.chains.len() < count {
            self.release();
        }
        for observation in &observed {
            if let Some(chain) = self.chains.get_mut(&observation.name) {
                chain.observe(observation);
            }
        }
        let now = (self.clock)();
        if now >= self.next_tick {
            self.next_tick = now + INTERVAL;
            for cache in &mut self.caches {
                self.notes.extend(cache.tick(now, &self.chains));
            }
        }
        for observation in &mut observed {
            let core = self.chains.get(&observation.name).and_then(PlacedChain::core);
            observation.cache = core.and_then(|core| self.caches.iter().find_map(|cache| cache.ways_of(core)));
        }
        observed
    }

    fn cores(&self) -> Vec<CoreDetails> {
        self.machine.cores()
    }

    fn ports(&self) -> Vec<PortDetails> {
        self.machine.ports()
    }

    fn offer(&mut self) -> Result<MachineOffer, Refusal> {
        self.machine.offer()
    }

    fn descriptors(&mut self) -> Result<BTreeMap<String, Vec<OwnedFd>>, Refusal> {
        self.machine.descriptors()
    }

    fn hand_over(&mut self) -> Result<(HandedOver, Vec<Vec<u8>>), Refusal> {
        self.machine.hand_over()
    }

    fn resume(&mut self) {
        self.machine.resume();
    }

    fn leave(&mut self) {
        self.machine.leave();
    }

    fn import(&mut self, handed: &HandedOver, flows: Vec<(String, Vec<u8>)>) -> Result<TakenOver, Refusal> {
        self.machine.import(handed, flows)
    }

    fn begin(&mut self, paused_at: u64) -> u64 {
        self.machine.begin(paused_at)
    }

    fn add_counts(&mut self, counts: &FinalCounts) {
        self.machine.add_counts(counts);
    }

    fn share_cores(&mut self, shares: bool) {
        self.machine.share_cores(shares);
    }

    fn waited(&self) -> u64 {
        self.machine.waited()
    }

    fn notes(&mut self) -> Vec<MachineNote> {
        let mut notes = std::mem::take(&mut self.notes);
        notes.extend(self.machine.notes());
        notes
    }
}
