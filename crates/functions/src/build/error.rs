//! Why a checked spec still cannot be run.

use crate::accounting::ExportError;
use crate::acl::classifier::ClassifierError;
use crate::firewall::RuleSetError;
use crate::ids::IdsError;
use crate::ipsec::IpsecError;
use crate::load_balancer::TableError;
use crate::upf::UpfError;
use std::io;
use tailwater_chain::branches::MAX_WAYS;

/// Why a checked spec still cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// An access list is too large.
    #[error("function {function}: {source}")]
    Classifier {
        /// The function's name.
        function: String,
        /// What is too large.
        source: ClassifierError,
    },
    /// The services of a load balancer are out of range.
    #[error("function {function}: {source}")]
    LoadBalancer {
        /// The function's name.
        function: String,
        /// What is out of range.
        source: TableError,
    },
    /// Routes do not make a table.
    #[error("function {function}: {source}")]
    Routes {
        /// The function's name.
        function: String,
        /// What is too large.
        source: crate::ip_forward::TableError,
    },
    /// Flow records cannot be written.
    #[error("function {function}: {source}")]
    Export {
        /// The function's name.
        function: String,
        /// Why not.
        source: ExportError,
    },
    /// Rules of a firewall take too much memory.
    #[error("function {function}: {source}")]
    Firewall {
        /// The function's name.
        function: String,
        /// What is too much.
        source: RuleSetError,
    },
    /// Detection rules take too much, or alerts cannot be written.
    #[error("function {function}: {source}")]
    Ids {
        /// The function's name.
        function: String,
        /// What is wrong.
        source: IdsError,
    },
    /// Patterns of URLs take too much memory.
    #[error("function {function}: {source}")]
    UrlPatterns {
        /// The function's name.
        function: String,
        /// What is too much.
        source: crate::url_filter::TableError,
    },
    /// A function is beyond a port.
    #[error("function {function}: an external function has ports, which only `tailwater run` has")]
    External {
        /// The function's name.
        function: String,
    },
    /// There is not enough memory for caches.
    #[error("function {function}: {source}")]
    Caches {
        /// The function's name.
        function: String,
        /// For which.
        source: crate::wan_optimizer::NoMemory,
    },
    /// A function of somebody else's was not loaded.
    #[error(
        "function {function}: its spec was read for functions in processes of their own, and it is not loaded in this one"
    )]
    Apart {
        /// The function's name.
        function: String,
    },
    /// Associations or policies cannot be applied.
    #[error("function {function}: {source}")]
    Ipsec {
        /// The function's name.
        function: String,
        /// Why not.
        source: IpsecError,
    },
    /// Sessions cannot be, or nobody can be told of them.
    #[error("function {function}: {source}")]
    Upf {
        /// The function's name.
        function: String,
        /// Why not.
        source: UpfError,
    },
    /// A function with state of flows is behind one whose packets may be of any flow.
    #[error(
        "function {function} keeps state for each flow, and cannot be behind {behind}: the packets that come out there \
         are not of the flows that were looked up; put it into a chain of its own, or set what it has of cache to none"
    )]
    MixedFlows {
        /// The function with state.
        function: String,
        /// The function in front.
        behind: String,
    },
    /// Packets of a flow may go different ways, and the flow's state does not say which.
    #[error(
        "function {function} keeps state for each flow, and where {classifier} sends packets decides whether they pass it: \
         {classifier} must keep its decisions with flows, too (cache: flow)"
    )]
    Uncached {
        /// The function with state.
        function: String,
        /// The classifier.
        classifier: String,
    },
    /// There are too many ways through the branches.
    #[error("there are more than {MAX_WAYS} ways through the chain's branches")]
    Ways,
    /// A function sends packets to branches, which are not in its process.
    #[error("function {function} sends packets to branches of the chain, which it cannot do from a process of its own")]
    Branches {
        /// The function's name.
        function: String,
    },
    /// A program of classic BPF cannot be run.
    #[error("function {function}: rule {rule}: {source}")]
    Program {
        /// The function's name.
        function: String,
        /// The rule, from 1.
        rule: usize,
        /// What is wrong with it.
        source: crate::bpf_filter::Refused,
    },
    /// A program of classic BPF that says what is copied cannot be run.
    #[error("function {function}: {source}")]
    Mirror {
        /// The function's name.
        function: String,
        /// What is wrong with it.
        source: crate::bpf_filter::Refused,
    },
    /// A function's instances share what instances in several processes cannot.
    #[error(
        "function {function}: {what}, which they cannot do from processes of their own; it can stay in the run's process, trusted: \
         --isolation-except {function}"
    )]
    Shares {
        /// The function's name.
        function: String,
        /// What they [share](crate::spec::FunctionConfig::shares).
        what: &'static str,
    },
    /// There is not enough memory for a working set.
    #[error("function {function}: there is no memory for its workingSet ({source})")]
    WorkingSet {
        /// The function's name.
        function: String,
        /// What the system says.
        source: io::Error,
    },
    /// There is not enough memory for the flow table.
    #[error("there is no memory for a flow table of {capacity} flows ({source}): lower spec.flows.capacity")]
    FlowTable {
        /// The flows asked for.
        capacity: usize,
        /// What the system says.
        source: io::Error,
    },
}
