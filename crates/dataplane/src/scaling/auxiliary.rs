//! Auxiliary worker: sleeps until a dispatcher offloads packets to it, runs them through its instance of the chain, and
//! returns the buffers.
//!
//! It has a loop of its own. A [polling worker](crate::worker::Processing) measures against its port queue: it counts
//! what has arrived and what is lost, sees a gap between turns as preemption, and ends by a deadline after the last
//! arrival. An auxiliary worker has no such queue, is off its core on purpose until a dispatcher wakes it, serves
//! several dispatchers in turn, and ends when all have closed their rings. Both share the context, the run of a batch
//! through the chain with its accounting, and the end of a run.

use super::link::FromDispatcher;
use super::source::{Batching, Source};
use super::spans::BufferedSpans;
use crate::batches::BatchRecord;
use crate::clock::Clock;
use crate::kept_packets::PacketKeeper;
use crate::panics::run_or_fail;
use crate::port::PortSender;
use crate::telemetry::WindowSender;
use crate::worker::config::WorkerConfig;
use crate::worker::context::{CountedChain, WorkerContext};
use crate::worker::finished::Finished;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tailwater_chain::buffer::BufferMemory;
use tailwater_chain::chain::Chain;
use tailwater_handover::park::Sleeper;
use tailwater_net::Nanos;
use tailwater_policy::core::Unit;
use tailwater_state::keeper::Keeper;

/// Maximum sleep time, which bounds the cost of a lost wake-up.
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_millis(10);

/// Interval at which an auxiliary core looks for answers of the external store, if there is nothing else to do.
pub(crate) const STORE_INTERVAL: Duration = Duration::from_micros(50);

/// Auxiliary worker's ends of the links: rings from its dispatchers, access to their packets' memory, and the parking
/// handle.
pub(crate) struct AuxiliaryEnds {
    pub(crate) links: Vec<(FromDispatcher, BufferMemory)>,
    /// `None` if the core is shared with other chains: its thread sleeps then.
    pub(crate) sleeper: Option<Sleeper>,
    /// Unit in which dispatchers offload packets.
    pub(crate) unit: Unit,
}

/// Result of an auxiliary worker's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuxiliaryTurn {
    /// It processed packets between these times.
    Worked([Nanos; 2]),
    /// There was nothing to do.
    Idle,
    /// Packets wait for the process of an isolated function, on a thread that gives other chains turns, too.
    Waits,
    /// There was nothing to do, but packets or RSS buckets wait for the external store of flow state, which wakes
    /// nobody: the next turn comes after [`STORE_INTERVAL`].
    AwaitsStore,
    /// All dispatchers have closed their rings, and nothing is left in them.
    Over,
}

/// Auxiliary worker, ready to run on the thread it is moved to.
pub(crate) struct AuxiliaryWorker {
    sources: Vec<Source>,
    chain: CountedChain,
    sleeper: Option<Sleeper>,
    /// Functions run in processes of their own.
    is_isolated: bool,
    context: WorkerContext<dyn PortSender>,
}

impl AuxiliaryWorker {
    /// Creates an auxiliary worker that runs packets from `ends` through `chain` and sends them to `port`.
    pub(crate) fn new(
        ends: AuxiliaryEnds,
        chain: Chain,
        port: Box<dyn PortSender>,
        clock: Clock,
        config: &WorkerConfig,
        telemetry: WindowSender,
    ) -> AuxiliaryWorker {
        let batching = Batching::new(&chain, config.batch);
        let source = |link| Source::new(link, ends.unit, batching);
        AuxiliaryWorker {
            sources: ends.links.into_iter().map(source).collect(),
            sleeper: ends.sleeper,
            is_isolated: chain.has_isolated_functions(),
            chain: CountedChain::new(chain),
            context: WorkerContext::new(port, clock, config.clone(), telemetry),
        }
    }

    /// Records batch times.
    pub(crate) fn note(&mut self, record: BatchRecord) {
        self.context.batch_record = Some(Box::new(record));
    }

    /// Keeps late, lost and dropped packets.
    pub(crate) fn keep_packets(&mut self, keeper: PacketKeeper) {
        self.context.meter.set_keeper(keeper);
    }

    /// Enables external flow state, with a client of the store for each dispatcher.
    pub(crate) fn set_keepers(&mut self, keepers: Vec<Keeper>) {
        let sources = self.sources.iter_mut().zip(keepers);
        sources.for_each(|(source, keeper)| source.set_keeper(keeper));
    }

