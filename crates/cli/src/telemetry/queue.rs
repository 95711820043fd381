//! Records that wait to be sent, and counts of those that were sent or dropped.

use crate::metrics::LateExemplar;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Most records of a signal that wait. More are dropped and counted.
pub(super) const WAITING: usize = 2048;
/// Late packets that are exemplars of latencies.
const EXEMPLARS: usize = 64;
/// Most records in a request.
const BATCH: usize = 512;

/// Names of the signals, by their numbers.
pub const SIGNALS: [&str; 2] = ["logs", "traces"];
/// Number of the signal of events.
pub(super) const LOGS: usize = 0;
/// Number of the signal of packet traces.
pub(super) const SPANS: usize = 1;

/// Names of the reasons for which records are dropped, by their numbers.
pub const DROP_REASONS: [&str; 3] = ["queue-full", "refused", "unreachable"];

/// Reason for which records are dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dropped {
    /// Too many waited.
    QueueFull,
    /// The collector refused them.
    Refused,
    /// The collector could not be reached in time.
    Unreachable,
}

/// Counts of records, and late packets whose traces are among them.
#[derive(Debug, Default)]
pub struct Counts {
    late: Mutex<VecDeque<LateExemplar>>,
    sent: [AtomicU64; 2],
    dropped: [[AtomicU64; 3]; 2],
}

impl Counts {
    /// Records of a signal that a collector has accepted.
    pub fn sent(&self, signal: usize) -> u64 {
        self.sent[signal].load(Ordering::Relaxed)
    }

    /// Records of a signal that were dropped for a reason.
    pub fn dropped(&self, signal: usize, reason: usize) -> u64 {
        self.dropped[signal][reason].load(Ordering::Relaxed)
    }

    /// Records that were dropped for any reason.
    pub fn all_dropped(&self) -> u64 {
        self.dropped
            .iter()
            .flatten()
            .map(|count| count.load(Ordering::Relaxed))
            .sum()
    }
}

impl Counts {
    /// Late packets with traces, in the order of their departures.
    pub fn late(&self) -> Vec<LateExemplar> {
        let late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        late.iter().cloned().collect()
    }

    /// Adds a late packet. The oldest one is forgotten if there are too many.
    pub(super) fn add_late(&self, packet: LateExemplar) {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        if late.len() == EXEMPLARS {
            late.pop_front();
        }
        late.push_back(packet);
    }

    pub(super) fn drop_records(&self, signal: usize, reason: Dropped, records: u64) {
        self.dropped[signal][reason as usize].fetch_add(records, Ordering::Relaxed);
    }
}

/// Records of a signal, as JSON.
#[derive(Debug)]
pub(super) struct Queue {
    signal: usize,
    waiting: Mutex<VecDeque<String>>,
    counts: Arc<Counts>,
}

impl Queue {
    pub(super) fn new(signal: usize, counts: Arc<Counts>) -> Queue {
        Queue {
            signal,
            waiting: Mutex::default(),
            counts,
        }
    }

    /// Number of the signal.
    pub(super) fn signal(&self) -> usize {
        self.signal
    }

    /// Adds a record, or drops it if there are too many.
    pub(super) fn push(&self, record: String) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match waiting.len() < WAITING {
            true => waiting.push_back(record),
            false => self.count_dropped(Dropped::QueueFull, 1),
        }
    }

    /// Takes the oldest records, as many as a request has at most.
    pub(super) fn take(&self) -> Vec<String> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let count = waiting.len().min(BATCH);
        waiting.drain(..count).collect()
    }

    /// Drops what still waits.
    pub(super) fn give_up(&self) {
        let left = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        self.count_dropped(Dropped::Unreachable, left.len() as u64);
    }

    pub(super) fn count_sent(&self, records: u64) {
        self.counts.sent[self.signal].fetch_add(records, Ordering::Relaxed);
    }

    pub(super) fn count_dropped(&self, reason: Dropped, records: u64) {
        self.counts.drop_records(self.signal, reason, records);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let counts = Arc::<Counts>::default();
        let queue = Queue::new(SPANS, Arc::clone(&counts));
        (0..WAITING + 3).for_each(|number| queue.push(number.to_string()));
        assert_eq!(counts.dropped(SPANS, Dropped::QueueFull as usize), 3);
        let batch = queue.take();
        assert_eq!(
            (batch.len(), batch[0].as_str(), batch[BATCH - 1].as_str()),
            (BATCH, "0", "511")
        );
        queue.count_sent(BATCH as u64);
        queue.give_up();
        assert!(queue.take().is_empty());
        let left = counts.dropped(SPANS, Dropped::Unreachable as usize) as usize;
        assert_eq!(
            (left, counts.sent(SPANS), counts.sent(LOGS)),
            (WAITING - BATCH, BATCH as u64, 0)
        );
    }
}
