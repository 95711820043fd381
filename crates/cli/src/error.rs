//! Errors of commands.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use tailwater_api::SpecError;
use tailwater_dataplane::RunError;
use tailwater_dataplane::port::OpenError;
use tailwater_files::stop_requested;
use tailwater_isolation::server::IsolationError;
use tailwater_profile::cache::CacheError;
use tailwater_profile::contention::{ContentionError, SourceError};
use tailwater_profile::{SweepError, TrainError};
use tailwater_traffic::TrafficError;

/// Exit code for input that cannot be used.
pub const BAD_INPUT: u8 = 2;

/// Exit code of a run with `--check-slo` that missed its objective.
pub const SLO_MISSED: u8 = 3;

/// Exit code of a measurement that is complete and written, but not to be relied on: values were measured with CPU
/// interference or are not repeatable, or noise hides whether a curve bends.
pub const DOUBTFUL: u8 = 4;

/// Reasons for which a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The chain spec is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Traffic cannot be read or generated.
    // The library's message names its option; print the flag instead.
    #[error("{}", .0.to_string().replace("skip_bad_packets", "--skip-bad-packets"))]
    Traffic(#[from] TrafficError),
    /// Another mistake that the user can correct.
    #[error("{0}")]
    Input(String),
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Measuring a chain's capacity failed.
    #[error("no capacity profile: {0}")]
    Train(TrainError),
    /// Measuring a chain's curves failed.
    #[error("no curves: {0}")]
    Sweep(SweepError),
    /// Measuring contention failed.
    #[error("no campaign: {0}")]
    Contention(#[from] ContentionError),
    /// The result cannot be printed.
    #[error("cannot write to standard output: {0}")]
    Output(io::Error),
    /// A file cannot be used because the disk is full or fails, or memory is short.
    #[error("{0}")]
    Exhausted(String),
    /// A signal ended the command before its output was complete.
    #[error("{0}")]
    Stopped(String),
    /// The page of a finished run cannot be written.
    #[error("cannot write {file}: {source}")]
    Report {
        /// Name of the file.
        file: String,
        /// The system's error.
        source: io::Error,
    },
    /// A running server refuses a request or cannot be reached: one line for each reason.
    #[error("{message}")]
    #[cfg_attr(not(feature = "control"), allow(dead_code, reason = "there are no servers"))]
    Server {
        /// The server's or the connection's reasons.
        message: String,
        /// `true` if the request is wrong.
        is_input: bool,
    },
    /// The system refuses an operation, independent of the input.
    #[error("{what}: {source}")]
    System {
        /// The failed operation.
        what: &'static str,
        /// The system's error.
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

    /// Error with this message about a file that cannot be used: the user's mistake, unless the machine lacks space.
    pub fn of_file(message: String, source: &io::Error) -> CliError {
        match is_exhausted(source) {
            true => CliError::Exhausted(message),
            false => CliError::Input(message),
        }
    }

    /// Returns 2 for mistakes in the command line or a file, 1 for other errors: also for a file that would do if the
    /// disk were not full, or if no signal had come.
    pub fn exit_code(&self) -> ExitCode {
        let run = |error: &RunError| {
            use RunError::{Build, Core, External, IsolatedOnOneCore, Isolation, Open, State, StateWithOffloading};
            matches!(
                error,
                Build(_)
                    | Core(_)
                    | External { .. }
                    | IsolatedOnOneCore { .. }
                    | Isolation(
                        IsolationError::Refused { .. } | IsolationError::NotAFunction { .. } | IsolationError::Build(_)
                    )
                    | Open(OpenError::Device(_))
                    | State(_)
                    | StateWithOffloading(_)
            )
        };
        let train = |error: &TrainError| match error {
            TrainError::Epoch(_) | TrainError::Traffic(_) => true,
            TrainError::Run(error) => run(error),
            TrainError::Stopped | TrainError::CorePreempted { .. } | TrainError::NoCapacity { .. } => false,
        };
        let sweep = |error: &SweepError| match error {
            SweepError::Run(error) => train(error),
            SweepError::Cache(error) => matches!(
                error,
                CacheError::Alone { .. } | CacheError::NoChoice { .. } | CacheError::Resctrl(_)
            ),
            SweepError::AllDropped { .. } => true,
            SweepError::Nothing(_) => false,
        };
        if self.is_of_the_machine() || stop_requested().load(Ordering::Relaxed) {
            return ExitCode::FAILURE;
        }
        let input = match self {
            CliError::Spec(_) | CliError::Traffic(_) | CliError::Input(_) => true,
            CliError::Server { is_input, .. } => *is_input,
            CliError::Run(error) => run(error),
            CliError::Train(error) => train(error),
            CliError::Sweep(error) => sweep(error),
            CliError::Contention(error) => match error {
                ContentionError::Sweep(error) => sweep(error),
                ContentionError::Source(error) => {
                    matches!(error, SourceError::NoCounters { .. } | SourceError::Unread { .. })
                }
                ContentionError::Plan(_) | ContentionError::Alone { .. } | ContentionError::Competitors { .. } => true,
                ContentionError::Spec(_)
                | ContentionError::Campaign(_)
                | ContentionError::Parameter(_)
                | ContentionError::NoPackets { .. }
                | ContentionError::Thread(_) => false,
            },
            CliError::Output(_)
            | CliError::Exhausted(_)
            | CliError::Stopped(_)
            | CliError::Report { .. }
            | CliError::System { .. } => false,
        };
        ExitCode::from(if input { BAD_INPUT } else { 1 })
    }

    /// Returns `true` if an error of the system that says nothing about the input caused this one.
    fn is_of_the_machine(&self) -> bool {
        let mut cause: Option<&(dyn Error + 'static)> = self.source();
        while let Some(error) = cause {
            if error.downcast_ref::<io::Error>().is_some_and(is_exhausted) {
                return true;
            }
            cause = error.source();
        }
        false
    }
}

/// Returns `true` for errors that say nothing about the input: a full or broken disk, short memory, a closed pipe.
fn is_exhausted(error: &io::Error) -> bool {
    /// `EIO` and `EFBIG`.
    const NUMBERS: [i32; 2] = [5, 27];
    const KINDS: [ErrorKind; 4] = [
        ErrorKind::StorageFull,
        ErrorKind::QuotaExceeded,
        ErrorKind::OutOfMemory,
        ErrorKind::BrokenPipe,
    ];
    KINDS.contains(&error.kind()) || error.raw_os_error().is_some_and(|number| NUMBERS.contains(&number))
}
