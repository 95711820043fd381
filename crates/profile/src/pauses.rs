//! Short interruptions of a core.
//!
//! A thread reads the clock in a loop. Two readings are some tens of nanoseconds apart; after a larger gap the thread
//! was not running. (Linux's `hwlat` tracer and `oslat` of the real-time tests use the same method.)

use crate::error::TrainError;
use std::sync::atomic::{AtomicBool, Ordering};
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::cores::pin_to;
use tailwater_net::Nanos;
use tailwater_policy::capacity::Pause;

/// Duration of the measurement.
const LENGTH: Nanos = Nanos::from_millis(400);
/// Shortest gap that counts as an interruption.
const SHORTEST: Nanos = Nanos::from_micros(1);
/// Longest gap that counts. Longer ones are too rare for so short a measurement, and reports flag their windows.
const LONGEST: Nanos = Nanos::from_micros(100);
/// Number of classes, each with equally many pauses.
const CLASSES: usize = 16;

/// Measures the pauses of a core, from the shortest to the longest.
pub(crate) fn pauses(core: usize, stop: &AtomicBool) -> Result<Vec<Pause>, TrainError> {
    let seen = std::thread::scope(|scope| {
        let reader = scope.spawn(|| pin_to(core).map(|()| watch(&Clock::start(), stop)));
        let seen = reader.join();
        seen.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let seen = seen.map_err(|error| TrainError::Run(error.into()))?;
    match stop.load(Ordering::Relaxed) {
        true => Err(TrainError::Stopped),
        false => Ok(classes(seen, LENGTH)),
    }
}

/// Reads the clock in a loop.
fn watch(clock: &Clock, stop: &AtomicBool) -> Vec<Nanos> {
    let mut seen = Vec::with_capacity(1 << 16);
    let mut last = clock.now();
    let end = last + LENGTH;
    while last < end && !stop.load(Ordering::Relaxed) {
        let now = clock.now();
        let away = now.saturating_sub(last);
        if (SHORTEST..=LONGEST).contains(&away) && seen.len() < seen.capacity() {
            seen.push(away);
        }
        last = now;
    }
    seen
}

/// Groups the pauses of that time into classes of similar length.
fn classes(mut seen: Vec<Nanos>, time: Nanos) -> Vec<Pause> {
    seen.sort_unstable();
    let in_class = seen.len().div_ceil(CLASSES).max(1);
    let mut classes: Vec<Pause> = Vec::new();
    for class in seen.chunks(in_class) {
        let sum: u64 = class.iter().map(|pause| pause.0).sum();
        let pause = Pause {
            per_second: class.len() as f64 / time.as_secs_f64(),
            nanos: sum / class.len() as u64,
        };
        match classes.last_mut() {
            Some(last) if last.nanos == pause.nanos => last.per_second += pause.per_second,
            _ => classes.push(pause),
        }
    }
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_all_pauses_and_their_time() {
        let seen: Vec<Nanos> = (0..100).map(|i| Nanos(5000 - 10 * (i % 50))).collect();
        let classes = classes(seen.clone(), Nanos::from_millis(500));
        assert!(classes.len() <= CLASSES);
        assert!(classes.windows(2).all(|pair| pair[0].nanos < pair[1].nanos));
        let a_second = |of: &dyn Fn(&Pause) -> f64| classes.iter().map(of).sum::<f64>();
        assert!((a_second(&|pause| pause.per_second) - 200.0).abs() < 1e-9);
        let time = a_second(&|pause| pause.per_second * pause.nanos as f64);
        let all: u64 = seen.iter().map(|pause| 2 * pause.0).sum();
        assert!((time / all as f64 - 1.0).abs() < 1e-3, "{time} for {all}");
        assert_eq!(super::classes(Vec::new(), LENGTH), []);
        let same = super::classes(vec![Nanos(2000); 40], Nanos::from_secs(1));
        assert_eq!(
            same,
            [Pause {
                per_second: 40.0,
                nanos: 2000
            }]
        );
    }
}
