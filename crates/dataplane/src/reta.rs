//! The trace NIC's bucket table, with updates that take effect late, as a NIC's do.

use crate::clock::Clock;
use crate::port::{Reta, RetaError};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tailwater_net::Nanos;

/// A table and the arrival time from which it holds.
type Change = (Nanos, Box<Reta>);

/// Every table there was, for all queues.
///
/// Each queue sorts arrivals by the table in force **at the packet's arrival**, so all queues agree
/// on whose each packet is, whenever they look: none is received twice or by nobody. For that a
/// queue must know every change that takes effect up to its `now`. An update holds the lock from
/// before it reads the clock until the change is in the list, with the count odd meanwhile; a queue
/// reads the count after its `now`. So either it sees the update (and takes the lock to read it), or
/// its `now` lies before the update's, and so before the change takes effect.
#[derive(Debug)]
pub(crate) struct RetaHistory {
    version: AtomicU64,
    changes: Mutex<Vec<Change>>,
    delay: Nanos,
}

impl RetaHistory {
    pub(crate) fn new(first: Reta, delay: Nanos) -> RetaHistory {
        RetaHistory {
            version: AtomicU64::new(0),
            changes: Mutex::new(vec![(Nanos::ZERO, Box::new(first))]),
            delay,
        }
    }

    /// Installs a table; it holds for packets that arrive from the returned time on.
    pub(crate) fn update(&self, table: Reta, clock: &Clock) -> Result<Nanos, RetaError> {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.version.fetch_add(1, Ordering::SeqCst);
        // Well ahead of any reading of the clock that is still on its way through a processor.
        let effective = clock.now() + self.delay.max(Nanos::from_micros(1));
        changes.push((effective, Box::new(table)));
        self.version.fetch_add(1, Ordering::SeqCst);
        Ok(effective)
    }
}

/// One queue's view of the table.
#[derive(Debug)]
pub(crate) struct RetaView {
    history: Arc<RetaHistory>,
    version: u64,
    /// How many of the history's changes have been copied.
    known: usize,
    current: Box<Reta>,
    pending: VecDeque<Change>,
}

impl RetaView {
    pub(crate) fn new(history: Arc<RetaHistory>) -> RetaView {
        let mut view = RetaView {
            history,
            version: u64::MAX,
            known: 0,
            current: Box::new([0; _]),
            pending: VecDeque::new(),
        };
        view.refresh();
        view.queue_of(0, Nanos::ZERO);
        view
    }

    /// Learns of updates. To be called after the clock has been read and before arrivals up to that
    /// time are sorted.
    #[inline]
    pub(crate) fn refresh(&mut self) {
        let version = self.history.version.load(Ordering::SeqCst);
        if version != self.version {
            self.copy_changes();
        }
    }

    #[cold]
    fn copy_changes(&mut self) {
        let changes = self
            .history
            .changes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Under the lock no update is under way: the count is even and belongs to this list.
        self.version = self.history.version.load(Ordering::SeqCst);
        self.pending.extend(changes[self.known..].iter().cloned());
        self.known = changes.len();
    }

    /// The queue of a bucket for a packet that arrives at `arrival`. Arrivals must not go back.
    #[inline]
    pub(crate) fn queue_of(&mut self, bucket: u16, arrival: Nanos) -> u16 {
        while let Some((effective, _)) = self.pending.front()
            && *effective <= arrival
        {
            if let Some((_, table)) = self.pending.pop_front() {
                self.current = table;
            }
        }
        self.current[usize::from(bucket) % self.current.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::round_robin;

    #[test]
    fn updates_take_effect_at_their_time() {
        let clock = Clock::start();
        let history = Arc::new(RetaHistory::new(round_robin(2), Nanos::from_millis(2)));
        let mut view = RetaView::new(Arc::clone(&history));
        assert_eq!(
            (view.queue_of(0, Nanos(0)), view.queue_of(1, Nanos(5))),
            (0, 1)
        );
        let before = clock.now();
        let effective = history.update([1; _], &clock).unwrap();
        assert!(effective >= before + Nanos::from_millis(2));
        view.refresh();
        assert_eq!(view.queue_of(0, effective - Nanos(1)), 0);
        assert_eq!(view.queue_of(0, effective), 1);
        // A view made later reads the whole history.
        let mut late = RetaView::new(history);
        assert_eq!(late.queue_of(0, effective - Nanos(1)), 0);
        assert_eq!(late.queue_of(0, effective), 1);
    }
}
