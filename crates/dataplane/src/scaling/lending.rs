//! Auxiliary cores that the chains of a server share: a [core broker](CoreBroker) lends each of them to one dispatcher
//! at a time.
//!
//! A dispatcher publishes its backlog in a cache line of its own, after each turn in which it has one. It calls the
//! broker itself, when its mapper selects an auxiliary core, when a lease of its own ends, and while its backlog is
//! urgent and no core is free. No thread has to run for that, and a core is lent within the microsecond that a call
//! takes. The broker's state is behind a lock that nobody waits for: a dispatcher that finds it taken has no core yet,
//! and tries again in its next turn.
//!
//! A core whose lease ends is *withdrawn*: its dispatcher sends it nothing new, and releases it once the packets that
//! it has are done. Only then can the next one activate it. So packets of a flow are never overtaken.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use tailwater_dispatch::Availability;
use tailwater_handover::park::Waker;
use tailwater_net::Nanos;
use tailwater_policy::broker::{
    BrokerCore, ChainLoad, CoreBroker, CoreNumber, CoreUse, Lease, LendPlan, LendView, MEASURE_INTERVAL, QueueBacklog,
    REQUEST_INTERVAL, RateAverages, is_urgent,
};

/// Packets after which half of a measured time per packet is of newer ones.
const RECENT: u64 = 4096;
/// Precision of the measured time per packet.
const PART: u64 = 1024;
/// No packet waits.
const NEVER: u64 = u64::MAX;
/// Nobody's number.
const NOBODY: u32 = 0;

/// Auxiliary cores of a server. Clones share them.
#[derive(Clone)]
pub struct AuxiliaryPool(Arc<Shared>);

struct Shared {
    numbers: Vec<usize>,
    cores: Box<[PoolCore]>,
    wakers: Vec<Waker>,
    lender: Mutex<Lender>,
}

/// State of an auxiliary core, in cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct PoolCore {
    /// Borrower with the lease, plus 1. Set under the lock; a borrower that is done resets its own.
    lease: AtomicU32,
    /// End of the lease.
    until: AtomicU64,
    /// Borrower whose packets may be on the core, plus 1.
    active: AtomicU32,
}

/// Backlog of a dispatcher as it publishes it.
#[derive(Debug)]
#[repr(align(128))]
struct Board {
    /// Packets that wait: in the port, here, and on auxiliary cores.
    packets: AtomicU64,
    /// Arrival of the oldest one.
    oldest: AtomicU64,
    /// Activated auxiliary cores.
    helpers: AtomicU32,
    /// Packets received so far.
    received: AtomicU64,
    /// Time of a packet, in 1/[`PART`] nanoseconds.
    packet_time: AtomicU64,
    /// Wake-up time of an auxiliary core, as measured last.
    wake: AtomicU64,
}

impl Default for Board {
    fn default() -> Self {
        Board {
            packets: AtomicU64::new(0),
            oldest: AtomicU64::new(NEVER),
            helpers: AtomicU32::new(0),
            received: AtomicU64::new(0),
            packet_time: AtomicU64::new(PART),
            wake: AtomicU64::new(0),
        }
    }
}

/// Chain with a dispatcher, as the lender knows it.
struct Tenant {
    board: Arc<Board>,
    load: ChainLoad,
    rates: RateAverages,
    /// Time of the first measurement.
    since: Option<Nanos>,
}

/// Broker with its view.
struct Lender {
    broker: Box<dyn CoreBroker>,
    /// By number of the borrower. Those that are gone leave a gap, which the next one fills.
    tenants: Vec<Option<Tenant>>,
    /// Number of dedicated cores.
    dedicated: usize,
    measured: Nanos,
    cores: Vec<BrokerCore>,
    chains: Vec<ChainLoad>,
    queues: Vec<QueueBacklog>,
    plan: LendPlan,
}

impl fmt::Debug for AuxiliaryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AuxiliaryPool").field(&self.0.numbers).finish()
    }
}

