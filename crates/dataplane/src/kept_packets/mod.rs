//! The packets that matter, kept: late, lost and dropped ones, and those before them of the same flow and core.
//!
//! Each worker has a `PacketKeeper`. It copies the beginning of every packet that it sends or drops into a ring of
//! its own, and sends those that matter to a thread that writes them (`KeptFiles`). Without one, a worker tests once
//! for each batch whether it has one. A poller of a shared port keeps what finds the chain's ring full
//! ([`RingKeeper`]).

mod files;
mod keeper;
mod observer;
mod ring;

pub use files::{KeptConfig, MAX_FILE_BYTES, MAX_FILES};
pub(crate) use files::{KeptFiles, Names};
pub(crate) use keeper::PacketKeeper;
pub use observer::{KeptObserver, KeptRecord};
pub use ring::RingKeeper;
#[cfg(test)]
pub(crate) use ring::SharedSender;

use crate::attribution::Cause;
use tailwater_chain::batch::DroppedBy;
use tailwater_net::Nanos;

/// Bytes of a packet that are kept. A core has at least these of every packet.
pub const SNAPLEN: usize = 96;

/// Reason for which a packet is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It was delivered late.
    Late(Cause),
    /// It was lost since it could not be in time any more.
    TooLate(Cause),
    /// It was dropped or lost by a part of the chain, with this number of the part's reasons.
    Dropped(DroppedBy, u8),
    /// It found the chain's ring on a shared port full.
    RingFull,
    /// It came before such a packet: of the same flow, or of another one.
    Before { same_flow: bool },
}

/// Packet on its way to the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptPacket {
    pub(crate) core: u32,
    pub(crate) why: Why,
    /// Number of the packet that mattered, on its core, for which this one is kept.
    pub(crate) event: u64,
    /// Packets that mattered and were not kept since the last one that was: there were too many. 0 of one before such a
    /// packet.
    pub(crate) skipped: u64,
    pub(crate) arrival: Nanos,
    /// Times at which the chain began with its batch, and at which it had been sent or dropped.
    pub(crate) times: [Nanos; 2],
    /// Length of the frame.
    pub(crate) length: u16,
    pub(crate) frame: [u8; SNAPLEN],
}

impl KeptPacket {
    /// Bytes of the frame that were kept.
    pub(crate) fn captured(&self) -> &[u8] {
        &self.frame[..usize::from(self.length).min(SNAPLEN)]
    }
}
