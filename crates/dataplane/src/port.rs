//! What a run and its workers know of a port: queues that give and take batches.

use crate::capture::CaptureTap;
use crate::external::Attached;
use crate::report::PortReport;
use std::io;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::{BUCKETS, RssKey};

/// What a queue gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Packets that arrived (were offered) since the last call, those lost among them.
    pub offered: u64,
    /// Of those, lost because the descriptor ring was full.
    pub lost_ring_full: u64,
    /// When the first of those arrived.
    pub lost_since: Nanos,
    /// Packets, among the offered ones, that never got to the worker.
    pub refused: Refused,
    /// Arrived packets that are left in the ring.
    pub waiting: usize,
    /// Nothing more will ever arrive. What is `waiting` still does.
    pub ended: bool,
}

/// Packets that came, and that no worker gets to see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// In several buffers, and too long for one: lost.
    pub in_pieces: u64,
    /// The device found a checksum wrong: dropped.
    pub damaged: u64,
}

/// A transmit queue of a port. A worker owns it.
pub trait PortSender: Send {
    /// Makes the frames of packets of this port whole that it gave to a worker without the end of
    /// their payload.
    fn complete(&mut self, batch: &mut Batch) {
        let _ = batch;
    }

    /// Sends the packets of the batch; a device's buffers go with them. What the port does not take leaves
    /// the batch, and is lost. Returns how many.
    fn transmit(&mut self, batch: &mut Batch) -> usize;

    /// Sends the packets of the batch back, to where packets of the entry port come from; else as
    /// [`transmit`](PortSender::transmit).
    fn transmit_back(&mut self, batch: &mut Batch) -> usize {
        self.transmit(batch)
    }

    /// Also records what is sent.
    fn capture(&mut self, tap: CaptureTap);
}

/// One receive and transmit queue of a port. A worker owns it.
pub trait PortQueue: PortSender {
    /// Adds what has arrived by `now` to `batch`, as far as there is room, in buffers of `pool`.
    fn receive(&mut self, now: Nanos, pool: &mut BufferPool, batch: &mut Batch) -> Received;

    /// Every packet for this queue that arrives before then has been received; [`Nanos::MAX`] once nothing
    /// is left.
    fn received_before(&self) -> Nanos;

    /// From now on, packets that come by the exit port are given the [number](tailwater_chain::batch::Packet::number)
    /// 1.
    fn tell_ways(&mut self) {}

    /// Lets nothing more arrive; what is in the ring can still be received.
    fn stop(&mut self);

    /// Empties the ring: each packet's arrival and RSS hash is told, and it is lost.
    fn discard(&mut self, lost: &mut dyn FnMut(Nanos, u32));
}

/// What a run asks of a port.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Workers, each of which receives and sends.
    pub workers: u16,
    /// Helpers, each of which sends.
    pub helpers: u16,
    /// Buffers that each worker may hold at a time.
    pub buffers: u32,
    /// The key of the RSS hash. A port of traffic that is known has been told before.
    pub rss_key: RssKey,
}

/// Where a run's packets come from and go to: one port, or two of them.
pub trait Port: Sync {
    /// What the traffic is called in reports.
    fn traffic(&self) -> &str;

    /// For how long packets arrive, if that is known.
    fn duration(&self) -> Option<Nanos>;

    /// Whether packets can be sent back where those of the entry port come from.
    fn goes_back(&self) -> bool {
        false
    }

    /// Readies the port, and gives each worker its buffers.
    ///
    /// # Errors
    /// If there are not so many queues, or no memory.
    fn open(&mut self, need: &Need) -> Result<Vec<BufferPool>, OpenError>;

    /// The workers' queues. Packets arrive from `start` on, on the run's clock.
    fn queues(&mut self, start: Nanos) -> Vec<Box<dyn PortQueue>>;

    /// A transmit queue, for a helper.
    fn sender(&mut self) -> Box<dyn PortSender>;

    /// How long a new bucket table takes to be in force, if it can change.
    fn reta_delay(&self) -> Option<Nanos>;

    /// For how long workers may sleep at a time when they have had nothing to do for as long; not at all without
    /// it. What comes meanwhile must find room.
    fn naps(&self) -> Option<Nanos> {
        None
    }

    /// Installs a bucket table. It holds for packets that arrive from the returned time on, some
    /// way ahead; earlier ones still go where they went.
    ///
    /// # Errors
    /// If the table names a queue that is not there, or cannot change.
    fn set_reta(&self, reta: &Reta) -> Result<Nanos, RetaError>;

    /// The external functions' ports, in the order of the functions, once the port is open; `None` if there are
    /// none.
    fn attached(&mut self) -> Option<Attached> {
        None
    }

    /// Looks after the port, a few times a second: tells what is new of it in lines for a user. Once nothing
    /// can arrive any more, it ends the run by its queues.
    fn tend(&self, tell: &mut dyn FnMut(String)) {
        let _ = tell;
    }

    /// What the devices themselves counted.
    fn report(&self) -> Vec<PortReport> {
        Vec::new()
    }
}

/// Why a port cannot be readied.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no memory for packet buffers.
    #[error("there is no memory for packet buffers: {0}")]
    Buffers(#[from] io::Error),
    /// A device refuses.
    #[error("{0}")]
    Device(String),
}

/// The table that maps RSS buckets to queues (a NIC's RETA).
pub type Reta = [u16; BUCKETS];

/// The usual table: buckets dealt out to `queues` in turn, as drivers do by default.
pub fn round_robin(queues: u16) -> Reta {
    std::array::from_fn(|bucket| bucket as u16 % queues.max(1))
}

/// Why a bucket table is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RetaError {
    /// A bucket is mapped to a queue that is not there.
    #[error("bucket {bucket} is mapped to queue {queue}, but there are {queues}")]
    NoQueue {
        /// The bucket.
        bucket: usize,
        /// The queue it is mapped to.
        queue: u16,
        /// How many there are.
        queues: u16,
    },
    /// A trace that is not paced has no arrival times at which an update could take effect.
    #[error("the bucket table of a trace that is not paced cannot change")]
    NotPaced,
}
