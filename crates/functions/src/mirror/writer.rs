//! Writer thread of packet copies, and its state shared with workers.

use super::capture_file::CaptureFile;
use super::cells::{Assembler, CELL, Cell, Copied};
use super::function::MirrorRules;
use super::interface::Interface;
use crate::accounting::{ExportError, Exported};
use crate::origin::Origin;
use crate::out_file::Pulse;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tailwater_chain::live::Live;
use tailwater_handover::ring::{Consumer, Producer, ring};
use tailwater_net::Nanos;

/// Largest number of cells taken from a worker's ring per turn.
const TURN: usize = 4096;
/// Poll interval of the idle thread. Workers do not wake it, which would take a system call.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Destination of copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outlet {
    /// A pcap file, created anew. The path is relative to the working directory.
    File {
        /// Path.
        path: PathBuf,
        /// Largest size of one file, in bytes.
        max_bytes: u64,
        /// Largest number of files. With 1, copies beyond a full file are not written; otherwise a full file is
        /// renamed.
        files: u32,
    },
    /// Network interface of this name.
    Interface(String),
}

impl Outlet {
    /// Returns the name used in error messages.
    pub fn name(&self) -> PathBuf {
        match self {
            Outlet::File { path, .. } => path.clone(),
            Outlet::Interface(name) => name.into(),
        }
    }

    /// Returns the paths of all files it may create: the current one, and the names of rotated ones.
    pub fn files(&self) -> Vec<PathBuf> {
        match self {
            Outlet::File { path, files, .. } => (0..*files).map(|number| numbered(path, number)).collect(),
            Outlet::Interface(_) => Vec::new(),
        }
    }

    fn open(&self) -> Result<Writing, ExportError> {
        let opened = match self {
            Outlet::File { path, max_bytes, files } => CaptureFile::create(path, *max_bytes, *files).map(Writing::File),
            Outlet::Interface(name) => Interface::open(name).map(Writing::Interface),
        };
        opened.map_err(|source| ExportError::Copies {
            to: self.name(),
            source,
        })
    }
}

/// Returns the path of the current file (0), or of the rotated file with this number.
pub(super) fn numbered(path: &Path, number: u32) -> PathBuf {
    match number {
        0 => path.to_owned(),
        _ => {
            let mut name = OsString::from(path);
            name.push(format!(".{number}"));
            PathBuf::from(name)
        }
    }
}

/// Options that are fixed during a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Destination of copies. With `None` copies are made and discarded.
    pub to: Option<Outlet>,
    /// Bytes of each worker's ring: a power of two, at least 64 KiB.
    pub buffer: usize,
}

/// Open outlet.
#[derive(Debug)]
enum Writing {
    File(CaptureFile),
    Interface(Interface),
    Nowhere,
}

impl Writing {
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

    fn end(self) -> (u64, Option<io::Error>) {
        match self {
            Writing::File(file) => (file.written, file.error),
            Writing::Interface(interface) => (interface.written, interface.error),
            Writing::Nowhere => (0, None),
        }
    }
}

/// Reader's side of a worker's ring.
#[derive(Debug)]
struct Source {
    ring: Consumer<Cell>,
    assembler: Assembler,
    taken: u64,
    /// Number of the worker's copies that are written, or lost and counted.
    settled: Arc<AtomicU64>,
}

/// State shared by workers and the thread.
#[derive(Debug, Default)]
struct Shared {
    /// New rings the thread has not yet picked up.
    sources: Mutex<Vec<Source>>,
    /// Set when no more copies will come.
    shutting_down: AtomicBool,
    /// Copies taken and then [lost](Writing::lost), until a worker counts them.
    lost: [AtomicU64; 2],
    /// Heartbeat of the thread.
    pulse: Pulse,
    /// Set when the thread has hung so long that unsettled copies count as lost. Nothing is settled while this is
    /// locked.
    given_up: Mutex<bool>,
    origin: Origin,
}

impl Shared {
    fn given_up(&self) -> MutexGuard<'_, bool> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `is_done` holds; returns `false` if the thread hangs first and is given up.
    fn wait(&self, is_done: impl Fn() -> bool) -> bool {
        if self.pulse.wait(&is_done) {
            return true;
        }
        *self.given_up() = true;
        // It may have completed at the last moment.
        is_done()
    }
}

/// A worker's sender to the thread.
#[derive(Debug)]
pub(super) struct Sender {
    ring: Producer<Cell>,
    shared: Arc<Shared>,
    sent: u64,
    settled: Arc<AtomicU64>,
}

impl Sender {
    /// Enqueues a copy; returns `false` if the ring has no room.
    #[inline]
    pub(super) fn send(&mut self, copied: Copied<'_>) -> bool {
        let mut cells = copied.cells();
        let count = cells.len();
        if self.ring.room(count) < count {
            return false;
        }
        let pushed = self.ring.push_from(&mut cells);
        debug_assert_eq!(pushed, count);
        self.sent += 1;
        true
    }

    /// Sets the clock's origin from the current time since the run's start.
    #[inline]
    pub(super) fn set_origin(&self, now: Nanos) {
        self.shared.origin.set_by(now);
    }

