//! Loop of an auxiliary core that all chains of a server share.
//!
//! It sleeps until a dispatcher of any chain wakes it. Which dispatcher may send packets at a time is decided by the
//! [pool](crate::scaling::AuxiliaryPool). Packets of the one before may still be there then, so the loop gives every
//! chain's worker its turns.

use super::mailbox::Orders;
use super::real_time::ThreadPriority;
use crate::clock::Clock;
use crate::panics::catch_panic;
use crate::scaling::auxiliary::{AuxiliaryTurn, AuxiliaryWorker, LONGEST_SLEEP, STORE_INTERVAL};
use crate::worker::finished::Finished;
use crate::worker::flags::WorkerFlags;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;
use tailwater_handover::park::Sleeper;
use tailwater_net::Nanos;

/// Time that workers get to end once the core is to stop.
const LONGEST_STOP: Nanos = Nanos::from_secs(2);

/// Interval at which the loop looks for a process that packets wait for, if there is nothing else to do.
const WAIT_INTERVAL: Duration = Duration::from_micros(50);

/// Order to an auxiliary core.
pub(super) enum AuxiliaryOrder {
    /// Give a chain's worker its turns.
    Run(Box<HostedAuxiliary>),
    /// Run at the real-time priority of isolated functions, for one more of their chains or for one less.
    RealTime { raise: bool, done: Sender<()> },
    /// End once all workers have ended.
    Stop,
}

impl fmt::Debug for AuxiliaryOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AuxiliaryOrder::Run(_) => "Run",
            AuxiliaryOrder::RealTime { .. } => "RealTime",
            AuxiliaryOrder::Stop => "Stop",
        })
    }
}

/// Auxiliary worker of one chain, among those of others.
pub(crate) struct HostedAuxiliary {
    /// `None` once it has ended.
    worker: Option<AuxiliaryWorker>,
    flags: Arc<WorkerFlags>,
    results: Sender<Finished>,
    died: Option<String>,
}

impl HostedAuxiliary {
    /// Hosts a worker, which sends its results at its end.
    pub(crate) fn new(worker: AuxiliaryWorker, flags: Arc<WorkerFlags>, results: Sender<Finished>) -> HostedAuxiliary {
        HostedAuxiliary {
            worker: Some(worker),
            flags,
            results,
            died: None,
        }
    }

    fn turn(&mut self) -> AuxiliaryTurn {
        let Some(worker) = &mut self.worker else {
            return AuxiliaryTurn::Over;
        };
        match catch_panic(|| worker.turn()) {
            Ok(AuxiliaryTurn::Over) => {
                if let Some(worker) = self.worker.take() {
                    // A receiver that is gone has given up on the run.
                    let _ = self.results.send(worker.finish(self.died.take()));
                }
                AuxiliaryTurn::Over
            }
            Ok(turn) => turn,
            Err(message) => {
                self.on_panic(message);
                AuxiliaryTurn::Idle
            }
        }
    }

    /// Ends the chain after a panic. Its packets come back unprocessed from now on.
    #[cold]
    fn on_panic(&mut self, message: String) {
        self.flags.fail();
        self.died.get_or_insert(message);
        if let Some(worker) = &mut self.worker {
            worker.give_back();
        }
    }
}

/// State of an auxiliary core's thread.
pub(super) struct AuxiliaryLoop {
    clock: Clock,
    orders: Orders<AuxiliaryOrder>,
    sleeper: Sleeper,
    workers: Vec<HostedAuxiliary>,
    busy: Arc<AtomicU64>,
    /// Time at which workers are given up, once the core is to stop.
    stop_at: Option<Nanos>,
}

impl AuxiliaryLoop {
    pub(super) fn new(
        clock: Clock,
        orders: Orders<AuxiliaryOrder>,
        sleeper: Sleeper,
        busy: Arc<AtomicU64>,
    ) -> AuxiliaryLoop {
        AuxiliaryLoop {
            clock,
            orders,
            sleeper,
            workers: Vec::new(),
            busy,
            stop_at: None,
        }
    }

    /// Runs until it is to stop and all workers have ended, or the time for that is over.
    pub(super) fn run(mut self) {
        let mut priority = ThreadPriority::default();
        loop {
            while let Some(order) = self.orders.next() {
                match order {
                    AuxiliaryOrder::Run(worker) => self.workers.push(*worker),
                    AuxiliaryOrder::RealTime { raise, done } => priority.change(raise, &done),
                    AuxiliaryOrder::Stop => self.stop_at = self.stop_at.or(Some(self.clock.now() + LONGEST_STOP)),
                }
            }
            let (mut worked, mut waits, mut longest) = (Nanos::ZERO, false, LONGEST_SLEEP);
            self.workers.retain_mut(|worker| match worker.turn() {
                AuxiliaryTurn::Worked([began, end]) => {
                    worked += end.saturating_sub(began);
                    true
                }
                AuxiliaryTurn::Idle => true,
                AuxiliaryTurn::AwaitsStore => {
                    longest = STORE_INTERVAL;
                    true
                }
                AuxiliaryTurn::Waits => {
                    waits = true;
                    true
                }
                AuxiliaryTurn::Over => false,
            });
            if worked > Nanos::ZERO {
                let busy = self.busy.load(Ordering::Relaxed) + worked.0;
                self.busy.store(busy, Ordering::Relaxed);
                continue;
            }
            if let Some(at) = self.stop_at
                && (self.workers.is_empty() || self.clock.now() > at)
            {
                return;
            }
            if waits {
                // The process that is awaited may need the core to start.
                std::thread::sleep(WAIT_INTERVAL);
                continue;
            }
            self.sleep(longest);
        }
    }

    fn sleep(&mut self, longest: Duration) {
        let AuxiliaryLoop {
            orders,
            sleeper,
            workers,
            ..
        } = self;
        let each = |workers: &mut Vec<HostedAuxiliary>, act: &dyn Fn(&mut AuxiliaryWorker)| {
            workers
                .iter_mut()
                .filter_map(|hosted| hosted.worker.as_mut())
                .for_each(act);
        };
        each(workers, &AuxiliaryWorker::before_sleep);
        let is_ready = |hosted: &HostedAuxiliary| hosted.worker.as_ref().is_some_and(AuxiliaryWorker::is_ready);
        let called = sleeper.wait(longest, || orders.is_pending() || workers.iter().any(is_ready));
        each(workers, &|worker| worker.after_sleep(called));
    }
}
