//! Port at full load without loss: packets arrive as fast as others are sent.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_dataplane::capture::CaptureTap;
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::port::{
    OpenError, Port, PortQueue, PortRequirements, PortSender, Received, Reta, RetaError, round_robin,
};
use tailwater_dataplane::trace_nic::{Pacing, TraceNic, TraceNicConfig};
use tailwater_net::builder::FrameBuilder;
use tailwater_net::toeplitz::RssHasher;
use tailwater_net::{FlowKey, Nanos, protocol};
use tailwater_traffic::{LoadOptions, Notice, Packet, PacketSource, Trace, TrafficError};

/// Packets until the traffic is repeated: as many in each run, so that what precedes it costs as much.
const PERIOD: u64 = 1 << 16;
/// Flows of the traffic.
const FLOWS: u64 = 10_000;
/// Networks that they come from, 10.N.0.0/16.
pub const NETWORKS: usize = 16;
/// Packets on their way with one chain, and with several: fewer than the ring of any chain has room for.
const ON_THE_WAY: [u64; 2] = [64, 256];

/// Packets of the flows in random order; each network has as many.
struct Random {
    all: u64,
    left: u64,
    state: u64,
    frame: Vec<u8>,
}

impl PacketSource for Random {
    fn next_packet(&mut self) -> Result<Option<Packet<'_>>, TrafficError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.state = self
            .state
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        let flow = (self.state >> 33) % FLOWS;
        self.frame = frame((flow as usize % NETWORKS) as u8, flow as u16);
        Ok(Some(Packet {
            timestamp: Nanos(1000 * (self.all - self.left)),
            data: &self.frame,
            wire_length: self.frame.len() as u32,
        }))
    }

    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }

    fn name(&self) -> &str {
        "random"
    }
}

/// Frame of 64 bytes, with its checksum that is not there.
pub fn frame(network: u8, flow: u16) -> Vec<u8> {
    let source = Ipv4Addr::new(10, network, (flow >> 8) as u8, flow as u8);
    let destination = Ipv4Addr::new(198, 18, 0, 1 + (flow % 200) as u8);
    let key = FlowKey::v4(source, destination, protocol::UDP, 1024 + flow, 53);
    FrameBuilder::new(&key)
        .payload(&[0; 18])
        .to_vec()
        .expect("a short frame")
}

/// Trace, which is repeated.
fn packets() -> Trace {
    let all = PERIOD;
    let mut source = Random {
        all,
        left: all,
        state: 1,
        frame: Vec::new(),
    };
    Trace::load(&mut source, &LoadOptions::default()).expect("a trace in memory")
}

/// Packets sent, and when.
#[derive(Debug)]
pub struct Sent {
    go: AtomicBool,
    packets: AtomicU64,
    began: Instant,
    /// Nanoseconds since `began` of the first packet received and the last sent.
    first: AtomicU64,
    last: AtomicU64,
}

impl Sent {
    /// Lets packets arrive.
    pub fn go(&self) {
        self.go.store(true, Ordering::Release);
    }

