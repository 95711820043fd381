//! Names of reasons for which packets never reach the chain, or are lost behind it.

/// Reasons of packets lost outside the chain.
pub(crate) const RING_FULL: &str = "nic-ring-full";
pub(crate) const NOT_DRAINED: &str = "not-drained";
pub(crate) const WORKER_DIED: &str = "worker-died";
pub(crate) const NOT_SENT: &str = "not-sent";
pub(crate) const IN_PIECES: &str = "in-pieces";
/// Its flow had more than its share of the packet buffers, of which few were left.
pub(crate) const FLOW_OVERLOAD: &str = "flow-overload";
/// It could not be in time any more, and others waited behind it.
pub(crate) const TOO_LATE: &str = "too-late";

/// Reason of packets dropped because their device found a wrong checksum.
pub(crate) const DAMAGED: &str = "malformed/checksum";