    /// Takes the counts of copies lost behind the ring since the last call by any worker: past the size limit, and not
    /// written.
    #[inline]
    pub(super) fn take_lost(&self) -> [u64; 2] {
        let take = |lost: &AtomicU64| match lost.load(Ordering::Relaxed) {
            0 => 0,
            _ => lost.swap(0, Ordering::Relaxed),
        };
        [take(&self.shared.lost[0]), take(&self.shared.lost[1])]
    }

    /// Waits until all copies sent are written, or lost and counted. Returns the number given up instead because the
    /// thread hangs.
    pub(super) fn settle(&self) -> u64 {
        let open = || self.sent - self.settled.load(Ordering::Acquire);
        match self.shared.wait(|| open() == 0 || self.ring.is_closed()) {
            true => 0,
            false => open(),
        }
    }
}

/// State shared by all workers of a function.
#[derive(Debug)]
pub struct MirrorTable {
    options: Options,
    live: Live<MirrorRules>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<Writing>>>,
}

impl MirrorTable {
    /// Opens the outlet and starts the writer thread.
    ///
    /// # Errors
    /// The file, interface or thread cannot be created.
    pub fn new(options: Options, rules: MirrorRules) -> Result<MirrorTable, ExportError> {
        let writing = options.to.as_ref().map_or(Ok(Writing::Nowhere), Outlet::open)?;
        let shared = Arc::<Shared>::default();
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("mirror".to_owned())
            .spawn(move || write(&theirs, writing))
            .map_err(|source| ExportError::Copies {
                to: options.to.as_ref().map(Outlet::name).unwrap_or_default(),
                source,
            })?;
        Ok(MirrorTable {
            options,
            live: Live::new(rules),
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Returns the replaceable selection of packets.
    pub fn live(&self) -> &Live<MirrorRules> {
        &self.live
    }

    /// Creates a worker's sender to the thread.
    pub(super) fn sender(&self) -> Sender {
        let (mut producer, mut consumer) = ring(self.options.buffer.div_ceil(CELL));
        // Touches the ring's memory before the first packet.
        while producer.push(Cell::EMPTY).is_ok() {}
        while consumer.pop().is_some() {}
        let settled = Arc::<AtomicU64>::default();
        let source = Source {
            ring: consumer,
            assembler: Assembler::default(),
            taken: 0,
            settled: Arc::clone(&settled),
        };
        let sources = &self.shared.sources;
        let mut sources = sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.push(source);
        Sender {
            ring: producer,
            shared: Arc::clone(&self.shared),
            sent: 0,
            settled,
        }
    }

    fn end(&self) -> Option<(u64, Option<io::Error>)> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = thread.take()?;
        self.shared.shutting_down.store(true, Ordering::Release);
        thread.thread().unpark();
        match self.shared.pulse.join(thread) {
            Ok(writing) => Some(writing.end()),
            Err(hangs) => Some((0, Some(hangs))),
        }
    }

    /// Waits until all copies are written or given up. All workers' chains must have
    /// [drained](tailwater_chain::chain::Chain::drain). Returns `None` without an outlet, or if it was finished before.
    ///
    /// # Errors
    /// Some copies could not be written, or not in time.
    pub fn finish(&self) -> Result<Option<Exported>, ExportError> {
        let (Some(to), Some((records, error))) = (&self.options.to, self.end()) else {
            return Ok(None);
        };
        let to = to.name();
        match error {
            Some(source) => Err(ExportError::Copies { to, source }),
            None => Ok(Some(Exported { file: to, records })),
        }
    }
}

impl Drop for MirrorTable {
    fn drop(&mut self) {
        // Errors are reported by `finish`; here they are ignored.
        let _ = self.end();
    }
}

/// Writes the copies of all workers until shutdown.
fn write(shared: &Shared, mut writing: Writing) -> Writing {
    let mut sources: Vec<Source> = Vec::new();
    let mut counted = [0; 2];
    loop {
        // Read first, so that cells pushed before their worker ended are popped below.
        let over = shared.shutting_down.load(Ordering::Acquire);
        let mut new = shared.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.append(&mut new);
        drop(new);
        sources.retain(|source| !source.ring.is_closed() || !source.ring.is_empty());
        let mut popped = 0;
        for source in &mut sources {
            let Source {
                ring, assembler, taken, ..
            } = source;
            popped += ring.pop_each(TURN, |cell| {
                assembler.take(&cell, |copied| {
                    *taken += 1;
                    writing.put(shared.origin.get(), &copied);
                });
            });
        }
        if popped > 0 {
            shared.pulse.beat();
            continue;
        }
        writing.write_out();
        let given_up = shared.given_up();
        if *given_up {
            return writing;
        }
        let lost = writing.lost();
        for (at, sum) in shared.lost.iter().enumerate() {
            sum.fetch_add(lost[at] - counted[at], Ordering::Relaxed);
        }
        counted = lost;
        for source in &sources {
            source.settled.store(source.taken, Ordering::Release);
        }
        drop(given_up);
        if over {
            return writing;
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
}
