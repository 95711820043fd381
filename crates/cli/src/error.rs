//! Why a command ends without doing its job.

use std::io;
use std::process::ExitCode;
use tailwater_api::SpecError;
use tailwater_dataplane::RunError;
use tailwater_dataplane::port::OpenError;
use tailwater_isolation::server::IsolationError;
use tailwater_profile::cache::CacheError;
use tailwater_profile::{SweepError, TrainError};
use tailwater_traffic::TrafficError;

/// The exit code for input that cannot be used.
pub const BAD_INPUT: u8 = 2;

/// The exit code of a run with `--check-slo` that missed its objective.
pub const SLO_MISSED: u8 = 3;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The chain spec.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Traffic that cannot be read or made.
    // The library names its option; a user has a flag.
    #[error("{}", .0.to_string().replace("skip_bad_packets", "--skip-bad-packets"))]
    Traffic(#[from] TrafficError),
    /// Anything else that the user can put right.
    #[error("{0}")]
    Input(String),
    /// The run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Measuring what a chain can do.
    #[error("no capacity profile: {0}")]
    Train(TrainError),
    /// Measuring a chain's curves.
    #[error("no curves: {0}")]
    Sweep(SweepError),
    /// The result cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    /// The page of a run that is over cannot be written.
    #[error("cannot write {file}: {source}")]
    Report {
        /// Where to.
        file: String,
        /// What the system says.
        source: io::Error,
    },
    /// The system refuses something that has nothing to do with the input.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

impl CliError {
    /// Error of an option or field whose feature this program was built without.
    pub fn built_without(what: &str, feature: &str) -> CliError {
        CliError::Input(format!(
            "{what}: this program was built without the feature `{feature}`; `make build` builds one with it"
        ))
    }

    /// 2 for what the user can put right in the command line or a file, 1 for the rest.
    pub fn exit_code(&self) -> ExitCode {
        let run = |error: &RunError| {
            use RunError::{Build, Core, External, IsolatedAndHandedOver, Isolation, Open, State, StateHandedOver};
            matches!(
                error,
                Build(_)
                    | Core(_)
                    | External { .. }
                    | IsolatedAndHandedOver
                    | Isolation(
                        IsolationError::Refused { .. } | IsolationError::Unfit { .. } | IsolationError::Build(_)
                    )
                    | Open(OpenError::Device(_))
                    | State(_)
                    | StateHandedOver
            )
        };
        let train = |error: &TrainError| match error {
            TrainError::Epoch(_) | TrainError::Traffic(_) => true,
            TrainError::Run(error) => run(error),
            TrainError::Stopped | TrainError::Away { .. } | TrainError::NoCapacity { .. } => false,
        };
        let input = match self {
            CliError::Spec(_) | CliError::Traffic(_) | CliError::Input(_) => true,
            CliError::Run(error) => run(error),
            CliError::Train(error) => train(error),
            CliError::Sweep(error) => match error {
                SweepError::Run(error) => train(error),
                SweepError::Cache(error) => matches!(
                    error,
                    CacheError::Alone { .. } | CacheError::NoChoice { .. } | CacheError::Resctrl(_)
                ),
                SweepError::Nothing(_) => false,
            },
            CliError::Output(_) | CliError::Report { .. } | CliError::System { .. } => false,
        };
        ExitCode::from(if input { BAD_INPUT } else { 1 })
    }
}
