//! Structural schemas obey the rules of Kubernetes' custom resource definitions.

use super::{KINDS, files, printed, to_json};
use serde_json::{Map, Value};
use std::fs;
use std::path::Path;
use tailwater_functions::spec::ChainSpec;

/// Fields of a structural schema that the renderings use.
const KNOWN: &[&str] = &[
    "type",
    "format",
    "description",
    "properties",
    "required",
    "items",
    "additionalProperties",
    "default",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "nullable",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
    "allOf",
    "anyOf",
];

/// Checks alternatives, which may have no types.
fn check_alternatives(path: &str, schema: &Value, properties: &Value, problems: &mut Vec<String>) {
    for (name, value) in schema.as_object().unwrap_or(&Map::new()) {
        match (name.as_str(), value) {
            ("allOf" | "anyOf" | "oneOf", Value::Array(all)) => {
                all.iter()
                    .for_each(|one| check_alternatives(path, one, properties, problems));
            }
            ("not", one) => check_alternatives(path, one, properties, problems),
            ("required", Value::Array(names)) => {
                let known = |name: &Value| properties.get(name.as_str().unwrap_or_default()).is_some();
                if !names.iter().all(known) {
                    problems.push(format!("{path}: alternatives with other fields"));
                }
            }
            ("properties", Value::Object(fields)) => {
                for (name, field) in fields {
                    let is_enum = field
                        .as_object()
                        .is_some_and(|field| field.keys().all(|key| key == "enum"));
                    if !is_enum || properties.get(name).is_none() {
                        problems.push(format!("{path}: alternatives with more than values of known fields"));
                    }
                }
            }
            _ => problems.push(format!("{path}: alternatives with {name}")),
        }
    }
}

fn structural(kind: &str) -> Value {
    serde_json::from_str(&printed(&["schema", kind, "--structural"])).expect("JSON")
}

/// Checks a node and those below it. Returns their number.
fn check(path: &str, schema: &Value, problems: &mut Vec<String>) -> usize {
    let mut nodes = 1;
    let mut wrong = |message: &str| problems.push(format!("{path}: {message}"));
    let Some(fields) = schema.as_object() else {
        wrong("no schema");
        return nodes;
    };
    for name in fields.keys().filter(|name| !KNOWN.contains(&name.as_str())) {
        wrong(&format!("unknown {name}"));
    }
    let has = |name: &str| fields.contains_key(name);
    let flag = |name: &str| fields.get(name) == Some(&Value::Bool(true));
    let (mixed, free) = (
        flag("x-kubernetes-int-or-string"),
        flag("x-kubernetes-preserve-unknown-fields"),
    );
    let ty = fields.get("type").and_then(Value::as_str);
    match ty {
        None if mixed || free => {}
        Some(_) if mixed => wrong("a type beside int-or-string"),
        Some("object" | "array" | "string" | "integer" | "number" | "boolean") => {}
        _ => wrong("no type"),
    }
    if has("properties") && has("additionalProperties") {
        wrong("properties and additionalProperties");
    }
    if (has("properties") || has("additionalProperties")) && ty != Some("object") {
        wrong("properties of another type than object");
    }
    if ty == Some("array") && !(has("items") && has("maxItems")) {
        wrong("an array without items or maxItems");
    }
    if ty == Some("string") && !(has("maxLength") || has("enum")) {
        wrong("a string without maxLength");
    }
    for name in ["exclusiveMinimum", "exclusiveMaximum"] {
        if fields.get(name).is_some_and(|value| !value.is_boolean()) {
            wrong("an exclusive bound that is no boolean");
        }
    }
    if has("x-kubernetes-validations") && ty.is_none() {
        wrong("rules without a type");
    }
    if has("enum") && has("nullable") {
        wrong("words that can be null, which the API server refuses");
    }
    for required in fields.get("required").and_then(Value::as_array).into_iter().flatten() {
        if fields["properties"]
            .get(required.as_str().unwrap_or_default())
            .is_none()
        {
            wrong("a required field that is not there");
        }
    }
    for name in ["allOf", "anyOf"] {
        for one in fields.get(name).and_then(Value::as_array).into_iter().flatten() {
            check_alternatives(path, one, &schema["properties"], problems);
        }
    }
    let properties = fields.get("properties").and_then(Value::as_object);
    for (name, below) in properties.into_iter().flatten() {
        nodes += check(&format!("{path}.{name}"), below, problems);
    }
    for name in ["items", "additionalProperties"] {
        if let Some(below) = fields.get(name) {
            nodes += check(&format!("{path}.{name}"), below, problems);
        }
    }
    nodes
}

#[test]
fn structural_schemas_obey_the_rules_of_kubernetes() {
    for kind in KINDS {
        let schema = structural(kind);
        let mut problems = Vec::new();
        let nodes = check("spec", &schema, &mut problems);
        assert!(problems.is_empty(), "{kind}: {}", problems.join("\n"));
        assert!(nodes > 15, "{kind}: {nodes}");
        // etcd stores objects of up to 1.5 MiB, and a definition holds a schema once for each version.
        let bytes = schema.to_string().len();
        assert!(bytes < 600 << 10, "{kind}: {bytes} bytes");
    }
    let foreign = printed(&["schema", "chain", "--structural", "--foreign"]);
    assert!(check("spec", &serde_json::from_str(&foreign).expect("JSON"), &mut Vec::new()) > 500);
}

/// Adds the defaults of a schema to a value, as the API server does.
fn add_defaults(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, below) in schema["properties"].as_object().unwrap_or(&Map::new()) {
                if let Some(default) = below.get("default").filter(|_| !fields.contains_key(name)) {
                    fields.insert(name.clone(), default.clone());
                }
                if let Some(value) = fields.get_mut(name) {
                    add_defaults(below, value);
                }
            }
            if let Some(below) = schema.get("additionalProperties") {
                fields.values_mut().for_each(|value| add_defaults(below, value));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|value| add_defaults(&schema["items"], value)),
        _ => {}
    }
}

#[test]
fn defaults_of_the_api_server_change_no_chain() {
    let schema = structural("chain");
    let (mut compared, mut longer) = (0, 0);
    for path in files("crates/functions/tests/specs/right", ".yaml") {
        let text = fs::read_to_string(&path).expect("a file");
        let folder = path.parent().unwrap_or(Path::new(""));
        let name = path.display().to_string();
        let Some(mut document) = to_json(&text) else {
            panic!("{name}: no JSON");
        };
        if document["kind"] != "Chain" {
            continue;
        }
        // Maps in JSON have no order.
        let without_defaults = document.to_string();
        add_defaults(&schema, &mut document["spec"]);
        let with_defaults = document.to_string();
        let [plain, full] = [&without_defaults, &with_defaults].map(|text| {
            let spec = ChainSpec::parse(text, "chain", folder);
            spec.unwrap_or_else(|error| panic!("{name}: {error}\n{text}"))
        });
        assert_eq!(plain.settings, full.settings, "{name}");
        for (plain, full) in plain.functions.iter().zip(&full.functions) {
            assert_eq!(plain.name, full.name, "{name}");
            assert_eq!(plain.config, full.config, "{name}");
        }
        compared += 1;
        longer += usize::from(with_defaults.len() > without_defaults.len());
    }
    assert!(
        compared > 15 && longer > 15,
        "{compared} chains, {longer} with defaults"
    );
}
