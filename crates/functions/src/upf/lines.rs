//! Cache lines of atomic numbers.

use std::sync::atomic::AtomicU64;
use tailwater_chain::shared_counters::{CounterArray, SharedCounters};

/// Numbers per cache line.
pub(super) const WORDS: usize = 8;

/// Cache line.
pub(super) type Line = [AtomicU64; WORDS];

/// Cache lines, populated at once: no packet incurs a page fault.
#[derive(Debug)]
pub(super) struct Lines(CounterArray);

impl Lines {
    /// Takes `count` lines of zeros from the counters.
    pub(super) fn new(count: usize, shared_counters: &SharedCounters) -> Lines {
        Lines(shared_counters.take(count * WORDS))
    }

    /// Returns the bytes of counters for `count` lines.
    pub(super) fn shared_bytes(count: usize) -> usize {
        SharedCounters::bytes_of(count * WORDS)
    }

    /// Returns the number of lines.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.0.len() / WORDS
    }

    /// Returns line `at`.
    #[inline]
    pub(super) fn get(&self, at: usize) -> Option<&Line> {
        self.0.as_chunks().0.get(at)
    }

    /// Returns line `at`.
    ///
    /// # Panics
    /// If it does not exist.
    #[inline]
    pub(super) fn line(&self, at: usize) -> &Line {
        &self.0.as_chunks().0[at]
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }
}
