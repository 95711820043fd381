//! Shape of a flow table.

use tailwater_api::{IdleTimeouts, WhenFull};

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
