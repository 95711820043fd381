//! Devices with their other end, which refills returned buffers with the next frames, by the same copy as the trace
//! NIC, and sends them. The worker itself does that, burst by burst, or another core does.

use crate::cases::BATCH;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tailwater_chain::batch::Arrived;
use tailwater_chain::buffer::BufferPool;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::cores::pin_to;
use tailwater_dataplane::device::{Receiver, Steering};
use tailwater_dataplane::port::{PortQueue, round_robin};
use tailwater_dpdk::{Device, Eal, EalConfig, Frames, Mempool, Peer, Port, PortConfig, RxQueue, TxQueue, forward};
use tailwater_net::Nanos;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::RssHasher;
use tailwater_traffic::Trace;

/// Buffers of each pool, and limit per worker, as with the trace NIC.
const BUFFERS: u32 = 2048;
const HELD: usize = 512;

/// Kinds of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Two rings, one per direction.
    Ring,
    /// Shared memory. Each end has its own buffers.
    Memif,
}

impl Kind {
    pub const ALL: [Kind; 2] = [Kind::Ring, Kind::Memif];

    /// Returns `true` if the other end belongs to another program, whose time does not count.
    fn is_apart(self) -> bool {
        self == Kind::Memif
    }

    /// Name of the driver.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ring => "net_ring",
            Kind::Memif => "net_memif",
        }
    }
}

/// Frames of a trace, with the hashes a NIC would report.
pub fn frames(trace: &Trace, rss: &RssHasher) -> Arc<Frames> {
    let hash = |frame| parse(frame).map_or(0, |headers| rss.hash_headers(&headers));
    let frames = (0..trace.len()).map(|i| trace.packet(i));
    Arc::new(Frames::new(frames.map(|frame| (frame, hash(frame)))))
}

/// Devices of a worker, their other end, and objects that must live as long.
pub struct Devices {
    kind: Kind,
    rx: RxQueue,
    tx: TxQueue,
    /// `None` if the other end is on another core.
    peer: Option<Peer>,
    apart: Option<Apart>,
    mempool: Mempool,
    _ports: [Port; 2],
    _socket: Option<Socket>,
}

/// Other end, on another core.
struct Apart {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<f64>,
}

impl Apart {
    /// Ends the thread. Returns the share of its bursts for which the device had no room.
    fn end(self) -> f64 {
        self.stop.store(true, Ordering::Relaxed);
        or_end(self.thread.join().map_err(|_| "the other end died"))
    }
}

/// Socket of a shared-memory device.
struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        // The driver may have removed it.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn or_end<T, E: std::fmt::Display>(result: Result<T, E>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

impl Devices {
    pub fn new(kind: Kind, frames: &Arc<Frames>) -> Devices {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(2, Ordering::Relaxed);
        let eal = or_end(Eal::start(&EalConfig {
            memory: 64 << 20,
            ..EalConfig::default()
        }));
        let pool = || or_end(Mempool::new(eal, BUFFERS, frames.longest(), -1));
        let open = |name: String, pool: &Mempool| {
            let device = or_end(Device::find(eal, &or_end(name.parse())));
            // The ring driver allocates 16 rings per device, and frees as many as there are queues. The rest would leak
            // until memory runs out.
            let queues = if kind == Kind::Ring { 16 } else { 1 };
            let config = PortConfig {
                rx_queues: queues,
                tx_queues: queues,
                ..PortConfig::default()
            };
            let (port, mut rx, mut tx) = or_end(device.start(&config, pool));
            (port, rx.remove(0), tx.remove(0))
        };
        let mempool = pool();
        let frames = Arc::clone(frames);
        match kind {
            Kind::Ring => {
                let ring = |number| open(format!("net_ring{number}"), &mempool);
                let ((out, rx, to), (back, from, tx)) = (ring(number), ring(number + 1));
                Devices {
                    kind,
                    rx,
                    tx,
                    peer: Some(Peer::new(frames, from, to)),
                    apart: None,
                    mempool,
                    _ports: [out, back],
                    _socket: None,
                }
            }
            Kind::Memif => {
                let (folder, process) = (std::env::temp_dir(), std::process::id());
                let file = format!("tailwater-{process}-{number}.sock");
                // A socket, identified by its path, is for devices of one role: the other end has another one.
                let end = |role: &str, number: u32, folder: &str, pool: &Mempool| {
                    let name = format!("net_memif{number},role={role},socket={folder}/{file},socket-abstract=no");
                    open(name, pool)
                };
                let (here, pool) = (folder.display().to_string(), pool());
                let (server, from, to) = end("server", number, &here, &pool);
                let socket = Socket(folder.join(&file));
                let (client, rx, tx) = end("client", number + 1, &format!("{here}/."), &mempool);
                let ports = [server, client];
                let deadline = Instant::now() + Duration::from_secs(10);
                while !ports.iter().all(|p| p.link().is_some_and(|link| link.up)) {
                    assert!(Instant::now() < deadline, "the two ends do not meet");
                    std::thread::sleep(Duration::from_millis(1));
                }
                Devices {
                    kind,
                    rx,
                    tx,
                    peer: Some(Peer::new(frames, from, to)),
                    apart: None,
                    mempool,
                    _ports: ports,
                    _socket: Some(socket),
                }
            }
        }
    }

