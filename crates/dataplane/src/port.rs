//! Port interface of a run and its workers: queues that receive and send batches.

use crate::capture::CaptureTap;
use crate::external::attachment::Attached;
use crate::kept_packets::RingKeeper;
use crate::packet_socket::PassedInterface;
use crate::report::PortReport;
use std::io;
use std::os::fd::OwnedFd;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::parcel::PacketStore;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::{BUCKETS, RssKey};

/// Result of a poll.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Packets that arrived (were offered) since the last call, lost ones included.
    pub offered: u64,
    /// Offered packets lost because the descriptor ring was full.
    pub lost_ring_full: u64,
    /// Arrival of the first of these.
    pub lost_since: Nanos,
    /// Of the packets lost, those that the device lost on a queue that it does not report: any of the port's.
    pub lost_on_any_queue: u64,
    /// Offered packets that were not delivered to the worker.
    pub refused: Refused,
    /// Arrived packets left in the ring; above 0, if there are any and `counts_waiting` is not set.
    pub waiting: usize,
    /// `waiting` is their number.
    pub counts_waiting: bool,
    /// No more packets will arrive. Those `waiting` can still be received.
    pub ended: bool,
    /// The device reported no RSS hash for some packets, and they [have none](PortQueue::leave_out_hashes).
    pub unhashed: bool,
}

/// Received packets that are not delivered to a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// In several buffers, and too long for one: lost.
    pub in_pieces: u64,
    /// Wrong checksum, detected by the device: dropped.
    pub damaged: u64,
}

/// Transmit queue of a port, owned by one thread.
pub trait PortSender: Send {
    /// Completes the frames of packets of this port that were delivered to a worker without the rest of their payload.
    fn complete(&mut self, batch: &mut Batch) {
        let _ = batch;
    }

    /// Sends the packets of the batch. A device takes over their buffers. Packets the port does not accept leave the
    /// batch and are lost. Returns the number of lost packets.
    fn transmit(&mut self, batch: &mut Batch) -> usize;

    /// Sends the packets of the batch back towards the source of the entry port's packets. By default like
    /// [`transmit`](PortSender::transmit).
    fn transmit_back(&mut self, batch: &mut Batch) -> usize {
        self.transmit(batch)
    }

    /// Also records sent packets to `tap`.
    fn capture(&mut self, tap: CaptureTap);
}

/// Receive and transmit queue of a port, owned by one worker.
pub trait PortQueue: PortSender {
    /// Adds packets that have arrived by `now` to `batch`, up to its room, in buffers of `pool`.
    fn receive(&mut self, now: Nanos, pool: &mut BufferPool, batch: &mut Batch) -> Received;

    /// Drops the first packets in the ring that arrived before this time, but not the last `leave` packets there, and
    /// reports each one's arrival and RSS hash to `lost`. A port that does not know the arrivals of packets in the ring
    /// drops none.
    fn discard_before(&mut self, before: Nanos, leave: usize, lost: &mut dyn FnMut(Nanos, u32)) {
        let _ = (before, leave, lost);
    }

    /// Time before which every packet of this queue has been received. [`Nanos::MAX`] once none is left.
    fn received_before(&self) -> Nanos;

    /// Gives packets from the exit port the [number](tailwater_chain::batch::Packet::number) 1 from now on.
    fn mark_directions(&mut self) {}

    /// Leaves out, from now on, RSS hashes that the device does not report: such packets have the hash 0. A queue that
    /// shares its device with other workers' queues still computes them, because it forwards packets by bucket.
    fn leave_out_hashes(&mut self) {}

    /// Stops arrivals. Packets in the ring can still be received.
    fn stop(&mut self);

    /// Returns freed buffers of `pool` to the port, at the end.
    fn reclaim(&mut self, pool: &mut BufferPool) {
        let _ = pool;
    }

    /// Position from which a queue of another process can continue, if it can.
    fn position(&self) -> Option<QueuePosition> {
        None
    }

    /// Continues at the position of another process's queue. Returns `false` if it is none of this traffic.
    fn continue_at(&mut self, position: &QueuePosition) -> bool {
        let _ = position;
        false
    }

    /// Lets arrivals that find the ring full wait instead of being lost, until the queue has caught up, but not after
    /// `until`: the queue was not polled for a while.
    fn catch_up(&mut self, until: Nanos) {
        let _ = until;
    }

    /// Empties the ring: reports each packet's arrival and RSS hash to `lost`, and drops it. Returns the number of
    /// those that were not yet counted as offered.
    fn discard(&mut self, lost: &mut dyn FnMut(Nanos, u32)) -> u64;
}

/// Position of a queue, from which a queue of another process continues.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct QueuePosition {
    /// Time of the first arrival, in nanoseconds of the clock that both use.
    pub start: u64,
    /// Next packet to arrive: its number in the traffic.
    pub next: u64,
    /// Number of the pass through the traffic, and the time at which it began.
    pub lap: u32,
    /// Time at which the pass began.
    pub lap_start: u64,
    /// No more packets arrive.
    pub ended: bool,
    /// Packets that have arrived and wait: arrival, number, pass.
    pub waiting: Vec<(u64, u32, u32)>,
    /// Next slot of each receive ring, if packets wait in rings that both processes share.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rings: Vec<u64>,
    /// Time before which all packets of these rings have been received.
    #[serde(default)]
    pub received_before: u64,
    /// Packets that found these rings full, and are not counted yet.
    #[serde(default)]
    pub missed: u64,
}

/// Sockets of a port, for another process that continues it.
#[derive(Debug, Default)]
pub struct PassedSockets {
    /// Description of each interface.
    pub interfaces: Vec<PassedInterface>,
    /// Descriptors of all interfaces, in their order.
    pub descriptors: Vec<OwnedFd>,
}

