//! Export of flow records to collectors and files: one ring per worker and outlet, and one thread per outlet.

use super::ipfix::NotSent;
use super::record::FlowRecord;
use super::session::{Sent, Session};
use crate::accounting::{ExportError, Exported};
use crate::origin::Origin;
use crate::out_file::{GRACE, Pulse};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tailwater_handover::ring::{Consumer, Producer, ring};
use tailwater_net::Nanos;

/// Records per worker that can wait for an outlet: 1.3 MiB.
const RING: usize = 1 << 14;
/// Maximum number of records taken from a worker's ring at a time.
const RECORDS_PER_POLL: usize = 1024;
/// Polling interval of an outlet without records.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time for which a message waits for more records.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);

/// Transport to a collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Datagrams. Templates are repeated.
    #[default]
    Udp,
    /// Connection, reopened when it is lost.
    Tcp,
}

/// Destination of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outlet {
    /// IPFIX collector.
    Collector {
        /// Address and port.
        address: SocketAddr,
        /// Transport to the collector.
        transport: Transport,
        /// Maximum bytes of a message, within [`MESSAGE_BYTES`](super::MESSAGE_BYTES).
        message_bytes: usize,
        /// Interval at which loss counters are sent and, over UDP, templates are repeated.
        refresh: Nanos,
        /// Maximum rate of messages, in bits per second.
        bits_per_second: u64,
    },
    /// File of messages (RFC 5655), which is overwritten. The path is relative to the program's working directory.
    File(PathBuf),
}

impl Outlet {
    /// Returns the name used in errors.
    pub fn name(&self) -> PathBuf {
        match self {
            Outlet::Collector { address, transport, .. } => {
                let transport = match transport {
                    Transport::Udp => "udp",
                    Transport::Tcp => "tcp",
                };
                PathBuf::from(format!("{transport}:{address}"))
            }
            Outlet::File(file) => file.clone(),
        }
    }
}

/// Options of the function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Active timeout: a flow that continues is reported after this time.
    pub active: Nanos,
    /// Idle timeout: a flow without packets for this time is reported.
    pub idle: Nanos,
    /// Sampling interval: one packet in `sampling` is counted; at least 1.
    pub sampling: u32,
    /// Observation domain. It distinguishes this exporter's flows from those of others at the same address.
    pub domain: u32,
    /// Destinations of records. May be empty.
    pub outlets: Vec<Outlet>,
}

/// State shared by workers and the thread of an outlet.
#[derive(Debug, Default)]
pub(super) struct OutletState {
    /// New workers' rings that the thread has not taken yet.
    rings: Mutex<Vec<Consumer<FlowRecord>>>,
    /// Set when workers receive no more packets.
    ending: AtomicBool,
    /// `over` is set when no more rings will be added; `abandoned` when the remaining records are to be discarded.
    shutting_down: AtomicBool,
    abandoned: AtomicBool,
    lost: [AtomicU64; 3],
    /// Progress of the thread. The thread itself bounds all its waits except those for a file, which may hang.
    pub(super) pulse: Pulse,
}

impl OutletState {
    pub(super) fn lose(&self, record: &FlowRecord) {
        self.add_lost(NotSent {
            records: 1,
            packets: record.packets,
            bytes: record.bytes,
        });
    }

