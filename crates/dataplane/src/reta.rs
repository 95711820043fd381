//! RETA of the trace NIC, with updates that take effect late, as a NIC's do.

use crate::clock::Clock;
use crate::port::{Reta, RetaError};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tailwater_handover::scheduled_switch::ScheduledSwitch;
use tailwater_net::Nanos;

/// Table, and the arrival time from which it applies.
#[derive(Debug)]
struct Change {
    table: Reta,
    holds: ScheduledSwitch,
    /// Next change.
    next: OnceLock<Arc<Change>>,
}

/// Tables from the oldest one that some queue still uses.
///
/// Each queue sorts arrivals by the table in force **at the packet's arrival**. So all queues agree on each packet's
/// owner, whenever they poll: no packet is received twice or not at all. For that a queue must have seen every change
/// that takes effect up to its `now`, which [`ScheduledSwitch`] guarantees without a lock. Queues follow an append-only
/// list and never free its entries. The next update frees changes that all of them have passed.
#[derive(Debug)]
pub(crate) struct RetaHistory {
    /// Locked by updates, and by the creation of queues.
    stored: Mutex<StoredVersion>,
    delay: Nanos,
}

#[derive(Debug)]
struct StoredVersion {
    /// Never empty.
    changes: VecDeque<Arc<Change>>,
    /// Effective time of the last change.
    last: Nanos,
}

impl StoredVersion {
    /// Frees changes that every queue has passed. The table in force at `now` stays: a queue that is created later
    /// begins with it.
    fn trim(&mut self, now: Nanos) {
        let is_in_force = |change: &Change| change.holds.at(now.0).is_some_and(|at| at <= now.0);
        // Its predecessor is gone, so no further queue can reach it.
        while self.changes.len() > 1 && Arc::strong_count(&self.changes[0]) == 1 && is_in_force(&self.changes[1]) {
            self.changes.pop_front();
        }
    }
}

impl RetaHistory {
    pub(crate) fn new(first: Reta, delay: Nanos) -> RetaHistory {
        let first = Change {
            table: first,
            holds: ScheduledSwitch::settled(0),
            next: OnceLock::new(),
        };
        RetaHistory {
            stored: Mutex::new(StoredVersion {
                changes: [Arc::new(first)].into(),
                last: Nanos::ZERO,
            }),
            delay,
        }
    }

    fn lock(&self) -> MutexGuard<'_, StoredVersion> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Installs a table. It applies to packets that arrive from the returned time on.
    pub(crate) fn update(&self, table: Reta, clock: &Clock) -> Result<Nanos, RetaError> {
        let mut kept = self.lock();
        kept.trim(clock.now());
        let change = Arc::new(Change {
            table,
            holds: ScheduledSwitch::new(),
            next: OnceLock::new(),
        });
        if let Some(last) = kept.changes.back() {
            let linked = last.next.set(Arc::clone(&change));
            assert!(linked.is_ok(), "the last change has none after it");
        }
        let now = || clock.now().0;
        // Each table is in force for some time, however short.
        let earliest = kept.last.0 + 1;
        kept.last = Nanos(change.holds.settle(self.delay.0, earliest, now));
        kept.changes.push_back(change);
        Ok(kept.last)
    }
}

/// View of the table by one queue.
#[derive(Debug)]
pub(crate) struct RetaView {
    /// Table in force at the last arrival.
    current: Arc<Change>,
    /// Effective time of the next one, as known at the last refresh.
    next_at: Nanos,
    now: Nanos,
    /// Declared after `current`, so no view is the last to hold a change.
    _history: Arc<RetaHistory>,
}

impl RetaView {
    pub(crate) fn new(history: Arc<RetaHistory>) -> RetaView {
        let current = Arc::clone(&history.lock().changes[0]);
        RetaView {
            current,
            next_at: Nanos::MAX,
            now: Nanos::ZERO,
            _history: history,
        }
    }

    /// Reads updates. Call it after reading `now` from the clock and before sorting arrivals up to then.
    #[inline]
    pub(crate) fn refresh(&mut self, now: Nanos) {
        self.now = now;
        self.next_at = match self.current.next.get() {
            None => Nanos::MAX,
            Some(next) => next.holds.at(now.0).map_or(Nanos::MAX, Nanos),
        };
    }

    /// Queue of a bucket for a packet that arrives at `arrival`. Arrivals must not decrease, nor exceed the last
    /// refresh.
    #[inline]
    pub(crate) fn queue_of(&mut self, bucket: u16, arrival: Nanos) -> u16 {
        while self.next_at <= arrival {
            self.go_on();
        }
        let table = &self.current.table;
        table[usize::from(bucket) % table.len()]
    }

