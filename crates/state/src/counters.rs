//! What keepers count.

use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_net::Nanos;

/// What a worker's keeper did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Flows that were asked for.
    pub reads: u64,
    /// Of those, flows of which something was found.
    pub hits: u64,
    /// Keys that a function wished to open and that were somebody's.
    pub taken: u64,
    /// Changes of flows' state that were written; several of one flow while a request waits count each.
    pub updates: u64,
    /// Flows written again since the store had missed or forgotten them.
    pub rewritten: u64,
    /// Changes for which there was no room; they were written later, with the flow's next one or by a search.
    pub missed: u64,
    /// Flows forgotten, since they were idle for too long.
    pub forgotten: u64,
    /// Packets that passed without what they waited for.
    pub passed: u64,
    /// Packets that were dropped for want of what they waited for.
    pub dropped: u64,
    /// The most packets that waited at a time.
    pub most_waiting: u64,
    /// For how long the store was away.
    pub away: Nanos,
}

impl Counters {
    /// Adds what another worker's keeper did.
    pub fn add(&mut self, other: &Counters) {
        self.reads += other.reads;
        self.hits += other.hits;
        self.taken += other.taken;
        self.updates += other.updates;
        self.rewritten += other.rewritten;
        self.missed += other.missed;
        self.forgotten += other.forgotten;
        self.passed += other.passed;
        self.dropped += other.dropped;
        self.most_waiting = self.most_waiting.max(other.most_waiting);
        self.away = self.away.max(other.away);
    }
}

/// The same, as far as others want to know while the run lasts: plain numbers, each as of the last turn.
#[derive(Debug, Default)]
pub struct Shared {
    /// As [`Counters::reads`].
    pub reads: AtomicU64,
    /// As [`Counters::hits`].
    pub hits: AtomicU64,
    /// As [`Counters::updates`].
    pub updates: AtomicU64,
    /// As [`Counters::passed`].
    pub passed: AtomicU64,
    /// As [`Counters::dropped`].
    pub dropped: AtomicU64,
    /// Packets that wait.
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
