//! Attachment of an external function: its ports.

use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_net::Nanos;

/// Direction through a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the chain's entry port to its exit port.
    Forward,
    /// From the exit port to the entry port.
    Backward,
}

/// Ports of an external function. With one port, packets of both directions go there and come back from it. With two,
/// [forward](Direction::Forward) packets enter by the first port and leave by the second. For
/// [backward](Direction::Backward) packets it is the other way round.
pub trait Attachment: Send + Sync {
    /// Returns `true` if it has two ports.
    fn has_two_ports(&self) -> bool;

    /// Length of the longest frame that it accepts, in bytes.
    fn longest(&self) -> usize;

    /// Receive capacity of a port: packets that can have arrived and not been received.
    fn ring(&self) -> usize;

    /// Sends the packets of the batch in their direction. Packets not accepted leave the batch. Returns their number.
    fn send(&mut self, way: Direction, batch: &mut Batch) -> usize;

    /// Receives packets that have arrived by `now` in this direction into the batch, which is empty, up to its room, in
    /// buffers of `pool`. With one port, packets of both directions arrive [forward](Direction::Forward). Their RSS
    /// hashes are not computed yet. Returns the number of packets.
    fn receive(&mut self, way: Direction, now: Nanos, pool: &mut BufferPool, batch: &mut Batch) -> usize;
}

/// External functions of a worker.
pub struct Attached {
    /// One per function, in the chain's order.
    pub attachments: Vec<Box<dyn Attachment>>,
    /// Buffers for packets that come from them.
    pub pool: BufferPool,
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attached")
            .field("attachments", &self.attachments.len())
            .finish_non_exhaustive()
    }
}
