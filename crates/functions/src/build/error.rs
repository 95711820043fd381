//! Errors that prevent a valid spec from running.

use crate::kind::FunctionError;
use std::io;
use tailwater_chain::branches::MAX_PATHS;

/// Error that prevents a valid spec from running.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A chain takes the place of another one that finds flows by other keys.
    #[error(
        "function {function} cannot keep its flows: of the chain before and the one after, one finds flows as \
         connections (as for a firewall), the other one by direction; delete the chain, and apply it anew"
    )]
    OtherKeys {
        /// First function that both have.
        function: String,
    },
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
        "function {function} keeps state per flow and cannot follow {behind}, whose output packets belong to other \
         flows than its input; move it to a separate chain, or set its cache field, if it has one, to none"
    )]
    MixedFlows {
        /// Function with state.
        function: String,
        /// Preceding function.
        behind: String,
    },
    /// Packets of a flow can take different paths, and the flow's state does not record which.
    #[error(
        "function {function} keeps state per flow, and {classifier} selects the packets that reach it: expected \
         cache: flow in {classifier}"
    )]
    Uncached {
        /// Function with state.
        function: String,
        /// Name of the classifier.
        classifier: String,
    },
    /// There are more than [`MAX_PATHS`] paths through the branches.
    #[error("expected at most {MAX_PATHS} paths through the chain's branches, found more")]
    PathTable,
    /// An isolated function sends packets to branches, which are not in its process.
    #[error("function {function} cannot be isolated: it sends packets to branches of the chain")]
    Branches {
        /// Name of the function.
        function: String,
    },
    /// A function's instances share data that instances in several processes cannot share.
    #[error(
        "function {function} cannot be isolated: {what}; run it in the worker's process, trusted, with \
         --isolation-except {function} or spec.isolation.except"
    )]
    Shares {
        /// Name of the function.
        function: String,
        /// Description of the [shared data](crate::kind::FunctionConfig::in_process_only_reason).
        what: &'static str,
    },
    /// There is not enough memory for the flow table.
    #[error("not enough memory for a flow table of {capacity} flows ({source}): lower spec.flows.capacity")]
    FlowTable {
        /// Requested number of flows.
        capacity: usize,
        /// Error reported by the operating system.
        source: io::Error,
    },
}
