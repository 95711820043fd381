//! Worker: polls its queue, runs the chain to completion, measures.
//!
//! - `poll_loop`: the loop of all workers with a port queue.
//! - `processing`: a chain on one worker, with offloading, migration of RSS buckets and external flow state.
//! - `dispatching`: its turn with offloading.
//! - `reception`: its reception.
//! - `hosted`: workers that take turns on one thread.
//! - `context`: port, clock, measurement and chain, which auxiliary workers have, too.

pub(crate) mod config;
pub(crate) mod context;
mod dispatching;
pub(crate) mod finished;
pub(crate) mod flags;
pub(crate) mod hosted;
pub(crate) mod poll_loop;
mod processing;
mod reception;

pub use config::WorkerConfig;
pub(crate) use context::QueueContext;
pub(crate) use finished::Finished;
pub(crate) use poll_loop::PollLoop;

use crate::batches::BatchRecord;
use crate::clock::Clock;
use crate::kept_packets::PacketKeeper;
use crate::port::PortQueue;
use crate::scaling::buckets::Buckets;
use crate::scaling::dispatch::Dispatch;
use crate::scaling::helping::HelpingEnds;
use crate::shared_port::succession::{Inheritance, RunEnds};
use crate::telemetry::WindowSender;
use hosted::{Hosted, HostedWorker};
use processing::ChainProcessing;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Sender;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::Chain;
use tailwater_net::Nanos;
use tailwater_state::keeper::Keeper;

/// Worker, ready to run on the thread it is moved to.
pub struct Worker(PollLoop<ChainProcessing>);

impl Worker {
    /// Creates a worker that runs `chain` on packets that `queue` receives into buffers of `pool`.
    pub fn new(
        queue: Box<dyn PortQueue>,
        chain: Chain,
        pool: BufferPool,
        clock: Clock,
        config: WorkerConfig,
        telemetry: WindowSender,
    ) -> Worker {
        Worker(PollLoop {
            processing: ChainProcessing::new(chain, pool, config.batch),
            context: QueueContext::new(queue, clock, config, telemetry),
        })
    }

    /// Enables external flow state. To be called last, since the store needs to know if RSS buckets migrate.
    pub(crate) fn with_keeper(mut self, keeper: Keeper) -> Worker {
        let PollLoop { context, processing } = &mut self.0;
        processing.set_keeper(keeper, context.config.batch);
        self
    }

    /// Lets the worker sleep for this time, once it has been idle as long.
    pub fn napping(mut self, nap: Option<Nanos>) -> Worker {
        self.0.processing.nap = nap;
        self
    }

    /// Records batch times.
    pub(crate) fn noting(mut self, record: BatchRecord) -> Worker {
        self.0.context.batch_record = Some(Box::new(record));
        self
    }

    /// Keeps late, lost and dropped packets.
    pub(crate) fn keeping(mut self, keeper: PacketKeeper) -> Worker {
        self.0.context.meter.set_keeper(keeper);
        self
    }

    /// Lets the worker offload flows to auxiliary cores.
    pub(crate) fn dispatching(mut self, dispatch: Dispatch) -> Worker {
        self.0.processing.dispatch = Some(Box::new(dispatch));
        self
    }

    /// Lets the worker process packets that other workers lend it.
    ///
    /// # Safety
    /// A bucket of whose packets the worker has one is lent to it by its owner, and to nobody else. Earlier uses of the
    /// bucket happened before.
    pub(crate) unsafe fn helping(mut self, ends: HelpingEnds) -> Worker {
        let PollLoop { context, processing } = &mut self.0;
        // SAFETY: guaranteed by the caller.
        unsafe { processing.set_helping(ends, context.config.batch) };
        self
    }

    /// Lets RSS buckets migrate.
    pub(crate) fn moving(mut self, buckets: Buckets) -> Worker {
        self.0.context.meter.set_buffered_spans(buckets.spans());
        self.0.processing.buckets = Some(Box::new(buckets));
        self
    }

    /// Runs until the port ends or `stop` returns `true`, then drains the queue. Returns the chain, for its counters.
    ///
    /// # Panics
    /// If a function panics.
    pub fn run(self, stop: impl Fn() -> bool) -> Chain {
        let Finished { chains, died, .. } = self.run_among_others(stop, &AtomicBool::new(false));
        let chain = chains.into_iter().next();
        chain
            .filter(|_| died.is_none())
            .unwrap_or_else(|| panic!("{}", died.unwrap_or_default()))
    }

    /// Lets a thread run the worker, which has this number in its run, in turns with others. It sends its results at
    /// its end. With an `inheritance`, it waits for that before it processes a packet.
    pub(crate) fn hosted(
        self,
        of_run: (RunEnds, usize),
        results: Sender<Finished>,
        inheritance: Option<Inheritance>,
    ) -> Box<dyn Hosted> {
        Box::new(HostedWorker::new(self.0, of_run, results, inheritance))
    }

    /// Like [`run`](Worker::run). If the worker panics, sets `failed` and counts its packets as lost.
    pub(crate) fn run_among_others(self, stop: impl Fn() -> bool, failed: &AtomicBool) -> Finished {
        self.0.run(stop, failed)
    }
}
