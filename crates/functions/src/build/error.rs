//! Errors that prevent a valid spec from running.

use crate::accounting::ExportError;
use crate::acl::classifier::ClassifierError;
use crate::firewall::RuleSetError;
use crate::ids::IdsError;
use crate::ipsec::IpsecError;
use crate::load_balancer::TableError;
use crate::upf::UpfError;
use std::io;
use tailwater_chain::branches::MAX_PATHS;

/// Error that prevents a valid spec from running.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// An access list or a classifier's rules are too large.
    #[error("function {function}: {source}")]
    Classifier {
        /// Name of the function.
        function: String,
        /// Limit that is exceeded.
        source: ClassifierError,
    },
    /// The services of a load balancer are out of range.
    #[error("function {function}: {source}")]
    LoadBalancer {
        /// Name of the function.
        function: String,
        /// Value that is out of range.
        source: TableError,
    },
    /// The routes cannot be made into a table.
    #[error("function {function}: {source}")]
    Routes {
        /// Name of the function.
        function: String,
        /// Limit that is exceeded.
        source: crate::ip_forward::TableError,
    },
    /// Flow records cannot be written.
    #[error("function {function}: {source}")]
    Export {
        /// Name of the function.
        function: String,
        /// Cause of the failure.
        source: ExportError,
    },
    /// The rules of a firewall need too much memory.
    #[error("function {function}: {source}")]
    Firewall {
        /// Name of the function.
        function: String,
        /// Limit that is exceeded.
        source: RuleSetError,
    },
    /// Detection rules exceed a limit, or alerts cannot be written.
    #[error("function {function}: {source}")]
    Ids {
        /// Name of the function.
        function: String,
        /// Cause of the failure.
        source: IdsError,
    },
    /// URL patterns need too much memory.
    #[error("function {function}: {source}")]
    UrlPatterns {
        /// Name of the function.
        function: String,
        /// Limit that is exceeded.
        source: crate::url_filter::TableError,
    },
    /// An external function has ports, which only `tailwater run` provides.
    #[error("function {function}: an external function has ports, which only `tailwater run` has")]
    External {
        /// Name of the function.
        function: String,
    },
    /// There is not enough memory for caches.
    #[error("function {function}: {source}")]
    Caches {
        /// Name of the function.
        function: String,
        /// Cache that cannot be allocated.
        source: crate::wan_optimizer::NoMemory,
    },
    /// A third-party function is not loaded in this process.
    #[error(
        "function {function}: its spec was read for functions in processes of their own, and it is not loaded in this one"
    )]
    Apart {
        /// Name of the function.
        function: String,
    },
    /// Security associations or policies cannot be applied.
    #[error("function {function}: {source}")]
    Ipsec {
        /// Name of the function.
        function: String,
        /// Cause of the failure.
        source: IpsecError,
    },
    /// A session is invalid, usage reports cannot be written, or the API socket cannot be served.
    #[error("function {function}: {source}")]
    Upf {
        /// Name of the function.
        function: String,
        /// Cause of the failure.
        source: UpfError,
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
    Ways,
    /// An isolated function sends packets to branches, which are not in its process.
    #[error("function {function} sends packets to branches of the chain, which it cannot do from a process of its own")]
    Branches {
        /// Name of the function.
        function: String,
    },
    /// A classic BPF program is invalid.
    #[error("function {function}: rule {rule}: {source}")]
    Program {
        /// Name of the function.
        function: String,
        /// Number of the rule, starting at 1.
        rule: usize,
        /// Defect of the program.
        source: crate::bpf_filter::VerifyError,
    },
    /// The classic BPF program that selects packets to mirror is invalid.
    #[error("function {function}: {source}")]
    Mirror {
        /// Name of the function.
        function: String,
        /// Defect of the program.
        source: crate::bpf_filter::VerifyError,
    },
    /// A function's instances share data that instances in several processes cannot share.
    #[error(
        "function {function}: {what}, which they cannot do from processes of their own; it can stay in the run's process, trusted: \
         --isolation-except {function}"
    )]
    Shares {
        /// Name of the function.
        function: String,
        /// Description of the [shared data](crate::spec::FunctionConfig::shares).
        what: &'static str,
    },
    /// There is not enough memory for a working set.
    #[error("function {function}: there is no memory for its workingSet ({source})")]
    WorkingSet {
        /// Name of the function.
        function: String,
        /// Error reported by the operating system.
        source: io::Error,
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