impl AuxiliaryPool {
    /// Creates the pool of these auxiliary cores, which `wakers` wake, beside `dedicated` cores.
    pub(crate) fn new(cores: Vec<(usize, Waker)>, dedicated: usize, broker: Box<dyn CoreBroker>) -> AuxiliaryPool {
        let (numbers, wakers): (Vec<_>, Vec<_>) = cores.into_iter().unzip();
        AuxiliaryPool(Arc::new(Shared {
            cores: numbers.iter().map(|_| PoolCore::default()).collect(),
            numbers,
            wakers,
            lender: Mutex::new(Lender {
                broker,
                tenants: Vec::new(),
                dedicated,
                measured: Nanos::ZERO,
                cores: Vec::new(),
                chains: Vec::new(),
                queues: Vec::new(),
                plan: LendPlan::default(),
            }),
        }))
    }

    /// Numbers of the cores.
    pub fn cores(&self) -> &[usize] {
        &self.0.numbers
    }

    /// Number of the last core that is neither lent nor activated now.
    pub fn unused(&self) -> Option<usize> {
        let is_nobodys = |word: &AtomicU32| word.load(Ordering::Relaxed) == NOBODY;
        let all = self.0.cores.iter().zip(&self.0.numbers);
        let mut unused = all.filter(|(core, _)| is_nobodys(&core.lease) && is_nobodys(&core.active));
        unused.next_back().map(|(_, number)| *number)
    }

