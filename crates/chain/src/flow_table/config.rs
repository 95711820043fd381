//! Size and timeouts of a flow table.

use super::partition::PartitionParts;
use super::shape::Shape;
use crate::flow_memory::FlowMemory;
use crate::region::CACHE_LINE;
use tailwater_api::{IdleTimeouts, WhenFull};
use tailwater_net::toeplitz::BUCKETS;

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
    /// State of each flow in bytes; 0 for none.
    pub state_bytes: usize,
    /// Key of the hash. It must be secret where the traffic is not trusted.
    pub seed: u64,
}

/// Memory of a flow table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowTableMemory {
    /// Size of the whole table in bytes, over all workers' partitions.
    pub bytes: usize,
    /// Number of flows that fit.
    pub capacity: usize,
    /// State of a flow's functions in bytes.
    pub state_bytes: usize,
    /// Bytes of a flow that must be kept: state, key, age, timer and companion.
    pub content_bytes: usize,
}

impl FlowTableMemory {
    /// Memory of a table for `capacity` flows with `state_bytes` bytes of state each.
    pub fn new(capacity: usize, state_bytes: usize) -> FlowTableMemory {
        let shape = Shape::new(capacity);
        let flows = FlowMemory::own_bytes(shape.all_slots(), state_bytes);
        FlowTableMemory {
            bytes: flows + BUCKETS * PartitionParts::bytes(shape.slots),
            capacity,
            state_bytes,
            content_bytes: CACHE_LINE + state_bytes,
        }
    }
}
