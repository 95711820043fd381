//! A sleeping place for a worker that has nothing to do.
//!
//! The danger is the lost wake-up: the worker looks into its ring, finds nothing and falls asleep
//! just when something is pushed, and the one who pushes still believes it awake. Here both write
//! the same word by an atomic exchange, and only then look:
//!
//! | worker | whoever has work for it |
//! |---|---|
//! | exchanges the word for *asleep* | pushes into the ring |
//! | looks into its ring | exchanges the word for *awake* |
//! | sleeps, if the word is still *asleep* | wakes it, if the word was *asleep* |
//!
//! Exchanges of one word have one order. If the worker's comes first, the other sees *asleep* and
//! wakes it. If the worker's comes later, it reads what the other wrote (or a later exchange, which
//! carries on the same release sequence: no side ever writes the word by a plain store), so what was
//! pushed before is visible when it looks. With plain stores and loads instead, both could read the
//! old values, unless a full fence stood between the two steps of each side; an exchange costs
//! as much as that fence, and needs no argument about the order of different variables.
//!
//! [`Waker::wake`] costs this one exchange while the worker is awake, in a cache line that an awake
//! worker does not touch. A batch is pushed first, then one `wake` follows.

mod futex;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::sync::{Arc, Ordering};
use futex::Futex;
use std::time::{Duration, Instant};

/// How a worker waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Sleeps at once: leaves its core to others, and takes microseconds to wake up.
    Sleep,
    /// Looks for work this long, then sleeps.
    SpinThenSleep(Duration),
    /// Never sleeps: for a core that is nobody else's.
    Spin,
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// Looks between two looks at the time.
const LOOKS: u32 = 16;

/// The word in a cache line of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Bed(Futex);

/// The worker's side.
#[derive(Debug)]
pub struct Sleeper {
    bed: Arc<Bed>,
    mode: Mode,
}

/// The side of those who have work for it; each may have a clone.
#[derive(Clone, Debug)]
pub struct Waker {
    /// None if the worker never sleeps.
    bed: Option<Arc<Bed>>,
}

/// A sleeping place for one worker.
pub fn park(mode: Mode) -> (Sleeper, Waker) {
    let bed = Arc::new(Bed(Futex::new(AWAKE)));
    let waker = Waker {
        bed: (mode != Mode::Spin).then(|| bed.clone()),
    };
    (Sleeper { bed, mode }, waker)
}

impl Sleeper {
    /// Waits until `ready`, for `bound` at most, and says whether it is ready. May come back early
    /// with `false`: the caller asks again anyway.
    ///
    /// `ready` has to look at shared memory every time (as
    /// [`Consumer::is_empty`](crate::ring::Consumer::is_empty) does), at everything that the
    /// worker is woken for: new items, a closed ring, the end of the run.
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
        let Bed(word) = &*self.bed;
        // Acquire: if a waker was first, what it pushed is visible to `ready`.
        word.swap(ASLEEP, Ordering::Acquire);
        let ready_after_all = ready();
        if !ready_after_all {
            word.wait(ASLEEP, rest);
        }
        // An exchange, no plain store, which would end a waker's release sequence.
        word.swap(AWAKE, Ordering::Acquire);
        ready_after_all || ready()
    }
}

/// Looks again and again for this long, once at least.
fn spin_until(span: Duration, ready: &mut impl FnMut() -> bool) -> bool {
    if ready() {
        return true;
    }
    if span.is_zero() {
        return false;
    }
    let start = Instant::now();
    while start.elapsed() < span {
        for _ in 0..LOOKS {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
    }
    false
}

impl Waker {
    /// Wakes the worker if it sleeps or is about to. Called after the work was made visible.
    ///
    /// Says whether it was asleep, and so whether a system call was made.
    #[inline]
    pub fn wake(&self) -> bool {
        let Some(bed) = &self.bed else { return false };
        // Release: a worker whose exchange comes later sees what was pushed before.
        let asleep = bed.0.swap(AWAKE, Ordering::Release) == ASLEEP;
        if asleep {
            bed.0.wake();
        }
        asleep
    }
}
