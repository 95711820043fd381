//! Counters of losses, shared by workers and a writer thread.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

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

/// Records of a file that its instances of a function sent and the file did not take. Instances count them: each while
/// packets arrive, and the last to end those that the end of the file reveals.
#[derive(Debug, Default)]
pub(crate) struct UnwrittenRecords {
    /// Records lost and not yet counted by an instance.
    uncounted: LossCounters<1>,
    /// Records lost since the start.
    lost: AtomicU64,
    /// Records in the file.
    written: AtomicU64,
    /// Records sent by instances that have ended.
    sent: AtomicU64,
    /// Instances that may send more records.
    instances: AtomicUsize,
}

impl UnwrittenRecords {
    /// Registers an instance.
    pub(crate) fn register(&self) {
        self.instances.fetch_add(1, Ordering::Relaxed);
    }

    /// Deregisters an instance, which has sent this many records. Returns `true` for the last one.
    pub(crate) fn deregister(&self, sent: u64) -> bool {
        self.sent.fetch_add(sent, Ordering::Relaxed);
        self.instances.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Adds records that are in the file, and lost ones.
    pub(crate) fn add(&self, written: u64, lost: u64) {
        self.written.fetch_add(written, Ordering::Relaxed);
        if lost > 0 {
            self.lost.fetch_add(lost, Ordering::Relaxed);
            self.uncounted.add([lost]);
        }
    }

    /// Returns and resets the number of lost records that no instance has counted.
    #[inline]
    pub(crate) fn take(&self) -> u64 {
        let [lost] = self.uncounted.take();
        lost
    }

    /// Same as [`take`](UnwrittenRecords::take), after all instances and the file have ended. Includes the records that
    /// a file that hangs still holds.
    pub(crate) fn take_last(&self) -> u64 {
        let [sent, written, lost] = [&self.sent, &self.written, &self.lost].map(|count| count.load(Ordering::Relaxed));
        let held = sent.saturating_sub(written).saturating_sub(lost);
        self.lost.fetch_add(held, Ordering::Relaxed);
        self.take() + held
    }

    /// Returns the number of lost records.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}
