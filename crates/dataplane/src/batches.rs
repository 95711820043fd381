//! What single batches took, or single functions, for those who work out from it what packets cost.

use std::sync::{Arc, Mutex, PoisonError};
use tailwater_chain::chain::FunctionTime;
use tailwater_net::Nanos;

/// What was done with a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// It went straight from the port through the chain.
    #[default]
    Whole,
    /// It was received and looked up, and put into the worker's own queue or handed over.
    Received,
    /// It was taken from the worker's own queue and went through the chain.
    Processed,
    /// It was handed over, and went through the chain at a helper.
    Helped,
}

/// A batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NotedBatch {
    /// When its first packet arrived. All times are since the run's first arrival.
    pub arrival: Nanos,
    /// When it was received, or taken from the queue, and when that part of the work was done.
    pub received: Nanos,
    /// See [`received`](NotedBatch::received).
    pub sent: Nanos,
    /// What was done with it in that time.
    pub part: Part,
    /// Its packets.
    pub packets: u32,
    /// Whether others waited behind it.
    pub backlog: bool,
    /// Whether the worker had looked for packets in vain just before.
    pub idle: bool,
}

/// The first batches of each worker of a run, and what functions take. Copies share what is noted.
#[derive(Clone, Debug)]
pub struct BatchNotes {
    most: usize,
    noted: Arc<Mutex<Vec<Vec<NotedBatch>>>>,
    /// From when on functions are timed, since the run's first arrival, if they are.
    timed_from: Option<Nanos>,
    times: Arc<Mutex<Vec<Vec<FunctionTime>>>>,
}

impl BatchNotes {
    /// Notes at most so many batches of each worker.
    pub fn new(most: usize) -> BatchNotes {
        BatchNotes {
            most,
            noted: Arc::default(),
            timed_from: None,
            times: Arc::default(),
        }
    }

    /// Also has functions be timed, from so long after the run's first arrival on.
    #[must_use]
    pub fn timing_functions(self, from: Nanos) -> BatchNotes {
        BatchNotes {
            timed_from: Some(from),
            ..self
        }
    }

    /// See [`timing_functions`](Self::timing_functions).
    pub(crate) fn timed_from(&self) -> Option<Nanos> {
        self.timed_from
    }

    /// An instance of the chain, or a part of it, is done, and its functions took this.
    pub(crate) fn add_times(&self, times: Vec<FunctionTime>) {
        let mut all = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(times);
    }

    /// What functions took in runs that have ended: of each worker's chain, in the order of the functions.
    pub fn take_times(&self) -> Vec<Vec<FunctionTime>> {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut times)
    }

    /// What has been noted by workers that have ended, one list each, in order of time.
    pub fn take(&self) -> Vec<Vec<NotedBatch>> {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut noted)
    }

    /// A worker's notes, with memory for all that it may note.
    pub(crate) fn book(&self) -> Book {
        // Memory that was never written to costs a fault for each page.
        let mut batches = vec![NotedBatch::MOST; self.most];
        batches.clear();
        Book {
            batches,
            idle: false,
            notes: self.clone(),
        }
    }
}

impl NotedBatch {
    /// No byte of it is zero, so that memory filled with it is written to.
    const MOST: NotedBatch = NotedBatch {
        arrival: Nanos::MAX,
        received: Nanos::MAX,
        sent: Nanos::MAX,
        part: Part::Processed,
        packets: u32::MAX,
        backlog: true,
        idle: true,
    };
}

/// A worker's notes of its batches.
#[derive(Debug)]
pub(crate) struct Book {
    batches: Vec<NotedBatch>,
    idle: bool,
    notes: BatchNotes,
}

impl Book {
    /// The worker has looked for packets in vain.
    pub(crate) fn idle(&mut self) {
        self.idle = true;
    }

    /// Notes a batch that went straight through, if there is room: when its first packet arrived, and when it was
    /// received and sent, in a run that began at `start`.
    pub(crate) fn note(&mut self, packets: usize, backlog: bool, start: Nanos, [arrival, received, sent]: [Nanos; 3]) {
        let idle = std::mem::take(&mut self.idle);
        if self.batches.len() < self.batches.capacity() {
            self.batches.push(NotedBatch {
                arrival: arrival.saturating_sub(start),
                received: received.saturating_sub(start),
                sent: sent.saturating_sub(start),
                part: Part::Whole,
                packets: packets as u32,
                backlog,
                idle,
            });
        }
    }

    /// The same of a part of the work, if there were packets.
    pub(crate) fn note_part(&mut self, part: Part, (packets, backlog): (usize, bool), start: Nanos, times: [Nanos; 3]) {
        if packets == 0 || self.batches.len() == self.batches.capacity() {
            return;
        }
        self.note(packets, backlog, start, times);
        if let Some(last) = self.batches.last_mut() {
            last.part = part;
        }
    }

    /// The worker has ended.
    pub(crate) fn close(self) {
        let noted = &self.notes.noted;
        let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.push(self.batches);
    }
}
