//! Pace of the starts of a function's processes.
//!
//! A process that waits ready is attached at once, however often its predecessors failed. Only the start of the next
//! one is delayed, so that a function that fails all the time takes at most half a core for its starts. One that fails
//! as soon as it is attached does no work at all, and is started less and less often.

use std::time::{Duration, Instant};

/// Uptime after which a process's earlier failures no longer count.
const HEALTHY: Duration = Duration::from_secs(10);
/// Consecutive failures before starts are delayed.
const AT_ONCE: u32 = 3;
/// Uptime below which a failure counts as one at once.
const QUICK: Duration = Duration::from_millis(20);
/// The shortest delay. It doubles with each failure at once, up to the longest.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Pace of the starts of one function's processes.
#[derive(Debug)]
pub(super) struct RestartPace {
    /// Number of consecutive failures.
    failures: u32,
    /// Number of consecutive failures at once.
    quick: u32,
    /// Duration of the last start.
    took: Duration,
    /// Earliest time of the next start.
    not_before: Instant,
}

impl RestartPace {
    /// Creates the pace of a function whose first process took this long to start.
    pub(super) fn new(took: Duration, now: Instant) -> RestartPace {
        RestartPace {
            failures: 0,
            quick: 0,
            took,
            not_before: now,
        }
    }

    pub(super) fn may_start(&self, now: Instant) -> bool {
        now >= self.not_before
    }

    /// Notes a start and its duration.
    pub(super) fn on_start(&mut self, took: Duration) {
        self.took = took;
    }

    /// Notes the failure of a process that was attached for this long; zero for one that never was.
    pub(super) fn on_failure(&mut self, uptime: Duration, now: Instant) {
        if uptime > HEALTHY {
            self.failures = 0;
        }
        self.failures += 1;
        self.quick = if uptime < QUICK { self.quick + 1 } else { 0 };
        if self.failures >= AT_ONCE {
            let doublings = self.quick.saturating_sub(AT_ONCE).min(16);
            let pause = self.took.max(PAUSE).saturating_mul(1 << doublings);
            self.not_before = now + pause.min(LONGEST_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOK: Duration = Duration::from_millis(30);

    /// From the third failure on, restarts were delayed by 20 ms, twice as long each time.
    #[test]
    fn a_function_that_crashes_every_200_ms_is_always_replaced_in_time() {
        let crash_every = Duration::from_millis(200);
        let mut now = Instant::now();
        let mut pace = RestartPace::new(TOOK, now);
        for _ in 0..100 {
            now += crash_every;
            pace.on_failure(crash_every, now);
            assert!(
                pace.may_start(now + crash_every - TOOK),
                "the next one is ready in time"
            );
        }
    }

    #[test]
    fn a_function_that_crashes_at_once_is_started_less_and_less_often() {
        let mut now = Instant::now();
        let mut pace = RestartPace::new(TOOK, now);
        let mut starts = 0;
        let end = now + Duration::from_secs(60);
        while now < end {
            if !pace.may_start(now) {
                now += Duration::from_millis(1);
                continue;
            }
            starts += 1;
            now += TOOK;
            pace.on_start(TOOK);
            pace.on_failure(Duration::ZERO, now);
        }
        assert!((15..40).contains(&starts), "{starts} starts in a minute");
        // After a long time without failure, it begins anew.
        pace.on_failure(Duration::from_secs(11), now);
        assert!(pace.not_before <= now || pace.failures == 1);
    }

    #[test]
    fn starts_take_at_most_half_of_a_core() {
        let mut now = Instant::now();
        let mut pace = RestartPace::new(TOOK, now);
        let (start, mut busy) = (now, Duration::ZERO);
        for _ in 0..1000 {
            while !pace.may_start(now) {
                now += Duration::from_millis(1);
            }
            (now, busy) = (now + TOOK, busy + TOOK);
            pace.on_failure(QUICK, now);
        }
        assert!(busy * 2 < (now - start) + 10 * TOOK);
    }
}
