//! Worker's end of a ring.

use super::sink::Sink;
use super::state::ExporterState;
use std::sync::Arc;
use tailwater_handover::ring::Producer;

/// Worker's sender to an exporter's thread. Sending takes no lock and allocates nothing.
#[derive(Debug)]
pub(crate) struct Sender<S: Sink> {
    ring: Producer<S::Record>,
    state: Arc<ExporterState<S>>,
    /// Records since the thread was last woken.
    since_wake: u32,
}

impl<S: Sink> Sender<S> {
    pub(super) fn new(ring: Producer<S::Record>, state: Arc<ExporterState<S>>) -> Sender<S> {
        Sender {
            ring,
            state,
            since_wake: 0,
        }
    }

    /// Sends a record. Returns `false` if it is lost because the ring is full.
    #[inline]
    #[must_use]
    pub(crate) fn send(&mut self, record: S::Record) -> bool {
        let has_room = self.ring.push(record).is_ok();
        if let Some(every) = S::WAKE_EVERY {
            self.since_wake += 1;
            if self.since_wake >= every {
                self.since_wake = 0;
                self.state.wake();
            }
        }
        has_room
    }

    /// Same as [`send`](Sender::send), but waits for room. The record is lost only if the thread has ended or hangs.
    #[must_use]
    pub(crate) fn send_waiting(&mut self, record: S::Record) -> bool {
        if self.ring.room(1) == 0 {
            let ring = &mut self.ring;
            self.state.wake();
            if !self.state.pulse.wait(|| ring.room(1) > 0 || ring.is_closed()) {
                return false;
            }
        }
        self.send(record)
    }

    /// Sends all records of an iterator, or none of them and returns `false` if the ring has no room for all.
    #[inline]
    #[must_use]
    pub(crate) fn send_all(&mut self, mut records: impl ExactSizeIterator<Item = S::Record>) -> bool {
        let count = records.len();
        if self.ring.room(count) < count {
            return false;
        }
        let pushed = self.ring.push_from(&mut records);
        debug_assert_eq!(pushed, count);
        true
    }

    /// Waits until `is_done` returns `true` or the thread has ended. Returns `false` if it hangs first.
    #[must_use]
    pub(crate) fn wait(&self, is_done: impl Fn() -> bool) -> bool {
        self.state.pulse.wait(|| is_done() || self.ring.is_closed())
    }
}
