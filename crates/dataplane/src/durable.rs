//! External flow state: the part of a turn of a worker or auxiliary core that waits for the store, and its section of
//! the report.

use crate::port::PortSender;
use crate::report::{LatencyReport, StateReport};
use crate::worker::context::{CountedChain, WorkerContext};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};
use tailwater_api::StateSpec;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::{BufferMemory, BufferPool};
use tailwater_chain::chain::{Chain, DurableFunction};
use tailwater_functions::spec::ChainSpec;
use tailwater_measure::histogram::LatencyHistogram;
use tailwater_net::Nanos;
use tailwater_state::commits::LeaveReason;
use tailwater_state::counters::{Counters, Shared};
use tailwater_state::keeper::{Keeper, StateSize, entries};
use tailwater_state::link::{Health, Server, link};
use tailwater_state::redis::{Access, AccessError, RedisStore};

/// Counters of a keeper, and the time for which packets waited.
pub(crate) type KeeperCounters = (Counters, LatencyHistogram);

/// External flow state of one worker, or of the packets that one worker sends to an auxiliary core.
pub(crate) struct DurableWorker {
    keeper: Keeper,
    /// Packets that leave a queue.
    batch: Batch,
}

impl DurableWorker {
    pub(crate) fn new(keeper: Keeper, pool: &BufferPool, batch: usize) -> DurableWorker {
        DurableWorker {
            keeper,
            batch: Batch::new(pool, batch),
        }
    }

    /// For an auxiliary core's packets from one dispatcher, in buffers of this memory and batches of at most `batch`.
    pub(crate) fn of_lent_buckets(keeper: Keeper, memory: BufferMemory, batch: usize) -> DurableWorker {
        DurableWorker {
            keeper: keeper.of_moving_buckets(),
            batch: Batch::of_memory(memory, batch),
        }
    }

    /// Enables migration of the worker's RSS buckets.
    pub(crate) fn of_moving_buckets(self) -> DurableWorker {
        DurableWorker {
            keeper: self.keeper.of_moving_buckets(),
            ..self
        }
    }

    /// Returns `true` if a bucket's flows may migrate to another worker, or be lent to another core.
    #[inline]
    pub(crate) fn is_free_of(&self, chain: &Chain, bucket: u16) -> bool {
        self.keeper.is_free_of(chain, bucket)
    }

    /// Releases a free bucket to another worker.
    pub(crate) fn release(&mut self, chain: &mut Chain, bucket: u16) {
        self.keeper.release(chain, bucket);
    }

    /// Accepts a bucket from another worker.
    pub(crate) fn adopt(&mut self) {
        self.keeper.adopt();
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.keeper.is_quiet()
    }

    /// Sends the requests of a turn. Takes up ended flows of buckets for which `is_own` returns `true`, or that have
    /// packets that wait.
    #[inline]
    pub(crate) fn send(&mut self, chain: &mut Chain, now: Nanos, is_own: impl Fn(u16) -> bool) {
        self.keeper.finish_turn_of(chain, now, is_own);
    }

    /// Packets that left a queue in the turn in which the worker panicked.
    pub(crate) fn in_hand(&mut self) -> Option<&mut Batch> {
        (self.batch.in_hand() > 0).then_some(&mut self.batch)
    }

    /// Moves packets that still wait into the batch and returns it, or `None` if there are none.
    pub(crate) fn give_up(&mut self) -> Option<&mut Batch> {
        let more = self.keeper.give_up(&mut self.batch);
        more.then_some(&mut self.batch)
    }

    pub(crate) fn finish(self, now: Nanos) -> KeeperCounters {
        self.keeper.finish(now)
    }
}

/// Destination of the buffers of packets that have been sent, dropped or lost.
pub(crate) trait ReturnBuffers {
    /// Takes all buffers of a batch.
    fn return_all(&mut self, batch: &mut Batch);
}

impl ReturnBuffers for BufferPool {
    #[inline]
    fn return_all(&mut self, batch: &mut Batch) {
        batch.release(self);
    }
}