    /// Registers a dispatcher of a chain with this objective and weight.
    pub(crate) fn borrower(&self, objective: Nanos, weight: u32) -> Borrower {
        let board = Arc::<Board>::default();
        let tenant = Tenant {
            board: Arc::clone(&board),
            load: ChainLoad {
                objective,
                weight,
                ..ChainLoad::default()
            },
            rates: RateAverages::default(),
            since: None,
        };
        let mut lender = self.0.lock();
        let free = lender.tenants.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            lender.tenants.push(None);
            lender.tenants.len() - 1
        });
        lender.tenants[number] = Some(tenant);
        lender.make_room(self.0.cores.len());
        Borrower {
            pool: Arc::clone(&self.0),
            id: number as u32 + 1,
            board,
            objective,
            until: AtomicU64::new(NEVER),
            again: AtomicU64::new(0),
            counted: AtomicU64::new(0),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Lender> {
        self.lender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, unless another dispatcher has it.
    fn try_lock(&self) -> Option<MutexGuard<'_, Lender>> {
        match self.lender.try_lock() {
            Ok(lender) => Some(lender),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Dispatcher that auxiliary cores of a pool are lent to. All of its words are its own, but for those of the cores.
pub(crate) struct Borrower {
    pool: Arc<Shared>,
    /// Number among the tenants, plus 1.
    id: u32,
    board: Arc<Board>,
    objective: Nanos,
    /// Time at which the first of its leases ends.
    until: AtomicU64,
    /// Time from which an urgent backlog requests a core again.
    again: AtomicU64,
    /// Packets whose time has been measured, up to a limit.
    counted: AtomicU64,
}

impl fmt::Debug for Borrower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Borrower").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Borrower {
    /// Returns the availability of a core of the pool.
    #[inline]
    pub(crate) fn availability(&self, core: usize) -> Availability {
        let core = &self.pool.cores[core];
        let lease = core.lease.load(Ordering::Relaxed);
        match core.active.load(Ordering::Relaxed) {
            NOBODY if lease == NOBODY || lease == self.id => Availability::Free,
            active if active == self.id && lease != self.id => Availability::Withdrawn,
            _ => Availability::Taken,
        }
    }

    /// Activates a core, if it is lent to this dispatcher, or the broker lends it now. Returns `true` on success.
    pub(crate) fn activate(&self, core: usize, now: Nanos) -> bool {
        if !self.is_leased(core, now) {
            self.request(1, Some(core), now);
        }
        // Determines who may push, not the rings' contents: those have their own ordering.
        let active = &self.pool.cores[core].active;
        self.is_leased(core, now)
            && active
                .compare_exchange(NOBODY, self.id, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Releases a core, which this dispatcher has activated, and gives its lease back.
    pub(crate) fn release(&self, core: usize) {
        let core = &self.pool.cores[core];
        core.active.store(NOBODY, Ordering::Relaxed);
        // Unless it has another one's already.
        let _ = core
            .lease
            .compare_exchange(self.id, NOBODY, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(crate) fn wake(&self, core: usize) {
        self.pool.wakers[core].wake();
    }

    fn is_leased(&self, core: usize, now: Nanos) -> bool {
        let core = &self.pool.cores[core];
        core.lease.load(Ordering::Relaxed) == self.id && core.until.load(Ordering::Relaxed) > now.0
    }

    /// Counts `packets` that were processed here, which took `took`.
    #[inline]
    pub(crate) fn learn(&self, packets: usize, took: Nanos) {
        let packets = packets as u64;
        let counted = self.counted.load(Ordering::Relaxed);
        let all = (counted + packets).clamp(1, RECENT);
        let old = self.board.packet_time.load(Ordering::Relaxed);
        let took = took.0.min(u64::from(u32::MAX)) * PART;
        let mean = (old * (all - packets.min(all)) + took) / all;
        self.board.packet_time.store(mean.max(PART), Ordering::Relaxed);
        self.counted.store(all, Ordering::Relaxed);
    }

    /// Counts received packets.
    #[inline]
    pub(crate) fn received(&self, packets: usize) {
        let received = &self.board.received;
        received.store(received.load(Ordering::Relaxed) + packets as u64, Ordering::Relaxed);
    }

    /// Notes that an auxiliary core took so long to wake up.
    pub(crate) fn woke(&self, took: Nanos) {
        self.board.wake.store(took.0, Ordering::Relaxed);
    }

    /// Publishes a backlog, extends leases that end, and requests a core if the backlog is urgent.
    #[inline]
    pub(crate) fn publish(&self, packets: usize, oldest: Option<Nanos>, helpers: u32, now: Nanos) {
        let Board {
            packets: waiting,
            oldest: since,
            helpers: active,
            ..
        } = &*self.board;
        waiting.store(packets as u64, Ordering::Relaxed);
        since.store(oldest.map_or(NEVER, |oldest| oldest.0), Ordering::Relaxed);
        active.store(helpers, Ordering::Relaxed);
        if now.0 >= self.until.load(Ordering::Relaxed) {
            self.until.store(NEVER, Ordering::Relaxed);
            self.request(0, None, now);
        }
        let waited = now.saturating_sub(oldest.unwrap_or(now));
        if is_urgent(waited, self.objective) && now.0 >= self.again.load(Ordering::Relaxed) && !self.has_free() {
            self.again.store((now + REQUEST_INTERVAL).0, Ordering::Relaxed);
            self.request(1, None, now);
        }
    }

    /// Publishes that no packet waits, if one did.
    #[inline]
    pub(crate) fn publish_none(&self) {
        if self.board.packets.load(Ordering::Relaxed) != 0 {
            self.board.packets.store(0, Ordering::Relaxed);
            self.board.oldest.store(NEVER, Ordering::Relaxed);
        }
    }

    /// Returns `true` if a core is neither lent nor activated.
    fn has_free(&self) -> bool {
        let is_nobodys = |word: &AtomicU32| word.load(Ordering::Relaxed) == NOBODY;
        let mut cores = self.pool.cores.iter();
        cores.any(|core| is_nobodys(&core.lease) && is_nobodys(&core.active))
    }

    /// Lets the broker decide, if this dispatcher can use `wants` further cores.
    #[cold]
    fn request(&self, wants: u16, preferred: Option<usize>, now: Nanos) {
        let Some(mut lender) = self.pool.try_lock() else {
            if wants == 0 {
                // A lease that ends is extended in the next turn.
                self.until.store(now.0, Ordering::Relaxed);
            }
            return;
        };
        let first = lender.dedicated;
        lender.see(&self.pool.cores, now);
        let own = first + self.pool.cores.len() + self.id as usize - 1;
        if let Some(queue) = lender.queues.iter_mut().find(|queue| usize::from(queue.core) == own) {
            queue.wants = wants;
            queue.preferred = preferred.map(|core| (first + core) as CoreNumber);
        }
        lender.decide(now);
        let borrower = |lease: &Lease| u32::from(lease.chain) + 1;
        for lease in &lender.plan.end {
            // One that is being withdrawn is nobody's already.
            let word = &self.pool.cores[usize::from(lease.core) - first].lease;
            let _ = word.compare_exchange(borrower(lease), NOBODY, Ordering::Relaxed, Ordering::Relaxed);
        }
        for lease in &lender.plan.lend {
            let core = &self.pool.cores[usize::from(lease.core) - first];
            core.until.store(lease.until.0, Ordering::Relaxed);
            core.lease.store(borrower(lease), Ordering::Relaxed);
            if borrower(lease) == self.id {
                let until = self.until.load(Ordering::Relaxed).min(lease.until.0);
                self.until.store(until, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Borrower {
    /// Its packets are done: it has no core any more.
    fn drop(&mut self) {
        let mut lender = self.pool.lock();
        lender.tenants[self.id as usize - 1] = None;
        for core in &self.pool.cores {
            for word in [&core.active, &core.lease] {
                let _ = word.compare_exchange(self.id, NOBODY, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }
}

impl Lender {
    /// Makes room for the view of all tenants, so that a call does not allocate.
    fn make_room(&mut self, auxiliary: usize) {
        let cores = self.dedicated + auxiliary;
        let tenants = self.tenants.len();
        self.cores.reserve(cores);
        self.chains.reserve(tenants);
        self.queues.reserve(tenants);
        self.plan.end.reserve(cores);
        self.plan.lend.reserve(cores);
    }

    /// Fills in the broker's view: first the dedicated cores, which chains share in turns, then the auxiliary ones.
    /// Dispatchers are numbered behind all of them, since several are on one core.
    fn see(&mut self, cores: &[PoolCore], now: Nanos) {
        self.measure(now);
        let gone = ChainLoad::default();
        self.chains.clear();
        let loads = self
            .tenants
            .iter()
            .map(|tenant| tenant.as_ref().map_or(gone, |tenant| tenant.load));
        self.chains.extend(loads);
        let first = self.dedicated + cores.len();
        self.cores.clear();
        self.cores.extend((0..self.dedicated).map(|_| BrokerCore {
            node: 0,
            usage: CoreUse::Turns,
        }));
        for (number, core) in cores.iter().enumerate() {
            let lease = |borrower: u32, until| {
                CoreUse::Lent(Lease {
                    core: (self.dedicated + number) as CoreNumber,
                    chain: (borrower - 1) as u16,
                    dispatcher: (first + borrower as usize - 1) as CoreNumber,
                    until: Nanos(until),
                })
            };
            let usage = match (core.lease.load(Ordering::Relaxed), core.active.load(Ordering::Relaxed)) {
                (NOBODY, NOBODY) => CoreUse::Free,
                // Withdrawn, and lent until it is released.
                (NOBODY, active) => lease(active, NEVER),
                (borrower, _) => lease(borrower, core.until.load(Ordering::Relaxed)),
            };
            self.cores.push(BrokerCore { node: 0, usage });
        }
        self.queues.clear();
        for (number, tenant) in self.tenants.iter().enumerate() {
            let Some(tenant) = tenant else { continue };
            let board = &tenant.board;
            let packets = board.packets.load(Ordering::Relaxed);
            let helpers = u64::from(board.helpers.load(Ordering::Relaxed));
            if packets == 0 && helpers == 0 {
                continue;
            }
            let oldest = board.oldest.load(Ordering::Relaxed).min(now.0);
            self.queues.push(QueueBacklog {
                core: (first + number) as CoreNumber,
                chain: number as u16,
                drain: Nanos(packets * board.packet_time.load(Ordering::Relaxed) / PART / (1 + helpers)),
                deadline: Nanos((oldest + tenant.load.objective.0).saturating_sub(now.0)),
                wake: Nanos(board.wake.load(Ordering::Relaxed)),
                wants: 0,
                preferred: None,
            });
        }
    }

    fn decide(&mut self, now: Nanos) {
        self.plan.clear();
        let view = LendView {
            now,
            cores: &self.cores,
            chains: &self.chains,
            queues: &self.queues,
        };
        self.broker.lend(&view, &mut self.plan);
    }

    /// Updates the averages of the chains' loads.
    fn measure(&mut self, now: Nanos) {
        let elapsed = now.saturating_sub(self.measured);
        if elapsed < MEASURE_INTERVAL {
            return;
        }
        self.measured = now;
        for tenant in self.tenants.iter_mut().flatten() {
            let received = tenant.board.received.load(Ordering::Relaxed);
            let before = Nanos(now.0 - elapsed.0);
            let since = *tenant.since.get_or_insert(before);
            tenant.rates.add(received, elapsed, now.saturating_sub(since));
            let seconds = tenant.board.packet_time.load(Ordering::Relaxed) as f64 / PART as f64 / 1e9;
            let RateAverages { short, long, .. } = tenant.rates;
            (tenant.load.short, tenant.load.long) = (short * seconds, long * seconds);
        }
    }
}

#[cfg(test)]
mod tests;
