//! Work of chains and cores in detail, for people who watch a server.

use std::collections::BTreeMap;
use std::sync::Arc;
use tailwater_chain::packet_traces::PacketTraces;
use tailwater_net::Nanos;

/// Figures of a chain, in all windows that have ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChainDetails {
    /// End of these windows, since the chain's start.
    pub measured: Nanos,
    /// Packets late or lost, by cause.
    pub late: BTreeMap<&'static str, u64>,
    /// Packets dropped, lost or passed as unusual, by reason.
    pub reasons: BTreeMap<String, u64>,
    /// Functions, in order.
    pub functions: Vec<FunctionDetails>,
    /// Packets processed on auxiliary cores, and on other dedicated ones.
    pub offloaded: [u64; 2],
    /// Flows of all its cores.
    pub flows: u64,
    /// Preemptions of its workers.
    pub preemptions: u64,
}

/// Figures of a function of a chain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FunctionDetails {
    /// Name.
    pub name: String,
    /// Packets that reached it.
    pub packets: u64,
    /// Packets that it dropped or lost.
    pub dropped: u64,
    /// Packets that were timed, and the time spent on them.
    pub timed: (u64, Nanos),
}

/// Role of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreRole {
    /// Chains are placed on it.
    Dedicated,
    /// Lent to chains that are behind.
    Auxiliary,
}

/// Work of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreDetails {
    /// Number of the core.
    pub core: u32,
    /// Role.
    pub role: CoreRole,
    /// Time for which it has worked on packets.
    pub busy: Nanos,
}

/// Packets of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortDetails {
    /// Name of the port.
    pub name: String,
    /// Packets that arrived, for all chains and none, lost ones included.
    pub received: u64,
    /// Packets that no chain matched.
    pub unmatched: u64,
    /// Packets lost before their chain was known.
    pub lost: u64,
    /// Packets dropped because the device found their checksums wrong.
    pub damaged: u64,
    /// Length of the last interval, about a second; 0 before one has ended.
    pub interval: Nanos,
    /// Packets that arrived in it.
    pub interval_received: u64,
    /// Packets that the port lost on reception in it.
    pub interval_lost: u64,
    /// Cores on which it lost these.
    pub losing_cores: Vec<u32>,
}

/// Switch of a chain's packet traces.
#[derive(Clone, Debug)]
pub struct TracedChain(pub Arc<PacketTraces>);

impl PartialEq for TracedChain {
    fn eq(&self, other: &TracedChain) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
