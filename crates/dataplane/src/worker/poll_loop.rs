//! Loop of every worker that polls a port queue: receive, process and send, housekeeping, end.
//!
//! Workers differ in what they do with received packets. That is their [`Processing`], whose stages the loop calls
//! without dynamic dispatch. An auxiliary worker is no polling worker, and has a loop of its own.

use super::context::QueueContext;
use super::finished::Finished;
use crate::attribution::Cause;
use crate::meter::{Counting, Meter};
use crate::panics::run_or_fail;
use crate::port::Received;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tailwater_chain::chain::{Chain, FlowShare};
use tailwater_net::Nanos;

/// Work of a polling worker on its packets. All packets that it holds, in processing or waiting, are its own.
pub(crate) trait Processing: Counting {
    /// Time that packets may need at the end of the run in addition to the usual
    /// [drain time](crate::worker::WorkerConfig::drain).
    fn extra_drain(&self) -> Nanos {
        Nanos::ZERO
    }

    /// Prepares the context for this processing, before the first turn.
    fn prepare(&self, context: &mut QueueContext) {
        let _ = context;
    }

    /// Receives packets that have arrived by `now`, after the steps that must precede reception.
    fn receive(&mut self, context: &mut QueueContext, now: Nanos) -> Received;

    /// Cause of packets lost to a full ring while the worker was running.
    fn cause_of_full(&self) -> Cause {
        Cause::RingFull
    }

    /// Processes, sends and measures received packets, and others whose wait is over. If it receives more packets, it
    /// updates `received`. Returns the end time, or `None` if there was nothing to do.
    fn process(&mut self, context: &mut QueueContext, received: &mut Received, now: Nanos) -> Option<Nanos>;

    /// Housekeeping in a turn without work, after `idle` without work. Returns the time the worker may sleep now, or
    /// `None` if it must poll.
    fn on_idle(&mut self, received: Received, now: Nanos, idle: Nanos) -> Option<Duration>;

    /// Receives at most this many packets at once from now on, unless functions require another number.
    fn limit(&mut self, packets: usize) {
        let _ = packets;
    }

    /// Takes the place of another worker, whose chain this is: functions `kept` keep what they hold, and their flows.
    fn succeed(&mut self, chain: Chain, kept: &[String]) {
        let _ = kept;
        chain.drain();
    }

    /// Takes over flows of RSS buckets that other workers had: functions `kept` keep their state.
    fn succeed_to(&mut self, share: FlowShare, kept: &[String]) {
        let _ = kept;
        drop(share);
    }

    /// The chain, if this is a whole one: for requests between two turns.
    fn chain(&mut self) -> Option<&mut Chain> {
        None
    }

    /// Returns `true` if another core works for this one: it needs turns although it has no packets.
    fn waits_for_others(&self) -> bool {
        false
    }

    /// Returns `true` if no packet is in the system outside the port's ring, and no other worker needs this one. Called
    /// when the ring is empty and no more packets arrive.
    fn is_done(&self) -> bool;

    /// Counts the packets that the panicked worker was processing as lost.
    fn abort(&mut self, context: &mut QueueContext, now: Nanos);

    /// Counts packets that wait outside the port's ring as lost: the worker processes no more.
    fn discard(&mut self, context: &mut QueueContext, now: Nanos);

    /// Releases other cores, and sends them nothing any more.
    fn close(&mut self, meter: &mut Meter) {
        let _ = meter;
    }

    /// Processes, or discards, packets that other workers have sent to this one, after its own. Returns `true` once no
    /// more can come.
    fn serve_others(&mut self, context: &mut QueueContext) -> bool {
        let _ = context;
        true
    }

    /// Counts packets of other workers that the panicked worker was processing as lost. It processes no more of them.
    fn give_back(&mut self, context: &mut QueueContext) {
        let _ = context;
    }

    /// Returns freed packet buffers to the port.
    fn reclaim(&mut self, context: &mut QueueContext) {
        let _ = context;
    }

    /// Results of the worker, whose last window has been sent.
    fn finish(self, now: Nanos) -> Finished;
}

/// Polling worker: its context and its processing.
pub(crate) struct PollLoop<P> {
    pub(crate) context: QueueContext,
    pub(crate) processing: P,
}

/// Times of a worker's loop, from one turn to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoopTimes {
    /// Begin of the next turn.
    pub(super) now: Nanos,
    /// Time of the last known progress. A worker that got its core only after the first arrival counts as preempted
    /// since then.
    pub(super) last: Nanos,
    busy_at: Nanos,
    /// Time after the end in which queued packets are still processed.
    pub(super) drain: Nanos,
    drain_until: Option<Nanos>,
}

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Packets were processed until this time.
    Worked(Nanos),
    /// There was nothing to do. The worker may yield its core for as long, if the processing allows it.
    Idle(Option<Duration>),
}

impl<P: Processing> PollLoop<P> {
    /// Runs until the port ends or `stop` returns `true`, and no packet is in the system any more. If the worker
    /// panics, sets `failed` and counts its packets as lost.
    pub(crate) fn run(mut self, stop: impl Fn() -> bool, failed: &AtomicBool) -> Finished {
        let mut died = run_or_fail(|| self.work(stop), failed);
        if died.is_some() {
            self.abort();
        }
        self.processing.close(&mut self.context.meter);
        if let Some(message) = run_or_fail(|| self.serve_others(), failed) {
            self.on_panic_for_others();
            self.serve_others();
            died = died.or(Some(message));
        }
        self.finish(died)
    }