    /// Waits until so many packets have been sent.
    pub fn await_packets(&self, count: u64) {
        let end = Instant::now() + Duration::from_secs(300);
        while self.packets.load(Ordering::Relaxed) < count {
            assert!(Instant::now() < end, "{self:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Time per packet.
    pub fn nanos_per_packet(&self) -> f64 {
        let took = self.last.load(Ordering::Relaxed) - self.first.load(Ordering::Relaxed);
        took as f64 / self.packets.load(Ordering::Relaxed) as f64
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }
}

/// Port whose packets arrive as fast as others are sent.
pub struct Feed {
    nic: TraceNic,
    count: u64,
    /// Packets on their way at a time.
    window: u64,
    sent: Arc<Sent>,
}

impl Feed {
    /// Port of `count` packets for so many chains; for 0, a chain takes packets from it directly.
    pub fn new(count: u64, chains: usize, clock: &Clock) -> (Feed, Arc<Sent>) {
        let trace = packets();
        let config = TraceNicConfig {
            pacing: Pacing::Saturate,
            duration: Some(Nanos::from_secs(3600)),
            renumber: tailwater_dataplane::trace_nic::Renumber::None,
            ..TraceNicConfig::default()
        };
        let nic = TraceNic::new(trace, RssHasher::default(), 1, &round_robin(1), config, clock.clone());
        let sent = Arc::new(Sent {
            go: AtomicBool::new(chains == 0),
            packets: AtomicU64::new(0),
            began: Instant::now(),
            first: AtomicU64::new(0),
            last: AtomicU64::new(0),
        });
        let feed = Feed {
            nic: nic.expect("a queue"),
            count,
            window: match chains {
                0 => u64::MAX,
                1 => ON_THE_WAY[0],
                _ => ON_THE_WAY[1],
            },
            sent: Arc::clone(&sent),
        };
        (feed, sent)
    }
}

impl Port for Feed {
    fn traffic(&self) -> &str {
        "feed"
    }

    fn duration(&self) -> Option<Nanos> {
        None
    }

    fn open(&mut self, need: &PortRequirements) -> Result<Vec<BufferPool>, OpenError> {
        self.nic.open(need)
    }

    fn queues(&mut self, start: Nanos) -> Vec<Box<dyn PortQueue>> {
        let queues = Port::queues(&mut self.nic, start).into_iter();
        queues
            .map(|queue| {
                Box::new(FeedQueue {
                    queue,
                    left: self.count,
                    received: 0,
                    window: self.window,
                    sent: Arc::clone(&self.sent),
                }) as Box<dyn PortQueue>
            })
            .collect()
    }

    fn sender(&mut self) -> Box<dyn PortSender> {
        Box::new(FeedSender {
            sender: Box::new(self.nic.sender()),
            sent: Arc::clone(&self.sent),
        })
    }

    fn reta_delay(&self) -> Option<Nanos> {
        None
    }

    fn set_reta(&self, reta: &Reta) -> Result<Nanos, RetaError> {
        self.nic.set_reta(reta)
    }
}

/// Counts a batch that is sent.
#[inline]
fn note(sent: &Sent, count: usize) {
    let packets = sent.packets.load(Ordering::Relaxed) + count as u64;
    if packets % 1024 < count as u64 {
        sent.last.store(sent.now(), Ordering::Relaxed);
    }
    sent.packets.store(packets, Ordering::Relaxed);
}

struct FeedQueue {
    queue: Box<dyn PortQueue>,
    left: u64,
    received: u64,
    window: u64,
    sent: Arc<Sent>,
}

impl PortSender for FeedQueue {
    fn complete(&mut self, batch: &mut Batch) {
        self.queue.complete(batch);
    }

    fn transmit(&mut self, batch: &mut Batch) -> usize {
        note(&self.sent, batch.len());
        self.queue.transmit(batch)
    }

    fn capture(&mut self, tap: CaptureTap) {
        self.queue.capture(tap);
    }
}

impl PortQueue for FeedQueue {
    fn receive(&mut self, now: Nanos, pool: &mut BufferPool, batch: &mut Batch) -> Received {
        let on_the_way = self.received - self.sent.packets.load(Ordering::Relaxed).min(self.received);
        if self.left == 0 || !self.sent.go.load(Ordering::Acquire) || on_the_way >= self.window {
            return Received {
                ended: self.left == 0,
                ..Received::default()
            };
        }
        if self.received == 0 {
            self.sent.first.store(self.sent.now(), Ordering::Relaxed);
        }
        let received = self.queue.receive(now, pool, batch);
        self.received += batch.len() as u64;
        self.left = self.left.saturating_sub(batch.len() as u64);
        Received {
            ended: self.left == 0,
            waiting: usize::from(self.left > 0),
            ..received
        }
    }

    fn received_before(&self) -> Nanos {
        self.queue.received_before()
    }

    fn stop(&mut self) {
        self.queue.stop();
    }

    fn reclaim(&mut self, pool: &mut BufferPool) {
        self.queue.reclaim(pool);
    }

    fn discard(&mut self, lost: &mut dyn FnMut(Nanos, u32)) -> u64 {
        let _ = lost;
        0
    }
}

struct FeedSender {
    sender: Box<dyn PortSender>,
    sent: Arc<Sent>,
}

impl PortSender for FeedSender {
    fn complete(&mut self, batch: &mut Batch) {
        self.sender.complete(batch);
    }

    fn transmit(&mut self, batch: &mut Batch) -> usize {
        note(&self.sent, batch.len());
        self.sender.transmit(batch)
    }

    fn capture(&mut self, tap: CaptureTap) {
        self.sender.capture(tap);
    }
}
