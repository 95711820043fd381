//! Kind `Function`: a network function of somebody else that runs as a pod beside each instance of a chain.

use super::condition::Condition;
use super::instance::InstancePod;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Spec of a function. A chain names it as `program: {function: NAME}`.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tailwater.dev",
    version = "v1alpha1",
    kind = "Function",
    namespaced,
    status = "FunctionStatus",
    derive = "PartialEq",
    category = "tailwater",
    doc = "A network function that runs as a pod beside each instance of the chains that name it.",
    printcolumn(name = "Image", type_ = "string", json_path = ".spec.image", priority = 1),
    printcolumn(name = "Pods", type_ = "string", json_path = ".status.readyPods"),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct FunctionSpec {
    /// Image of a program that is linked with `libtailwater_nf` or `tailwater-sdk`, with its digest:
    /// `registry.example.com/nf/limit@sha256:...`.
    #[schemars(length(min = 1, max = 512))]
    pub image: String,
    /// Command in the image, in place of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub command: Vec<String>,
    /// Arguments of the command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub args: Vec<String>,
    /// Memory of a pod: request and limit. Packets and flows are in memory of the server.
    #[serde(default = "memory")]
    #[schemars(regex(pattern = "^[0-9]+(Ki|Mi|Gi)?$"), length(max = 32))]
    pub memory: String,
    /// Processor time that a pod requests for its start. Its turns are on the chain's core.
    #[serde(default = "cpu")]
    #[schemars(regex(pattern = "^[0-9]+m?$"), length(max = 32))]
    pub cpu: String,
    /// Huge pages of 2 MiB, such as `64Mi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[0-9]+(Mi|Gi)$"), length(max = 32))]
    pub hugepages: Option<String>,
    /// Environment variables.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub env: Vec<FunctionVariable>,
    /// Further resources of a pod, such as those of device plugins: `intel.com/sriov_netdevice: "1"`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub resources: BTreeMap<String, String>,
    /// Annotations of a pod, such as those of Multus: `k8s.v1.cni.cncf.io/networks: sriov-a`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub annotations: BTreeMap<String, String>,
    /// Names of secrets for the image's registry, in the same namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Vec<String>,
    /// Pulling of the image: `IfNotPresent`, `Always` or `Never`.
    #[serde(default)]
    pub image_pull_policy: PullPolicy,
}

fn memory() -> String {
    "256Mi".to_owned()
}

fn cpu() -> String {
    "10m".to_owned()
}

/// Pulling of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// If the node has none.
    #[default]
    IfNotPresent,
    /// At each start.
    Always,
    /// It must be on the node.
    Never,
}

/// Environment variable of a function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FunctionVariable {
    /// Name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub value: Option<String>,
    /// Source of the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<VariableSource>,
}

/// Source of a variable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VariableSource {
    /// Key of a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyReference>,
    /// Key of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyReference>,
}

/// Key of an object in the same namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KeyReference {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// Status of a function, written by the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FunctionStatus {
    /// Generation of the spec that this status is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// `Ready`: all its pods run.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Pods that run, of those wanted: `2/3`.
    #[serde(default)]
    pub ready_pods: String,
}

/// Label of pods: the name of their instance.
pub const INSTANCE_LABEL: &str = "tailwater.dev/instance";
/// Annotation of instances: the pods of their functions that run, with their identifiers.
pub const PODS_ANNOTATION: &str = "tailwater.dev/pods";
/// Folder on servers with a folder for each instance with functions in pods.
pub const POD_DIRECTORY: &str = "/run/tailwater/pods";
/// Name of a function's socket in its folder.
const SOCKET: &str = "function.sock";

/// Folder of a function of an instance, which its pod sees. `local` is the instance's name on its server.
pub fn pod_folder(directory: &Path, local: &str, index: usize) -> PathBuf {
    directory.join(local).join(index.to_string())
}

/// Path of the socket in a folder.
pub fn pod_socket(folder: &Path) -> PathBuf {
    folder.join(SOCKET)
}

/// Names of the functions that a chain's spec has as pods, in order.
pub fn references(spec: &Map<String, Value>) -> Vec<String> {
    let mut names = Vec::new();
    let mut functions = spec.get("functions").cloned().unwrap_or_default();
    each_program(&mut functions, &mut |program| {
        names.extend(program.get("function").and_then(Value::as_str).map(str::to_owned));
    });
    names
}

/// Returns `true` if a program of a chain's spec names a socket. On a rack, only agents do.
pub fn names_a_socket(spec: &Map<String, Value>) -> bool {
    fn search(value: &Value) -> bool {
        match value {
            Value::Array(items) => items.iter().any(search),
            Value::Object(fields) => fields.iter().any(|(name, value)| match value {
                Value::Object(program) if name == "program" => program.get("socket").is_some_and(|it| !it.is_null()),
                other => search(other),
            }),
            _ => false,
        }
    }
    spec.get("functions").is_some_and(search)
}

/// Gives the functions of an instance that run as pods the sockets by which they join.
pub fn with_sockets(
    spec: &Map<String, Value>,
    pods: &[InstancePod],
    socket: impl Fn(usize) -> PathBuf,
) -> Map<String, Value> {
    let mut spec = spec.clone();
    let mut pods = pods.iter().enumerate();
    if let Some(functions) = spec.get_mut("functions") {
        each_program(functions, &mut |program| {
            let Some((index, pod)) = pods.next() else { return };
            // Its name stays that of the function.
            for field in ["file", "library"] {
                program.remove(field);
            }
            program.insert("socket".to_owned(), json!(socket(index)));
            program.insert("user".to_owned(), json!(pod.user));
        });
    }
    spec
}

/// Visits the programs that name a function, those of branches too.
fn each_program(value: &mut Value, visit: &mut impl FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| each_program(item, visit)),
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                match value {
                    Value::Object(program) if name == "program" => {
                        if program.get("function").is_some_and(Value::is_string) {
                            visit(program);
                        }
                    }
                    other => each_program(other, visit),
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_name_a_function_get_its_socket() {
        let spec = json!({
            "slo": {"latency": "1ms"},
            "functions": [
                {"accounting": {}},
                {"name": "a", "program": {"function": "limit", "file": "./limit", "config": {"program": 1}}},
                {"program": {"file": "./other"}},
                {"classifier": {"branches": {"x": {"functions": [{"program": {"function": "filter"}}]}}}},
            ],
        });
        let Value::Object(spec) = spec else { unreachable!() };
        assert_eq!(references(&spec), ["limit", "filter"]);
        assert!(!names_a_socket(&spec));
        let pod = |user| InstancePod {
            name: format!("web-f{user}"),
            function: String::new(),
            user,
        };
        let folder = |index| pod_socket(&pod_folder(Path::new("/run/pods"), "default--web", index));
        let spec = with_sockets(&spec, &[pod(7), pod(8)], folder);
        assert_eq!(
            spec["functions"][1],
            json!({"name": "a", "program": {
                "function": "limit", "socket": "/run/pods/default--web/0/function.sock", "user": 7,
                "config": {"program": 1},
            }})
        );
        assert_eq!(spec["functions"][2], json!({"program": {"file": "./other"}}));
        assert!(names_a_socket(&spec));
        let branch = &spec["functions"][3]["classifier"]["branches"]["x"]["functions"][0]["program"];
        assert_eq!(branch["socket"], "/run/pods/default--web/1/function.sock");
    }
}
