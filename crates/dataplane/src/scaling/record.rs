//! Recording of decisions during a run, for explanation and replay afterwards.
//!
//! A [`Recorder`] wraps a mapper. It writes the mapper's views and plans into bounded, recycled chunks, which a thread
//! writes to a file. The data path allocates nothing and never waits: a decision that finds no room is omitted and
//! counted. A run without recording has no overhead. Divisions and joins of split flows are not recorded.
//!
//! - [`Recorder`] writes a file, after a [`Header`].
//! - [`Reader`] reads it, within bounds.
//! - [`Replayer`] shows the same views to another mapper and compares the plans.
//! - [`Explainer`] finds the times with more work than could be done in time, and the actions taken.
//! - [`ServerExplainer`] and [`ServerReplayer`] do both for the server mapper.
//!
//! **The file** is binary. A mapper may decide two hundred thousand times a second, with hundreds of flows waiting,
//! which as text would exceed the speed of disks. It begins with the bytes `tailwater-decisions` and a line feed. The
//! rest consists of numbers and texts. A number is unsigned, in LEB128 (seven bits per byte, lowest first, the high bit
//! set in all bytes but the last). A text is its length in bytes, then UTF-8. Times are nanoseconds on the run's clock.
//!
//! - Header: version (6), latency objective, epoch, number of auxiliary cores per dispatcher, including the dedicated
//!   ones that can help it, number of the latter, nanoseconds from 1970 to the file's creation; the texts chain, policy
//!   and capacity profile (its own format; may be empty); the number of dedicated cores and their CPUs, and the same of
//!   the auxiliary cores.
//! - For each decision: count of the numbers that follow; dispatcher; its decisions before this one, including omitted
//!   ones; now; waiting time of the oldest packet; duration of the decision; packets and flows in the local queue;
//!   flags (1 boost mode, 2 whale beyond split, 4 insufficient cores); packets of that notice; auxiliary cores to
//!   release, and to relieve, as bit maps; flows and packets parked; flowlets placed since the previous decision,
//!   those of them placed on auxiliary cores, and those of the latter on dedicated ones; flows listed; splits; then
//!   - for each auxiliary core: flags (1 activated, 2 taken by another dispatcher, 4 a dedicated core), flows, packets,
//!     idle time (0 if it is not idle);
//!   - for each split: flow, last functions, auxiliary core;
//!   - for each listed flow: its position, if not all flows are listed; its packets times two, plus 1 if it is bound;
//!     its place (0 here, auxiliary core `i` is `i + 1`). Of more than [`MOST_LISTED`] flows the [`MOST_LARGEST`] with
//!     the most packets are listed.
//! - For each decision of the server mapper: count of the numbers that follow; 1024, which is no dispatcher; its
//!   decisions before this one, including omitted ones; now; duration of the decision; cores; RSS buckets;
//!   the share of packets late or lost; then
//!   - for each dedicated core: 1 if it has buckets, else 0; the share of its time spent on packets; packets lost; 99th
//!     percentile of a batch; maximum ring fill level; longest delay of a packet;
//!   - for each bucket: its core; its core from now on; packets per second; active flows. (Numbers with fractions are
//!     stored as the bits of IEEE 754 binary64.)
//! - At the end: 0, and the number of omitted decisions. A file without it was truncated.

mod explain;
mod format;
mod lease;
mod problem;
mod read;
mod remapping;
mod replay;
mod server;
#[cfg(test)]
mod tests;

pub use explain::{Episode, Explainer, Explanation, Kind, Summary};
pub use format::{Flowlets, Header, MOST_LARGEST, MOST_LISTED};
pub use lease::{Lease, LeaseOutcome};
pub use problem::Problem;
pub use read::{Decision, Entry, ListedFlow, ReadError, Reader};
pub use remapping::{CoreChange, Remapping, ServerExplainer, ServerExplanation, ServerReplay, ServerReplayer};
pub use replay::{Difference, Differences, Outline, Replay, Replayer};
pub use server::ServerDecision;

use crate::chunks::{ChunkReceiver, ChunkSender, Chunks};
use format::{Encoder, MOST_WORDS};
use server::MOST_SERVER_WORDS;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use tailwater_functions::out_file::{OutFile, Pulse};
use tailwater_net::Nanos;
use tailwater_policy::core::{
    CoreMapper, Destination, Flowlet, Loads, MakeMapper, Plan, Review, SplitFlow, Unit, View,
};
use tailwater_policy::server::{MakeServerMapper, Move, ServerMapper, ServerView};

