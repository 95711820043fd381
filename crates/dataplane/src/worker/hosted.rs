//! Worker that takes turns with others on one thread, instead of having a thread of its own.

use super::config::LONGEST_DRAIN;
use super::finished::Finished;
use super::poll_loop::{LoopTimes, PollLoop, Processing, Turn};
use crate::panics::catch_panic;
use crate::shared_port::ChainRequests;
use crate::shared_port::succession::{Inheritance, Inherited, LONGEST_WAIT, RunEnds};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use tailwater_chain::chain::Chain;
use tailwater_net::Nanos;
use tailwater_policy::turns::TurnSize;

/// Result of a hosted worker's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostedTurn {
    /// It processed packets until this time.
    Worked(Nanos),
    /// It had nothing to do.
    Idle,
    /// It had nothing to do but wait for another core that works for it.
    Waits,
    /// It has ended, and sent its results.
    Over,
}

/// Source of a hosted worker's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Feeds {
    /// Shared port and slot whose packets are all that the worker gets. It needs a turn only when there are some, and
    /// now and then. `None`: it gets a turn in every round.
    pub(crate) only: Option<(usize, usize)>,
    /// Shared port and slot of its chain, as long as it has one.
    pub(crate) chain: Option<(usize, usize)>,
}

/// Worker that a core's thread runs in turns with others.
pub(crate) trait Hosted: Send {
    /// Runs a turn that begins at `now`, and should take at most `longest`. `away` is the time since the last turn in
    /// which the thread was off its core.
    fn turn(&mut self, now: Nanos, away: Nanos, longest: Nanos) -> HostedTurn;
}

/// Phase of a hosted worker's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It processes packets of its port.
    Works,
    /// It processes what other workers of its chain still send.
    ServesOthers,
    Over,
}

/// [`PollLoop`] in turns.
pub(crate) struct HostedWorker<P> {
    worker: Option<PollLoop<P>>,
    times: LoopTimes,
    size: TurnSize,
    phase: Phase,
    died: Option<String>,
    ends: RunEnds,
    /// Requests to this worker.
    requests: Arc<ChainRequests>,
    /// Number of the worker in its run.
    number: usize,
    results: Sender<Finished>,
    /// Inheritance that the worker waits for, and the time until which it does.
    awaits: Option<(Inheritance, Nanos)>,
}

impl<P: Processing> HostedWorker<P> {
    /// Hosts the worker of this number in its run, which sends its results at its end.
    pub(crate) fn new(
        mut worker: PollLoop<P>,
        (ends, number): (RunEnds, usize),
        results: Sender<Finished>,
        inheritance: Option<Inheritance>,
    ) -> HostedWorker<P> {
        let mut times = worker.begin();
        // Among others it has a part of the core only, and a successor waits for what it has.
        times.drain = times.drain.max(LONGEST_DRAIN);
        let size = TurnSize::new(worker.context.config.batch);
        worker.processing.limit(size.packets());
        HostedWorker {
            awaits: inheritance.map(|inheritance| (inheritance, Nanos::MAX)),
            times,
            size,
            worker: Some(worker),
            phase: Phase::Works,
            died: None,
            requests: ends.requests_to(number).unwrap_or_default(),
            ends,
            number,
            results,
        }
    }

    #[inline]
    fn work(&mut self, longest: Nanos) -> HostedTurn {
        if self.awaits.is_some() && !self.inherit() {
            return HostedTurn::Waits;
        }
        let (Some(worker), times, flags) = (&mut self.worker, &mut self.times, &self.ends.flags) else {
            return HostedTurn::Over;
        };
        let (turn, received) = worker.turn(times, || flags.are_set());
        if let Turn::Worked(end) = turn {
            let took = end.saturating_sub(times.now);
            if let Some(packets) = self.size.after(took, longest, received.waiting > 0) {
                worker.processing.limit(packets);
            }
        }
        let waits = worker.processing.waits_for_others();
        if self.requests.is_pending() {
            let is_quiet = matches!(turn, Turn::Idle(_)) && received.waiting == 0 && worker.processing.is_done();
            if let Some(chain) = worker.processing.chain() {
                self.requests.carry_out(chain, is_quiet);
            }
        }
        if worker.is_over(times, received) {
            self.close();
        } else {
            worker.roll(times.last.max(times.now));
        }
        match turn {
            Turn::Worked(end) => HostedTurn::Worked(end),
            Turn::Idle(_) if waits => HostedTurn::Waits,
            Turn::Idle(_) => HostedTurn::Idle,
        }
    }