/// State of a worker or auxiliary core that a turn with external flow state uses, apart from batches. A turn
/// [resumes](DurableTurn::resume), [processes](DurableTurn::process) a batch if there is one,
/// [ends](DurableTurn::end), and then [sends](DurableWorker::send) its requests.
pub(crate) struct DurableTurn<'w, P: ?Sized, R> {
    pub(crate) context: &'w mut WorkerContext<P>,
    pub(crate) chain: &'w mut CountedChain,
    pub(crate) buffers: &'w mut R,
}

impl<P: PortSender + ?Sized, R: ReturnBuffers> DurableTurn<'_, P, R> {
    /// Lets packets whose wait is over leave or continue. Returns the end time.
    pub(crate) fn resume(&mut self, durable: &mut DurableWorker, now: Nanos) -> Nanos {
        let DurableWorker { keeper, batch } = durable;
        let mut time = now;
        keeper.collect(self.chain, now);
        self.let_leave(keeper, batch, &mut time);
        while let Some(leaving) = keeper.next_read(self.chain, batch, time) {
            time = match leaving.reason {
                LeaveReason::Drop => self.send(batch, leaving.packets, time),
                LeaveReason::Go | LeaveReason::Pass => self.run(keeper, batch, leaving.packets, true, time),
            };
        }
        time
    }

    /// Processes a batch, whose arrival has been counted: looks it up, requests unknown state, runs the packets whose
    /// state is known, and holds them until their changes are acknowledged. Returns the end time, and the number of
    /// packets that opened flows.
    pub(crate) fn process(&mut self, durable: &mut DurableWorker, batch: &mut Batch, time: Nanos) -> (Nanos, usize) {
        let keeper = &mut durable.keeper;
        let packets = batch.len();
        self.context.port.complete(batch);
        self.chain.look_up(batch, time);
        let new = batch.iter().filter(|packet| packet.is_new()).count();
        let wait = keeper.read(self.chain, batch, time);
        (self.run(keeper, batch, packets - wait, false, time), new)
    }

    /// Lets packets leave that wait no longer. Returns the end time.
    pub(crate) fn end(&mut self, durable: &mut DurableWorker, now: Nanos) -> Nanos {
        let DurableWorker { keeper, batch } = durable;
        let mut time = now;
        self.let_leave(keeper, batch, &mut time);
        time
    }

    /// Sends packets whose updates have been acknowledged, or whose wait is over.
    fn let_leave(&mut self, keeper: &mut Keeper, batch: &mut Batch, time: &mut Nanos) {
        while let Some(leaving) = keeper.next_update(self.chain, batch, *time) {
            *time = self.send(batch, leaving.packets, *time);
        }
    }

    /// Runs `packets` packets and sends those that need not wait. The packets left in the batch have been looked up.
    /// Returns the end time.
    fn run(&mut self, keeper: &mut Keeper, batch: &mut Batch, packets: usize, held: bool, time: Nanos) -> Nanos {
        keeper.begin(self.chain, batch);
        self.chain.run(batch, time);
        let wait = keeper.update(self.chain, batch, held, time);
        self.send(batch, packets - wait, time)
    }

    /// Sends the rest of `packets` packets, and measures. Returns the end time.
    fn send(&mut self, batch: &mut Batch, packets: usize, time: Nanos) -> Nanos {
        let sent = self.context.send(self.chain, batch, packets, time);
        self.buffers.return_all(batch);
        sent
    }
}

/// External flow state of a run's workers and auxiliary cores.
pub(crate) struct DurableRun {
    access: Arc<Access>,
    spec: StateSpec,
    size: StateSize,
    origin: Nanos,
    health: Arc<Health>,
    shared: Vec<Arc<Shared>>,
    /// `true` once the warning about the store's settings was given.
    has_warned: bool,
}

