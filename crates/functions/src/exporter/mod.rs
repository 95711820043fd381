//! Export of records off the workers' cores: one ring per worker, and one thread per file, interface or collector.
//!
//! A function hands records to a [`Sender`], which never allocates, and waits only at the end of a run. The thread of
//! the [`Exporter`] takes them from the rings and passes them to a [`Sink`], which knows the output's format. Memory is
//! bounded by the rings. A record that finds its ring full is lost, which the function counts. At the end of a run the
//! thread writes what is left. An output that makes no progress for 5 seconds is [given up](Pulse).

mod error;
mod losses;
mod record_file;
mod sender;
mod sink;
mod state;
mod thread;

#[cfg(test)]
mod tests;

pub use error::{ExportError, Exported};
pub(crate) use losses::{LossCounters, UnwrittenRecords};
pub(crate) use record_file::RecordFile;
pub(crate) use sender::Sender;
pub(crate) use sink::{Sink, Source};

use crate::out_file::Pulse;
use state::{ExporterState, Phase};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tailwater_handover::ring::ring;

/// Thread that exports the records of all workers, and its shared state.
#[derive(Debug)]
pub(crate) struct Exporter<S: Sink> {
    state: Arc<ExporterState<S>>,
    thread: Mutex<Thread>,
}

/// Life of the thread.
#[derive(Debug, Default)]
enum Thread {
    /// Not launched, or ended and its result reported.
    #[default]
    None,
    Running(JoinHandle<io::Result<u64>>),
    Ended(io::Result<u64>),
}

impl<S: Sink> Exporter<S> {
    /// Starts the thread. The sink's outputs beat `pulse` with every progress that they make during a call.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(sink: S, pulse: Pulse) -> io::Result<Exporter<S>> {
        let exporter = Exporter::paused(pulse);
        exporter.launch(sink)?;
        Ok(exporter)
    }

    /// Creates an exporter without its thread: records stay in the rings.
    pub(crate) fn paused(pulse: Pulse) -> Exporter<S> {
        Exporter {
            state: Arc::new(ExporterState::new(pulse)),
            thread: Mutex::default(),
        }
    }

    /// Starts the thread of a paused exporter.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn launch(&self, sink: S) -> io::Result<()> {
        let state = Arc::clone(&self.state);
        let thread = std::thread::Builder::new()
            .name(S::THREAD.to_owned())
            .spawn(move || thread::run(&state, sink))?;
        self.state.set_thread(thread.thread().clone());
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Thread::Running(thread);
        Ok(())
    }

    /// Creates a worker's sender with a ring of `size` records (rounded up to a power of two). `state` is the thread's
    /// state for it.
    ///
    /// # Panics
    /// `size` is not the size of a [ring].
    pub(crate) fn sender(&self, size: usize, state: S::PerSender) -> Sender<S> {
        let (mut producer, mut consumer) = ring(size);
        if let Some(blank) = S::BLANK {
            // Touches the ring's memory before the first packet.
            while producer.push(blank).is_ok() {}
            while consumer.pop().is_some() {}
        }
        self.state.add(Source { ring: consumer, state });
        Sender::new(producer, Arc::clone(&self.state))
    }

    /// Declares that a worker receives no more packets and may wait for room: from now on the thread discards records
    /// if the sink does not become ready in time.
    pub(crate) fn begin_drain(&self) {
        self.state.enter(Phase::Draining);
    }

    /// Waits until all records are exported or lost, or the output is given up. No sender may send any more.
    pub(crate) fn end(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        *thread = match std::mem::take(&mut *thread) {
            Thread::Running(running) => {
                self.state.enter(Phase::Stopping);
                running.thread().unpark();
                Thread::Ended(self.state.pulse.join(running).flatten())
            }
            other => other,
        };
    }

    /// [Ends](Exporter::end) the thread and returns the number of exported records, or `None` if an earlier call did.
    ///
    /// # Errors
    /// The first error of the sink, or the output is given up.
    pub(crate) fn finish(&self) -> Option<io::Result<u64>> {
        self.end();
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::take(&mut *thread) {
            Thread::Ended(result) => Some(result),
            _ => None,
        }
    }
}

impl<S: Sink> Drop for Exporter<S> {
    fn drop(&mut self) {
        // A caller interested in losses and errors has called `finish`.
        self.state.enter(Phase::Abandoned);
        self.end();
    }
}
