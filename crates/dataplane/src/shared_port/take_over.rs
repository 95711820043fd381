//! Take-over of a shared port by another process, and from one.

use super::poller::PollerCounters;
use super::{SharedPort, SharedPortCounts};
use crate::port::{PassedSockets, QueuePosition, TrafficIdentity};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

impl SharedPort {
    /// Traffic that another process can continue; `None` if the port is a device.
    pub fn identity(&self) -> Option<TrafficIdentity> {
        self.lock_port().identity()
    }

    /// Sockets by which another process can continue the port, if it needs any.
    ///
    /// # Errors
    /// If this process has too many descriptors.
    pub fn sockets(&self) -> io::Result<PassedSockets> {
        self.lock_port().sockets()
    }

    /// Lets packets wait in the port. Returns once all pollers do. Packets that they have received are in the chains'
    /// rings then.
    pub fn pause(&self) {
        self.control.on_pollers(Arc::new(|_, poller| poller.pause()));
    }

    /// Polls again. Packets that have waited are delivered as fast as the chains process them, and none is lost by the
    /// pause unless that takes seconds.
    pub fn unpause(&self) {
        let clock = self.clock.clone();
        let unpause = move |_: usize, poller: &mut super::Poller| poller.unpause(clock.now());
        self.control.on_pollers(Arc::new(unpause));
    }

    /// Positions of all pollers' queues; `None` if a queue has none.
    pub fn positions(&self) -> Option<Vec<QueuePosition>> {
        let found = Arc::new(Mutex::new(vec![None; self.progress.len()]));
        let write = Arc::clone(&found);
        self.control.on_pollers(Arc::new(move |number, poller| {
            let mut found = write.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(found) = found.get_mut(number) {
                *found = poller.position();
            }
        }));
        let found = std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner));
        found.into_iter().collect()
    }

    /// Continues at the positions of another process's queues, also of another number of pollers. Returns `false` if
    /// they are none of this traffic.
    pub fn continue_at(&self, positions: Vec<QueuePosition>) -> bool {
        let Some(positions) = self.lock_port().divide(positions) else {
            return false;
        };
        let are_known = Arc::new(AtomicBool::new(positions.len() == self.progress.len()));
        let known = Arc::clone(&are_known);
        self.control.on_pollers(Arc::new(move |number, poller| {
            let position = positions.get(number);
            if !position.is_some_and(|position| poller.continue_at(position)) {
                known.store(false, Ordering::Relaxed);
            }
        }));
        are_known.load(Ordering::Relaxed)
    }

    /// Leaves what waits in the port to another process.
    pub fn leave(&self) {
        self.control.on_pollers(Arc::new(|_, poller| poller.leave()));
    }

    /// Adds the counts of the process that this one has taken over from.
    pub fn add_counts(&self, counts: SharedPortCounts) {
        *self.before.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    /// Packets that waited in a pause and have been received.
    pub fn waited(&self) -> u64 {
        let waited = |own: &Arc<PollerCounters>| own.waited.load(Ordering::Relaxed);
        self.counters.iter().map(waited).sum()
    }
}
