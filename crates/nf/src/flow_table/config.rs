//! A flow table's shape, and when it forgets flows.

use tailwater_net::Nanos;

/// What to do when a new flow finds no free place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// The flow that has been idle longest near the new one's home makes room.
    #[default]
    Evict,
    /// The new flow is refused and its packet dropped.
    Refuse,
}

/// How long a flow may be idle before it is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleTimeouts {
    /// TCP flows.
    pub tcp: Nanos,
    /// UDP flows.
    pub udp: Nanos,
    /// All others.
    pub other: Nanos,
}

impl IdleTimeouts {
    pub(super) fn of(&self, protocol: u8) -> Nanos {
        match protocol {
            6 => self.tcp,
            17 => self.udp,
            _ => self.other,
        }
    }

    pub(super) fn longest(&self) -> Nanos {
        self.tcp.max(self.udp).max(self.other)
    }
}

/// A flow table's shape, fixed for its life.
#[derive(Clone, Debug)]
pub struct FlowTableConfig {
    /// Flows that are to fit. The table has at least twice as many places, so that evenly spread
    /// flows up to this number practically all find one (at a million, a handful do not).
    pub capacity: usize,
    /// When idle flows are forgotten.
    pub timeouts: IdleTimeouts,
    /// What happens to a new flow that finds no place.
    pub when_full: WhenFull,
    /// Bytes of state for a flow (rounded up to cache lines; 0 for none).
    pub state_bytes: usize,
    /// Keys the hash. Secret where the traffic is not trusted.
    pub seed: u64,
}
