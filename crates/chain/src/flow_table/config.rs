//! Size and timeouts of a flow table.

use tailwater_api::{IdleTimeouts, WhenFull};

/// Configuration of a flow table, fixed for its lifetime.
#[derive(Clone, Debug)]
pub struct FlowTableConfig {
    /// Number of flows that must fit. Each bucket has slots for six standard deviations more flows than it has on
    /// average, so that practically all evenly hashed flows up to this number find one.
    pub capacity: usize,
    /// Idle timeouts.
    pub timeouts: IdleTimeouts,
    /// Policy for a new flow that finds no slot.
    pub when_full: WhenFull,
    /// State of each flow in bytes; 0 for none.
    pub state_bytes: usize,
    /// Key of the hash. It must be secret where the traffic is not trusted.
    pub seed: u64,
}
