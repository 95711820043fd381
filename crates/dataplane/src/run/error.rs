//! Why runs do not start, or end without a report.

use crate::cores::CoreError;
use crate::port::{OpenError, RetaError};
use crate::report::RunReport;
use std::io;
use tailwater_functions::accounting::ExportError;
use tailwater_functions::build::BuildError;
use tailwater_isolation::server::IsolationError;
use tailwater_state::redis::AccessError;
use tailwater_traffic::TrafficError;

/// Why a run cannot start, or ended without a report.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The chain cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Functions cannot be isolated.
    #[error(transparent)]
    Isolation(#[from] IsolationError),
    /// Flows cannot be handed to auxiliary cores and have their functions isolated.
    #[error("isolated functions take turns on their worker's core: no flow can be handed to an auxiliary one")]
    IsolatedAndHandedOver,
    /// A core cannot be used.
    #[error(transparent)]
    Core(#[from] CoreError),
    /// The run is not one for external functions.
    #[error("function {function} is external: {problem}")]
    External {
        /// The first one.
        function: String,
        /// What it would need.
        problem: &'static str,
    },
    /// The port cannot be readied.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A worker thread cannot be started.
    #[error("a worker thread cannot be started: {0}")]
    Thread(io::Error),
    /// Flow state cannot be kept where the spec says.
    #[error(transparent)]
    State(#[from] AccessError),
    /// Flow state is kept outside by workers that process what they receive.
    #[error(
        "spec.state: who writes a flow's state must be who sends its packets, when that is acknowledged, and auxiliary cores \
         write nothing: without --auxiliary, several --cores and a policy that moves RSS buckets"
    )]
    StateHandedOver,
    /// The bucket table is wrong.
    #[error(transparent)]
    Reta(#[from] RetaError),
    /// The capture cannot be created.
    #[error(transparent)]
    Capture(#[from] TrafficError),
    /// A function, or something else of a worker's, panicked. The others have ended in good order.
    #[error("{thread} died: {message}; the run was stopped, and what it had is lost (worker-died)")]
    Died {
        /// The thread: `worker-` or `helper-` with its core, or `server-mapper`.
        thread: String,
        /// What its panic said.
        message: String,
        /// The run's report.
        report: Box<RunReport>,
    },
    /// The run went well, but not everything that was sent could be recorded, or not all flow
    /// records written.
    #[error("{source}")]
    Recording {
        /// What failed.
        source: Unrecorded,
        /// The run's report.
        report: Box<RunReport>,
    },
}

/// What a run recorded, and not all of it.
#[derive(Debug, thiserror::Error)]
pub enum Unrecorded {
    /// The capture of what was sent.
    #[error(transparent)]
    Capture(#[from] TrafficError),
    /// What a function writes, or tells others.
    #[error(transparent)]
    Export(#[from] ExportError),
}

impl RunError {
    /// The report of a run that ended with this error, if it began.
    pub fn report(&self) -> Option<&RunReport> {
        match self {
            RunError::Died { report, .. } | RunError::Recording { report, .. } => Some(report),
            _ => None,
        }
    }
}
