//! Why nothing could be measured.

use tailwater_baselines::netblaze::NetBlazeError;
use tailwater_dataplane::RunError;
use tailwater_net::Nanos;
use tailwater_traffic::TrafficError;

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The objective leaves no time for an epoch.
    #[error(transparent)]
    Epoch(#[from] NetBlazeError),
    /// A run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Traffic cannot be made.
    #[error(transparent)]
    Traffic(#[from] TrafficError),
    /// The caller said so.
    #[error("measuring was stopped")]
    Stopped,
    /// The chain processed nothing, since it had no core.
    #[error(
        "core {core} was busy with other programs for all of {length}: expected an available core, such as another \
         of --cores"
    )]
    CorePreempted {
        /// The core.
        core: usize,
        /// How long the last attempt was.
        length: Nanos,
    },
    /// A packet takes longer than an epoch.
    #[error("the chain processes no packet in an epoch of {epoch}: expected a longer latency objective")]
    NoCapacity {
        /// The epoch.
        epoch: Nanos,
    },
}