    pub(super) fn add_lost(&self, lost: NotSent) {
        let counts = [lost.records, lost.packets, lost.bytes];
        for (sum, count) in self.lost.iter().zip(counts) {
            sum.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(super) fn not_sent(&self) -> NotSent {
        let [records, packets, bytes] = [0, 1, 2].map(|at| self.lost[at].load(Ordering::Relaxed));
        NotSent {
            records,
            packets,
            bytes,
        }
    }
}

/// A worker's sender to an outlet.
#[derive(Debug)]
pub(super) struct Sender {
    ring: Producer<FlowRecord>,
    shared: Arc<OutletState>,
}

impl Sender {
    /// Sends a record. Returns `false` if it is lost because the ring is full.
    pub(super) fn send(&mut self, record: &FlowRecord) -> bool {
        let taken = self.ring.push(*record).is_ok();
        if !taken {
            self.shared.lose(record);
        }
        taken
    }

    /// Same as [`send`](Sender::send), but waits for room. The record is lost only if the outlet has ended or hangs.
    pub(super) fn send_waiting(&mut self, record: &FlowRecord) -> bool {
        let ring = &mut self.ring;
        let pulse = &self.shared.pulse;
        let waited = pulse.wait(|| ring.room(1) > 0 || ring.is_closed());
        if !waited {
            self.shared.lose(record);
        }
        waited && self.send(record)
    }
}

/// Thread that exports records to an outlet.
#[derive(Debug)]
struct OutletThread {
    outlet: Outlet,
    shared: Arc<OutletState>,
    thread: Mutex<Option<JoinHandle<Sent>>>,
    /// The thread's result, until it is reported.
    ended: Mutex<Option<io::Result<Sent>>>,
}

impl OutletThread {
    /// Waits until all records are exported or lost, or the outlet hangs.
    fn end(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            self.shared.shutting_down.store(true, Ordering::Release);
            thread.thread().unpark();
            let ended = self.shared.pulse.join(thread);
            *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
        }
    }

    fn finish(&self) -> Result<Option<Exported>, ExportError> {
        self.end();
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sent) = ended.take() else {
            return Ok(None);
        };
        let file = self.outlet.name();
        let records = match sent {
            Ok(Sent { error: None, records }) => records,
            Ok(Sent {
                error: Some(source), ..
            })
            | Err(source) => return Err(ExportError::Write { file, source }),
        };
        match self.shared.not_sent().records {
            0 => Ok(Some(Exported { file, records })),
            lost => Err(ExportError::Undelivered {
                file,
                lost,
                records: records + lost,
            }),
        }
    }
}

impl Drop for OutletThread {
    fn drop(&mut self) {
        // A caller interested in losses has called `finish`.
        self.shared.abandoned.store(true, Ordering::Release);
        self.end();
    }
}

/// State shared by all workers of a function.
#[derive(Debug)]
pub struct FlowStatsTable {
    options: Options,
    outlet_threads: Vec<OutletThread>,
    /// Start of the run in wall-clock time.
    origin: Arc<Origin>,
    unsent: Arc<AtomicU64>,
    /// Number of instances that may have more records.
    instances: AtomicUsize,
}

impl FlowStatsTable {
    /// Creates the files and starts a thread for each outlet. Collectors are connected later.
    ///
    /// # Errors
    /// If a file cannot be created or a thread cannot be started.
    pub fn new(options: Options) -> Result<FlowStatsTable, ExportError> {
        let origin = Arc::<Origin>::default();
        let unsent = Arc::new(AtomicU64::new(0));
        let outlet_threads = options.outlets.iter().map(|outlet| {
            let error = |source| ExportError::Write {
                file: outlet.name(),
                source,
            };
            let shared = Arc::new(OutletState::default());
            let session = Session::new(
                outlet,
                (&options, Arc::clone(&origin)),
                (Arc::clone(&shared), Arc::clone(&unsent)),
            );
            let session = session.map_err(error)?;
            let rings = Arc::clone(&shared);
            let thread = std::thread::Builder::new()
                .name("flow-export".to_owned())
                .spawn(move || export_records(&rings, session))
                .map_err(error)?;
            Ok(OutletThread {
                outlet: outlet.clone(),
                shared,
                thread: Mutex::new(Some(thread)),
                ended: Mutex::new(None),
            })
        });
        Ok(FlowStatsTable {
            outlet_threads: outlet_threads.collect::<Result<_, ExportError>>()?,
            options,
            origin,
            unsent,
            instances: AtomicUsize::new(0),
        })
    }

