//! Batch sizes.

/// Maximum number of packets in a batch.
pub const MAX_BATCH: usize = 256;

/// Default batch size (the same as in DPDK, NetBlaze and Quadrant).
pub const DEFAULT_BATCH: usize = 32;