    /// Takes over from the predecessor once it has ended, or has taken too long. Returns `true` if there is nothing
    /// more to wait for.
    #[cold]
    fn inherit(&mut self) -> bool {
        let (Some((inheritance, until)), Some(worker)) = (&mut self.awaits, &mut self.worker) else {
            return true;
        };
        let now = self.times.now;
        if now < worker.context.config.start {
            return false;
        }
        *until = (*until).min(now + LONGEST_WAIT);
        match inheritance.take() {
            Some(Inherited::Chain(chain)) => worker.processing.succeed(*chain, inheritance.kept()),
            Some(Inherited::Flows(share)) => worker.processing.succeed_to(*share, inheritance.kept()),
            Some(Inherited::Nothing) => {}
            // Also when this chain is to end: its own successor gets what it inherits.
            None if now < *until && !self.ends.flags.failed.load(Ordering::Relaxed) => return false,
            None => {}
        }
        self.awaits = None;
        true
    }

    fn close(&mut self) {
        if let Some(worker) = &mut self.worker {
            worker.processing.close(&mut worker.context.meter);
        }
        self.phase = Phase::ServesOthers;
    }

    /// Ends the worker after a panic. The thread's other workers go on.
    #[cold]
    fn on_panic(&mut self, message: String) {
        self.ends.flags.fail();
        self.died.get_or_insert(message);
        let Some(worker) = &mut self.worker else {
            return;
        };
        match self.phase {
            Phase::Works => {
                worker.abort();
                self.close();
            }
            Phase::ServesOthers | Phase::Over => worker.on_panic_for_others(),
        }
    }

    #[cold]
    fn serve_others(&mut self) -> HostedTurn {
        let done = self.worker.as_mut().is_none_or(PollLoop::serve_others_once);
        if !done {
            return HostedTurn::Idle;
        }
        self.phase = Phase::Over;
        if let Some(mut worker) = self.worker.take() {
            if self.died.is_some() {
                // What has been delivered since.
                worker.discard(self.times.now);
            }
            let mut finished = worker.finish(self.died.take());
            if let Some(estate) = self.ends.heir.get().and_then(|estates| estates.get(self.number)) {
                // Processes of functions end in their own run, which may take its time, and not on this core. A chain
                // that external functions cut has nothing for a successor.
                let is_whole = finished.externals.is_empty();
                let passes = |chain: &mut Chain| is_whole && estate.suits(chain) && !chain.has_isolated_functions();
                let chain = finished.chains.pop_if(passes);
                let chain = chain.filter(|_| finished.died.is_none());
                finished.left = chain.as_ref().and_then(Chain::flow_counters);
                estate.leave(chain.map(|mut chain| {
                    chain.take_all_back();
                    chain
                }));
            }
            // A receiver that is gone has given up on the run.
            let _ = self.results.send(finished);
        }
        HostedTurn::Over
    }
}

impl<P: Processing + Send> Hosted for HostedWorker<P> {
    fn turn(&mut self, now: Nanos, away: Nanos, longest: Nanos) -> HostedTurn {
        self.times.now = now;
        // Time in which the thread was on its core for other workers is no preemption.
        self.times.last = Nanos(now.0.saturating_sub(away.0));
        let turn = match self.phase {
            Phase::Works => catch_panic(|| self.work(longest)),
            Phase::ServesOthers | Phase::Over => catch_panic(|| self.serve_others()),
        };
        turn.unwrap_or_else(|message| {
            self.on_panic(message);
            HostedTurn::Idle
        })
    }
}
