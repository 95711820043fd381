//! Kind `Chain`: the chain that an operator wants.

use super::condition::Condition;
use super::schema::any_map;
use super::slo::SharedSlo;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// Longest name of a chain on a server: an RFC 1123 label.
const LONGEST_NAME: usize = 63;
/// Between namespace and name in the name of a chain on a server. No name of a chain contains it.
const SEPARATOR: &str = "--";

/// Spec of a chain: that of the file for a single machine, which is checked by the code that reads such files, and
/// [`scale`](ChainSpec::scale), [`pool`](ChainSpec::pool) and [`slo_ref`](ChainSpec::slo_ref).
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "tailwater.dev",
    version = "v1alpha1",
    kind = "Chain",
    namespaced,
    status = "ChainStatus",
    derive = "PartialEq",
    category = "tailwater",
    doc = "A chain of network functions, its traffic, and its objectives.",
    printcolumn(name = "Objective", type_ = "string", json_path = ".spec.slo.latency"),
    printcolumn(name = "P99", type_ = "string", json_path = ".status.p99"),
    printcolumn(name = "Rate", type_ = "string", json_path = ".status.rate"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.readyInstances"),
    printcolumn(name = "Cores", type_ = "integer", json_path = ".status.cores"),
    printcolumn(
        name = "Met",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"ObjectiveMet\")].status"
    ),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.pool", priority = 1),
    printcolumn(name = "Slo", type_ = "string", json_path = ".spec.sloRef", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct ChainSpec {
    /// Instances on the rack.
    #[serde(default)]
    pub scale: Scale,
    /// Name of the [`ServerPool`](super::ServerPool) whose servers it is limited to. Without one: servers in no pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Name of the [`Slo`](super::Slo), in the same namespace, whose objectives it has in place of `slo`.
    #[serde(rename = "sloRef", default, skip_serializing_if = "Option::is_none")]
    pub slo_ref: Option<String>,
    /// Objectives that it has from there, as the controller has found them. No part of the object.
    #[serde(skip)]
    pub shared: SharedSlo,
    /// Everything else, as the file of a single machine has it.
    #[serde(flatten)]
    pub local: Map<String, Value>,
}

impl JsonSchema for ChainSpec {
    fn schema_name() -> Cow<'static, str> {
        "ChainSpec".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = any_map("Functions, traffic and objectives, as in the file that `tailwater run` reads.");
        let mut scale = Scale::json_schema(generator);
        // Rules are checked before defaults within it are filled in.
        scale.insert("default".to_owned(), json!(Scale::default()));
        let latency = json!({"type": "string", "pattern": "^[0-9.]+ *(ns|us|ms|s)$", "maxLength": 32});
        schema.insert(
            "properties".to_owned(),
            json!({
                "scale": scale,
                "pool": {"type": "string", "maxLength": 63, "nullable": true},
                "sloRef": {
                    "type": "string", "maxLength": 253,
                    "description": "Name of the Slo in the same namespace whose objectives the chain has in place of \
                                    `slo`. Used on a rack of Kubernetes only.",
                },
                "functions": {
                    "type": "array", "minItems": 1, "maxItems": 16,
                    "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                },
                "slo": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {"latency": latency}, "required": ["latency"],
                },
            }),
        );
        schema.insert("required".to_owned(), json!(["functions"]));
        let rule = json!({
            "rule": "has(self.slo) != has(self.sloRef)", "message": "expected either slo or sloRef",
        });
        schema.insert("x-kubernetes-validations".to_owned(), json!([rule]));
        schema
    }
}

/// Number of instances of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self.min <= self.max", "message": "expected min to be at most max"}
]))]
pub struct Scale {
    /// Least number.
    #[serde(default = "Scale::least")]
    #[schemars(range(min = 1, max = 1024))]
    pub min: u32,
    /// Most.
    #[serde(default = "Scale::most")]
    #[schemars(range(min = 1, max = 1024))]
    pub max: u32,
    /// Least number of servers that they are on, as far as there are servers.
    #[serde(default = "Scale::least")]
    #[schemars(range(min = 1, max = 1024))]
    pub servers: u32,
}

impl Scale {
    const fn least() -> u32 {
        1
    }

    const fn most() -> u32 {
        1024
    }
}

impl Default for Scale {
    fn default() -> Scale {
        Scale {
            min: Scale::least(),
            max: Scale::most(),
            servers: Scale::least(),
        }
    }
}

/// Status of a chain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChainStatus {
    /// Generation of the spec that this status is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// `Accepted`, `Placed`, `Ready`, `Updated`, `Steered` and `ObjectiveMet`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Instances, in all.
    #[serde(default)]
    pub instances: u32,
    /// Instances that process packets, of those wanted: `2/3`.
    #[serde(default)]
    pub ready_instances: String,
    /// Dedicated cores of all instances.
    #[serde(default)]
    pub cores: u32,
    /// Highest latency at the objective's percentile of any instance, such as `143us`.
    pub p99: Option<String>,
    /// Packets per second of all instances, such as `1.20 Mpps`.
    pub rate: Option<String>,
    /// Reason of the first condition that does not hold.
    #[serde(default)]
    pub reason: String,
}

/// An instance's name on its server would be too long.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected at most {LONGEST_NAME} characters in the namespace, \"{SEPARATOR}\" and the name of the instance \
     together, found {0}"
)]
pub struct NameTooLong(usize);

/// Name on its server of an instance of a namespace. Different instances have different names, since no name of a chain
/// contains `--`.
///
/// # Errors
/// It would be too long.
pub fn local_name(namespace: &str, instance: &str) -> Result<String, NameTooLong> {
    let name = format!("{namespace}{SEPARATOR}{instance}");
    match name.len() <= LONGEST_NAME {
        true => Ok(name),
        false => Err(NameTooLong(name.len())),
    }
}
