//! Parts of the messages of a take-over, which a [`Machine`](crate::Machine) fills and reads.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Machine that another process can continue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineOffer {
    /// Origin of the machine's clock, as the data plane writes it.
    pub clock: Value,
    /// Wall-clock time at which that clock was 0, in nanoseconds since the Unix epoch.
    pub origin: u64,
    /// Ports by name.
    pub ports: BTreeMap<String, PortOffer>,
    /// Running chains by name.
    pub chains: BTreeMap<String, ChainOffer>,
}

/// Port of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortOffer {
    /// Traffic as the data plane describes it; `None` for a device, which one process uses at a time.
    pub traffic: Option<Value>,
    /// Sockets by which the other process continues, if it needs any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<SocketOffer>,
}

/// Sockets of a port. Their descriptors follow the offer, in the order of the ports' names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SocketOffer {
    /// The port's interfaces, as the data plane describes them.
    pub interfaces: Value,
    /// Number of descriptors.
    pub descriptors: u32,
}

/// Running chain of a machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ChainOffer {
    /// Functions in chain order.
    pub functions: Vec<FunctionOffer>,
    /// Its state is stored in Redis.
    pub is_external: bool,
    /// Files that its functions write.
    pub outputs: Vec<String>,
    /// These are written behind what is in them, so that another process can go on with them.
    #[serde(default)]
    pub appends: bool,
}

/// Function of a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionOffer {
    /// Name in its chain.
    pub name: String,
    /// Type.
    pub kind: String,
    /// State that it has.
    pub state: StateOffer,
}

/// State of a function with regard to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateOffer {
    /// None, or decisions that it makes again.
    None,
    /// Flow state that passes over.
    Portable {
        /// Version of the state's format.
        version: u32,
        /// Bytes for each flow.
        bytes: u64,
    },
    /// State that another process cannot take.
    Local,
}

/// Flows and positions that pass over, without the flows' bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HandedOver {
    /// Time on the machine's clock from which on no packet has been received.
    pub paused_at: u64,
    /// Positions of the ports' queues, as the data plane writes them.
    pub positions: BTreeMap<String, Value>,
    /// Flows of the chains, whose bytes follow each other in the order of the names.
    pub chains: BTreeMap<String, ChainFlows>,
}

/// Exported flows of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainFlows {
    /// Number of flows.
    pub flows: u64,
    /// Bytes that they take.
    pub bytes: u64,
}

/// Result of a take-over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TakenOver {
    /// Time without processing, in nanoseconds.
    pub gap: u64,
    /// Flows that passed over.
    pub flows: u64,
    /// Flows for which a flow table had no slot.
    pub refused: u64,
    /// Bytes of these flows.
    pub bytes: u64,
}

/// Final counts of a server that was taken over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FinalCounts {
    /// Packets of each chain: offered, delivered, dropped, lost.
    pub chains: BTreeMap<String, [u64; 4]>,
    /// Late and lost packets of each chain by cause, without those that are 0. Older versions send none.
    #[serde(default)]
    pub late: BTreeMap<String, BTreeMap<String, u64>>,
    /// Packets that each chain's port lost meanwhile, and that may have been its own. Older versions send none.
    #[serde(default)]
    pub port_lost: BTreeMap<String, u64>,
    /// Counts of each port, as the data plane writes them.
    pub ports: BTreeMap<String, Value>,
}
