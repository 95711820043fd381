//! Flow records on their way to collectors and files: rings from the workers, and a thread for each outlet.

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

/// Records that may wait for an outlet, of each worker: 1.3 MiB.
const RING: usize = 1 << 14;
/// Records taken from a worker's ring at a time.
const TURN: usize = 1024;
/// How often an outlet looks for records when there are none.
const LOOK: Duration = Duration::from_millis(50);
/// How long a message waits for more records.
const LINGER: Duration = Duration::from_millis(500);

/// How records get to a collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Datagrams: templates are repeated.
    #[default]
    Udp,
    /// A connection, opened again when it is lost.
    Tcp,
}

/// Where records go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outlet {
    /// A collector.
    Collector {
        /// Its address and port.
        address: SocketAddr,
        /// How records get there.
        transport: Transport,
        /// The most bytes of a message, among [`MESSAGE_BYTES`](super::MESSAGE_BYTES).
        message_bytes: usize,
        /// How often templates are repeated, where they are, and what was lost is told.
        refresh: Nanos,
        /// The most bits of messages a second.
        bits_per_second: u64,
    },
    /// A file of messages (RFC 5655), written anew. Relative to the folder that the program runs in.
    File(PathBuf),
}

impl Outlet {
    /// What it is called in errors.
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

/// What is counted, and where it is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// A flow that goes on is told of after this time.
    pub active: Nanos,
    /// A flow without packets for this time is told of.
    pub idle: Nanos,
    /// One packet in so many is counted; at least 1.
    pub sampling: u32,
    /// What tells this exporter's flows from those of others at the same address.
    pub domain: u32,
    /// Where records go, if anywhere.
    pub outlets: Vec<Outlet>,
}

/// What workers and the thread of an outlet share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Rings of workers that the thread has not taken yet.
    rings: Mutex<Vec<Consumer<FlowRecord>>>,
    /// Whether workers have no more packets.
    ending: AtomicBool,
    /// Whether there will be no more rings, and whether those that there are do not count any more.
    over: AtomicBool,
    abandoned: AtomicBool,
    lost: [AtomicU64; 3],
    /// Whether the thread gets on. It bounds by itself what it waits for, but for a file, which may hang.
    pub(super) pulse: Pulse,
}

impl Shared {
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

/// A worker's way to an outlet.
#[derive(Debug)]
pub(super) struct Sender {
    ring: Producer<FlowRecord>,
    shared: Arc<Shared>,
}

impl Sender {
    /// Hands over a record; `false` if it is lost, for want of room.
    pub(super) fn send(&mut self, record: &FlowRecord) -> bool {
        let taken = self.ring.push(*record).is_ok();
        if !taken {
            self.shared.lose(record);
        }
        taken
    }

