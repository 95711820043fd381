//! Scheduled switch: a change that all cores apply at the same time, without waiting for each other.
//!
//! Readers act by their own readings of one clock: before the switch time they use the old configuration, from then on
//! the new one. So a core that acts at a time must have seen every switch up to that time. The writer may be preempted
//! between reading the clock and publishing a time, and readers do not wait for it. Therefore a time is first
//! *proposed*, then *settled*:
//!
//! 1. The writer proposes a time some distance ahead of its clock, and reads the clock again. If the clock is still
//!    well before the time, every reader that has not seen the proposal read its clock earlier, and so acted before the
//!    time. Otherwise the writer withdraws the proposal.
//! 2. The writer settles the proposal by a compare-exchange.
//! 3. A reader that sees a proposal before its time can ignore it. One that sees it later and still not settled
//!    withdraws it by a compare-exchange, and uses the old configuration. One of the two exchanges fails, so all
//!    readers reach the same result.
//!
//! A writer whose proposal was withdrawn makes another one, further ahead. A reader takes one load, and at most one
//! exchange.

use crate::sync::{AtomicU64, Ordering, fence};

/// Time of a scheduled switch: none yet, proposed, or settled.
#[derive(Debug)]
pub struct ScheduledSwitch(AtomicU64);

/// No proposal.
const OPEN: u64 = 0;
/// Flag of a settled time. The remaining bits are the time.
const SETTLED: u64 = 1;

/// Minimum distance between now and a proposed time, in nanoseconds.
const AHEAD: u64 = 1000;
/// Minimum distance between now and a time that is settled, in nanoseconds. It covers clock readings still in flight in
/// a processor's pipeline.
const MARGIN: u64 = 500;

impl ScheduledSwitch {
    /// No switch scheduled.
    pub fn new() -> ScheduledSwitch {
        ScheduledSwitch(AtomicU64::new(OPEN))
    }

    /// Switch at a time known from the start, below 2^63 ns.
    pub fn settled(at: u64) -> ScheduledSwitch {
        ScheduledSwitch(AtomicU64::new(at << 1 | SETTLED))
    }

    /// Schedules the switch and returns its time: at least `delay` nanoseconds from now, and not before `earliest`.
    /// `clock` returns the current time in nanoseconds and is the readers' clock. May be called once, by one writer.
    pub fn settle(&self, delay: u64, earliest: u64, clock: impl Fn() -> u64) -> u64 {
        let mut delay = delay.max(AHEAD);
        loop {
            let at = earliest.max(clock() + delay);
            self.0.store(at << 1, Ordering::Release);
            // A reader that reads the clock after the next line sees the proposal.
            fence(Ordering::SeqCst);
            if clock() + MARGIN <= at && self.exchange(at << 1, at << 1 | SETTLED).is_ok() {
                return at;
            }
            self.0.store(OPEN, Ordering::Release);
            delay *= 2;
        }
    }

    /// Switch time, if settled. Call it with `now` read from the clock before. A switch that is not visible by then has
    /// a time after `now`.
    #[inline]
    pub fn at(&self, now: u64) -> Option<u64> {
        let mut seen = self.0.load(Ordering::Acquire);
        if seen != OPEN && seen & SETTLED == 0 && seen >> 1 <= now {
            seen = match self.exchange(seen, OPEN) {
                Ok(()) => OPEN,
                // Settled, or withdrawn. A proposal made since then belongs to a later reading of the clock.
                Err(other) => other,
            };
        }
        (seen & SETTLED != 0).then_some(seen >> 1)
    }

    #[cold]
    fn exchange(&self, from: u64, to: u64) -> Result<(), u64> {
        let (done, not) = (Ordering::AcqRel, Ordering::Acquire);
        self.0.compare_exchange(from, to, done, not).map(drop)
    }
}

impl Default for ScheduledSwitch {
    fn default() -> ScheduledSwitch {
        ScheduledSwitch::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Clock that returns these times, one per reading.
    fn clock(times: &[u64]) -> impl Fn() -> u64 {
        let next = Cell::new(0);
        move || {
            let at = next.get();
            next.set(at + 1);
            times[at]
        }
    }

    #[test]
    fn a_settled_time_holds() {
        let switch = ScheduledSwitch::new();
        assert_eq!(switch.at(5), None);
        assert_eq!(switch.settle(5000, 0, clock(&[100, 200])), 5100);
        assert_eq!([0, 5100, 9999].map(|now| switch.at(now)), [Some(5100); 3]);
        let later = ScheduledSwitch::new();
        assert_eq!(later.settle(0, 7000, clock(&[300, 400])), 7000);
        assert_eq!(ScheduledSwitch::settled(3).at(0), Some(3));
    }

    #[test]
    fn a_writer_that_was_away_tries_again_further_ahead() {
        let switch = ScheduledSwitch::new();
        // The second reading is too near to the proposed time, or past it.
        let clock = clock(&[0, 501, 10_000, 20_000, 30_000, 30_100]);
        assert_eq!(switch.settle(0, 0, clock), 34_000);
    }

    #[test]
    fn a_reader_withdraws_what_is_late() {
        let switch = ScheduledSwitch::new();
        let readings = Cell::new(0);
        let at = switch.settle(1000, 0, || {
            readings.set(readings.get() + 1);
            if readings.get() == 2 {
                // Between the proposal of 1000 and the exchange.
                assert_eq!(switch.at(999), None, "not yet");
                assert_eq!(switch.at(1000), None, "withdrawn");
            }
            0
        });
        assert_eq!((at, switch.at(1000)), (2000, Some(2000)));
    }
}
