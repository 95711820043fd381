//! Kind `Slo`: objectives that several chains share.

use super::condition::Condition;
use super::schema::RULES;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use tailwater_api::schema::{Foreign, structural_schema};
use tailwater_api::slo::SLO;

/// Spec of an Slo: its type, and the fields of `spec.slo` of a chain, which the code that reads chains checks.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "tailwater.dev",
    version = "v1alpha1",
    kind = "Slo",
    plural = "slos",
    namespaced,
    status = "SloStatus",
    derive = "PartialEq",
    category = "tailwater",
    doc = "Objectives of the chains that name it by spec.sloRef.",
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Latency", type_ = "string", json_path = ".spec.latency"),
    printcolumn(name = "Throughput", type_ = "string", json_path = ".spec.throughput"),
    printcolumn(name = "Chains", type_ = "integer", json_path = ".status.chains"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Accepted\")].reason"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct SloSpec {
    /// Type.
    #[serde(rename = "type", default)]
    pub kind: SloType,
    /// Everything else, as `spec.slo` of a chain has it.
    #[serde(flatten)]
    pub local: Map<String, Value>,
}

/// Type of an Slo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SloType {
    /// Latency only: resources follow the load.
    #[default]
    OnDemand,
    /// Latency at a throughput, for which resources are reserved.
    Reserved,
}

impl JsonSchema for SloSpec {
    fn schema_name() -> Cow<'static, str> {
        "SloSpec".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut schema = structural_schema(&SLO, &[], Foreign::Refused);
        schema["description"] = "Type, and the fields of `spec.slo` of a chain.".into();
        schema["properties"]["type"] = json!({
            "type": "string",
            "enum": ["on-demand", "reserved"],
            "default": "on-demand",
            "description": "`reserved`: resources for `throughput` are reserved for each chain. `on-demand`: resources \
                            follow the load.",
        });
        let rule = json!({
            "rule": "(self.type == 'reserved') == has(self.throughput)",
            "message": "expected throughput with type reserved, and none with on-demand",
        });
        match schema.get_mut(RULES).and_then(Value::as_array_mut) {
            Some(rules) => rules.push(rule),
            None => schema[RULES] = json!([rule]),
        }
        Schema::try_from(schema).expect("an object")
    }
}

/// Status of an Slo, written by the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SloStatus {
    /// Generation of the spec that this status is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// `Accepted`.
    #[serde(default)]
    pub conditions: Vec<Condition>,
    /// Chains that name it.
    #[serde(default)]
    pub chains: u32,
}

/// Objectives that a chain has from an [`Slo`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SharedSlo {
    /// It names none: it has its own.
    #[default]
    None,
    /// It names one that cannot be used: one word for programs, and one line for people.
    Unusable(&'static str, String),
    /// Those of this version of one.
    Of(String),
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::CustomResourceExt;

    #[test]
    fn the_definition_has_the_fields_of_a_chains_slo_and_the_type() {
        let definition = serde_json::to_value(Slo::crd()).unwrap();
        let spec = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let fields: Vec<&String> = spec["properties"].as_object().unwrap().keys().collect();
        assert_eq!(fields, ["latency", "network", "percentile", "throughput", "type"]);
        assert_eq!(spec["required"], json!(["latency"]));
        assert_eq!(spec["properties"]["type"]["default"], "on-demand");
        assert!(spec[RULES].to_string().contains("has(self.throughput)"), "{spec}");
    }
}
