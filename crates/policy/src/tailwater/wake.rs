//! Time to wake an auxiliary core, learnt from the wake-ups of a run: it depends on the machine, on how long the core
//! slept, and on what else runs there.

use crate::capacity::CapacityProfile;
use tailwater_net::Nanos;

/// Most wake-ups are to be faster than the estimate: this many percent. One that is slower makes packets late that were
/// offloaded to be in time, so the median would not do.
const PERCENTILE: u64 = 90;
/// The estimate is divided by this for the step of one wake-up.
const STEADY: u64 = 8;

/// Estimated percentile of the times to wake up, in nanoseconds. It rises by a large step after a slow wake-up and
/// falls by a small one after a fast one, in the ratio that balances at the percentile.
#[derive(Clone, Copy, Debug)]
pub(super) struct WakeTime(u64);

impl WakeTime {
    /// Creates an estimate that begins at `first`.
    pub fn new(first: Nanos) -> WakeTime {
        WakeTime(first.0)
    }

    /// Updates the estimate with a wake-up.
    #[inline]
    pub fn learn(&mut self, took: Nanos) {
        let step = self.0 / STEADY;
        if took.0 > self.0 {
            self.0 += (step * PERCENTILE / 100).max(1);
        } else {
            self.0 -= step * (100 - PERCENTILE) / 100;
        }
    }

    /// Returns the estimate, in nanoseconds.
    #[inline]
    pub fn nanos(self) -> u64 {
        self.0
    }
}

/// Returns the percentile in a profile, for a core that slept longest, or `None` if it was not measured.
pub(super) fn measured(profile: &CapacityProfile) -> Option<Nanos> {
    let wakes = &profile.details.as_ref()?.wakes;
    wakes.last().map(|wake| Nanos(wake.p90))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wake-ups of 10 µs, of which one in `slow` takes 60 µs.
    fn learnt(slow: u64) -> u64 {
        let mut wake = WakeTime::new(Nanos::from_micros(20));
        for i in 0..2_000 {
            wake.learn(Nanos::from_micros(if i % slow == 0 { 60 } else { 10 }));
        }
        wake.nanos()
    }

    #[test]
    fn learns_the_percentile() {
        // One in five is slow: the 90th percentile is slow. One in fifty: it is not.
        assert!((45_000..75_000).contains(&learnt(5)), "{}", learnt(5));
        assert!((8_000..16_000).contains(&learnt(50)), "{}", learnt(50));
    }

    #[test]
    fn never_leaves_its_range() {
        let mut wake = WakeTime::new(Nanos::ZERO);
        wake.learn(Nanos::ZERO);
        assert_eq!(wake.nanos(), 0);
        for _ in 0..100_000 {
            wake.learn(Nanos(5));
        }
        assert!(wake.nanos() <= 6, "{}", wake.nanos());
        for _ in 0..1_000 {
            wake.learn(Nanos::from_secs(1));
        }
        assert!(wake.nanos() <= Nanos::from_secs(2).0);
    }
}