/// Traffic of a port that another process can continue.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct TrafficIdentity {
    /// Name of the traffic.
    pub name: String,
    /// Packets of one pass.
    pub packets: u64,
    /// Bytes of one pass.
    pub bytes: u64,
    /// Duration of one pass in nanoseconds.
    pub duration: u64,
    /// Number of queues.
    pub queues: u16,
    /// Low bits of addresses that change in each pass: with others, a packet would be another queue's. Earlier versions
    /// had 16.
    #[serde(default = "most_renumber_bits")]
    pub renumber_bits: u8,
}

fn most_renumber_bits() -> u8 {
    16
}

/// Requirements of a run on its port.
#[derive(Clone, Copy, Debug)]
pub struct PortRequirements {
    /// Number of workers, each of which receives and sends.
    pub workers: u16,
    /// Number of auxiliary cores, each of which sends.
    pub auxiliary: u16,
    /// Buffers that each worker may hold at a time.
    pub buffers: u32,
    /// Key of the RSS hash. Ports with a trace received it before.
    pub rss_key: RssKey,
}

/// Source and destination of a run's packets: one or two ports.
pub trait Port: Send + Sync {
    /// Name of the traffic in reports.
    fn traffic(&self) -> &str;

    /// Duration of the arrivals, if known.
    fn duration(&self) -> Option<Nanos>;

    /// Returns `true` if packets can be sent back towards the source of the entry port's packets.
    fn goes_back(&self) -> bool {
        false
    }

    /// Prepares the port, and returns each worker's buffer pool.
    ///
    /// # Errors
    /// If there are too few queues, or no memory.
    fn open(&mut self, need: &PortRequirements) -> Result<Vec<BufferPool>, OpenError>;

    /// Like [`open`](Port::open), with pools that share one memory, between which buffers can pass.
    ///
    /// # Errors
    /// Same as [`open`](Port::open).
    fn open_shared(&mut self, need: &PortRequirements) -> Result<Vec<BufferPool>, OpenError> {
        self.open(need)
    }

    /// Workers' queues. Packets arrive from `start` on, on the run's clock.
    fn queues(&mut self, start: Nanos) -> Vec<Box<dyn PortQueue>>;

    /// Transmit queue for an auxiliary core.
    fn sender(&mut self) -> Box<dyn PortSender>;

    /// Time until a new bucket table takes effect, if it can change.
    fn reta_delay(&self) -> Option<Nanos>;

    /// Time workers may sleep after having been idle as long, or `None` if they must not. The ring must have room for
    /// packets that arrive meanwhile.
    fn naps(&self) -> Option<Nanos> {
        None
    }

    /// Store for the metadata of packets in transit between cores, if there is one for all users of the port's buffers.
    fn packet_store(&self) -> Option<PacketStore> {
        None
    }

    /// Installs a bucket table. It applies to packets that arrive from the returned time on, which is some way ahead.
    /// The old table applies to earlier ones.
    ///
    /// # Errors
    /// If the table names a queue that does not exist, or cannot change.
    fn set_reta(&self, reta: &Reta) -> Result<Nanos, RetaError>;

    /// Each worker's ports of the external functions, in the order of the functions, once the port is open. Empty if
    /// there are none.
    fn attached(&mut self) -> Vec<Attached> {
        Vec::new()
    }

    /// Keeps packets that are lost in front of the workers, where the port has them: `keeper` makes a keeper for a
    /// worker. Called once at most, between [`open`](Port::open) and [`on_started`](Port::on_started).
    fn keep_lost(&mut self, keeper: &dyn Fn(usize) -> RingKeeper) {
        let _ = keeper;
    }

    /// Monitors the port, called a few times per second. Reports news in lines for the user. Once nothing can arrive
    /// any more, ends the run through the queues.
    fn monitor(&self, tell: &mut dyn FnMut(String)) {
        let _ = tell;
    }

    /// All workers run: packets can be delivered from now on.
    fn on_started(&self) {}

    /// Traffic that another process can continue; `None` for a device, which one process uses at a time.
    fn identity(&self) -> Option<TrafficIdentity> {
        None
    }

    /// Positions of this port's queues that continue at these of another process, which may have another number of
    /// queues. `None` if they are of other traffic.
    fn divide(&self, positions: Vec<QueuePosition>) -> Option<Vec<QueuePosition>> {
        Some(positions)
    }

    /// Sockets by which another process can continue, if it needs any.
    ///
    /// # Errors
    /// If this process has too many descriptors.
    fn sockets(&self) -> io::Result<PassedSockets> {
        Ok(PassedSockets::default())
    }

    /// Device counters.
    fn report(&self) -> Vec<PortReport> {
        Vec::new()
    }
}

/// Cause why a port could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No memory for packet buffers.
    #[error("out of memory for packet buffers: {0}")]
    Buffers(#[from] io::Error),
    /// Refusal by a device.
    #[error("{0}")]
    Device(String),
}

/// Table that maps RSS buckets to queues (a NIC's RETA).
pub type Reta = [u16; BUCKETS];

/// Default table: buckets assigned to `queues` round-robin, as drivers do.
pub fn round_robin(queues: u16) -> Reta {
    std::array::from_fn(|bucket| bucket as u16 % queues.max(1))
}

/// Cause why a bucket table is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RetaError {
    /// A bucket is mapped to a queue that does not exist.
    #[error("bucket {bucket}: expected a queue below {queues}, found {queue}")]
    NoQueue {
        /// The bucket.
        bucket: usize,
        /// Queue it is mapped to.
        queue: u16,
        /// Number of queues.
        queues: u16,
    },
    /// A trace without pacing has no arrival times at which an update could take effect.
    #[error("the bucket table of a saturated trace cannot change")]
    NotPaced,
}
