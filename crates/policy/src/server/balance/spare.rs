//! Time for which a server has not been needed.

use std::ops::RangeInclusive;

/// Shortest and longest time until a server is emptied, in periods. Limits grow in shorter ones.
const WAIT: RangeInclusive<u32> = 8..=128;
/// Multiple of the wait up to which a failure is due to the emptying.
const RECENT: u32 = 4;
/// Multiple of the wait after which it is halved if no emptying failed.
const CALM: u32 = 16;

/// Counts the periods in which a server fewer would do.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpareTime {
    /// Periods in a row in which the load has fitted, and the number required.
    fits: u32,
    wait: u32,
    /// Periods since a server was emptied, if that may still prove wrong.
    since_emptied: Option<u32>,
    /// Periods since an emptying proved wrong, or since the wait was last halved.
    calm: u32,
}

impl Default for SpareTime {
    fn default() -> Self {
        SpareTime {
            fits: 0,
            wait: *WAIT.start(),
            since_emptied: None,
            calm: 0,
        }
    }
}

impl SpareTime {
    /// Counts a period in which no server had too much. `fits` is set if a server fewer would have done. Returns `true`
    /// if it has for long enough, and at least for `least` periods.
    pub fn period(&mut self, fits: bool, least: u32) -> bool {
        self.since_emptied = self.since_emptied.map(|since| since + 1);
        self.since_emptied.take_if(|since| *since > RECENT * self.wait);
        self.calm += 1;
        if self.calm > CALM * self.wait {
            (self.wait, self.calm) = ((self.wait / 2).max(*WAIT.start()), 0);
        }
        self.fits = if fits { self.fits + 1 } else { 0 };
        if self.fits < self.wait.max(least) {
            return false;
        }
        self.fits = 0;
        true
    }

    /// Records that a server has been emptied.
    pub fn emptied(&mut self) {
        (self.fits, self.since_emptied) = (0, Some(0));
    }

    /// Records that a server is overloaded. The wait doubles if one was emptied not long ago.
    pub fn too_much(&mut self) {
        self.fits = 0;
        if self.since_emptied.take().is_some() {
            (self.wait, self.calm) = ((2 * self.wait).min(*WAIT.end()), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of periods until a server is emptied.
    fn waits(spare: &mut SpareTime) -> u32 {
        (1..).find(|_| spare.period(true, 0)).unwrap_or(0)
    }

    #[test]
    fn the_wait_doubles_with_each_failure_and_is_halved_in_calm_times() {
        let mut spare = SpareTime::default();
        assert_eq!(waits(&mut spare), 8);
        let mut last = 8;
        for wait in [16, 32, 64, 128, 128] {
            spare.emptied();
            spare.too_much();
            assert_eq!(waits(&mut spare), wait);
            last = wait;
        }
        spare.emptied();
        // It proves right: no server is overloaded for a long time.
        for _ in 0..=CALM * last {
            spare.period(false, 0);
        }
        spare.too_much();
        assert_eq!(waits(&mut spare), 64);
    }

    #[test]
    fn a_period_in_which_the_load_does_not_fit_begins_the_wait_anew() {
        let mut spare = SpareTime::default();
        assert!((0..7).all(|_| !spare.period(true, 0)));
        assert!(!spare.period(false, 0));
        assert_eq!(waits(&mut spare), 8);
        // Limits that fell not long ago make it longer.
        assert!((0..19).all(|_| !spare.period(true, 20)));
        assert!(spare.period(true, 20));
    }
}