    /// Advances to the next change.
    #[cold]
    fn go_on(&mut self) {
        if let Some(next) = self.current.next.get() {
            // The history still holds the previous change: nothing is freed here.
            self.current = Arc::clone(next);
        }
        self.refresh(self.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::round_robin;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A queue that was created while no other one existed began with a table that was not in force yet.
    #[test]
    fn a_queue_that_is_created_between_updates_begins_with_the_table_in_force() {
        let clock = Clock::start();
        let history = Arc::new(RetaHistory::new([0; _], Nanos::from_secs(3600)));
        for queue in [1, 2] {
            history.update([queue; _], &clock).unwrap();
        }
        let mut view = RetaView::new(Arc::clone(&history));
        let now = clock.now();
        view.refresh(now);
        assert_eq!(view.queue_of(7, now), 0);
    }

    #[test]
    fn updates_take_effect_at_their_time() {
        let clock = Clock::start();
        let history = Arc::new(RetaHistory::new(round_robin(2), Nanos::from_millis(2)));
        let mut view = RetaView::new(Arc::clone(&history));
        assert_eq!((view.queue_of(0, Nanos(0)), view.queue_of(1, Nanos(5))), (0, 1));
        let before = clock.now();
        let effective = history.update([1; _], &clock).unwrap();
        assert!(effective >= before + Nanos::from_millis(2));
        view.refresh(effective);
        assert_eq!(view.queue_of(0, effective - Nanos(1)), 0);
        assert_eq!(view.queue_of(0, effective), 1);
        // A view created later reads the whole history.
        let mut late = RetaView::new(history);
        late.refresh(effective);
        assert_eq!(late.queue_of(0, effective - Nanos(1)), 0);
        assert_eq!(late.queue_of(0, effective), 1);
    }

    /// Regression: every table ever installed was kept, a kilobyte per update.
    #[test]
    fn tables_that_every_queue_has_left_are_forgotten() {
        let clock = Clock::start();
        let history = Arc::new(RetaHistory::new(round_robin(2), Nanos::from_micros(1)));
        let mut views = [0, 1].map(|_| RetaView::new(Arc::clone(&history)));
        for update in 0..100u16 {
            let effective = history.update([update % 2; _], &clock).unwrap();
            for view in &mut views {
                view.refresh(effective);
                assert_eq!(view.queue_of(0, effective), update % 2);
            }
            // A table stays until the next one is in force.
            while clock.now() < effective {}
        }
        assert!(history.lock().changes.len() <= 2);
        // A queue that is behind still uses every table in its time.
        let [mut behind, _] = views;
        let effective: Vec<_> = (0..20_000)
            .map(|update| history.update([update as u16 % 2; _], &clock).unwrap())
            .collect();
        assert!(effective.is_sorted_by(|a, b| a < b));
        behind.refresh(effective[effective.len() - 1]);
        for (update, effective) in effective.into_iter().enumerate() {
            assert_eq!(usize::from(behind.queue_of(0, effective)), update % 2);
        }
        // Dropping a long list does not recurse.
        drop(history);
        drop(behind);
    }

    /// Queues poll continuously while tables change as fast as possible. At every poll they use the table in force at
    /// that time.
    #[test]
    fn queues_go_by_the_table_of_the_time() {
        let clock = Clock::start();
        let history = Arc::new(RetaHistory::new([0; _], Nanos::from_micros(1)));
        let over = AtomicBool::new(false);
        let (tables, seen) = std::thread::scope(|scope| {
            let look = || {
                let mut view = RetaView::new(Arc::clone(&history));
                let mut seen = Vec::new();
                while !over.load(Ordering::Relaxed) && seen.len() < 1 << 20 {
                    let now = clock.now();
                    view.refresh(now);
                    seen.push((now, view.queue_of(7, now)));
                }
                seen
            };
            let queues = [scope.spawn(look), scope.spawn(look)];
            let mut tables = vec![(Nanos::ZERO, 0)];
            for queue in 1..5_000 {
                tables.push((history.update([queue; _], &clock).unwrap(), queue));
            }
            over.store(true, Ordering::Relaxed);
            (tables, queues.map(|queue| queue.join().unwrap()))
        });
        for (now, queue) in seen.into_iter().flatten() {
            let at = tables.partition_point(|(effective, _)| *effective <= now);
            assert_eq!(queue, tables[at - 1].1, "at {now}");
        }
    }
}
