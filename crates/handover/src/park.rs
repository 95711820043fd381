//! Sleeping and waking of an idle worker.
//!
//! The hazard is the lost wake-up: the worker finds its ring empty and falls asleep just when an item is pushed, and
//! the producer still takes it for awake. Here both sides write the same word by an atomic exchange, and only then
//! check:
//!
//! | worker | producer |
//! |---|---|
//! | exchanges the word for *asleep* | pushes into the ring |
//! | checks its ring | exchanges the word for *awake* |
//! | sleeps, if the word is still *asleep* | wakes it, if the word was *asleep* |
//!
//! Exchanges of one word have a total order. If the worker's is first, the producer reads *asleep* and wakes it. If the
//! worker's is later, it reads the producer's value (or a later exchange, which continues the same release sequence: no
//! side ever writes the word by a plain store). The item pushed before is then visible to the worker's check. With
//! plain stores and loads, both could read the old values, unless a full fence stood between the two steps of each
//! side. An exchange costs the same as that fence, and needs no argument about the order of different variables.
//!
//! [`Waker::wake`] costs this one exchange while the worker is awake, on a cache line that an awake worker does not
//! access. Push a whole batch, then call `wake` once.

mod futex;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::sync::{Arc, Ordering};
use futex::Futex;
use std::time::{Duration, Instant};

/// Wait strategy of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Sleeps at once: frees the core for other threads, and takes microseconds to wake up.
    Sleep,
    /// Polls for work this long, then sleeps.
    SpinThenSleep(Duration),
    /// Never sleeps: for a dedicated core.
    Spin,
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// Polls per reading of the clock.
const POLLS_PER_CLOCK_READ: u32 = 16;

/// Futex word on its own cache line.
#[derive(Debug)]
#[repr(align(128))]
struct FutexLine(Futex);

/// Worker's side.
#[derive(Debug)]
pub struct Sleeper {
    bed: Arc<FutexLine>,
    mode: Mode,
}

/// Producers' side. Each producer may hold a clone.
#[derive(Clone, Debug)]
pub struct Waker {
    /// `None` if the worker never sleeps.
    bed: Option<Arc<FutexLine>>,
}

/// Creates both sides for one worker.
pub fn park(mode: Mode) -> (Sleeper, Waker) {
    let bed = Arc::new(FutexLine(Futex::new(AWAKE)));
    let waker = Waker {
        bed: (mode != Mode::Spin).then(|| bed.clone()),
    };
    (Sleeper { bed, mode }, waker)
}

impl Sleeper {
    /// Waits until `ready` returns `true`, for at most `bound`. Returns the last result of `ready`. May return early
    /// with `false`: callers poll in a loop.
    ///
    /// `ready` must read shared memory each time (as [`Consumer::is_empty`](crate::ring::Consumer::is_empty) does), and
    /// check everything the worker is woken for: new items, a closed ring, the end of the run.
    pub fn wait(&mut self, bound: Duration, mut ready: impl FnMut() -> bool) -> bool {
        let spin = match self.mode {
            Mode::Sleep => Duration::ZERO,
            Mode::SpinThenSleep(spin) => spin.min(bound),
            Mode::Spin => bound,
        };
        if spin_until(spin, &mut ready) {
            return true;
        }
        let Some(rest) = bound.checked_sub(spin).filter(|rest| !rest.is_zero()) else {
            return false;
        };
        let FutexLine(word) = &*self.bed;
        // Acquire: if a waker was first, its pushed items are visible to `ready`.
        word.swap(ASLEEP, Ordering::Acquire);
        let ready_after_all = ready();
        if !ready_after_all {
            word.wait(ASLEEP, rest);
        }
        // An exchange: a plain store would end a waker's release sequence.
        word.swap(AWAKE, Ordering::Acquire);
        ready_after_all || ready()
    }
}

/// Polls `ready` for this long, at least once.
fn spin_until(span: Duration, ready: &mut impl FnMut() -> bool) -> bool {
    if ready() {
        return true;
    }
    if span.is_zero() {
        return false;
    }
    let start = Instant::now();
    while start.elapsed() < span {
        for _ in 0..POLLS_PER_CLOCK_READ {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
    }
    false
}

impl Waker {
    /// Wakes the worker if it sleeps or is about to. Call it after publishing the work.
    ///
    /// Returns `true` if the worker was asleep, that is, if a system call was made.
    #[inline]
    pub fn wake(&self) -> bool {
        let Some(bed) = &self.bed else { return false };
        // Release: a worker whose exchange comes later sees the items pushed before.
        let asleep = bed.0.swap(AWAKE, Ordering::Release) == ASLEEP;
        if asleep {
            bed.0.wake();
        }
        asleep
    }
}