/// Words per chunk: several of the longest records.
const CHUNK: usize = 8 * MOST_WORDS;
/// Chunks per dispatcher: 4.6 MiB.
const CHUNKS: usize = 32;
/// Maximum number of dispatchers without contention. More wait for each other.
const DISPATCHERS: usize = 256;

const _: () = assert!(MOST_SERVER_WORDS <= CHUNK);

/// Error of a record that is missing or incomplete.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot record decisions: {source}", file.display())]
pub struct RecordError {
    /// Path of the file.
    pub file: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

/// Result of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Decisions in the file.
    pub decisions: u64,
    /// Decisions omitted because they came faster than they could be written.
    pub lost: u64,
}

/// Recorder of a run's decisions into a file. Clones share the file.
#[derive(Clone, Debug)]
pub struct Recorder {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    file: PathBuf,
    chunks: Mutex<Option<Chunks<u64>>>,
    writer: Mutex<Option<JoinHandle<io::Result<u64>>>>,
    pulse: Pulse,
    dispatchers: AtomicU32,
    lost: Arc<AtomicU64>,
}

impl Recorder {
    /// Creates the file and starts the thread that writes it.
    ///
    /// # Errors
    /// If the file or the thread cannot be created.
    pub fn create(path: &Path, header: &Header) -> Result<Recorder, RecordError> {
        let error = |source| RecordError {
            file: path.to_owned(),
            source,
        };
        let lost = Arc::new(AtomicU64::new(0));
        let (chunks, receiver) = Chunks::new(DISPATCHERS, CHUNKS, CHUNK);
        let pulse = chunks.pulse().clone();
        let mut file = BufWriter::new(OutFile::create(path, &pulse).map_err(error)?);
        file.write_all(&header.encoded()).map_err(error)?;
        let left_out = Arc::clone(&lost);
        let thread = std::thread::Builder::new()
            .name("decisions".to_owned())
            .spawn(move || write_records(file, receiver, &left_out))
            .map_err(error)?;
        Ok(Recorder {
            shared: Arc::new(Shared {
                file: path.to_owned(),
                chunks: Mutex::new(Some(chunks)),
                writer: Mutex::new(Some(thread)),
                pulse,
                dispatchers: AtomicU32::new(0),
                lost,
            }),
        })
    }

    /// With a receiver in place of the file and its thread.
    #[cfg(test)]
    fn unattended() -> (Recorder, ChunkReceiver<u64>) {
        let (chunks, receiver) = Chunks::new(1, CHUNKS, CHUNK);
        let pulse = chunks.pulse().clone();
        let shared = Shared {
            file: PathBuf::new(),
            chunks: Mutex::new(Some(chunks)),
            writer: Mutex::new(None),
            pulse,
            dispatchers: AtomicU32::new(0),
            lost: Arc::default(),
        };
        let shared = Arc::new(shared);
        (Recorder { shared }, receiver)
    }

    /// Wraps `make` to create mappers that record views and plans. The first mapper created is dispatcher 0, and so on.
    /// Mappers created after [`finish`](Recorder::finish) record nothing.
    pub fn recording(&self, make: MakeMapper) -> MakeMapper {
        let shared = Arc::clone(&self.shared);
        Arc::new(move || {
            let mapper = make();
            let chunks = lock(&shared.chunks);
            let Some(chunks) = chunks.as_ref() else {
                return mapper;
            };
            let dispatcher = shared.dispatchers.fetch_add(1, Ordering::Relaxed);
            Box::new(Recording {
                mapper,
                chunks: chunks.sender(dispatcher as usize),
                encoder: Encoder::new(dispatcher),
                flowlets: Flowlets::default(),
                lost: Arc::clone(&shared.lost),
            })
        })
    }

    /// The same for server mappers, of which a run has one.
    pub fn recording_server(&self, make: MakeServerMapper) -> MakeServerMapper {
        let shared = Arc::clone(&self.shared);
        Arc::new(move || {
            let mapper = make();
            let chunks = lock(&shared.chunks);
            let Some(chunks) = chunks.as_ref() else {
                return mapper;
            };
            Box::new(RecordingServer {
                mapper,
                chunks: chunks.sender(format::SERVER as usize),
                sequence: 0,
                words: Vec::with_capacity(MOST_SERVER_WORDS),
                lost: Arc::clone(&shared.lost),
            })
        })
    }

