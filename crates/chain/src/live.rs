//! Configuration that can change while workers run: rules, keys, backends. A new version is built off the data path and
//! swapped in between batches.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Value with its version number.
#[derive(Debug)]
pub struct Version<T> {
    /// Version number, in the range of [`NetworkFunction::version`](crate::function::NetworkFunction::version).
    pub number: u32,
    /// Value of this version.
    pub value: T,
}

/// Replaceable value that all workers share. They read the version number once a batch, and take the lock on the value
/// only when the number has changed.
#[derive(Debug)]
pub struct Live<T> {
    number: AtomicU32,
    /// Locked only for the duration of a swap.
    current: RwLock<Arc<Version<T>>>,
    /// Versions that workers may still hold. Keeping them here means that no worker drops the last reference and frees
    /// it.
    retired: Mutex<Vec<Arc<Version<T>>>>,
}

impl<T> Live<T> {
    /// Creates the first version.
    pub fn new(value: T) -> Live<T> {
        Live {
            number: AtomicU32::new(1),
            current: RwLock::new(Arc::new(Version { number: 1, value })),
            retired: Mutex::default(),
        }
    }

    /// Replaces the value; workers use it from their next batch on. Returns the new version's number. A later
    /// replacement frees versions that no worker holds any more.
    pub fn replace(&self, value: T) -> u32 {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        let number = number_after(self.number());
        let version = Arc::new(Version { number, value });
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *current, version);
        // Still under the lock: a reader of this number finds this version or a later one.
        self.number.store(number, Ordering::Release);
        drop(current);
        retired.retain(|version| Arc::strong_count(version) > 1);
        retired.push(old);
        number
    }

    /// Frees versions that no worker holds any more, so that the next replacement need not spend time on it.
    pub fn free_unused(&self) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.retain(|version| Arc::strong_count(version) > 1);
    }

    /// Number of the current version.
    #[inline]
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Acquire)
    }

    /// Current version.
    pub fn current(&self) -> Arc<Version<T>> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }

    /// Updates a worker's reference to the current version.
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

/// Number of the next version; after the last valid number, it wraps to the first.
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
        // The first version has no holder any more: the next replacement frees it.
        live.replace("three");
        assert_eq!(live.retired.lock().unwrap().len(), 1);
        // So does an explicit call, but not while the version has a holder.
        live.free_unused();
        assert_eq!(live.retired.lock().unwrap().len(), 1);
        live.refresh(&mut held);
        live.free_unused();
        assert_eq!(live.retired.lock().unwrap().len(), 0);
    }

    #[test]
    fn numbers_are_those_that_versions_may_have() {
        assert_eq!(number_after(1), 2);
        assert_eq!(number_after(u32::MAX - 2), u32::MAX - 1);
        assert_eq!(number_after(u32::MAX - 1), 1);
    }
}
