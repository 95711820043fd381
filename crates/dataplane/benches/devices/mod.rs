//! A port on a `net_ring` device that is refilled by the worker itself, burst by burst, with copies of a trace:
//! what the trace NIC does, with DPDK's buffers and rings in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::device::{Receiver, Steering};
use tailwater_dataplane::port::{PortQueue, round_robin};
use tailwater_dpdk::{Device, Eal, EalConfig, Mempool, Port, PortConfig, RxQueue, TxQueue};
use tailwater_net::Nanos;
use tailwater_net::parse::parse;
use tailwater_net::toeplitz::RssHasher;
use tailwater_nf::batch::{Arrived, Batch};
use tailwater_nf::buffer::BufferPool;
use tailwater_traffic::Trace;

/// Buffers of each row's pool, and those that a worker may hold, as with the trace NIC.
const BUFFERS: u32 = 2048;
const HELD: usize = 512;

/// Packets at a time.
const BURST: usize = 32;

/// Packets with their hashes.
#[derive(Clone, Debug)]
pub struct Hashed {
    trace: Arc<Trace>,
    hashes: Arc<[u32]>,
}

impl Hashed {
    pub fn new(trace: Trace, rss: &RssHasher) -> Hashed {
        let hash = |frame| parse(frame).map_or(0, |headers| rss.hash_headers(&headers));
        Hashed {
            hashes: (0..trace.len()).map(|i| hash(trace.packet(i))).collect(),
            trace: Arc::new(trace),
        }
    }
}

/// The ring's queue, refilled before each burst.
#[derive(Debug)]
struct Refilled {
    rx: RxQueue,
    tx: TxQueue,
    packets: Hashed,
    next: usize,
    /// How many packets there are still to be; endless if it does not say.
    left: Option<u64>,
}

impl Receiver for Refilled {
    #[inline]
    fn receive(
        &mut self,
        pool: &mut BufferPool,
        most: usize,
        each: impl FnMut(&mut BufferPool, Arrived),
    ) -> usize {
        let Refilled {
            packets: Hashed { trace, hashes },
            next,
            left,
            ..
        } = self;
        let most = match left {
            None => most,
            Some(left) => most.min(*left as usize),
        };
        let sent = self.tx.inject(most, || {
            let packet = *next;
            *next = if packet + 1 == trace.len() {
                0
            } else {
                packet + 1
            };
            // The hash of a NIC's.
            (trace.packet(packet), hashes[packet])
        });
        if let Some(left) = left {
            *left -= sent as u64;
        }
        self.rx.receive(pool, most, each)
    }

    fn ring(&self) -> usize {
        match self.left {
            None => 1024,
            Some(_) => usize::MAX,
        }
    }
}

/// A ring, nothing behind it, and the buffers of both.
struct Devices {
    rx: RxQueue,
    refill: TxQueue,
    sink: TxQueue,
    mempool: Mempool,
    ports: [Port; 2],
}

fn devices(packets: &Hashed) -> Devices {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let failed = |error| -> ! { panic!("{error}") };
    let eal = Eal::start(&EalConfig {
        memory: 64 << 20,
        ..EalConfig::default()
    });
    let eal = eal.unwrap_or_else(|error| failed(error));
    let trace = &packets.trace;
    let frame = (0..trace.len()).map(|i| trace.length(i)).max();
    let mempool = Mempool::new(eal, BUFFERS, frame.unwrap_or(0), -1);
    let mempool = mempool.unwrap_or_else(|error| failed(error));
    let open = |driver: &str| {
        let name = format!("{driver}{number}").parse();
        let name = name.unwrap_or_else(|error| panic!("{error}"));
        let device = Device::find(eal, &name).unwrap_or_else(|error| failed(error));
        let (port, mut rx, mut tx) = device
            .start(&PortConfig::default(), &mempool)
            .unwrap_or_else(|error| failed(error));
        (port, rx.remove(0), tx.remove(0))
    };
    let ((ring, rx, refill), (null, _, sink)) = (open("net_ring"), open("net_null"));
    Devices {
        rx,
        refill,
        sink,
        mempool,
        ports: [ring, null],
    }
}

/// Nanoseconds that a packet takes through ring and device alone, without a worker or a chain: copied into a
/// fresh buffer, through the ring, into a batch, out.
pub fn alone(packets: &Hashed) -> f64 {
    let mut devices = devices(packets);
    let mut part = devices.mempool.part(HELD);
    let mut batch = Batch::new(&part, BURST);
    let mut source = (0..packets.trace.len()).cycle();
    let (mut count, start) = (0, Instant::now());
    while count < 10_000_000 {
        devices.refill.inject(BURST, || {
            let packet = source.next().unwrap_or(0);
            (packets.trace.packet(packet), packets.hashes[packet])
        });
        count += devices.rx.receive(&mut part, BURST, |_, packet| {
            let hash = packet.hash.unwrap_or(0);
            batch.receive(packet, Nanos::ZERO, hash);
        });
        devices.sink.transmit(&mut batch);
        batch.release(&mut part);
    }
    start.elapsed().as_nanos() as f64 / count as f64
}

/// A worker's queue on a ring, with nothing behind it, and its buffers: for `duration`, or for the trace
/// once. The ports go after the worker.
pub fn queue(
    packets: &Hashed,
    clock: &Clock,
    start: Nanos,
    duration: Option<Nanos>,
) -> (Box<dyn PortQueue>, BufferPool, [Port; 2]) {
    let Devices {
        rx,
        refill,
        sink,
        mempool,
        ports,
    } = devices(packets);
    let receiver = Refilled {
        rx,
        tx: refill,
        packets: packets.clone(),
        next: 0,
        left: match duration {
            None => Some(packets.trace.len() as u64),
            Some(_) => None,
        },
    };
    let (rss, clock) = (RssHasher::default(), clock.clone());
    let steering = Steering::new(rss, (1, 1), &round_robin(1), Nanos::ZERO, clock);
    let steering = steering.unwrap_or_else(|error| panic!("{error}"));
    if duration.is_none() {
        // What there is still comes.
        steering.end();
    }
    let end = duration.map_or(Nanos::MAX, |duration| start + duration);
    let queue = steering
        .queues(vec![(vec![receiver], sink)], start, end)
        .remove(0);
    (Box::new(queue), mempool.part(HELD), ports)
}