    /// Waits until everything is in the file, once the run is over and all mappers are dropped. Returns `None` if
    /// called before.
    ///
    /// # Errors
    /// The first write error, or a timeout if the file hangs.
    pub fn finish(&self) -> Result<Option<Recorded>, RecordError> {
        drop(lock(&self.shared.chunks).take());
        let Some(writer) = lock(&self.shared.writer).take() else {
            return Ok(None);
        };
        let written = self.shared.pulse.join(writer).flatten();
        let decisions = written.map_err(|source| RecordError {
            file: self.shared.file.clone(),
            source,
        })?;
        let lost = self.shared.lost.load(Ordering::Relaxed);
        Ok(Some(Recorded { decisions, lost }))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Mapper that records another one's views and plans. All functions of [`CoreMapper`] are passed on.
struct Recording {
    mapper: Box<dyn CoreMapper>,
    chunks: ChunkSender<u64>,
    encoder: Encoder,
    flowlets: Flowlets,
    lost: Arc<AtomicU64>,
}

impl CoreMapper for Recording {
    fn measures_queues(&self) -> bool {
        self.mapper.measures_queues()
    }

    fn unit(&self) -> Unit {
        self.mapper.unit()
    }

    fn split_points(&mut self, auxiliaries: usize) -> u64 {
        self.mapper.split_points(auxiliaries)
    }

    fn review(&mut self, split: &SplitFlow<'_>) -> Review {
        self.mapper.review(split)
    }

    fn batch(&self) -> usize {
        self.mapper.batch()
    }

    #[inline]
    fn is_in_time(&self, packets: u32) -> bool {
        self.mapper.is_in_time(packets)
    }

    #[inline]
    fn can_help(&self, packets: u32) -> bool {
        self.mapper.can_help(packets)
    }

    #[inline]
    fn due(&self, now: Nanos, packets: u32) -> bool {
        self.mapper.due(now, packets)
    }

    fn decide(&mut self, view: &View<'_>, plan: &mut Plan) {
        let began = Instant::now();
        self.mapper.decide(view, plan);
        let took = Nanos(began.elapsed().as_nanos() as u64);
        let flowlets = std::mem::take(&mut self.flowlets);
        let words = self.encoder.decision(view, plan, took, flowlets);
        if self.chunks.has_room(words.len()) {
            self.chunks.extend(words);
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    fn place(&mut self, flowlet: Flowlet, loads: &Loads<'_>) -> Destination {
        let place = self.mapper.place(flowlet, loads);
        self.flowlets.placed += 1;
        if let Some(auxiliary) = place.as_auxiliary() {
            self.flowlets.away += 1;
            self.flowlets.dedicated += u64::from(loads.auxiliaries[auxiliary].dedicated);
        }
        place
    }

    #[inline]
    fn completed(&mut self, packets: u32, new: u32, took: Nanos) {
        self.mapper.completed(packets, new, took);
    }

    #[inline]
    fn dispatched(&mut self, took: Nanos) {
        self.mapper.dispatched(took);
    }

    #[inline]
    fn woke(&mut self, took: Nanos) {
        self.mapper.woke(took);
    }
}

/// Server mapper that records another one's views and plans. All functions of [`ServerMapper`] are passed on.
struct RecordingServer {
    mapper: Box<dyn ServerMapper>,
    chunks: ChunkSender<u64>,
    sequence: u64,
    words: Vec<u64>,
    lost: Arc<AtomicU64>,
}

impl ServerMapper for RecordingServer {
    fn period(&self) -> Nanos {
        self.mapper.period()
    }

    fn on_backlog_of(&self, epoch: Nanos) -> Option<Nanos> {
        self.mapper.on_backlog_of(epoch)
    }

    fn enforcement_delay(&self) -> Nanos {
        self.mapper.enforcement_delay()
    }

    fn remap(&mut self, view: &ServerView<'_>, moves: &mut Vec<Move>) {
        let began = Instant::now();
        self.mapper.remap(view, moves);
        let took = began.elapsed().as_nanos() as u64;
        server::encode(&mut self.words, view, moves, [self.sequence, took]);
        self.sequence += 1;
        if self.chunks.has_room(self.words.len()) {
            self.chunks.extend(&self.words);
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn write_records(mut file: impl Write, receiver: ChunkReceiver<u64>, lost: &AtomicU64) -> io::Result<u64> {
    let mut outcome = Ok(());
    let (mut decisions, mut bytes) = (0, Vec::new());
    receiver.for_each(|_, words| {
        // After an error the dispatchers' chunks are still drained.
        if outcome.is_ok() {
            bytes.clear();
            words.iter().for_each(|word| format::put(&mut bytes, *word));
            outcome = file.write_all(&bytes);
            decisions += format::count_records(words);
        }
    });
    outcome?;
    bytes.clear();
    format::put_end(&mut bytes, lost.load(Ordering::Relaxed));
    file.write_all(&bytes)?;
    file.flush()?;
    Ok(decisions)
}
