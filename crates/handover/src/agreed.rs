//! A time from which on something holds, on which all cores agree and none waits for another.
//!
//! Readers act by their own readings of one clock: at a time before the change they do the old
//! thing, from then on the new one. So whoever has acted at a time must have known of every change
//! up to it. The writer may be off its core between reading the clock and publishing a time, and
//! readers do not wait for it. Therefore a time is first *proposed*, then *settled*:
//!
//! 1. The writer proposes a time some way ahead of its clock, and reads the clock again. If that is
//!    still well before the time, every reader that has not seen the proposal read its own clock
//!    before, and so acted before the time. Else the writer withdraws the proposal.
//! 2. It settles the proposal by an exchange.
//! 3. A reader that sees a proposal before its time need not care yet. One that sees it later, still not
//!    settled, withdraws it by an exchange, and does the old thing. One of the two exchanges fails, so
//!    all readers find the same.
//!
//! A writer whose proposal was withdrawn makes another one, further ahead. A reader takes one load, and
//! one exchange at the most.

use crate::sync::{AtomicU64, Ordering, fence};

/// A time from which on something holds; there is none yet, one is proposed, or one is settled.
#[derive(Debug)]
pub struct Agreed(AtomicU64);

/// No time is proposed.
const OPEN: u64 = 0;
/// Set in a time that is settled; the others are twice the time.
const SETTLED: u64 = 1;

/// Times are proposed at least so far ahead.
const AHEAD: u64 = 1000;
/// When it is settled a time must be so far ahead: a reading of the clock may still be on its way
/// through a processor.
const MARGIN: u64 = 500;

impl Agreed {
    /// No time yet.
    pub fn new() -> Agreed {
        Agreed(AtomicU64::new(OPEN))
    }

    /// A time that everybody knows from the start, below 2^63.
    pub fn settled(at: u64) -> Agreed {
        Agreed(AtomicU64::new(at << 1 | SETTLED))
    }

    /// Settles a time, and returns it: `delay` nanoseconds from now on, or later, but not before
    /// `earliest`. `clock` tells the nanoseconds now, as all readers know them. For one writer, once.
    pub fn settle(&self, delay: u64, earliest: u64, clock: impl Fn() -> u64) -> u64 {
        let mut delay = delay.max(AHEAD);
        loop {
            let at = earliest.max(clock() + delay);
            self.0.store(at << 1, Ordering::Release);
            // Whoever reads the clock later than the next line sees the proposal.
            fence(Ordering::SeqCst);
            if clock() + MARGIN <= at && self.exchange(at << 1, at << 1 | SETTLED).is_ok() {
                return at;
            }
            self.0.store(OPEN, Ordering::Release);
            delay *= 2;
        }
    }

    /// The time, if one is settled. To be called after `now` was read from the clock; what is not known
    /// by then holds from a time after `now`.
    #[inline]
    pub fn at(&self, now: u64) -> Option<u64> {
        let mut seen = self.0.load(Ordering::Acquire);
        if seen != OPEN && seen & SETTLED == 0 && seen >> 1 <= now {
            seen = match self.exchange(seen, OPEN) {
                Ok(()) => OPEN,
                // Settled, or withdrawn. A proposal made since is of a later reading of the clock.
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

impl Default for Agreed {
    fn default() -> Agreed {
        Agreed::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A clock that tells the next of these at each reading.
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
        let agreed = Agreed::new();
        assert_eq!(agreed.at(5), None);
        assert_eq!(agreed.settle(5000, 0, clock(&[100, 200])), 5100);
        assert_eq!([0, 5100, 9999].map(|now| agreed.at(now)), [Some(5100); 3]);
        let later = Agreed::new();
        assert_eq!(later.settle(0, 7000, clock(&[300, 400])), 7000);
        assert_eq!(Agreed::settled(3).at(0), Some(3));
    }

    #[test]
    fn a_writer_that_was_away_tries_again_further_ahead() {
        let agreed = Agreed::new();
        // The second reading is too near to what was proposed, or beyond it.
        let clock = clock(&[0, 501, 10_000, 20_000, 30_000, 30_100]);
        assert_eq!(agreed.settle(0, 0, clock), 34_000);
    }

    #[test]
    fn a_reader_withdraws_what_is_late() {
        let agreed = Agreed::new();
        let readings = Cell::new(0);
        let at = agreed.settle(1000, 0, || {
            readings.set(readings.get() + 1);
            if readings.get() == 2 {
                // Between the proposal of 1000 and the exchange.
                assert_eq!(agreed.at(999), None, "not yet");
                assert_eq!(agreed.at(1000), None, "withdrawn");
            }
            0
        });
        assert_eq!((at, agreed.at(1000)), (2000, Some(2000)));
    }
}
