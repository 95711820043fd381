//! Recorded times of single batches and functions, from which per-packet costs are computed.

use std::sync::{Arc, Mutex, PoisonError};
use tailwater_chain::chain::FunctionTime;
use tailwater_net::Nanos;

/// Part of the work on a batch that was timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimedPart {
    /// From the port straight through the chain.
    #[default]
    Whole,
    /// Reception and look-up, up to the worker's local queue or an auxiliary core.
    Received,
    /// From the worker's local queue through the chain.
    Processed,
    /// Through the chain on an auxiliary core, after offloading.
    Helped,
}

/// Times of one batch, relative to the run's first arrival.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchTimes {
    /// Arrival of its first packet.
    pub arrival: Nanos,
    /// Time it was received or taken from the queue, which begins the timed part. The part ends at `sent`.
    pub received: Nanos,
    /// End of the timed part. See [`received`](BatchTimes::received).
    pub sent: Nanos,
    /// Timed part of the work.
    pub part: TimedPart,
    /// Number of packets.
    pub packets: u32,
    /// Other packets were queued behind the batch.
    pub backlog: bool,
    /// The worker's poll before this one was empty.
    pub idle: bool,
}

/// Recorder of each worker's first batches and of function times. Clones share the records.
#[derive(Clone, Debug)]
pub struct BatchRecorder {
    most: usize,
    noted: Arc<Mutex<Vec<Vec<BatchTimes>>>>,
    /// Start of function timing, relative to the run's first arrival, if functions are timed.
    timed_from: Option<Nanos>,
    times: Arc<Mutex<Vec<Vec<FunctionTime>>>>,
}

impl BatchRecorder {
    /// Records at most `most` batches per worker.
    pub fn new(most: usize) -> BatchRecorder {
        BatchRecorder {
            most,
            noted: Arc::default(),
            timed_from: None,
            times: Arc::default(),
        }
    }

    /// Also times functions, starting `from` after the run's first arrival.
    #[must_use]
    pub fn timing_functions(self, from: Nanos) -> BatchRecorder {
        BatchRecorder {
            timed_from: Some(from),
            ..self
        }
    }

    /// See [`timing_functions`](Self::timing_functions).
    pub(crate) fn timed_from(&self) -> Option<Nanos> {
        self.timed_from
    }

    /// Adds the function times of an instance of the chain, or of a part of it, that has ended.
    pub(crate) fn add_times(&self, times: Vec<FunctionTime>) {
        let mut all = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(times);
    }

    /// Takes the function times of runs that have ended: one list per worker's chain, in the order of the functions.
    pub fn take_times(&self) -> Vec<Vec<FunctionTime>> {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut times)
    }

    /// Takes the batches of workers that have ended, one list per worker, in order of time.
    pub fn take(&self) -> Vec<Vec<BatchTimes>> {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut noted)
    }

    /// Creates a worker's record, with memory for all batches it may hold.
    pub(crate) fn book(&self) -> BatchRecord {
        // Pre-faults the pages: untouched memory would cost a page fault each.
        let mut batches = vec![BatchTimes::MOST; self.most];
        batches.clear();
        BatchRecord {
            batches,
            idle: false,
            notes: self.clone(),
        }
    }
}

impl BatchTimes {
    /// Filler without zero bytes, so that filling memory with it writes to every page.
    const MOST: BatchTimes = BatchTimes {
        arrival: Nanos::MAX,
        received: Nanos::MAX,
        sent: Nanos::MAX,
        part: TimedPart::Processed,
        packets: u32::MAX,
        backlog: true,
        idle: true,
    };
}

/// Batch record of one worker.
#[derive(Debug)]
pub(crate) struct BatchRecord {
    batches: Vec<BatchTimes>,
    idle: bool,
    notes: BatchRecorder,
}

impl BatchRecord {
    /// Records an empty poll.
    pub(crate) fn idle(&mut self) {
        self.idle = true;
    }

    /// Records a part of the work on a batch, if it had packets and there is room: arrival of its first packet, begin
    /// and end, in a run that began at `start`.
    pub(crate) fn note(&mut self, part: TimedPart, (packets, backlog): (usize, bool), start: Nanos, times: [Nanos; 3]) {
        if packets == 0 || self.batches.len() == self.batches.capacity() {
            return;
        }
        let [arrival, received, sent] = times.map(|time| time.saturating_sub(start));
        self.batches.push(BatchTimes {
            arrival,
            received,
            sent,
            part,
            packets: packets as u32,
            backlog,
            idle: std::mem::take(&mut self.idle),
        });
    }

    /// Publishes the record of a worker that has ended.
    pub(crate) fn close(self) {
        let noted = &self.notes.noted;
        let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.push(self.batches);
    }
}