    /// Moves the other end to the given core.
    pub fn apart(mut self, core: usize) -> Devices {
        if let Some(mut peer) = self.peer.take() {
            let stop = Arc::new(AtomicBool::new(false));
            let stopped = Arc::clone(&stop);
            let thread = std::thread::spawn(move || {
                if let Err(error) = pin_to(core) {
                    eprintln!("not pinned: {error}");
                }
                let (mut turns, mut short) = (0u64, 0u64);
                while !stopped.load(Ordering::Relaxed) {
                    turns += 1;
                    short += u64::from(peer.turn(BATCH) < BATCH);
                }
                short as f64 / turns.max(1) as f64
            });
            self.apart = Some(Apart { stop, thread });
        }
        self
    }

    /// Lets DPDK itself forward for `duration`. Returns the packets, the time, and, if the other end is on another
    /// core, the share of its bursts for which the device had no room.
    pub fn forward(mut self, clock: &Clock, duration: Nanos) -> (u64, Nanos, f64) {
        let start = clock.now();
        let (mut now, mut packets, mut spent) = (start, 0, Nanos::ZERO);
        while now < start + duration {
            if let Some(peer) = &mut self.peer {
                peer.turn(BATCH);
                if self.kind.is_apart() {
                    let began = std::mem::replace(&mut now, clock.now());
                    spent += now - began;
                }
            }
            packets += forward(&mut self.rx, &mut self.tx, BATCH) as u64;
            now = clock.now();
        }
        let waits = self.apart.map_or(0.0, Apart::end);
        (packets, now - start - spent, waits)
    }

    /// A worker's queue, its buffers, and a handle that reports the time of the other end. Runs for `duration`, or for
    /// a number of packets. The devices are dropped after the worker.
    pub fn queue(self, clock: &Clock, start: Nanos, until: Until) -> (Box<dyn PortQueue>, BufferPool, Kept) {
        let other_end = Arc::new(OtherEnd::default());
        let (left, end) = match until {
            Until::Packets(packets) => (Some(packets), Nanos::MAX),
            Until::Duration(duration) => (None, start + duration),
        };
        let receiver = Refilled {
            rx: self.rx,
            peer: self.peer,
            left,
            clock: clock.clone(),
            timed: self.kind.is_apart(),
            other_end: Arc::clone(&other_end),
        };
        let steering = Steering::new(
            RssHasher::default(),
            (1, 1),
            &round_robin(1),
            Nanos::ZERO,
            clock.clone(),
        );
        let steering = or_end(steering);
        let queue = steering.queues(vec![(vec![receiver], self.tx)], start, end).remove(0);
        let kept = Kept {
            other_end,
            apart: self.apart,
            _ports: self._ports,
            _socket: self._socket,
        };
        (Box::new(queue), self.mempool.part(HELD), kept)
    }
}

/// Length of a run.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    Packets(u64),
    Duration(Nanos),
}

/// State of a worker's other end.
#[derive(Debug, Default)]
struct OtherEnd {
    /// Time it took, in nanoseconds.
    spent: AtomicU64,
    /// Set once all its packets have been sent and received.
    done: AtomicBool,
}

/// Handle to the devices of a worker.
pub struct Kept {
    other_end: Arc<OtherEnd>,
    apart: Option<Apart>,
    _ports: [Port; 2],
    _socket: Option<Socket>,
}

impl Kept {
    /// Time of the other end, if it belongs to another program.
    pub fn spent(&self) -> Nanos {
        Nanos(self.other_end.spent.load(Ordering::Relaxed))
    }

    /// Ends the other end, if it is on another core. Returns the share of its bursts for which the device had no room.
    pub fn waits(&mut self) -> f64 {
        self.apart.take().map_or(0.0, Apart::end)
    }

    /// Returns `true` if the worker may stop.
    pub fn is_done(&self) -> bool {
        self.other_end.done.load(Ordering::Relaxed)
    }
}

/// Queue that is refilled before each burst, unless the other end runs by itself.
#[derive(Debug)]
struct Refilled {
    rx: RxQueue,
    peer: Option<Peer>,
    /// Number of packets left, or `None` for no limit.
    left: Option<u64>,
    clock: Clock,
    /// Measure the time of the other end, which takes time itself.
    timed: bool,
    other_end: Arc<OtherEnd>,
}

impl Receiver for Refilled {
    #[inline]
    fn receive(&mut self, pool: &mut BufferPool, most: usize) -> usize {
        let Some(peer) = &mut self.peer else {
            return self.rx.receive(pool, most);
        };
        // The worker has room for one more, so it sees that no more has arrived.
        let burst = match self.left {
            None => BATCH.min(most),
            Some(left) => BATCH.min(most).min(left as usize),
        };
        let before = self.timed.then(|| self.clock.now());
        let sent = peer.turn(burst);
        if let Some(before) = before {
            let spent = &self.other_end.spent;
            let total = spent.load(Ordering::Relaxed) + (self.clock.now() - before).0;
            spent.store(total, Ordering::Relaxed);
        }
        if let Some(left) = &mut self.left {
            *left -= sent as u64;
        }
        let received = self.rx.receive(pool, most);
        if self.left == Some(0) && received == 0 {
            self.other_end.done.store(true, Ordering::Relaxed);
        }
        received
    }

    #[inline]
    fn packets(&mut self) -> impl ExactSizeIterator<Item = (Arrived, Option<Nanos>)> {
        self.rx.packets().map(|packet| (packet, None))
    }

    fn ring(&self) -> usize {
        self.rx.ring()
    }
}
