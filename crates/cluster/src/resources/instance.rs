//! Kind `ChainInstance`: a chain on one server.

use super::condition::Condition;
use super::schema::any_map;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Spec of an instance. The controller writes it, and the agent of its server reads it.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tailwater.dev",
    version = "v1alpha1",
    kind = "ChainInstance",
    namespaced,
    status = "InstanceStatus",
    derive = "PartialEq",
    category = "tailwater",
    selectable = ".spec.server",
    doc = "A chain on one server. Created and deleted by the controller.",
    printcolumn(name = "Chain", type_ = "string", json_path = ".spec.chain"),
    printcolumn(name = "Server", type_ = "string", json_path = ".spec.server"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "P99", type_ = "string", json_path = ".status.p99"),
    printcolumn(name = "Rate", type_ = "string", json_path = ".status.rate"),
    printcolumn(name = "Cores", type_ = "string", json_path = ".status.cores"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct InstanceSpec {
    /// Name of the chain, in the same namespace.
    #[schemars(length(max = 253))]
    pub chain: String,
    /// Name of the server. An instance does not move: another one takes its place.
    #[schemars(length(max = 253), extend("x-kubernetes-validations" = [
        {"rule": "self == oldSelf", "message": "expected the server that it was created for"}
    ]))]
    pub server: String,
    /// Generation of the chain that `chainSpec` is of.
    pub chain_generation: i64,
    /// Version of the Slo that `chainSpec` has its objectives from, if it is one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub slo_version: Option<String>,
    /// Packets per second that it is promised; 0 without a promise. `chainSpec` has it as its throughput.
    #[serde(default)]
    #[schemars(range(min = 0.0))]
    pub promised: f64,
    /// Destination MAC address by which the ingress sends packets to it. `chainSpec` matches it.
    #[serde(default)]
    #[schemars(length(max = 17))]
    pub mac: String,
    /// It has its cores for itself.
    #[serde(default)]
    pub exclusive: bool,
    /// Name of the instance whose place it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub replaces: Option<String>,
    /// It gets no new flows, and those that it has move elsewhere. When no packets arrive any more, it is deleted.
    #[serde(default)]
    pub draining: bool,
    /// Spec of the chain, as the file for a single machine has it.
    #[schemars(schema_with = "chain_spec")]
    pub chain_spec: Map<String, Value>,
    /// Runs without a promise if it does not fit.
    #[serde(default)]
    pub force: bool,
    /// Pods of the functions that are named in `chainSpec`, in its order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub pods: Vec<InstancePod>,
}

/// Pod of a function of an instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstancePod {
    /// Name of the pod.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Name of the Function.
    #[schemars(length(max = 253))]
    pub function: String,
    /// Number of the user that its processes have, which no other pod's have.
    pub user: u32,
}

fn chain_spec(_: &mut SchemaGenerator) -> Schema {
    any_map("Spec of the chain, as in the file that `tailwater run` reads.")
}

/// Phase of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum InstancePhase {
    /// The agent has not started it yet.
    #[default]
    Pending,
    /// It processes packets.
    Running,
    /// It processes its last packets.
    Draining,
    /// The server refuses it, or it does not run against the configuration.
    Failed,
}

/// Status of an instance, written by its server's agent. What is unknown is written as null, which removes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStatus {
    /// Generation of the instance that this status is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// Phase.
    #[serde(default)]
    pub phase: InstancePhase,
    /// Reason of the phase: one line, possibly empty.
    #[serde(default)]
    pub reason: String,
    /// `Ready`, `ObjectiveMet` and `PromiseKept`, as the server has them.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Its cores, such as `2,3`.
    #[serde(default)]
    pub cores: String,
    /// Latency at the objective's percentile in the last window, such as `143us`.
    pub p99: Option<String>,
    /// Packets per second in the last window, such as `1.20 Mpps`.
    pub rate: Option<String>,
    /// Traffic of the spec that the server runs: its `match`, as JSON.
    #[serde(rename = "match")]
    pub match_: Option<String>,
    /// Generation of the chain whose spec the server runs. A roll-out is complete when all instances have the newest.
    pub chain_generation: Option<i64>,
    /// Version of the Slo whose objectives the server keeps, if they are one's.
    pub slo_version: Option<String>,
    /// Why its flows cannot go to another server with all of their state, if they cannot: one line.
    pub bound_state: Option<String>,
    /// Packets are steered to it; written by the ingress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steered: Option<bool>,
    /// Reason why its chain is not steered as its spec says: one line; written by the ingress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steering_reason: Option<String>,
    /// Limit of the switch that its chain is under; written by the ingress.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steering_limit: Option<SteeringLimit>,
    /// The same figures as in `p99` and `rate`, for programs.
    pub figures: Option<InstanceFigures>,
}

/// Limit of the switch that packets of a chain are steered by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SteeringLimit {
    /// `TableFull`, `TableTooSmall` or `ForeignRule`.
    pub reason: String,
    /// One line: what is the consequence, and what to do.
    pub message: String,
}

/// Figures of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceFigures {
    /// Packets per second offered to it in the last window.
    pub offered: f64,
    /// Latency at the objective's percentile in the last window, in nanoseconds; 0 without packets.
    pub latency_nanos: u64,
    /// Packets offered, delivered, dropped and lost since it started.
    pub packets: [u64; 4],
    /// Share of the time of its cores, as far as other chains leave it, that it spent on packets in the last window, 0
    /// to 1. Absent if its server does not measure it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<f64>,
}
