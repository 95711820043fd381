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
use tailwater_net::Nanos;

/// Work of a polling worker on its packets. All packets that it holds, in processing or waiting, are its own.
pub(crate) trait Processing: Counting {
    /// Time that packets may need at the end of the run in addition to the usual
    /// [drain time](crate::worker::WorkerConfig::drain).
    fn extra_drain(&self) -> Nanos {
        Nanos::ZERO
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

    /// Results of the worker, whose last window has been sent.
    fn finish(self, now: Nanos) -> Finished;
}

/// Polling worker: its context and its processing.
pub(crate) struct PollLoop<P> {
    pub(crate) context: QueueContext,
    pub(crate) processing: P,
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
            self.context.meter.on_panic();
            self.processing.give_back(&mut self.context);
            self.serve_others();
            died = died.or(Some(message));
        }
        let PollLoop { context, processing } = self;
        let now = context.clock.now();
        context.finish(&processing);
        Finished {
            died,
            ..processing.finish(now)
        }
    }

    fn work(&mut self, stop: impl Fn() -> bool) {
        let start = self.context.config.start;
        let mut now = self.context.clock.now();
        // Time of the last known progress. A worker that got its core only after the first arrival counts as preempted
        // since then.
        let mut last = start;
        let mut busy_at = start;
        let drain = self.context.config.drain() + self.processing.extra_drain();
        let mut drain_until = None;
        loop {
            if drain_until.is_none() && stop() {
                self.context.port.stop();
                drain_until = Some(now + drain);
            }
            let PollLoop { context, processing } = &mut *self;
            let mut received = processing.receive(context, now);
            let full = || processing.cause_of_full();
            context.meter.note_arrivals(received, [last, now], full);
            let end = processing.process(context, &mut received, now);
            if let Some(end) = end {
                (last, busy_at) = (end, end);
            } else {
                let idle = now.saturating_sub(busy_at.max(start));
                // Before the start there are no gaps.
                last = self.rest(received, now, idle).max(start);
            }
            if received.ended {
                if received.waiting == 0 && self.processing.is_done() {
                    break;
                }
                drain_until = drain_until.or(Some(now + drain));
            }
            if drain_until.is_some_and(|until| now > until) {
                self.discard(now);
                break;
            }
            self.context.meter.roll(last, &self.processing);
            // A busy loop needs one reading of the clock per turn.
            now = end.unwrap_or_else(|| self.context.clock.now());
        }
    }

    /// Idle step. Polls again, or yields the core for as long as the processing allows. Returns the end time.
    #[inline]
    fn rest(&mut self, received: Received, now: Nanos, idle: Nanos) -> Nanos {
        let PollLoop { context, processing } = self;
        if let Some(record) = &mut context.batch_record {
            record.idle();
        }
        context.meter.idle();
        let runs = !received.ended && now >= context.config.start;
        let Some(rest) = processing.on_idle(received, now, idle).filter(|_| runs) else {
            std::hint::spin_loop();
            return now;
        };
        std::thread::sleep(rest);
        let awake = context.clock.now();
        context.meter.window().rested += awake.saturating_sub(now);
        awake
    }

    /// Processes what other workers send, until no more can come: they have ended, or wait for others, too.
    fn serve_others(&mut self) {
        while !self.processing.serve_others(&mut self.context) {
            std::thread::yield_now();
        }
    }

    /// Counts the packets that the panicked worker was processing, and all that wait for it, as lost.
    fn abort(&mut self) {
        let PollLoop { context, processing } = &mut *self;
        context.meter.on_panic();
        let now = context.clock.now();
        context.port.stop();
        processing.abort(context, now);
        self.discard(now);
    }

    /// Counts packets still in the ring, or waiting behind it, as lost.
    fn discard(&mut self, now: Nanos) {
        let PollLoop { context, processing } = self;
        let meter = &mut context.meter;
        context.port.discard(&mut |arrival, rss_hash| {
            meter.note_arrival(arrival);
            meter.note_undrained(arrival, rss_hash, now);
        });
        processing.discard(context, now);
    }
}

#[cfg(test)]
mod tests;
