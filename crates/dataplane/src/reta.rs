//! The trace NIC's bucket table, with updates that take effect late, as a NIC's do.

use crate::clock::Clock;
use crate::port::{Reta, RetaError};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
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
    changes: Mutex<Changes>,
    delay: Nanos,
}

/// The tables, and who has read up to where.
#[derive(Debug)]
struct Changes {
    /// How many older ones have been forgotten.
    forgotten: usize,
    kept: VecDeque<Change>,
    /// For each view that there is, how many changes it has read. A view that is gone is too.
    readers: Vec<Weak<AtomicUsize>>,
}

impl Changes {
    /// Forgets what every view has read, but for the last one, with which new views start.
    fn trim(&mut self) {
        self.readers.retain(|reader| reader.strong_count() > 0);
        let read = self.readers.iter().filter_map(Weak::upgrade);
        let read = read.map(|read| read.load(Ordering::Relaxed)).min();
        let read = read.unwrap_or(usize::MAX);
        while self.kept.len() > 1 && self.forgotten < read {
            self.kept.pop_front();
            self.forgotten += 1;
        }
    }
}

impl RetaHistory {
    pub(crate) fn new(first: Reta, delay: Nanos) -> RetaHistory {
        RetaHistory {
            version: AtomicU64::new(0),
            changes: Mutex::new(Changes {
                forgotten: 0,
                kept: [(Nanos::ZERO, Box::new(first))].into(),
                readers: Vec::new(),
            }),
            delay,
        }
    }

    /// Installs a table; it holds for packets that arrive from the returned time on.
    pub(crate) fn update(&self, table: Reta, clock: &Clock) -> Result<Nanos, RetaError> {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.version.fetch_add(1, Ordering::SeqCst);
        // Well ahead of any reading of the clock that is still on its way through a processor.
        let effective = clock.now() + self.delay.max(Nanos::from_micros(1));
        changes.trim();
        changes.kept.push_back((effective, Box::new(table)));
        self.version.fetch_add(1, Ordering::SeqCst);
        Ok(effective)
    }
}

/// One queue's view of the table.
#[derive(Debug)]
pub(crate) struct RetaView {
    history: Arc<RetaHistory>,
    version: u64,
    /// How many of the history's changes have been copied, for the history to see.
    known: Arc<AtomicUsize>,
    current: Box<Reta>,
    pending: VecDeque<Change>,
}

impl RetaView {
    pub(crate) fn new(history: Arc<RetaHistory>) -> RetaView {
        let known = Arc::new(AtomicUsize::new(0));
        let mut changes = history
            .changes
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        changes.readers.push(Arc::downgrade(&known));
        drop(changes);
        let mut view = RetaView {
            history,
            version: u64::MAX,
            known,
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
        let known = self.known.load(Ordering::Relaxed);
        let new = changes
            .kept
            .iter()
            .skip(known.saturating_sub(changes.forgotten));
        self.pending.extend(new.cloned());
        self.known
            .store(changes.forgotten + changes.kept.len(), Ordering::Relaxed);
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

    /// Every table there had ever been was kept, a kilobyte for each update.
    #[test]
    fn tables_that_every_queue_has_read_are_forgotten() {
        let clock = Clock::start();
        let history = Arc::new(RetaHistory::new(round_robin(2), Nanos::from_micros(1)));
        let mut views = [0, 1].map(|_| RetaView::new(Arc::clone(&history)));
        for update in 0..100u16 {
            let effective = history.update([update % 2; _], &clock).unwrap();
            for view in &mut views {
                view.refresh();
                assert_eq!(view.queue_of(0, effective), update % 2);
            }
        }
        assert!(history.changes.lock().unwrap().kept.len() <= 2);
        // A queue that is behind still sees every table in its time.
        let [mut behind, _] = views;
        let effective: Vec<_> = (0..10u16)
            .map(|update| history.update([update % 2; _], &clock).unwrap())
            .collect();
        behind.refresh();
        for (update, effective) in effective.into_iter().enumerate() {
            assert_eq!(usize::from(behind.queue_of(0, effective)), update % 2);
        }
    }
}
