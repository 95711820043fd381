//! The thread that writes copies, and what workers share with it.

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

/// Cells taken from a worker's ring at a time.
const TURN: usize = 4096;
/// How often the thread looks for copies when there are none. Workers do not wake it: that would be a system call.
const LOOK: Duration = Duration::from_millis(1);

/// Where copies go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outlet {
    /// A pcap file, written anew. Relative to the folder that the program runs in.
    File {
        /// Its name.
        path: PathBuf,
        /// The most bytes of a file.
        max_bytes: u64,
        /// The most files: with 1, what is beyond a full one is not written; with more, a full one is renamed.
        files: u32,
    },
    /// Out of a network interface of this name.
    Interface(String),
}

impl Outlet {
    /// What it is called in errors.
    pub fn name(&self) -> PathBuf {
        match self {
            Outlet::File { path, .. } => path.clone(),
            Outlet::Interface(name) => name.into(),
        }
    }

    /// The files that it makes: the one that is written, and those that full ones become, whether there are any yet or not.
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

/// A file, or the name that it has when so many newer ones have become full.
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

/// What does not change while packets pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where copies go. `None`: nowhere; they are made, and forgotten.
    pub to: Option<Outlet>,
    /// Bytes of each worker's ring, a power of two of them, at least 64 KiB.
    pub buffer: usize,
}

/// An outlet that is open.
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

    /// Copies beyond the bound, and those that could not be written.
    fn lost(&self) -> [u64; 2] {
        match self {
            Writing::File(file) => [file.over, file.failed],
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

/// A worker's ring, as the thread has it.
#[derive(Debug)]
struct Source {
    ring: Consumer<Cell>,
    assembler: Assembler,
    taken: u64,
    /// As many of its copies as are written, or lost and counted.
    settled: Arc<AtomicU64>,
}

/// What workers and the thread share.
#[derive(Debug, Default)]
struct Shared {
    /// Those that the thread has not taken yet.
    sources: Mutex<Vec<Source>>,
    /// Whether there will be no more.
    over: AtomicBool,
    /// Copies that were taken, and are [lost](Writing::lost), until a worker has counted them.
    lost: [AtomicU64; 2],
    /// Whether the thread gets on.
    pulse: Pulse,
    /// Whether the thread has hung for so long that what it has not settled counts as lost. While this is locked nothing is settled.
    given_up: Mutex<bool>,
    origin: Origin,
}

impl Shared {
    fn given_up(&self) -> MutexGuard<'_, bool> {
        self.given_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until this is so; `false` if the thread hangs before, and is given up.
    fn wait(&self, is_done: impl Fn() -> bool) -> bool {
        if self.pulse.wait(&is_done) {
            return true;
        }
        *self.given_up() = true;
        // It may have been done at the last moment.
        is_done()
    }
}

/// A worker's way to the thread.
#[derive(Debug)]
pub(super) struct Sender {
    ring: Producer<Cell>,
    shared: Arc<Shared>,
    sent: u64,
    settled: Arc<AtomicU64>,
}

impl Sender {
    /// Hands over a copy; `false` if there is no room for it.
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

    /// Says what time it is, since the run's start.
    #[inline]
    pub(super) fn set_origin(&self, now: Nanos) {
        self.shared.origin.set_by(now);
    }

    /// Copies that were lost behind the ring since any worker last asked: beyond the bound, and not written.
    #[inline]
    pub(super) fn take_lost(&self) -> [u64; 2] {
        let take = |lost: &AtomicU64| match lost.load(Ordering::Relaxed) {
            0 => 0,
            _ => lost.swap(0, Ordering::Relaxed),
        };
        [take(&self.shared.lost[0]), take(&self.shared.lost[1])]
    }

    /// Waits until all that was sent is written, or lost and counted. How many copies are given up instead, for nothing was written
    /// for long.
    pub(super) fn settle(&self) -> u64 {
        let open = || self.sent - self.settled.load(Ordering::Acquire);
        match self.shared.wait(|| open() == 0 || self.ring.is_closed()) {
            true => 0,
            false => open(),
        }
    }
}

/// What all workers of a function share.
#[derive(Debug)]
pub struct MirrorTable {
    options: Options,
    live: Live<MirrorRules>,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<Writing>>>,
}

impl MirrorTable {
    /// Opens where copies go to, and starts the thread that writes them.
    ///
    /// # Errors
    /// A file cannot be created, an interface not be opened, or a thread not be started.
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

    /// What is copied, to replace it while workers run.
    pub fn live(&self) -> &Live<MirrorRules> {
        &self.live
    }

    /// A worker's way to the thread.
    pub(super) fn sender(&self) -> Sender {
        let (mut producer, mut consumer) = ring(self.options.buffer.div_ceil(CELL));
        // The memory is there before packets are.
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
        self.shared.over.store(true, Ordering::Release);
        thread.thread().unpark();
        match self.shared.pulse.join(thread) {
            Ok(writing) => Some(writing.end()),
            Err(hangs) => Some((0, Some(hangs))),
        }
    }

    /// Waits until all copies are written, all workers' chains having [finished](tailwater_chain::chain::Chain::finish), or given up.
    ///
    /// # Errors
    /// Some could not be written, or not in time.
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
        // Whoever wanted to know of errors has finished it.
        let _ = self.end();
    }
}

/// Writes what workers hand over, until there are no more workers.
fn write(shared: &Shared, mut writing: Writing) -> Writing {
    let mut sources: Vec<Source> = Vec::new();
    let mut counted = [0; 2];
    loop {
        // In this order: what was pushed before its worker ended is popped below.
        let over = shared.over.load(Ordering::Acquire);
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
        std::thread::park_timeout(LOOK);
    }
}