    /// As [`send`](Sender::send), but waits for room. It is lost only if nobody makes any, or the outlet hangs.
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

/// A thread that tells records.
#[derive(Debug)]
struct Teller {
    outlet: Outlet,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<Sent>>>,
    /// What became of it, until that is told.
    ended: Mutex<Option<io::Result<Sent>>>,
}

impl Teller {
    /// Waits until everything is told or lost, or the outlet hangs.
    fn end(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            self.shared.over.store(true, Ordering::Release);
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

impl Drop for Teller {
    fn drop(&mut self) {
        // Whoever wanted to know of losses has finished it.
        self.shared.abandoned.store(true, Ordering::Release);
        self.end();
    }
}

/// What all workers of a function share.
#[derive(Debug)]
pub struct FlowStatsTable {
    options: Options,
    tellers: Vec<Teller>,
    /// The run's start, on the clock of the world.
    origin: Arc<Origin>,
    unsent: Arc<AtomicU64>,
    /// Instances that may have more records.
    instances: AtomicUsize,
}

impl FlowStatsTable {
    /// Creates files, and starts a thread for each outlet. Nobody is connected to yet.
    ///
    /// # Errors
    /// A file cannot be created, or a thread not be started.
    pub fn new(options: Options) -> Result<FlowStatsTable, ExportError> {
        let origin = Arc::<Origin>::default();
        let unsent = Arc::new(AtomicU64::new(0));
        let tellers = options.outlets.iter().map(|outlet| {
            let error = |source| ExportError::Write {
                file: outlet.name(),
                source,
            };
            let shared = Arc::new(Shared::default());
            let session = Session::new(
                outlet,
                (&options, Arc::clone(&origin)),
                (Arc::clone(&shared), Arc::clone(&unsent)),
            );
            let session = session.map_err(error)?;
            let rings = Arc::clone(&shared);
            let thread = std::thread::Builder::new()
                .name("flow-export".to_owned())
                .spawn(move || tell(&rings, session))
                .map_err(error)?;
            Ok(Teller {
                outlet: outlet.clone(),
                shared,
                thread: Mutex::new(Some(thread)),
                ended: Mutex::new(None),
            })
        });
        Ok(FlowStatsTable {
            tellers: tellers.collect::<Result<_, ExportError>>()?,
            options,
            origin,
            unsent,
            instances: AtomicUsize::new(0),
        })
    }

    /// What is counted, and where it is told.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// A worker's ways to the outlets, in their order. Given back by [`leave`](FlowStatsTable::leave).
    pub(super) fn senders(&self) -> Vec<Sender> {
        self.instances.fetch_add(1, Ordering::Relaxed);
        let senders = self.tellers.iter().map(|teller| {
            let (ring, consumer) = ring(RING);
            let shared = Arc::clone(&teller.shared);
            let mut rings = shared.rings.lock().unwrap_or_else(PoisonError::into_inner);
            rings.push(consumer);
            drop(rings);
            Sender { ring, shared }
        });
        senders.collect()
    }

    /// Says what time it is, since the run's start: what is told first counts.
    #[inline]
    pub(super) fn set_origin(&self, now: Nanos) {
        self.origin.set_by(now);
    }

    /// Records that outlets could not tell since this was last asked.
    #[inline]
    pub(super) fn take_unsent(&self) -> u64 {
        match self.unsent.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.unsent.swap(0, Ordering::Relaxed),
        }
    }

    /// A worker has no more records; `true` if no other one has.
    pub(super) fn leave(&self, senders: Vec<Sender>) -> bool {
        drop(senders);
        self.instances.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Waits until all records are told or lost, every worker having [left](FlowStatsTable::leave).
    pub(super) fn end(&self) {
        self.tellers.iter().for_each(Teller::end);
    }

    /// A worker has no more packets, and waits if an outlet is too slow.
    pub(super) fn ending(&self) {
        for teller in &self.tellers {
            teller.shared.ending.store(true, Ordering::Release);
        }
    }

    /// Waits until everything is told, all workers' chains having
    /// [finished](tailwater_chain::chain::Chain::finish), or given up.
    ///
    /// # Errors
    /// The first outlet that could not be told everything.
    pub fn finish(&self) -> Result<Vec<Exported>, ExportError> {
        let finished: Vec<_> = self.tellers.iter().map(Teller::finish).collect();
        finished.into_iter().filter_map(Result::transpose).collect()
    }
}

/// Tells what workers hand over, until they all have ended.
fn tell(shared: &Shared, mut session: Session) -> Sent {
    let mut rings: Vec<Consumer<FlowRecord>> = Vec::new();
    // Since when there has been nothing to do but wait: for more records, or, at the end, for a collector.
    let mut waiting = Instant::now();
    let (mut stuck, mut given_up) = (None, false);
    loop {
        shared.pulse.beat();
        // In this order: what was pushed before its worker ended is popped below.
        let over = shared.over.load(Ordering::Acquire);
        let ending = shared.ending.load(Ordering::Acquire) || over;
        let mut new = shared.rings.lock().unwrap_or_else(PoisonError::into_inner);
        rings.append(&mut new);
        drop(new);
        let closed: Vec<bool> = rings.iter().map(Consumer::is_closed).collect();
        let mut popped = 0;
        if given_up {
            for ring in &mut rings {
                popped += ring.pop_each(TURN, |record| session.give_up(&record));
            }
        } else if session.is_ready() {
            stuck = None;
            for ring in &mut rings {
                popped += ring.pop_each(TURN, |record| session.tell(&record));
            }
        } else if ending {
            // No worker is to wait for it for ever.
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
        if waiting.elapsed() >= LINGER {
            session.flush();
            waiting = Instant::now();
        }
        std::thread::park_timeout(LOOK);
    }
}
