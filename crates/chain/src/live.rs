//! What can be changed while workers run: rules, keys, backends. A new version is made off the data path and
//! swapped in between batches.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A value with its version's number.
#[derive(Debug)]
pub struct Version<T> {
    /// A number as [`NetworkFunction::version`](crate::function::NetworkFunction::version) may be.
    pub number: u32,
    /// What is in force.
    pub value: T,
}

/// A value that all workers use and that can be replaced under them. They look at the number once a batch, and
/// at the value behind the lock only when the number has changed.
#[derive(Debug)]
pub struct Live<T> {
    number: AtomicU32,
    /// Locked for the moment of an exchange only.
    current: RwLock<Arc<Version<T>>>,
    /// Versions that workers may still hold: so that none of them is the last, and has to free it.
    retired: Mutex<Vec<Arc<Version<T>>>>,
}

impl<T> Live<T> {
    /// The first version.
    pub fn new(value: T) -> Live<T> {
        Live {
            number: AtomicU32::new(1),
            current: RwLock::new(Arc::new(Version { number: 1, value })),
            retired: Mutex::default(),
        }
    }

    /// Replaces the value; workers see it with their next batch. Returns the new version's number. Versions that no
    /// worker holds any more are freed by a later replacement.
    pub fn replace(&self, value: T) -> u32 {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let number = number_after(self.number());
        let version = Arc::new(Version { number, value });
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *current, version);
        // Still under the lock: whoever sees the number finds this version or a later one.
        self.number.store(number, Ordering::Release);
        drop(current);
        retired.retain(|version| Arc::strong_count(version) > 1);
        retired.push(old);
        number
    }

    /// Frees versions that no worker holds any more, as a replacement does: before it, that takes no time of its own.
    pub fn free_unheld(&self) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.retain(|version| Arc::strong_count(version) > 1);
    }

    /// The number of the present version.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Acquire)
    }

    /// The present version.
    pub fn current(&self) -> Arc<Version<T>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    /// Has a worker hold the present version.
    #[inline]
    pub fn refresh(&self, held: &mut Arc<Version<T>>) {
        if self.number() != held.number {
            self.fetch(held);
        }
    }

    #[cold]
    fn fetch(&self, held: &mut Arc<Version<T>>) {
        *held = self.current();
    }
}

/// The number of the version that follows: the first after the last that a function may have.
pub fn number_after(number: u32) -> u32 {
    if number >= u32::MAX - 1 {
        return 1;
    }
    number + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_keep_what_they_hold_until_they_refresh() {
        let live = Live::new("one");
        let mut held = live.current();
        assert_eq!(live.replace("two"), 2);
        assert_eq!(held.value, "one");
        live.refresh(&mut held);
        assert_eq!((held.number, held.value), (2, "two"));
        // Nobody holds the first any more: it goes with the next replacement.
        live.replace("three");
        assert_eq!(live.retired.lock().unwrap().len(), 1);
        // Or before it, but not while somebody holds it.
        live.free_unheld();
        assert_eq!(live.retired.lock().unwrap().len(), 1);
        live.refresh(&mut held);
        live.free_unheld();
        assert_eq!(live.retired.lock().unwrap().len(), 0);
    }

    #[test]
    fn numbers_are_those_that_versions_may_have() {
        assert_eq!(number_after(1), 2);
        assert_eq!(number_after(u32::MAX - 2), u32::MAX - 1);
        assert_eq!(number_after(u32::MAX - 1), 1);
    }
}
