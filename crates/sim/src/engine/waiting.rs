//! Packet that waits at a core.

use super::fifo::Arrived;
use crate::traffic::Packet;

/// Absent slot: no packet of the flow is in the system.
pub(crate) const NONE: u16 = u16::MAX;

/// Packet that waits at a core.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waiting {
    pub packet: Packet,
    /// Time of arrival at the core.
    pub at: u64,
    /// Slot of its flow at the dispatching core.
    pub slot: u16,
    /// Number of the chain's last functions that remain to be run; 0 for all functions.
    pub last_functions: u8,
    /// Number of them that its auxiliary core leaves to another one.
    pub left: u8,
    /// `true` if it was buffered while its bucket or flow migrated.
    pub buffered: bool,
}

impl Waiting {
    /// Creates it from a packet received from the ring.
    #[inline]
    pub fn new(arrived: &Arrived) -> Waiting {
        Waiting {
            packet: arrived.packet,
            at: arrived.at,
            slot: NONE,
            last_functions: 0,
            left: 0,
            buffered: false,
        }
    }
}
