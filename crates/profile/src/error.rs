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
    #[error(
        "a packet takes {cost} in the chain{}, and an epoch, half the latency objective, is {epoch}: auxiliary cores \
         cannot keep that objective; expected one above {}, or less work a packet",
        of_function(.costliest.as_ref()), Nanos(2 * .cost.0)
    )]
    NoCapacity {
        /// Length of the epoch.
        epoch: Nanos,
        /// Mean time of a packet in the chain.
        cost: Nanos,
        /// Name of the function that takes most of it, and its mean time; `None` if functions could not be timed.
        costliest: Option<(String, Nanos)>,
    },
}

/// Returns the part of a message that names a function and its cost.
fn of_function(costliest: Option<&(String, Nanos)>) -> String {
    costliest.map_or_else(String::new, |(function, cost)| {
        format!(", of which the function {function} takes {cost}")
    })
}