    /// Enables migration of RSS buckets between the dispatchers: sets the record of buffered packets.
    pub(crate) fn set_buffered_spans(&mut self, spans: Arc<BufferedSpans>) {
        self.context.meter.set_buffered_spans(spans);
    }

    /// Runs until every dispatcher has closed its ring. If the worker panics, sets `failed` and returns all packets it
    /// has or still receives unprocessed, counted as lost.
    pub(crate) fn run(mut self, failed: &AtomicBool) -> Finished {
        let died = run_or_fail(|| self.work(), failed);
        if died.is_some() {
            self.give_back();
            self.work();
        }
        self.finish(died)
    }

    /// Sends the last window, and returns the results. `died` is the message of the worker's panic, if it panicked.
    pub(crate) fn finish(self, died: Option<String>) -> Finished {
        let now = self.context.clock.now();
        self.context.finish(&self.chain);
        let states = self.sources.into_iter().filter_map(|source| source.finish(now));
        Finished {
            state_counters: states.collect(),
            chains: vec![self.chain.into_chain()],
            died,
            ..Finished::default()
        }
    }

    fn work(&mut self) {
        loop {
            match self.turn() {
                AuxiliaryTurn::Worked(_) => {}
                turn @ (AuxiliaryTurn::Idle | AuxiliaryTurn::Waits | AuxiliaryTurn::AwaitsStore) => {
                    let longest = match turn {
                        AuxiliaryTurn::AwaitsStore => STORE_INTERVAL,
                        _ => LONGEST_SLEEP,
                    };
                    self.before_sleep();
                    let mut sleeper = self.sleeper.take();
                    let called = match &mut sleeper {
                        Some(sleeper) => sleeper.wait(longest, || self.is_ready()),
                        None => false,
                    };
                    self.sleeper = sleeper;
                    self.after_sleep(called);
                }
                AuxiliaryTurn::Over => break,
            }
        }
    }

    /// Processes a batch of each dispatcher.
    pub(crate) fn turn(&mut self) -> AuxiliaryTurn {
        // In this order: items pushed before a ring was closed are popped.
        let closed = self.sources.iter().all(|source| source.link.parcels.is_closed());
        let mut times: Option<[Nanos; 2]> = None;
        let awaits = self.is_isolated && self.chain.awaits_process();
        if awaits && self.sources.iter().any(|source| !source.link.parcels.is_empty()) {
            return AuxiliaryTurn::Waits;
        }
        for source in &mut self.sources {
            if let Some([began, end]) = source.serve(&mut self.context, &mut self.chain) {
                self.context.meter.roll(end, &self.chain);
                times = Some([times.map_or(began, |[first, _]| first), end]);
            }
        }
        match times {
            Some(times) => AuxiliaryTurn::Worked(times),
            None if closed => AuxiliaryTurn::Over,
            None if self.sources.iter().any(Source::awaits_store) => AuxiliaryTurn::AwaitsStore,
            None => AuxiliaryTurn::Idle,
        }
    }

    /// Prepares to sleep, after a turn without packets.
    pub(crate) fn before_sleep(&mut self) {
        self.context.meter.idle();
        self.sources.iter().for_each(|source| source.link.await_call());
        if self.is_isolated {
            self.chain.before_sleep();
        }
    }

    /// Returns `true` if a turn has something to do.
    pub(crate) fn is_ready(&self) -> bool {
        let parcels = || self.sources.iter().map(|source| &source.link.parcels);
        // One closed ring is no reason to stay awake: the others may stay open for long.
        parcels().any(|ring| !ring.is_empty()) || parcels().all(|ring| ring.is_closed())
    }

    /// Notes the end of a sleep. `called` is set if there was a reason for it.
    pub(crate) fn after_sleep(&mut self, called: bool) {
        let now = self.context.clock.now();
        // With several dispatchers, the first call is the one that ended the sleep.
        let calls = self.sources.iter().filter_map(|source| source.link.called());
        if called && let Some(first) = calls.min() {
            self.context.meter.woke(now.saturating_sub(first), now);
            self.sources.iter().for_each(|source| source.link.woke(now));
        }
        self.context.meter.roll(now, &self.chain);
    }

    /// Counts packets that the panicked worker was processing as lost. It processes no more.
    pub(crate) fn give_back(&mut self) {
        self.context.meter.on_panic();
        for source in &mut self.sources {
            source.give_back(&mut self.context, &mut self.chain);
        }
    }
}
