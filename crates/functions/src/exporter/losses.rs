//! Counters of losses, shared by workers and a writer thread.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of what was lost. Any thread adds; a worker takes the sums into its own counters.
#[derive(Debug)]
pub(crate) struct LossCounters<const N: usize>([AtomicU64; N]);

impl<const N: usize> LossCounters<N> {
    /// Adds to each counter.
    pub(crate) fn add(&self, lost: [u64; N]) {
        for (sum, lost) in self.0.iter().zip(lost) {
            sum.fetch_add(lost, Ordering::Relaxed);
        }
    }

    /// Returns the counters.
    pub(crate) fn get(&self) -> [u64; N] {
        self.0.each_ref().map(|sum| sum.load(Ordering::Relaxed))
    }

    /// Returns and resets the counters. Writes no memory while they are 0, as they almost always are.
    #[inline]
    pub(crate) fn take(&self) -> [u64; N] {
        self.0.each_ref().map(|sum| match sum.load(Ordering::Relaxed) {
            0 => 0,
            _ => sum.swap(0, Ordering::Relaxed),
        })
    }
}

impl<const N: usize> Default for LossCounters<N> {
    fn default() -> Self {
        LossCounters([const { AtomicU64::new(0) }; N])
    }
}
