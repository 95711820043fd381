//! Interference with a run: other programs and guests that slow the measured core down, and the decision which runs
//! had it.
//!
//! Beside each run, on its core:
//!
//! - two short *reference loops* before and after it, one bound by the core's arithmetic units and one by its private
//!   cache. Slower than the best of this process, they show a lower clock, a busy hyper-thread sibling, or another
//!   program on the core;
//! - the time that the hypervisor gave to other guests (*steal*, `/proc/stat`);
//! - the time that the worker lost between two readings of the clock, and the windows without such gaps
//!   ([`WindowReport`](tailwater_dataplane::report::WindowReport)).
//!
//! Other use of the shared cache and of memory does not show in these; a pirate's own misses show it.

mod host;
mod monitor;
mod reference;

pub(crate) use monitor::{Monitor, Steal};

use std::fmt;
use tailwater_net::Nanos;

/// Tolerated slowdown of the arithmetic loop: the clock of an undisturbed core varies less.
const SLOWER_CORE: f64 = 1.05;
/// The same of the private cache's loop, in which a few misses count.
const SLOWER_CACHE: f64 = 1.10;
/// Tolerated share of a run's time without the core. Windows with a gap do not count anyway; with more gaps than that,
/// caches are cold in the other windows, too.
const MOST_LOST: f64 = 0.05;
/// Tolerated steal, whatever the length of a run: the kernel counts it in units of 10 ms.
const LEAST_STOLEN: Nanos = Nanos::from_millis(10);

/// Time of the reference loops, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Time of the loop bound by arithmetic units.
    pub compute: f64,
    /// Time of the loop bound by the private cache. `None` beside a pirate: in inclusive caches it evicts lines of
    /// other cores' private caches.
    pub private: Option<f64>,
}

impl Speed {
    /// Returns the lower time of each loop.
    pub fn best_of(a: Option<Speed>, b: Option<Speed>) -> Option<Speed> {
        Speed::each(a, b, f64::min)
    }

    /// Returns the higher time of each loop.
    pub fn worst_of(a: Option<Speed>, b: Option<Speed>) -> Option<Speed> {
        Speed::each(a, b, f64::max)
    }

    fn each(a: Option<Speed>, b: Option<Speed>, of: fn(f64, f64) -> f64) -> Option<Speed> {
        let (Some(a), Some(b)) = (a, b) else {
            return a.or(b);
        };
        Some(Speed {
            compute: of(a.compute, b.compute),
            private: match (a.private, b.private) {
                (Some(a), Some(b)) => Some(of(a, b)),
                (a, b) => a.or(b),
            },
        })
    }
}

/// A kind of interference with a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interference {
    /// The core was slower before or after the run: clock, hyper-thread sibling, another program.
    SlowCore,
    /// Its private cache was.
    SlowCache,
    /// The hypervisor gave the core to others.
    Stolen,
    /// The worker was preempted for a large part of the run.
    Preempted,
    /// Too few windows of the run were free of gaps.
    FewWindows,
}

impl fmt::Display for Interference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Interference::SlowCore => "the core was slow",
            Interference::SlowCache => "the core's private cache was slow",
            Interference::Stolen => "the hypervisor ran other guests",
            Interference::Preempted => "the worker was preempted",
            Interference::FewWindows => "nearly all windows had CPU interference",
        })
    }
}

/// Observations beside a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Conditions {
    /// Slower of the reference loops before and after the run; `None` if they were not measured.
    pub speed: Option<Speed>,
    /// Length of the run.
    pub length: Nanos,
    /// Time for which the hypervisor ran others on the core.
    pub stolen: Nanos,
    /// Time that the worker lost between two readings of the clock.
    pub lost: Nanos,
    /// Too few windows are free of gaps.
    pub has_few_windows: bool,
}

impl Conditions {
    /// Returns the interference of the run, given the core's best speed.
    pub fn interference(&self, best: Option<Speed>) -> Option<Interference> {
        if self.stolen > most_stolen(self.length) {
            return Some(Interference::Stolen);
        }
        if self.lost > share(self.length, MOST_LOST) {
            return Some(Interference::Preempted);
        }
        if self.has_few_windows {
            return Some(Interference::FewWindows);
        }
        slowdown(self.speed?, best?)
    }
}

fn share(length: Nanos, share: f64) -> Nanos {
    Nanos((length.0 as f64 * share) as u64)
}

/// Returns the tolerated steal in a time.
fn most_stolen(length: Nanos) -> Nanos {
    share(length, MOST_LOST).max(LEAST_STOLEN)
}

/// Returns the loop that was slower than at the core's best speed.
fn slowdown(speed: Speed, best: Speed) -> Option<Interference> {
    if speed.compute > SLOWER_CORE * best.compute {
        return Some(Interference::SlowCore);
    }
    match (speed.private, best.private) {
        (Some(private), Some(best)) if private > SLOWER_CACHE * best => Some(Interference::SlowCache),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEST: Speed = Speed {
        compute: 100.0,
        private: Some(50.0),
    };

    fn run() -> Conditions {
        Conditions {
            speed: Some(BEST),
            length: Nanos::from_millis(250),
            ..Conditions::default()
        }
    }

    fn slow(compute: f64, private: Option<f64>) -> Conditions {
        Conditions {
            speed: Some(Speed { compute, private }),
            ..run()
        }
    }

    #[test]
    fn each_kind_of_interference_is_detected() {
        let found = |run: Conditions| run.interference(Some(BEST));
        assert_eq!(found(run()), None);
        assert_eq!(found(slow(104.9, Some(54.9))), None);
        assert_eq!(found(slow(105.1, Some(50.0))), Some(Interference::SlowCore));
        assert_eq!(found(slow(100.0, Some(55.1))), Some(Interference::SlowCache));
        // Beside a pirate only the core's own speed counts.
        assert_eq!(found(slow(100.0, None)), None);
        let stolen = |millis| Conditions {
            stolen: Nanos::from_millis(millis),
            ..run()
        };
        // One unit of the kernel's is no more than its rounding, and 5 % of 250 ms are 12.5 ms.
        assert_eq!(found(stolen(10)), None);
        assert_eq!(found(stolen(20)), Some(Interference::Stolen));
        let lost = |micros| Conditions {
            lost: Nanos::from_micros(micros),
            ..run()
        };
        assert_eq!(found(lost(12_400)), None);
        assert_eq!(found(lost(12_600)), Some(Interference::Preempted));
        let few = Conditions {
            has_few_windows: true,
            ..run()
        };
        assert_eq!(found(few), Some(Interference::FewWindows));
        // Without a best speed the loops show nothing, the rest does.
        assert_eq!(slow(900.0, None).interference(None), None);
        assert_eq!(stolen(20).interference(None), Some(Interference::Stolen));
    }

    #[test]
    fn the_best_and_the_worst_are_loop_by_loop() {
        let [a, b] = [(100.0, Some(60.0)), (110.0, Some(50.0))].map(|(compute, private)| Speed { compute, private });
        let speed = |compute, private| Some(Speed { compute, private });
        assert_eq!(Speed::best_of(Some(a), Some(b)), speed(100.0, Some(50.0)));
        assert_eq!(Speed::worst_of(Some(a), Some(b)), speed(110.0, Some(60.0)));
        assert_eq!(Speed::best_of(None, Some(b)), Some(b));
        assert_eq!(Speed::best_of(Some(a), None), Some(a));
    }
}