impl DurableRun {
    /// Connects, if the spec has external state and functions use it, in rows of the given number of bytes. `origin` is
    /// the run's start in wall-clock time.
    ///
    /// # Errors
    /// See [`Access::open`].
    pub(crate) fn open(
        spec: &ChainSpec,
        kept: Option<(Vec<DurableFunction>, usize)>,
        origin: Nanos,
    ) -> Result<Option<DurableRun>, AccessError> {
        let Some((state, (functions, row_bytes))) = spec.state.as_ref().zip(kept) else {
            return Ok(None);
        };
        Ok(Some(DurableRun {
            access: Arc::new(Access::open(
                &state.redis,
                state.chain.as_deref().unwrap_or(&spec.name),
                state.instance.as_deref(),
                &functions,
            )?),
            spec: state.clone(),
            size: StateSize {
                functions: functions.len(),
                row_bytes,
            },
            origin,
            health: Arc::new(Health::new()),
            shared: Vec::new(),
            has_warned: false,
        }))
    }

    /// Warning about the store's settings, once.
    pub(crate) fn take_warning(&mut self) -> Option<String> {
        let is_first = !std::mem::replace(&mut self.has_warned, true);
        is_first.then(|| self.access.warning()).flatten()
    }

    /// Health of the store.
    pub(crate) fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }

    /// Creates a keeper, and the main function of its store thread.
    pub(crate) fn connect(&mut self) -> (Keeper, impl FnOnce() + Send + 'static) {
        let (link, server): (_, Server) = link(entries(&self.spec), self.size.row_bytes, Arc::clone(&self.health));
        let shared = Arc::new(Shared::default());
        self.shared.push(Arc::clone(&shared));
        let keeper = Keeper::new(&self.spec, self.size, link, self.origin, shared);
        let access = Arc::clone(&self.access);
        (keeper, move || server.run(&mut RedisStore::new(access)))
    }

    /// Current state.
    pub(crate) fn snapshot(&self) -> StateProgress {
        let sum = |of: fn(&Shared) -> &std::sync::atomic::AtomicU64| {
            let counts = self.shared.iter().map(|shared| of(shared).load(Relaxed));
            counts.sum()
        };
        StateProgress {
            available: self.health.is_available(),
            failures: self.health.failures(),
            waiting: sum(|s| &s.waiting),
            reads: sum(|s| &s.reads),
            hits: sum(|s| &s.hits),
            updates: sum(|s| &s.updates),
            passed: sum(|s| &s.passed),
            dropped: sum(|s| &s.dropped),
        }
    }

    /// Report, after the last worker has ended.
    pub(crate) fn report(&self, keepers: Vec<KeeperCounters>) -> StateReport {
        // The users are no longer needed. If Redis is unavailable, the next run resets them.
        let _ = self.access.remove_users();
        let (mut counters, mut waits) = (Counters::default(), LatencyHistogram::default());
        for (keeper, waited) in &keepers {
            counters.add(keeper);
            waits.merge(waited);
        }
        StateReport {
            store: self.access.address().to_owned(),
            functions: self.access.functions().iter().map(|f| f.user.clone()).collect(),
            reads: counters.reads,
            hits: counters.hits,
            ports_taken: counters.taken,
            updates: counters.updates,
            rewritten: counters.rewritten,
            missed: counters.missed,
            refused: counters.refused,
            forgotten: counters.forgotten,
            held_most: counters.most_waiting,
            held: waits.total(),
            wait_us: LatencyReport::of(&waits),
            passed: counters.passed,
            dropped: counters.dropped,
            failures: self.health.failures(),
            last_failure: self.health.last_failure(),
            unavailable_s: counters.away.as_secs_f64(),
            fenced: self.health.is_fenced(),
        }
    }
}

/// State of external flow state during a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateProgress {
    /// The store answers.
    pub available: bool,
    /// Number of failures.
    pub failures: u64,
    /// Packets waiting for the store.
    pub waiting: u64,
    /// Flows requested.
    pub reads: u64,
    /// Requested flows for which the store had state.
    pub hits: u64,
    /// Changes written.
    pub updates: u64,
    /// Packets that continued without the store's answer.
    pub passed: u64,
    /// Packets dropped for lack of the store's answer.
    pub dropped: u64,
}

/// Wall-clock time, since 1970, of zero on the run's clock, given its current reading `now`.
pub(crate) fn origin(now: Nanos) -> Nanos {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let world = since.map_or(0, |since| since.as_nanos() as u64);
    Nanos(world.saturating_sub(now.0))
}
