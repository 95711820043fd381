//! Results of a worker.

use crate::durable::KeeperCounters;
use crate::external::stage::ExternalCounts;
use crate::scaling::buckets::Buckets;
use tailwater_chain::chain::Chain;
use tailwater_chain::flow_table::FlowCounters;

/// Results of a worker that has ended.
#[derive(Default)]
pub(crate) struct Finished {
    /// Its instance of the chain, or of each of its parts.
    pub(crate) chains: Vec<Chain>,
    /// Flow counters of an instance that was left to a successor.
    pub(crate) left: Option<FlowCounters>,
    /// Packet counts of external functions.
    pub(crate) externals: Vec<ExternalCounts>,
    /// Migration state, which can still accept buckets that arrive after the end.
    pub(crate) buckets: Option<Box<Buckets>>,
    /// Message of its panic, if it panicked.
    pub(crate) died: Option<String>,
    /// Counters of external flow state: of an auxiliary core, for each dispatcher.
    pub(crate) state_counters: Vec<KeeperCounters>,
}
