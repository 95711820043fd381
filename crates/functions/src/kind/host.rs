//! Part of an isolated function that runs in the host: the process that starts the function's processes.
//!
//! A confined process writes no files and serves no sockets. It passes records through the memory that the function's
//! processes share, and the host writes them. The host reads only numbers from that memory, and checks each: any values
//! are valid, since a confined process may write whatever it likes there.

use super::factory::FunctionError;
use crate::exporter::{ExportError, Exported};
use std::fmt::Debug;
use std::sync::Arc;
use tailwater_chain::shared_counters::SharedCounters;

/// Part of an isolated function in the host.
pub trait HostPart: Debug + Send + Sync {
    /// Starts it for `processes` processes, before any of them. They map the same counters.
    ///
    /// # Errors
    /// A file cannot be written, a socket cannot be served, or the configuration cannot run.
    fn start(&self, shared_counters: &SharedCounters, processes: u16) -> Result<Arc<dyn HostServices>, FunctionError>;
}

/// Running part of an isolated function in the host. Its threads stop when it is dropped.
pub trait HostServices: Debug + Send + Sync {
    /// Completes the output, once the function's processes have ended.
    ///
    /// # Errors
    /// If a file is incomplete.
    fn finish(&self) -> Result<Vec<Exported>, ExportError>;
}
