//! Dropped packets of a batch, until their buffers are released.

use super::packet::Slot;
use crate::buffer::{Buffer, BufferMemory};
use tailwater_net::Nanos;

/// Dropped packet whose buffer has not been released yet.
#[derive(Debug)]
pub(super) struct Dropped {
    pub(super) buffer: Buffer,
    /// Number of the packet's flow.
    pub(super) number: u16,
    /// Drop reason, as in [`Verdict::Drop`](super::Verdict::Drop); 0 if the device did not send the packet.
    pub(super) reason: u8,
    by: DroppedBy,
    /// Location of the frame in the buffer.
    start: u16,
    length: u16,
    arrival: Nanos,
    rss_hash: u32,
}

/// Part that has removed a packet from its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DroppedBy {
    /// Function with this number in its chain.
    Function(u8),
    /// The look-up, for lack of an entry of the flow.
    FlowTable,
    /// The input policy: malformed or no IP.
    Input,
    /// The port, which did not accept it.
    Port,
}

/// Dropped packet that is still in its buffer.
#[derive(Clone, Copy, Debug)]
pub struct DroppedPacket<'b> {
    /// Part that has removed it.
    pub by: DroppedBy,
    /// Drop reason, as in [`Verdict::Drop`](super::Verdict::Drop).
    pub reason: u8,
    /// Arrival.
    pub arrival: Nanos,
    /// RSS hash.
    pub rss_hash: u32,
    /// Frame.
    pub frame: &'b [u8],
}

impl Dropped {
    #[inline]
    pub(super) fn new(Slot { packet, buffer }: Slot, reason: u8, by: DroppedBy) -> Dropped {
        Dropped {
            buffer,
            number: packet.number,
            reason,
            by,
            start: packet.start,
            length: packet.length,
            arrival: packet.arrival,
            rss_hash: packet.rss_hash,
        }
    }

    /// The packet, with its frame in `memory`.
    pub(super) fn packet<'b>(&'b self, memory: &'b BufferMemory) -> DroppedPacket<'b> {
        DroppedPacket {
            by: self.by,
            reason: self.reason,
            arrival: self.arrival,
            rss_hash: self.rss_hash,
            frame: &memory.bytes(&self.buffer)[usize::from(self.start)..][..usize::from(self.length)],
        }
    }
}
