//! Decisions recorded while a run goes on, to be explained and replayed afterwards.
//!
//! A [`Recorder`] puts a mapper around another one. It writes what that saw and said into bounded,
//! recycled [chunks](tailwater_functions::chunks); a thread writes them to a file. Nothing is allocated and
//! nothing waits on the data path: a decision that finds no room is left out and counted. A run that
//! is not recorded has nothing of this.
//!
//! - [`Recorder`] writes a file, after a [`Header`];
//! - [`Reader`] reads it, within bounds;
//! - [`Replayer`] tells what another mapper would have said to the same views;
//! - [`Explainer`] tells when there was more to do than could be done in time, and what was done;
//! - [`ServerExplainer`] and [`ServerReplayer`] do both for the server mapper.
//!
//! **The file** is binary: a mapper may decide two hundred thousand times a second, with hundreds of
//! flows waiting, which as text would be more than disks like. It begins with the bytes
//! `tailwater-decisions` and a line feed. All that follows are unsigned numbers in LEB128 (seven bits
//! a byte, lowest first, the high bit set in all bytes but a number's last) and texts (their length
//! in bytes, then UTF-8). Times are nanoseconds on the run's clock.
//!
//! - Header: version (3), latency objective, epoch, number of helpers, nanoseconds from 1970 to the
//!   file's creation; the texts chain, policy and capacity profile (in its own format; may be empty).
//! - For each decision: the number of numbers that follow; dispatcher; its decisions before this one,
//!   counting those left out; now; how long the oldest packet has waited; how long the mapper took;
//!   packets and flows in the own queue; flags (1 boost mode, 2 whale beyond split, 4 out of cores);
//!   packets of that notice; helpers to release, and to relieve, as bit maps; flows and packets held;
//!   flowlets placed since the decision before, and how many of them with helpers; flows listed; splits;
//!   then
//!   - for each helper: flags (1 recruited, 2 taken), flows, packets, for how long it has been idle
//!     (0 if it is not);
//!   - for each split: flow, last functions, helper;
//!   - for each flow that is listed: its position, if not all flows are; its packets times two, plus 1
//!     if it is bound; its place (0 here, helper `i` is `i + 1`). Of more than
//!     [`MOST_LISTED`] flows the [`MOST_LARGEST`] with the most packets are listed.
//! - For each decision of the server mapper: the number of numbers that follow; 1024, which is no
//!   dispatcher; its decisions before this one, counting those left out; now; how long it took;
//!   cores; RSS buckets; then
//!   - for each dedicated core: 1 if it has buckets, else 0; the share of its time that packets took;
//!     packets lost; 99th percentile of a batch; the longest that its ring was;
//!   - for each bucket: its core; its core from now on; packets a second; active flows.
//!     (Numbers that are not whole stand as the bits of IEEE 754's binary64.)
//! - At the end: 0, and how many decisions were left out. A file without it was cut short.

mod explain;
mod format;
mod read;
mod remapping;
mod replay;
mod server;
#[cfg(test)]
mod tests;

pub use explain::{Episode, Explainer, Explanation, Kind, Summary};
pub use format::{Flowlets, Header, MOST_LARGEST, MOST_LISTED};
pub use read::{Decision, Entry, ListedFlow, Problem, ReadError, Reader};
pub use remapping::{CoreChange, Remapping, ServerExplainer, ServerExplanation, ServerReplay, ServerReplayer};
pub use replay::{Difference, Differences, Outline, Replay, Replayer};
pub use server::ServerDecision;

use format::{Encoder, MOST_WORDS};
use server::MOST_SERVER_WORDS;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use tailwater_functions::chunks::{ChunkReceiver, ChunkSender, Chunks};
use tailwater_functions::out_file::{OutFile, Pulse};
use tailwater_net::Nanos;
use tailwater_policy::core::{CoreMapper, Flowlet, Loads, MakeMapper, Place, Plan, View};
use tailwater_policy::server::{MakeServerMapper, Move, ServerMapper, ServerView};

/// Words in a chunk: several of the longest records.
const CHUNK: usize = 8 * MOST_WORDS;
/// Chunks of each dispatcher: 4.6 MiB.
const CHUNKS: usize = 32;
/// Most dispatchers; more wait for each other.
const DISPATCHERS: usize = 256;

const _: () = assert!(MOST_SERVER_WORDS <= CHUNK);

/// Why there is no record, or only a part of one.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot record decisions: {source}", file.display())]
pub struct RecordError {
    /// The file.
    pub file: PathBuf,
    /// What the system says.
    pub source: io::Error,
}

/// What a recording came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// Decisions in the file.
    pub decisions: u64,
    /// Decisions left out, because they came faster than they could be written.
    pub lost: u64,
}

/// A file in which a run's decisions are recorded. Copies share it.
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
    /// The file cannot be created, or there is no thread.
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

    /// With a receiver instead of the file and its thread.
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

    /// Mappers that record what those of `make` see and say. The first that is made is dispatcher 0,
    /// and so on. Made after [`finish`](Recorder::finish) they record nothing.
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

    /// Waits until everything is in the file, the run being over: all mappers are gone. `None` if that was done before.
    ///
    /// # Errors
    /// The first error of writing; the file hangs.
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

/// A mapper that records what another sees and says. All of [`CoreMapper`]'s functions are passed on.
struct Recording {
    mapper: Box<dyn CoreMapper>,
    chunks: ChunkSender<u64>,
    encoder: Encoder,
    flowlets: Flowlets,
    lost: Arc<AtomicU64>,
}

impl CoreMapper for Recording {
    fn split_points(&self) -> u64 {
        self.mapper.split_points()
    }

    fn batch(&self) -> usize {
        self.mapper.batch()
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
    fn place(&mut self, flowlet: Flowlet, loads: &Loads<'_>) -> Place {
        let place = self.mapper.place(flowlet, loads);
        self.flowlets.placed += 1;
        self.flowlets.away += u64::from(place != Place::HERE);
        place
    }

    #[inline]
    fn completed(&mut self, packets: u32, new: u32, took: Nanos) {
        self.mapper.completed(packets, new, took);
    }
}

/// A server mapper that records what another sees and says. All of [`ServerMapper`]'s functions are
/// passed on.
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

    fn on_overload(&self) -> bool {
        self.mapper.on_overload()
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
        // After an error dispatchers are still relieved of their chunks.
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
