//! Handler of the signals that end a command.
//!
//! A module with `unsafe` code: a handler of signals.

use signal_hook::low_level;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Time after the first signal from which another one kills the process. `timeout`, and programs that pass signals on,
/// send the same one twice at once: to the process and to its group.
const AGAIN: Duration = Duration::from_millis(200);

/// Start of the process's signal handling, from which times are counted.
static START: OnceLock<Instant> = OnceLock::new();
/// Time of the first signal in nanoseconds; 0 before it.
static FIRST: AtomicU64 = AtomicU64::new(0);

/// Outcome of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// The command is to stop.
    Stop,
    /// None: the same signal again.
    Nothing,
    /// The process is killed.
    Kill,
}

/// Notes a signal at `now` nanoseconds, from 1.
fn note(first: &AtomicU64, now: u64) -> Effect {
    match first.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => Effect::Stop,
        Err(first) if now.saturating_sub(first) >= AGAIN.as_nanos() as u64 => Effect::Kill,
        Err(_) => Effect::Nothing,
    }
}

/// Lets a signal set `stop`, and a later one kill the process.
///
/// # Errors
/// The handler cannot be registered.
pub fn set_on(signal: i32, stop: &Arc<AtomicBool>) -> io::Result<()> {
    let start = *START.get_or_init(Instant::now);
    let stop = Arc::clone(stop);
    let handler = move || {
        let now = (start.elapsed().as_nanos() as u64).max(1);
        match note(&FIRST, now) {
            Effect::Stop => stop.store(true, Ordering::Relaxed),
            Effect::Nothing => {}
            Effect::Kill => {
                // It returns only if the signal is blocked.
                let _ = low_level::emulate_default_handler(signal);
            }
        }
    };
    // SAFETY: the handler reads the clock, reads and writes atomics, and may end the process; it neither allocates nor
    // locks nor panics.
    unsafe { low_level::register(signal, handler) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_sent_twice_at_once_counts_once() {
        let (first, again) = (AtomicU64::new(0), AGAIN.as_nanos() as u64);
        assert_eq!(note(&first, 5), Effect::Stop);
        assert_eq!(note(&first, 5), Effect::Nothing);
        assert_eq!(note(&first, 4 + again), Effect::Nothing);
        assert_eq!(note(&first, 5 + again), Effect::Kill);
    }
}
