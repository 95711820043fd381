//! Directions of packets.

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkDirection {
    /// Uplink: from the UE.
    Up,
    /// Downlink: to the UE.
    Down,
}

impl LinkDirection {
    /// Returns the index in pairs of per-direction values.
    #[inline]
    pub(super) fn at(self) -> usize {
        match self {
            LinkDirection::Up => 0,
            LinkDirection::Down => 1,
        }
    }
}
