//! Kind `RackServer`: a server that has an agent.

use super::condition::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Spec of a server.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tailwater.dev",
    version = "v1alpha1",
    kind = "RackServer",
    status = "ServerStatus",
    derive = "PartialEq",
    category = "tailwater",
    doc = "A server with an agent, which creates this object.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(name = "Unschedulable", type_ = "boolean", json_path = ".spec.unschedulable"),
    printcolumn(name = "Cores", type_ = "integer", json_path = ".status.cores"),
    printcolumn(name = "Auxiliary", type_ = "integer", json_path = ".status.auxiliary"),
    printcolumn(name = "Chains", type_ = "integer", json_path = ".status.chains"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ServerSpec {
    /// Gets no new instance, and those that it has move to other servers.
    #[serde(default)]
    pub unschedulable: bool,
}

/// Status of a server, written by its agent; `Ready` by the controller, too, when the agent's lease has expired.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServerStatus {
    /// `Ready`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Dedicated cores for chains: their numbers.
    #[serde(default)]
    pub core_numbers: Vec<u32>,
    /// Number of dedicated cores.
    #[serde(default)]
    pub cores: u32,
    /// Number of auxiliary cores.
    #[serde(default)]
    pub auxiliary: u32,
    /// Bytes of the last-level cache that its chains share; 0 if unknown.
    #[serde(default)]
    pub cache_bytes: u64,
    /// Part of each core that is not promised: 0 to below 1.
    #[serde(default)]
    pub headroom: f64,
    /// Machine that profiles must be of.
    #[serde(default)]
    pub machine: String,
    /// Name of the switch's port that leads to it, by which the ingress sends packets; empty without an ingress.
    #[serde(default)]
    pub switch_port: String,
    /// Names of its ports.
    #[serde(default)]
    pub ports: Vec<String>,
    /// Chains that it runs.
    #[serde(default)]
    pub chains: u32,
    /// Version of its program.
    #[serde(default)]
    pub version: String,
}

/// Name of the lease by which a server shows that it lives. No server has the name of another lease, such as that of
/// the controllers' election.
pub fn server_lease(server: &str) -> String {
    format!("server-{server}")
}
