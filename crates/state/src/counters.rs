//! Counters of keepers.

use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_net::Nanos;

/// Counters of one worker's keeper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Flows requested from the store.
    pub reads: u64,
    /// Requested flows for which the store had state.
    pub hits: u64,
    /// Keys that a function wanted to open and that were in use already.
    pub taken: u64,
    /// Changes of flow state written. Several changes of one flow within a request count separately.
    pub updates: u64,
    /// Flows written again because the store had missed or lost them.
    pub rewritten: u64,
    /// Changes without room in a request. They were written later, with the flow's next change or by a search.
    pub missed: u64,
    /// Changes that the store refused, since another instance has the flow or its port.
    pub refused: u64,
    /// Flows deleted because they expired.
    pub forgotten: u64,
    /// Packets that continued without the answer they waited for.
    pub passed: u64,
    /// Packets dropped for lack of the answer they waited for.
    pub dropped: u64,
    /// Maximum number of packets that waited at a time.
    pub most_waiting: u64,
    /// Time for which the store was unavailable.
    pub away: Nanos,
}

impl Counters {
    /// Adds the counters of another worker's keeper.
    pub fn add(&mut self, other: &Counters) {
        self.reads += other.reads;
        self.hits += other.hits;
        self.taken += other.taken;
        self.updates += other.updates;
        self.rewritten += other.rewritten;
        self.missed += other.missed;
        self.refused += other.refused;
        self.forgotten += other.forgotten;
        self.passed += other.passed;
        self.dropped += other.dropped;
        self.most_waiting = self.most_waiting.max(other.most_waiting);
        self.away = self.away.max(other.away);
    }
}

/// Subset of the counters that other threads read during the run, updated once per turn.
#[derive(Debug, Default)]
pub struct Shared {
    /// Same as [`Counters::reads`].
    pub reads: AtomicU64,
    /// Same as [`Counters::hits`].
    pub hits: AtomicU64,
    /// Same as [`Counters::updates`].
    pub updates: AtomicU64,
    /// Same as [`Counters::passed`].
    pub passed: AtomicU64,
    /// Same as [`Counters::dropped`].
    pub dropped: AtomicU64,
    /// Packets waiting now.
    pub waiting: AtomicU64,
}

impl Shared {
    #[inline]
    pub(crate) fn publish(&self, counters: &Counters, waiting: u64) {
        let set = |to: &AtomicU64, value| to.store(value, Ordering::Relaxed);
        set(&self.reads, counters.reads);
        set(&self.hits, counters.hits);
        set(&self.updates, counters.updates);
        set(&self.passed, counters.passed);
        set(&self.dropped, counters.dropped);
        set(&self.waiting, waiting);
    }
}
