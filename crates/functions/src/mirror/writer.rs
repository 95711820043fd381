//! Writer of packet copies, and its state shared with workers.

use super::capture_file::CaptureFile;
use super::cells::{Assembler, Cell, Copied};
use super::interface::Interface;
use super::outlet::Outlet;
use crate::exporter::{LossCounters, Sink, Source};
use crate::origin::Origin;
use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tailwater_net::Nanos;

/// Open outlet.
#[derive(Debug)]
enum Writing {
    File(CaptureFile),
    Interface(Interface),
    Nowhere,
}

impl Writing {
    fn open(outlet: &Outlet) -> io::Result<Writing> {
        match outlet {
            Outlet::File { path, max_bytes, files } => CaptureFile::create(path, *max_bytes, *files).map(Writing::File),
            Outlet::Interface(name) => Interface::open(name).map(Writing::Interface),
        }
    }

    fn put(&mut self, origin: Nanos, copied: &Copied<'_>) {
        match self {
            Writing::File(file) => {
                file.put(Nanos(origin.0.wrapping_add(copied.arrival.0)), copied);
            }
            Writing::Interface(interface) => interface.put(copied),
            Writing::Nowhere => {}
        }
    }

    fn write_out(&mut self) {
        match self {
            Writing::File(file) => file.write_out(),
            Writing::Interface(interface) => interface.write_out(),
            Writing::Nowhere => {}
        }
    }

    /// Returns the copies past the size limit, and those that could not be written.
    fn lost(&self) -> [u64; 2] {
        match self {
            Writing::File(file) => [file.copies_past_limit, file.failed],
            Writing::Interface(interface) => [0, interface.failed],
            Writing::Nowhere => [0; 2],
        }
    }

    /// Returns the number of copies written, or the first error.
    fn end(self) -> io::Result<u64> {
        let (written, error) = match self {
            Writing::File(file) => (file.written, file.error),
            Writing::Interface(interface) => (interface.written, interface.error),
            Writing::Nowhere => (0, None),
        };
        error.map_or(Ok(written), Err)
    }
}

/// State of the writer for one worker.
#[derive(Debug)]
pub(super) struct CopySource {
    assembler: Assembler,
    taken: u64,
    /// Number of the worker's copies that are written, or lost and counted.
    settled: Arc<AtomicU64>,
}

impl CopySource {
    pub(super) fn new(settled: Arc<AtomicU64>) -> CopySource {
        CopySource {
            assembler: Assembler::default(),
            taken: 0,
            settled,
        }
    }
}

/// State shared by workers and the writer.
#[derive(Debug, Default)]
pub(super) struct WriterState {
    /// Copies taken and then [lost](Writing::lost), until a worker counts them.
    pub(super) lost: LossCounters<2>,
    /// Set when the thread has hung so long that unsettled copies count as lost. Nothing is settled while this is
    /// locked.
    given_up: Mutex<bool>,
    /// Wall-clock time of the run's start.
    pub(super) origin: Origin,
}

impl WriterState {
    pub(super) fn given_up(&self) -> MutexGuard<'_, bool> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writer of all workers' copies to the outlet.
#[derive(Debug)]
pub(super) struct CopyWriter {
    writing: Writing,
    state: Arc<WriterState>,
    /// Lost copies already added to the shared counters.
    counted: [u64; 2],
}

impl CopyWriter {
    /// Opens the outlet. With `None` copies are discarded.
    ///
    /// # Errors
    /// The file or interface cannot be opened.
    pub(super) fn open(outlet: Option<&Outlet>, state: Arc<WriterState>) -> io::Result<CopyWriter> {
        Ok(CopyWriter {
            writing: outlet.map_or(Ok(Writing::Nowhere), Writing::open)?,
            state,
            counted: [0; 2],
        })
    }

    /// Writes all copies taken so far and reports them to their workers. Breaks if these have given up.
    fn settle(&mut self, sources: &[Source<Self>]) -> ControlFlow<()> {
        self.writing.write_out();
        let given_up = self.state.given_up();
        if *given_up {
            return ControlFlow::Break(());
        }
        let (lost, counted) = (self.writing.lost(), self.counted);
        self.state.lost.add([lost[0] - counted[0], lost[1] - counted[1]]);
        self.counted = lost;
        for Source { state, .. } in sources {
            state.settled.store(state.taken, Ordering::Release);
        }
        ControlFlow::Continue(())
    }
}

impl Sink for CopyWriter {
    type Record = Cell;
    type PerSender = CopySource;

    const THREAD: &'static str = "mirror";
    // Workers do not wake the thread, which would take a system call.
    const POLL_INTERVAL: Duration = Duration::from_millis(1);
    const RECORDS_PER_POLL: usize = 4096;
    const BLANK: Option<Cell> = Some(Cell::EMPTY);

    fn put(&mut self, cell: &Cell, sender: &mut CopySource) {
        let CopySource { assembler, taken, .. } = sender;
        assembler.take(cell, |copied| {
            *taken += 1;
            self.writing.put(self.state.origin.get(), &copied);
        });
    }

    fn on_idle(&mut self, sources: &[Source<Self>]) -> ControlFlow<()> {
        self.settle(sources)
    }

    fn finish(mut self, sources: &[Source<Self>], _abandoned: bool) -> io::Result<u64> {
        // If workers have given up, nothing more is reported to them.
        let _ = self.settle(sources);
        self.writing.end()
    }
}
