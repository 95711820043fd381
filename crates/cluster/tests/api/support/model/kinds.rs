//! Kinds of objects: those of Kubernetes that the rack uses, and those that are defined.

use super::schema::{check, complete};
use k8s_openapi::Resource;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaimTemplate};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Kind of objects.
pub struct Kind {
    pub group: String,
    pub version: String,
    /// Name of one: `Chain`.
    pub kind: String,
    /// Name of many: `chains`.
    pub plural: String,
    pub is_namespaced: bool,
    /// Its status is a resource of its own.
    pub has_status: bool,
    /// Fields that can be selected by: `spec.server`.
    pub fields: Vec<String>,
    form: Form,
}

/// Form of its objects.
enum Form {
    /// As a definition describes it.
    Schema(Value),
    /// A type of Kubernetes: leaves out unknown fields, and checks the others.
    Typed(fn(&Value) -> Result<Value, String>, fn(&Value) -> Vec<String>),
}

fn typed<K: DeserializeOwned + Serialize>(object: &Value) -> Result<Value, String> {
    let object: K = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
    serde_json::to_value(object).map_err(|error| error.to_string())
}

fn built_in<K: Resource + DeserializeOwned + Serialize>(
    plural: &str,
    is_namespaced: bool,
    rules: fn(&Value) -> Vec<String>,
) -> Kind {
    Kind {
        group: K::GROUP.to_owned(),
        version: K::VERSION.to_owned(),
        kind: K::KIND.to_owned(),
        plural: plural.to_owned(),
        is_namespaced,
        has_status: false,
        fields: Vec::new(),
        form: Form::Typed(typed::<K>, rules),
    }
}

/// Kinds that are there without a definition.
pub fn built_ins() -> Vec<Kind> {
    vec![
        built_in::<Namespace>("namespaces", false, |_| Vec::new()),
        built_in::<CustomResourceDefinition>("customresourcedefinitions", false, |_| Vec::new()),
        built_in::<Lease>("leases", true, lease_rules),
        built_in::<Event>("events", true, event_rules),
        Kind {
            has_status: true,
            ..built_in::<Pod>("pods", true, |_| Vec::new())
        },
        built_in::<DeviceClass>("deviceclasses", false, |_| Vec::new()),
        built_in::<ResourceClaimTemplate>("resourceclaimtemplates", true, |_| Vec::new()),
        Kind {
            has_status: true,
            ..built_in::<Job>("jobs", true, |_| Vec::new())
        },
    ]
}

fn lease_rules(lease: &Value) -> Vec<String> {
    let mut errors = Vec::new();
    for (field, least) in [("leaseDurationSeconds", 1), ("leaseTransitions", 0)] {
        let value = &lease["spec"][field];
        if value.as_i64().is_some_and(|value| value < least) {
            errors.push(format!(
                "spec.{field}: Invalid value: {value}: must be at least {least}"
            ));
        }
    }
    errors
}

fn event_rules(event: &Value) -> Vec<String> {
    let mut errors = Vec::new();
    for (field, longest) in [
        ("reason", 128),
        ("action", 128),
        ("reportingController", 253),
        ("reportingInstance", 128),
        ("eventTime", 128),
    ] {
        match event[field].as_str().unwrap_or_default().len() {
            0 => errors.push(format!("{field}: Required value")),
            length if length > longest => {
                errors.push(format!("{field}: Too long: may not be more than {longest} bytes"))
            }
            _ => {}
        }
    }
    if event["note"].as_str().is_some_and(|note| note.len() > 1024) {
        errors.push("note: Too long: may not be more than 1024 bytes".to_owned());
    }
    if !["Normal", "Warning"].map(Value::from).contains(&event["type"]) {
        errors.push(format!("type: Invalid value: {}", event["type"]));
    }
    let regarding = event["regarding"]["namespace"].as_str().unwrap_or("default");
    if event["metadata"]["namespace"] != regarding {
        errors.push("involvedObject.namespace: Invalid value: does not match event.namespace".to_owned());
    }
    errors
}

impl Kind {
    /// Kind of a definition, of its only version.
    pub fn defined(definition: &Value) -> Kind {
        let (spec, version) = (&definition["spec"], &definition["spec"]["versions"][0]);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let selectable = version["selectableFields"].as_array();
        Kind {
            group: text(&spec["group"]),
            version: text(&version["name"]),
            kind: text(&spec["names"]["kind"]),
            plural: text(&spec["names"]["plural"]),
            is_namespaced: spec["scope"] == "Namespaced",
            has_status: !version["subresources"]["status"].is_null(),
            fields: selectable
                .into_iter()
                .flatten()
                .map(|field| text(&field["jsonPath"]).trim_start_matches('.').to_owned())
                .collect(),
            form: Form::Schema(version["schema"]["openAPIV3Schema"].clone()),
        }
    }

    /// Returns `true` for custom resources, whose generation is counted.
    pub fn is_defined(&self) -> bool {
        matches!(self.form, Form::Schema(_))
    }

    /// Returns `true` if the model can delete objects of this kind, which nothing else depends on.
    pub fn is_deletable(&self) -> bool {
        !["namespaces", "customresourcedefinitions"].contains(&&*self.plural)
    }

    /// `chains.tailwater.dev`.
    pub fn resource(&self) -> String {
        match &*self.group {
            "" => self.plural.clone(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// `Chain.tailwater.dev`.
    pub fn qualified(&self) -> String {
        match &*self.group {
            "" => self.kind.clone(),
            group => format!("{}.{group}", self.kind),
        }
    }

    /// `tailwater.dev/v1alpha1`.
    pub fn api_version(&self) -> String {
        match &*self.group {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// Leaves out unknown fields and fills in defaults. Returns errors of fields.
    ///
    /// # Errors
    /// The object cannot be decoded.
    pub fn form(&self, object: &mut Value) -> Result<Vec<String>, String> {
        match &self.form {
            Form::Schema(schema) => {
                let metadata = object["metadata"].take();
                complete(object, schema, true);
                let errors = check(object, schema);
                object["metadata"] = metadata;
                object["apiVersion"] = json!(self.api_version());
                object["kind"] = json!(self.kind);
                Ok(errors)
            }
            Form::Typed(typed, rules) => {
                *object = typed(object)?;
                Ok(rules(object))
            }
        }
    }
}
