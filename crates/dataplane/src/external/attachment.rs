//! Where a function is attached.

use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_net::Nanos;

/// A way through a function, from one of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As from the chain's entry port to its exit port.
    Forward,
    /// The other way round.
    Backward,
}

/// The ports of an external function. With one port, packets go there, whichever way, and come back. With two,
/// packets go [forward](Way::Forward) into the first port and come out by the second; those that go
/// [backward](Way::Backward), the other way round.
pub trait Attachment: Send + Sync {
    /// Whether it has two ports.
    fn has_two_ports(&self) -> bool;

    /// The longest frame that it takes, in bytes.
    fn longest(&self) -> usize;

    /// The most packets that can have come and wait to be received, at a port.
    fn ring(&self) -> usize;

    /// Sends the packets of the batch on their way. What is not taken leaves the batch. Returns how many.
    fn send(&mut self, way: Way, batch: &mut Batch) -> usize;

    /// Adds packets that have come, as far as there is room, to the batch, which is empty, in buffers of `pool`: those
    /// that have arrived now, going this way. With one port, packets of both ways come
    /// [forward](Way::Forward). Their RSS hashes are found out by others. Returns how many.
    fn receive(&mut self, way: Way, now: Nanos, pool: &mut BufferPool, batch: &mut Batch) -> usize;
}

/// The external functions of a run.
pub struct Attached {
    /// Of each function, in the chain's order.
    pub attachments: Vec<Box<dyn Attachment>>,
    /// Buffers for what comes from them.
    pub pool: BufferPool,
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attached")
            .field("attachments", &self.attachments.len())
            .finish_non_exhaustive()
    }
}
