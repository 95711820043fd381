//! Size and timeouts of a flow table.

use tailwater_net::Nanos;

/// Policy for a new flow that finds no free slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// Evicts the flow near the new one's home that has been idle longest.
    #[default]
    Evict,
    /// Refuses the new flow and drops its packet.
    Refuse,
}

/// Idle timeouts of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleTimeouts {
    /// Timeout of TCP flows.
    pub tcp: Nanos,
    /// Timeout of UDP flows.
    pub udp: Nanos,
    /// Timeout of all other flows.
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

/// Configuration of a flow table, fixed for its lifetime.
#[derive(Clone, Debug)]
pub struct FlowTableConfig {
    /// Number of flows that must fit. The table has at least twice as many slots, so that practically all evenly hashed
    /// flows up to this number find one. Of a million flows, a handful do not.
    pub capacity: usize,
    /// Idle timeouts.
    pub timeouts: IdleTimeouts,
    /// Policy for a new flow that finds no slot.
    pub when_full: WhenFull,
    /// State of each flow in bytes, rounded up to cache lines; 0 for none.
    pub state_bytes: usize,
    /// Key of the hash. It must be secret where the traffic is not trusted.
    pub seed: u64,
}
