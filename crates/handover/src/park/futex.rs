//! Futex: a word that a thread can sleep on.

use crate::sync::{AtomicU32, Ordering};
use std::time::Duration;

/// Futex word.
#[derive(Debug)]
pub(super) struct Futex {
    word: AtomicU32,
    #[cfg(loom)]
    queue: (loom::sync::Mutex<()>, loom::sync::Condvar),
}

impl Futex {
    pub(super) fn new(value: u32) -> Futex {
        Futex {
            word: AtomicU32::new(value),
            #[cfg(loom)]
            queue: (loom::sync::Mutex::new(()), loom::sync::Condvar::new()),
        }
    }

    /// Exchanges the word and returns its previous value.
    #[inline]
    pub(super) fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.word.swap(value, order)
    }
}

#[cfg(not(loom))]
impl Futex {
    /// Sleeps until woken or for `bound`, if the word is `expected` at the moment of falling asleep. Spurious returns
    /// are possible.
    pub(super) fn wait(&self, expected: u32, bound: Duration) {
        use rustix::thread::futex::{Flags, Timespec, wait};
        let bound = Timespec {
            tv_sec: bound.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: bound.subsec_nanos().into(),
        };
        // Woken, value changed, interrupted or timed out: the caller checks for itself.
        let _ = wait(&self.word, Flags::PRIVATE, expected, Some(&bound));
    }

    /// Wakes the thread that sleeps on the word, if there is one.
    pub(super) fn wake(&self) {
        use rustix::thread::futex::{Flags, wake};
        // Fails only for an unmapped address.
        let _ = wake(&self.word, Flags::PRIVATE, 1);
    }
}

/// Model of the kernel's futex: the word is compared under the lock of the wait queue. Under the model checker no
/// thread wakes spuriously, so a lost wake-up is a deadlock.
#[cfg(loom)]
impl Futex {
    pub(super) fn wait(&self, expected: u32, _bound: Duration) {
        let queue = self.queue.0.lock().unwrap();
        if self.word.load(Ordering::Relaxed) == expected {
            drop(self.queue.1.wait(queue).unwrap());
        }
    }

    pub(super) fn wake(&self) {
        drop(self.queue.0.lock().unwrap());
        self.queue.1.notify_one();
    }
}
