//! Idle timeouts that a function decides on.

use std::fmt::Debug;
use tailwater_net::{FlowKey, Nanos};

/// Source of idle timeouts of flows.
pub trait Lifetimes: Debug + Send + Sync {
    /// Returns the time a flow is kept after its last packet. The state is the function's own, all zero if the function
    /// has not accepted the flow. It is evaluated from time to time and not for each packet, so a flow may stay a few
    /// seconds longer. A full table evicts the flow whose timeout ends first.
    fn idle_timeout(&self, key: &FlowKey, state: &[u8]) -> Nanos;
}
