//! Errors of measurements.

use tailwater_baselines::netblaze::NetBlazeError;
use tailwater_dataplane::RunError;
use tailwater_net::Nanos;
use tailwater_traffic::TrafficError;

/// Reason why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The objective leaves no time for an epoch.
    #[error(transparent)]
    Epoch(#[from] NetBlazeError),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Traffic cannot be generated.
    #[error(transparent)]
    Traffic(#[from] TrafficError),
    /// The caller stopped the measurement.
    #[error("measuring was stopped")]
    Stopped,
    /// The chain processed nothing, because other programs used its core all the time.
    #[error(
        "core {core} was busy with other programs for all of {length}: expected an available core, such as another \
         of --cores"
    )]
    CorePreempted {
        /// Number of the core.
        core: usize,
        /// Length of the last attempt.
        length: Nanos,
    },
    /// A packet takes longer than an epoch.
    #[error("the chain processes no packet in an epoch of {epoch}: expected a longer latency objective")]
    NoCapacity {
        /// Length of the epoch.
        epoch: Nanos,
    },
}