    /// Sends the last window, and returns the results. `died` is the message of the worker's panic, if it panicked.
    pub(super) fn finish(self, died: Option<String>) -> Finished {
        let PollLoop {
            mut context,
            mut processing,
        } = self;
        let now = context.clock.now();
        processing.reclaim(&mut context);
        context.finish(&processing);
        Finished {
            died,
            ..processing.finish(now)
        }
    }

    /// Gives up packets of other workers after a panic among them.
    pub(super) fn on_panic_for_others(&mut self) {
        self.context.meter.on_panic();
        self.processing.give_back(&mut self.context);
    }

    /// Prepares the first turn, and returns the times before it.
    pub(super) fn begin(&mut self) -> LoopTimes {
        self.processing.prepare(&mut self.context);
        let start = self.context.config.start;
        LoopTimes {
            now: self.context.clock.now(),
            last: start,
            busy_at: start,
            drain: self.context.config.drain() + self.processing.extra_drain(),
            drain_until: None,
        }
    }

    fn work(&mut self, stop: impl Fn() -> bool) {
        let mut times = self.begin();
        loop {
            let (turn, received) = self.turn(&mut times, &stop);
            let end = match turn {
                Turn::Worked(end) => Some(end),
                Turn::Idle(rest) => {
                    // Before the start there are no gaps.
                    times.last = self.rest(rest, times.now).max(self.context.config.start);
                    None
                }
            };
            if self.is_over(&mut times, received) {
                break;
            }
            self.roll(times.last);
            // A busy loop needs one reading of the clock per turn.
            times.now = end.unwrap_or_else(|| self.context.clock.now());
        }
    }

    /// Ends the window if its time is over at `now`.
    #[inline(always)]
    pub(super) fn roll(&mut self, now: Nanos) {
        self.context.meter.roll(now, &self.processing);
    }

    /// Turn that begins at `times.now`: receives and processes at most a batch. `stop` returns `true` if the worker is
    /// to end.
    #[inline(always)]
    pub(super) fn turn(&mut self, times: &mut LoopTimes, stop: impl Fn() -> bool) -> (Turn, Received) {
        let now = times.now;
        if times.drain_until.is_none() && stop() {
            self.context.port.stop();
            times.drain_until = Some(now + times.drain);
        }
        let PollLoop { context, processing } = &mut *self;
        let mut received = processing.receive(context, now);
        let full = || processing.cause_of_full();
        context.meter.note_arrivals(received, [times.last, now], full);
        if let Some(end) = processing.process(context, &mut received, now) {
            (times.last, times.busy_at) = (end, end);
            return (Turn::Worked(end), received);
        }
        let start = context.config.start;
        let idle = now.saturating_sub(times.busy_at.max(start));
        if let Some(record) = &mut context.batch_record {
            record.idle();
        }
        context.meter.idle();
        let runs = !received.ended && now >= start;
        let rest = processing.on_idle(received, now, idle).filter(|_| runs);
        (Turn::Idle(rest), received)
    }

    /// Returns `true` after the last turn: no packet is in the system, or those that are have been counted as lost.
    #[inline(always)]
    pub(super) fn is_over(&mut self, times: &mut LoopTimes, received: Received) -> bool {
        if received.ended {
            if received.waiting == 0 && self.processing.is_done() {
                return true;
            }
            times.drain_until = times.drain_until.or(Some(times.now + times.drain));
        }
        let over = times.drain_until.is_some_and(|until| times.now > until);
        if over {
            self.discard(times.now);
        }
        over
    }

    /// Idle step. Polls again, or yields the core for as long as the processing allows. Returns the end time.
    #[inline]
    fn rest(&mut self, rest: Option<Duration>, now: Nanos) -> Nanos {
        let Some(rest) = rest else {
            std::hint::spin_loop();
            return now;
        };
        std::thread::sleep(rest);
        let awake = self.context.clock.now();
        self.context.meter.window().rested += awake.saturating_sub(now);
        awake
    }

    /// Processes what other workers send, until no more can come: they have ended, or wait for others, too.
    fn serve_others(&mut self) {
        while !self.serve_others_once() {
            std::thread::yield_now();
        }
    }

    /// Processes what other workers have sent. Returns `true` once no more can come.
    pub(super) fn serve_others_once(&mut self) -> bool {
        self.processing.serve_others(&mut self.context)
    }

    /// Counts the packets that the panicked worker was processing, and all that wait for it, as lost.
    pub(super) fn abort(&mut self) {
        let PollLoop { context, processing } = &mut *self;
        context.meter.on_panic();
        let now = context.clock.now();
        context.port.stop();
        processing.abort(context, now);
        self.discard(now);
    }

    /// Counts packets still in the ring, or waiting behind it, as lost.
    pub(super) fn discard(&mut self, now: Nanos) {
        let PollLoop { context, processing } = self;
        let meter = &mut context.meter;
        let unreceived = context.port.discard(&mut |arrival, rss_hash| {
            meter.note_arrival(arrival);
            meter.note_undrained(arrival, rss_hash, now);
        });
        meter.window().offered += unreceived;
        processing.discard(context, now);
    }
}

#[cfg(test)]
mod tests;
