//! Order of the functions in their core's run queue: which process runs when the worker yields.
//!
//! Processes of one real-time priority (`SCHED_FIFO`) run in the order in which they were queued; a process that yields
//! moves to the end. So all take their turns in chain order, as long as all are queued when a round begins. A process
//! that slept is queued behind the others when it wakes. The others would then run before the packets have reached
//! them, and each later round would need two passes.
//!
//! A function that requests a companion yields in the middle of its turn. Until it continues, only the worker may have
//! the core, so the other functions are moved to a lower priority. Functions in front are moved when the request is
//! made. Functions behind the first one that may make requests are moved before the round, if the batch has flows that
//! no function has seen; otherwise with the request. They are queued again after its turn, up to the next function that
//! may make requests.

use super::area::Area;
use super::schedule;
use super::status::Status;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Idle time after which the worker may have slept, so that the functions had its core.
const MAY_HAVE_SLEPT: Duration = Duration::from_micros(200);

/// The worker's view of its functions' positions in the run queue.
pub(super) struct RunQueueOrder {
    status: Arc<Status>,
    area: Arc<Area>,
    /// `true` for each function that may request companions.
    may_request_companions: Box<[bool]>,
    /// Set if the functions may be queued in another order than the chain's.
    lost: bool,
    /// Time of the last check of the order.
    checked_at: Instant,
    /// Set if the batch has flows that no function has seen.
    new_flows: bool,
    /// Index of the function behind which all are moved to the lower priority.
    held_behind: Option<usize>,
    /// Yields of the worker that a round needs if the order is right.
    expected_yields: u32,
    /// Index of the function for whose requests those in front are also at the lower priority.
    only_running: Option<usize>,
}

impl RunQueueOrder {
    /// Creates the order. `may_request_companions[k]` is `true` if function `k` may request companions.
    pub(super) fn new(status: Arc<Status>, area: Arc<Area>, may_request_companions: Box<[bool]>) -> RunQueueOrder {
        RunQueueOrder {
            status,
            area,
            may_request_companions,
            lost: true,
            checked_at: Instant::now(),
            new_flows: false,
            held_behind: None,
            expected_yields: 1,
            only_running: None,
        }
    }

    /// Notes that the next batch has a flow that no function has seen.
    #[inline]
    pub(super) fn expect_companion_requests(&mut self) {
        self.new_flows = true;
    }

    /// Restores the order for a round with packets, before the packets are written to shared memory.
    #[inline]
    pub(super) fn restore_for_packets(&mut self, now: Instant) {
        self.restore(now);
        if std::mem::take(&mut self.new_flows)
            && self.status.is_real_time()
            && let Some(wishes) = self.next_with_companions(0)
        {
            self.held_behind = Some(wishes);
            self.set_back(wishes + 1..self.may_request_companions.len());
        }
    }

    /// Restores the order for a round without packets.
    #[inline]
    pub(super) fn restore(&mut self, now: Instant) {
        let before = std::mem::replace(&mut self.checked_at, now);
        self.expected_yields = 1;
        if !self.status.is_real_time() {
            return;
        }
        let mut lost = self.lost || now.duration_since(before) > MAY_HAVE_SLEPT;
        for slate in &self.area.response_areas {
            lost |= slate.wake();
        }
        if lost {
            self.lost = false;
            self.queue(0..self.may_request_companions.len());
        }
    }

    /// Notes that all functions in front of `k` have finished their turns.
    #[inline]
    pub(super) fn passed(&mut self, k: usize) {
        if let Some(held) = self.held_behind
            && k > held
        {
            self.go_on_behind(held);
        }
    }

    #[cold]
    fn go_on_behind(&mut self, held: usize) {
        self.held_behind = self.next_with_companions(held + 1);
        self.only_running = None;
        self.expected_yields += 1;
        let end = self
            .held_behind
            .map_or(self.may_request_companions.len(), |next| next + 1);
        self.queue(held + 1..end);
    }

    /// Moves the other functions to the lower priority, since function `k` yields until its request is answered.
    #[cold]
    pub(super) fn on_companion_request(&mut self, k: usize) {
        if self.only_running == Some(k) || !self.status.is_real_time() {
            return;
        }
        self.set_back(0..k);
        if self.held_behind != Some(k) {
            self.held_behind = Some(k);
            self.set_back(k + 1..self.may_request_companions.len());
        }
        self.only_running = Some(k);
        self.lost = true;
    }

    /// Ends the round. `looks` is the number of times the worker yielded.
    #[inline]
    pub(super) fn end(&mut self, looks: u32) {
        self.lost |= looks > self.expected_yields || self.held_behind.is_some();
        self.held_behind = None;
        self.only_running = None;
    }

    fn next_with_companions(&self, from: usize) -> Option<usize> {
        let mut may_request_companions = self.may_request_companions.iter().enumerate().skip(from);
        may_request_companions.find(|(_, wishes)| **wishes).map(|(k, _)| k)
    }

    /// Queues these functions in order behind all others.
    fn queue(&self, functions: Range<usize>) {
        // On failure they are replaced or continue as ordinary processes; the watchdog handles that.
        self.status.with_processes(|processes| {
            // Once more: they had the core while the lock was held by the watchdog.
            for slate in &self.area.response_areas[functions.clone()] {
                slate.wake();
            }
            let processes = processes[functions].iter().copied();
            let _ = schedule::queue(processes.filter(|process| *process != 0));
        });
    }

    /// Moves these functions to a priority below the worker and the queued functions.
    fn set_back(&self, functions: Range<usize>) {
        self.status.with_processes(|processes| {
            let processes = processes[functions].iter().copied();
            schedule::set_back(processes.filter(|process| *process != 0));
        });
    }
}
