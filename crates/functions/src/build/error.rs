//! Errors that prevent a valid spec from running.

use crate::kind::FunctionError;
use std::io;
use tailwater_chain::branches::MAX_PATHS;

/// Error that prevents a valid spec from running.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A function cannot be built.
    #[error("function {function}: {source}")]
    Function {
        /// Name of the function.
        function: String,
        /// Limit that is exceeded, or cause of the failure.
        source: FunctionError,
    },
    /// A function with flow state follows a function that mixes flows.
    #[error(
        "function {function} keeps state for each flow, and cannot be behind {behind}: the packets that come out there \
         are not of the flows that were looked up; put it into a chain of its own, or set what it has of cache to none"
    )]
    MixedFlows {
        /// Function with state.
        function: String,
        /// Preceding function.
        behind: String,
    },
    /// Packets of a flow can take different paths, and the flow's state does not record which.
    #[error(
        "function {function} keeps state for each flow, and where {classifier} sends packets decides whether they pass it: \
         {classifier} must keep its decisions with flows, too (cache: flow)"
    )]
    Uncached {
        /// Function with state.
        function: String,
        /// Name of the classifier.
        classifier: String,
    },
    /// There are more than [`MAX_PATHS`] paths through the branches.
    #[error("there are more than {MAX_PATHS} ways through the chain's branches")]
    PathTable,
    /// An isolated function sends packets to branches, which are not in its process.
    #[error("function {function} sends packets to branches of the chain, which it cannot do from a process of its own")]
    Branches {
        /// Name of the function.
        function: String,
    },
    /// A function's instances share data that instances in several processes cannot share.
    #[error(
        "function {function}: {what}, which they cannot do from processes of their own; it can stay in the run's process, trusted: \
         --isolation-except {function}"
    )]
    Shares {
        /// Name of the function.
        function: String,
        /// Description of the [shared data](crate::kind::FunctionConfig::in_process_only_reason).
        what: &'static str,
    },
    /// There is not enough memory for the flow table.
    #[error("there is no memory for a flow table of {capacity} flows ({source}): lower spec.flows.capacity")]
    FlowTable {
        /// Requested number of flows.
        capacity: usize,
        /// Error reported by the operating system.
        source: io::Error,
    },
}
