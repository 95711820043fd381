//! A packet that waits at a core.

use super::fifo::Arrived;
use crate::traffic::Packet;

/// No number: none of the flow's packets is in the system.
pub(crate) const NONE: u16 = u16::MAX;

/// A packet that waits at a core.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waiting {
    pub packet: Packet,
    /// When it came to the core.
    pub at: u64,
    /// Its flow's number at the core that dispatches it.
    pub slot: u16,
    /// Only so many of the chain's last functions are left to do; 0: all are.
    pub last_functions: u8,
    /// It was kept back because its bucket or flow was on its way.
    pub buffered: bool,
}

impl Waiting {
    /// One that has come out of the ring.
    #[inline]
    pub fn new(arrived: &Arrived) -> Waiting {
        Waiting {
            packet: arrived.packet,
            at: arrived.at,
            slot: NONE,
            last_functions: 0,
            buffered: false,
        }
    }
}
