//! Curves of a chain: throughput over cache, and latency over load.

mod cache;
mod costs;
mod load;
mod runs;
mod sampling;
#[cfg(test)]
mod tests;
mod watch;

pub use cache::cache_curve;
pub use costs::function_costs;
pub(crate) use load::at;
pub use load::load_curve;
pub(crate) use runs::{Sweep, median};

use crate::cache::CacheError;
use crate::curve::{BisectionRule, RepeatRule};
use crate::error::TrainError;
use crate::traffic::evenly;
use tailwater_net::Nanos;
use tailwater_traffic::generate::{FrameSize, Transport, Uniform, UniformConfig};
use tailwater_traffic::{Trace, TrafficError};

/// Sampling of both curves as in ResQ: 1 % tolerance, at most 12 points. Two of them may locate the start of a curve
/// over cache.
const CURVE: BisectionRule = BisectionRule {
    tolerance: 0.01,
    most: 12,
    most_edge: 2,
    most_again: 1,
};
/// Throughput: repeated until the noise is below 1 %.
const THROUGHPUT: RepeatRule = RepeatRule {
    least: 3,
    most: 7,
    wanted: 0.01,
};

/// Time in which disturbed runs of a curve are replaced and hidden bends measured again, in lengths of a run. The
/// highest rates have as much.
const AGAIN: u64 = 16;

/// Minimum number of packets of uniform traffic.
const PACKETS: u64 = 1 << 16;

/// Options of measuring curves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SweepOptions {
    /// Core to run on.
    pub core: usize,
    /// Seed of the flow table's hash.
    pub seed: u64,
    /// Length of a run.
    pub run_time: Nanos,
}

/// Reasons for a missing curve.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A run failed, or measuring was stopped.
    #[error(transparent)]
    Run(#[from] TrainError),
    /// The cache cannot be divided.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The chain drops the traffic, so that there is no latency.
    #[error("the chain dropped all {packets} packets ({reasons}): expected traffic that it delivers")]
    AllDropped {
        /// Packets of a run.
        packets: u64,
        /// Reasons with their packets.
        reasons: String,
    },
    /// No packet was processed in a run.
    #[error("the chain processed no packets in {0}: expected longer runs")]
    Nothing(Nanos),
}

impl From<TrafficError> for SweepError {
    fn from(error: TrafficError) -> Self {
        SweepError::Run(TrainError::Traffic(error))
    }
}

/// Returns `flows` flows in round-robin order, with frames of `frame_bytes` bytes without check sequence. For
/// measurements that depend on the number of flows only.
///
/// # Errors
/// The number of flows or the frame length is out of range.
pub fn uniform(flows: u32, frame_bytes: u16, seed: u64) -> Result<Trace, TrafficError> {
    let mut source = Uniform::new(UniformConfig {
        seed,
        flows,
        size: FrameSize::Fixed(frame_bytes.saturating_add(4)),
        transport: Transport::Tcp,
        rate_pps: 1_000_000,
        packets: u64::from(flows).max(PACKETS),
    })?;
    evenly(&mut source, 1e6)
}
