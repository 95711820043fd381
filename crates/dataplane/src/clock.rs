//! Clock of the run: nanoseconds since its start, cheap enough to read for every batch.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tailwater_net::Nanos;

/// Clock with an origin shared by all copies.
///
/// On x86-64 with an invariant time-stamp counter it reads the counter (17 ns per reading). The counter is calibrated
/// against the system's monotonic clock once per process, over the time since [`Clock::prepare`] and some milliseconds
/// at least. Elsewhere it reads the system clock (28 ns). A run takes arrivals and departures from this one clock, so
/// the calibration error, some parts per million, does not affect latencies.
#[derive(Clone, Debug)]
pub struct Clock {
    source: Arc<Source>,
}

#[derive(Debug)]
enum Source {
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    Counter {
        origin: u64,
        /// Nanoseconds per tick, times 2^32.
        scale: u64,
    },
    System(Instant),
    Readings {
        /// Number of readings so far.
        count: AtomicU64,
        /// Nanoseconds from each to the next.
        step: u64,
    },
}

/// Origin of a clock, with which another process on the same machine continues it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockOrigin {
    /// Time-stamp counter at the origin, and nanoseconds per tick times 2^32, if the clock reads the counter.
    pub counter: Option<[u64; 2]>,
    /// Current time in nanoseconds.
    pub now: u64,
}

/// Minimum duration of the calibration.
const CALIBRATION: Duration = Duration::from_millis(20);

/// Beginning of the calibration: both clocks read at once.
static BEGINNING: OnceLock<(Instant, u64)> = OnceLock::new();

/// Result of the calibration.
static SCALE: OnceLock<Option<u64>> = OnceLock::new();

impl Clock {
    /// Begins the calibration, which goes on while the program reads its input: the first [`start`](Clock::start) then
    /// need not wait.
    pub fn prepare() {
        BEGINNING.get_or_init(|| (Instant::now(), counter()));
    }

    /// Starts a clock. The first in a process waits for the end of the calibration.
    pub fn start() -> Clock {
        let source = match *SCALE.get_or_init(counter_scale) {
            Some(scale) => Source::Counter {
                origin: counter(),
                scale,
            },
            None => Source::System(Instant::now()),
        };
        Clock {
            source: Arc::new(source),
        }
    }

    /// Origin of the clock, for [`continuing`](Clock::continuing).
    pub fn origin(&self) -> ClockOrigin {
        ClockOrigin {
            counter: match &*self.source {
                Source::Counter { origin, scale } => Some([*origin, *scale]),
                Source::System(_) | Source::Readings { .. } => None,
            },
            now: self.now().0,
        }
    }

    /// Continues the clock of another process on this machine: with the time-stamp counter, both show the same time;
    /// without it, this one is late by the age of `origin`. `None` if this process cannot use the counter.
    pub fn continuing(origin: &ClockOrigin) -> Option<Clock> {
        let source = match origin.counter {
            Some([origin, scale]) => {
                invariant_counter().then_some(())?;
                Source::Counter { origin, scale }
            }
            None => Source::System(Instant::now().checked_sub(Duration::from_nanos(origin.now))?),
        };
        Some(Clock {
            source: Arc::new(source),
        })
    }

    /// Starts a clock that each reading advances by `step`, so that a run on one core does the same each time, however
    /// fast the machine is. For counting instructions.
    pub fn of_readings(step: Nanos) -> Clock {
        let (count, step) = (AtomicU64::new(0), step.0);
        Clock {
            source: Arc::new(Source::Readings { count, step }),
        }
    }

    /// Time since the start.
    #[inline]
    pub fn now(&self) -> Nanos {
        match &*self.source {
            Source::Counter { origin, scale } => {
                let ticks = counter().wrapping_sub(*origin);
                Nanos(((u128::from(ticks) * u128::from(*scale)) >> 32) as u64)
            }
            Source::System(start) => Nanos(start.elapsed().as_nanos() as u64),
            Source::Readings { count, step } => Nanos(count.fetch_add(1, Ordering::Relaxed) * step),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction; Linux permits it in user mode.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn counter() -> u64 {
    0
}

/// Nanoseconds per tick times 2^32, or `None` if the counter is unreliable.
fn counter_scale() -> Option<u64> {
    if !invariant_counter() {
        return None;
    }
    let (start, ticks) = *BEGINNING.get_or_init(|| (Instant::now(), counter()));
    std::thread::sleep(CALIBRATION.saturating_sub(start.elapsed()));
    let (elapsed, ticks) = (start.elapsed(), counter().wrapping_sub(ticks));
    // Frequencies between 0.1 and 10 GHz are plausible.
    let per_nano = ticks as f64 / elapsed.as_nanos() as f64;
    (0.1..10.0)
        .contains(&per_nano)
        .then(|| ((1u64 << 32) as f64 / per_nano) as u64)
}

/// Returns `true` if the counter has a constant rate in all power states (CPUID 80000007h, EDX bit 8).
#[cfg(target_arch = "x86_64")]
fn invariant_counter() -> bool {
    use std::arch::x86_64::__cpuid;
    __cpuid(0x8000_0000).eax >= 0x8000_0007 && __cpuid(0x8000_0007).edx & (1 << 8) != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn invariant_counter() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_system_clock() {
        let clock = Clock::start();
        let (start, system) = (clock.now(), Instant::now());
        std::thread::sleep(Duration::from_millis(50));
        // In this order, so a preempted test cannot make our span the shorter one.
        let system = system.elapsed();
        let ours = clock.now() - start;
        assert!(
            ours.0 as f64 >= system.as_nanos() as f64 * 0.99,
            "{ours} against {system:?}"
        );
    }

    #[test]
    fn a_continued_clock_shows_the_same_time() {
        let clock = Clock::start();
        let continued = Clock::continuing(&clock.origin()).unwrap();
        if clock.origin().counter.is_some() {
            let (before, there, after) = (clock.now(), continued.now(), clock.now());
            assert!(before <= there && there <= after, "{before} {there} {after}");
        }
        let system = ClockOrigin {
            counter: None,
            now: 5_000_000,
        };
        assert!(Clock::continuing(&system).unwrap().now() >= Nanos(5_000_000));
    }

    #[test]
    fn a_clock_of_readings_advances_by_its_step() {
        let clock = Clock::of_readings(Nanos(700));
        let copy = clock.clone();
        assert_eq!([clock.now(), copy.now(), clock.now()], [0, 700, 1_400].map(Nanos));
    }

    #[test]
    fn copies_share_the_origin_and_never_run_back() {
        let clock = Clock::start();
        let copy = clock.clone();
        let mut last = Nanos::ZERO;
        for i in 0..10_000 {
            let now = if i % 2 == 0 { clock.now() } else { copy.now() };
            assert!(now >= last);
            last = now;
        }
    }
}
