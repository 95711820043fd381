//! State shared by all workers of a `Mirror` function.

use super::cells::{CELL, Copied};
use super::outlet::{Options, Outlet};
use super::rules::MirrorRules;
use super::writer::{CopySource, CopyWriter, WriterState};
use crate::exporter::{ExportError, Exported, Exporter, Sender};
use crate::out_file::Pulse;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tailwater_chain::live::Live;
use tailwater_net::Nanos;

/// State shared by all workers of a function.
#[derive(Debug)]
pub struct MirrorTable {
    options: Options,
    live: Live<MirrorRules>,
    state: Arc<WriterState>,
    exporter: Exporter<CopyWriter>,
}

impl MirrorTable {
    /// Opens the outlet and starts the writer thread.
    ///
    /// # Errors
    /// The file, interface or thread cannot be created.
    pub fn new(options: Options, rules: MirrorRules) -> Result<MirrorTable, ExportError> {
        let state = Arc::<WriterState>::default();
        let writer = CopyWriter::open(options.to.as_ref(), Arc::clone(&state));
        let exporter = writer.and_then(|writer| Exporter::start(writer, Pulse::default()));
        let exporter = exporter.map_err(|source| cannot_copy(options.to.as_ref(), source))?;
        Ok(MirrorTable {
            options,
            live: Live::new(rules),
            state,
            exporter,
        })
    }

    /// Returns the replaceable selection of packets.
    pub fn live(&self) -> &Live<MirrorRules> {
        &self.live
    }

    /// Creates a worker's sender to the thread.
    pub(super) fn sender(&self) -> CopySender {
        let settled = Arc::<AtomicU64>::default();
        let source = CopySource::new(Arc::clone(&settled));
        CopySender {
            cells: self.exporter.sender(self.options.buffer.div_ceil(CELL), source),
            state: Arc::clone(&self.state),
            sent: 0,
            settled,
        }
    }

    /// Waits until all copies are written or given up. All workers' chains must have
    /// [drained](tailwater_chain::chain::Chain::drain). Returns `None` without an outlet, or if it was finished before.
    ///
    /// # Errors
    /// Some copies could not be written, or not in time.
    pub fn finish(&self) -> Result<Option<Exported>, ExportError> {
        let (Some(to), Some(written)) = (&self.options.to, self.exporter.finish()) else {
            return Ok(None);
        };
        let records = written.map_err(|source| cannot_copy(Some(to), source))?;
        let file = to.name();
        Ok(Some(Exported { file, records }))
    }
}

fn cannot_copy(outlet: Option<&Outlet>, source: io::Error) -> ExportError {
    let to = outlet.map_or_else(PathBuf::new, Outlet::name);
    ExportError::Copies { to, source }
}

/// A worker's sender to the thread.
#[derive(Debug)]
pub(super) struct CopySender {
    cells: Sender<CopyWriter>,
    state: Arc<WriterState>,
    sent: u64,
    settled: Arc<AtomicU64>,
}

impl CopySender {
    /// Enqueues a copy; returns `false` if the ring has no room.
    #[inline]
    pub(super) fn send(&mut self, copied: Copied<'_>) -> bool {
        let has_room = self.cells.send_all(copied.cells());
        self.sent += u64::from(has_room);
        has_room
    }

    /// Sets the clock's origin from the current time since the run's start.
    #[inline]
    pub(super) fn set_origin(&self, now: Nanos) {
        self.state.origin.set_by(now);
    }

    /// Takes the counts of copies lost behind the ring since the last call by any worker: past the size limit, and not
    /// written.
    #[inline]
    pub(super) fn take_lost(&self) -> [u64; 2] {
        self.state.lost.take()
    }

    /// Waits until all copies sent are written, or lost and counted. Returns the number given up instead because the
    /// thread hangs.
    pub(super) fn settle(&self) -> u64 {
        let open = || self.sent - self.settled.load(Ordering::Acquire);
        if self.cells.wait(|| open() == 0) {
            return 0;
        }
        *self.state.given_up() = true;
        // The thread may have completed at the last moment.
        match self.cells.wait(|| open() == 0) {
            true => 0,
            false => open(),
        }
    }
}
