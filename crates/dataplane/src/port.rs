//! What a worker knows of a port: queues that give and take batches.

use tailwater_net::Nanos;
use tailwater_net::toeplitz::BUCKETS;
use tailwater_nf::batch::Batch;
use tailwater_nf::buffer::BufferPool;

/// What a queue gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Packets that arrived (were offered) since the last call, those lost among them.
    pub offered: u64,
    /// Of those, lost because the descriptor ring was full.
    pub lost_ring_full: u64,
    /// When the first of those arrived.
    pub lost_since: Nanos,
    /// Arrived packets that are left in the ring.
    pub waiting: usize,
    /// Nothing more will ever arrive. What is `waiting` still does.
    pub ended: bool,
}

/// A transmit queue of a port. A worker owns it.
pub trait PortSender: Send {
    /// Makes the frames of packets of this port whole that it gave to a worker without the end of
    /// their payload.
    fn complete(&mut self, batch: &mut Batch) {
        let _ = batch;
    }

    /// Sends every packet of the batch, which keeps the buffers.
    fn transmit(&mut self, batch: &Batch);
}

/// One receive and transmit queue of a port. A worker owns it.
pub trait PortQueue: PortSender {
    /// Adds what has arrived by `now` to `batch`, as far as there is room, in buffers of `pool`.
    fn receive(&mut self, now: Nanos, pool: &mut BufferPool, batch: &mut Batch) -> Received;

    /// Every packet for this queue that arrives before then has been received; [`Nanos::MAX`] once nothing
    /// is left.
    fn received_before(&self) -> Nanos;

    /// Lets nothing more arrive; what is in the ring can still be received.
    fn stop(&mut self);

    /// Empties the ring: each packet's arrival and RSS hash is told, and it is lost.
    fn discard(&mut self, lost: &mut dyn FnMut(Nanos, u32));
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
