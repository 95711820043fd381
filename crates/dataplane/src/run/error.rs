//! Errors of runs.

use crate::cores::CoreError;
use crate::packet_socket::InterfaceError;
use crate::port::{OpenError, RetaError};
use crate::report::RunReport;
use std::io;
use tailwater_functions::accounting::ExportError;
use tailwater_functions::build::BuildError;
use tailwater_isolation::server::IsolationError;
use tailwater_state::redis::AccessError;
use tailwater_traffic::TrafficError;

/// Cause why a run did not start, or ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The chain cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Functions cannot be isolated.
    #[error(transparent)]
    Isolation(#[from] IsolationError),
    /// An isolated function that cannot run on several cores would run on auxiliary ones.
    #[error("isolated function {function} cannot run on auxiliary cores: {reason}")]
    IsolatedOnOneCore {
        /// Name of the function.
        function: String,
        /// The reason.
        reason: &'static str,
    },
    /// Isolated functions of a chain on several cores that it shares with other chains.
    #[error("isolated functions beside other chains run on one core, found several")]
    IsolatedOnSeveralCores,
    /// A core of a server is unusable.
    #[error("core {core} does not answer")]
    NoAnswer {
        /// Number of the core.
        core: usize,
    },
    /// A core is unusable.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// The configuration does not allow external functions.
    #[error("function {function} is external: {problem}")]
    External {
        /// First external function.
        function: String,
        /// Requirement that is not met.
        problem: &'static str,
    },
    /// Flows would move between cores, and a function's state would not.
    #[error("function {function}: packets of a flow cannot move between cores: {reason}; {remedy}")]
    BoundToCore {
        /// First such function.
        function: String,
        /// The state.
        reason: &'static str,
        /// Change of the configuration that helps.
        remedy: &'static str,
    },
    /// An interface of an external function cannot be used.
    #[error("function {function}: {source}")]
    Interface {
        /// First external function.
        function: String,
        /// Cause, with the remedy.
        source: InterfaceError,
    },
    /// The port cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A worker thread cannot be started.
    #[error("a worker thread cannot be started: {0}")]
    Thread(io::Error),
    /// The store for external flow state is unusable.
    #[error(transparent)]
    State(#[from] AccessError),
    /// External flow state excludes this way of offloading.
    #[error("spec.state: {0}")]
    StateWithOffloading(&'static str),
    /// The bucket table is invalid.
    #[error(transparent)]
    Reta(#[from] RetaError),
    /// The capture file cannot be created.
    #[error(transparent)]
    Capture(#[from] TrafficError),
    /// A function or another part of a thread panicked. The other threads have ended normally.
    #[error("{thread} died: {message}; run stopped, its packets are lost (worker-died)")]
    Died {
        /// Name of the thread: `worker-` or `helper-` with its core, or `server-mapper`.
        thread: String,
        /// Message of the panic.
        message: String,
        /// Report of the run.
        report: Box<RunReport>,
    },
    /// The run succeeded, but not all sent packets could be recorded, or not all flow records written.
    #[error("{source}")]
    Recording {
        /// Cause.
        source: Unrecorded,
        /// Report of the run.
        report: Box<RunReport>,
    },
}

/// Recording that is incomplete.
#[derive(Debug, thiserror::Error)]
pub enum Unrecorded {
    /// Capture of sent packets.
    #[error(transparent)]
    Capture(#[from] TrafficError),
    /// Export of a function.
    #[error(transparent)]
    Export(#[from] ExportError),
}

impl RunError {
    /// External flow state with a policy that offloads flows: packets would come to an auxiliary core without the right
    /// to use their RSS bucket.
    pub const STATE_BY_FLOW: RunError = RunError::StateWithOffloading(
        "auxiliary cores use flow state in Redis only with a policy that offloads RSS buckets: expected --policy \
         tailwater, found one that offloads flows",
    );

    /// External flow state of isolated functions, with auxiliary cores.
    pub const STATE_OF_ISOLATED: RunError = RunError::StateWithOffloading(
        "isolated functions cannot keep flow state in Redis on auxiliary cores: remove --auxiliary, or set --isolation \
         none",
    );

    /// External flow state with dedicated cores that help each other.
    pub const STATE_WITH_HELP: RunError =
        RunError::StateWithOffloading("dedicated cores cannot help each other with flow state in Redis");

    /// Report of a run that ended with this error, if it began.
    pub fn report(&self) -> Option<&RunReport> {
        match self {
            RunError::Died { report, .. } | RunError::Recording { report, .. } => Some(report),
            _ => None,
        }
    }
}
