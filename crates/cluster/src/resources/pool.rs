//! Kind `ServerPool`: servers that chains are limited to.

use super::condition::Condition;
use super::server::RackServer;
use kube::{CustomResource, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Spec of a pool: servers by their names, by their labels, or both.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tailwater.dev",
    version = "v1alpha1",
    kind = "ServerPool",
    status = "PoolStatus",
    derive = "PartialEq",
    category = "tailwater",
    doc = "Servers for the chains that name the pool. Other chains do not use them.",
    printcolumn(name = "Servers", type_ = "integer", json_path = ".status.servers"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyServers"),
    printcolumn(name = "Instances", type_ = "integer", json_path = ".status.instances"),
    printcolumn(name = "Cores", type_ = "integer", json_path = ".status.cores"),
    printcolumn(name = "Used", type_ = "integer", json_path = ".status.coresUsed"),
    printcolumn(name = "Free", type_ = "integer", json_path = ".status.coresFree"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.selector) || has(self.servers) && self.servers.size() > 0",
    "message": "expected servers, selector, or both"
}]))]
pub struct PoolSpec {
    /// Names of servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4096), inner(length(max = 253)))]
    pub servers: Vec<String>,
    /// Labels of RackServers that belong to the pool, in addition. An empty one selects all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<PoolSelector>,
    /// Devices that each pod of a function claims on the pool's servers, by Kubernetes' dynamic resource allocation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub devices: Vec<PoolDevices>,
}

/// Devices that a pod claims.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolDevices {
    /// Name of the claim in the pod.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Name of the DeviceClass.
    #[schemars(length(min = 1, max = 253))]
    pub class: String,
    /// Number of devices.
    #[serde(default = "PoolDevices::one")]
    #[schemars(range(min = 1, max = 32))]
    pub count: u32,
    /// Expressions in CEL that hold for each device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(min = 1, max = 1024)))]
    pub selectors: Vec<String>,
    /// Names of resources and annotations of Functions that these devices stand for: pods do not have those.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 317)))]
    pub replaces: Vec<String>,
}

impl PoolDevices {
    const fn one() -> u32 {
        1
    }
}

/// Selector of servers by their labels, as Kubernetes has it: all requirements must hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolSelector {
    /// Labels with their values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Further requirements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub match_expressions: Vec<PoolRequirement>,
}

/// Requirement on a label.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
    "message": "expected values with In and NotIn, and none with Exists and DoesNotExist"
}]))]
pub struct PoolRequirement {
    /// Name of the label.
    #[schemars(length(max = 317))]
    pub key: String,
    /// Relation of the label to the values.
    pub operator: PoolOperator,
    /// Values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63)))]
    pub values: Vec<String>,
}

/// Relation of a label to values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PoolOperator {
    /// It has one of them.
    In,
    /// It has none of them, or does not exist.
    NotIn,
    /// It exists.
    Exists,
    /// It does not exist.
    DoesNotExist,
}

/// Status of a pool, written by the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// Generation of the spec that this status is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// `Ready`, and `Devices` if it has some.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Servers that belong to it.
    #[serde(default)]
    pub servers: u32,
    /// Those that take new instances.
    #[serde(default)]
    pub ready_servers: u32,
    /// Instances on its servers, of any chain.
    #[serde(default)]
    pub instances: u32,
    /// Dedicated cores of its servers.
    #[serde(default)]
    pub cores: u32,
    /// Cores with an instance.
    #[serde(default)]
    pub cores_used: u32,
    /// Cores without one.
    #[serde(default)]
    pub cores_free: u32,
}

impl PoolSpec {
    /// Returns `true` if a server belongs to the pool.
    pub fn has(&self, server: &RackServer) -> bool {
        let name = server.metadata.name.as_deref().unwrap_or_default();
        let is_selected = |selector: &PoolSelector| selector.matches(server.labels());
        self.servers.iter().any(|one| one == name) || self.selector.as_ref().is_some_and(is_selected)
    }
}

impl PoolSelector {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let has = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        let holds = |requirement: &PoolRequirement| requirement.holds(labels.get(&requirement.key));
        self.match_labels.iter().all(has) && self.match_expressions.iter().all(holds)
    }
}

impl PoolRequirement {
    fn holds(&self, label: Option<&String>) -> bool {
        let is_one = label.is_some_and(|label| self.values.contains(label));
        match self.operator {
            PoolOperator::In => is_one,
            PoolOperator::NotIn => !is_one,
            PoolOperator::Exists => label.is_some(),
            PoolOperator::DoesNotExist => label.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn has(spec: Value) -> bool {
        let spec: PoolSpec = serde_json::from_value(spec).unwrap();
        let mut server = RackServer::new("node-a", Default::default());
        server.labels_mut().insert("tier".to_owned(), "fast".to_owned());
        spec.has(&server)
    }

    #[test]
    fn servers_belong_to_a_pool_by_their_names_or_labels() {
        let expression = |key: &str, operator: &str, values: &[&str]| {
            let requirement = match values {
                [] => json!({"key": key, "operator": operator}),
                values => json!({"key": key, "operator": operator, "values": values}),
            };
            json!({"selector": {"matchExpressions": [requirement]}})
        };
        for (spec, expected) in [
            (json!({"servers": ["node-a"]}), true),
            (json!({"servers": ["node-b"]}), false),
            (json!({"selector": {}}), true),
            (json!({"selector": {"matchLabels": {"tier": "fast"}}}), true),
            (
                json!({"selector": {"matchLabels": {"tier": "fast", "rack": "1"}}}),
                false,
            ),
            (
                json!({"servers": ["node-a"], "selector": {"matchLabels": {"tier": "slow"}}}),
                true,
            ),
            (expression("tier", "In", &["slow", "fast"]), true),
            (expression("tier", "In", &["slow"]), false),
            (expression("rack", "In", &["1"]), false),
            (expression("tier", "NotIn", &["fast"]), false),
            (expression("rack", "NotIn", &["1"]), true),
            (expression("tier", "Exists", &[]), true),
            (expression("rack", "Exists", &[]), false),
            (expression("tier", "DoesNotExist", &[]), false),
            (expression("rack", "DoesNotExist", &[]), true),
        ] {
            assert_eq!(has(spec.clone()), expected, "{spec}");
        }
    }
}