    /// Returns the options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns a worker's senders, one per outlet and in their order. [`deregister`](FlowStatsTable::deregister) takes them back.
    pub(super) fn senders(&self) -> Vec<Sender> {
        self.instances.fetch_add(1, Ordering::Relaxed);
        let senders = self.outlet_threads.iter().map(|teller| {
            let (ring, consumer) = ring(RING);
            let shared = Arc::clone(&teller.shared);
            let mut rings = shared.rings.lock().unwrap_or_else(PoisonError::into_inner);
            rings.push(consumer);
            drop(rings);
            Sender { ring, shared }
        });
        senders.collect()
    }

    /// Sets the start of the run from the time since then. Only the first call has an effect.
    #[inline]
    pub(super) fn set_origin(&self, now: Nanos) {
        self.origin.set_by(now);
    }

    /// Returns and resets the number of records that outlets could not send.
    #[inline]
    pub(super) fn take_unsent(&self) -> u64 {
        match self.unsent.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.unsent.swap(0, Ordering::Relaxed),
        }
    }

    /// Deregisters a worker that has no more records. Returns `true` for the last worker.
    pub(super) fn deregister(&self, senders: Vec<Sender>) -> bool {
        drop(senders);
        self.instances.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Waits until all records are sent or lost. Every worker must have [left](FlowStatsTable::deregister).
    pub(super) fn end(&self) {
        self.outlet_threads.iter().for_each(OutletThread::end);
    }

    /// Declares that a worker receives no more packets. From then on it waits for slow outlets.
    pub(super) fn ending(&self) {
        for teller in &self.outlet_threads {
            teller.shared.ending.store(true, Ordering::Release);
        }
    }

    /// Waits until all records are sent or given up. All workers' chains must have
    /// [drained](tailwater_chain::chain::Chain::drain).
    ///
    /// # Errors
    /// The error of the first outlet that lost records or whose file could not be written.
    pub fn finish(&self) -> Result<Vec<Exported>, ExportError> {
        let finished: Vec<_> = self.outlet_threads.iter().map(OutletThread::finish).collect();
        finished.into_iter().filter_map(Result::transpose).collect()
    }
}

/// Exports records from the workers' rings until all workers have ended.
fn export_records(shared: &OutletState, mut session: Session) -> Sent {
    let mut rings: Vec<Consumer<FlowRecord>> = Vec::new();
    // Start of the current wait: for more records or, at the end, for a collector.
    let mut waiting = Instant::now();
    let (mut stuck, mut given_up) = (None, false);
    loop {
        shared.pulse.beat();
        // The flags are read before the rings: records pushed before a worker ended are popped below.
        let over = shared.shutting_down.load(Ordering::Acquire);
        let ending = shared.ending.load(Ordering::Acquire) || over;
        let mut new = shared.rings.lock().unwrap_or_else(PoisonError::into_inner);
        rings.append(&mut new);
        drop(new);
        let closed: Vec<bool> = rings.iter().map(Consumer::is_closed).collect();
        let mut popped = 0;
        if given_up {
            for ring in &mut rings {
                popped += ring.pop_each(RECORDS_PER_POLL, |record| session.discard(&record));
            }
        } else if session.is_ready() {
            stuck = None;
            for ring in &mut rings {
                popped += ring.pop_each(RECORDS_PER_POLL, |record| session.add_record(&record));
            }
        } else if ending {
            // Workers must not wait for the outlet indefinitely.
            given_up = stuck.get_or_insert_with(Instant::now).elapsed() >= GRACE;
        }
        if popped > 0 {
            continue;
        }
        let abandoned = shared.abandoned.load(Ordering::Acquire);
        let mut states = closed.into_iter();
        rings.retain(|ring| !states.next().unwrap_or(false) || !ring.is_empty());
        if abandoned || over && rings.is_empty() {
            return session.end(abandoned);
        }
        if waiting.elapsed() >= FLUSH_INTERVAL {
            session.flush();
            waiting = Instant::now();
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
}
