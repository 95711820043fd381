//! Schemas of definitions: unknown fields, defaults, and some of the rules.

use serde_json::{Map, Value};

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";

/// Leaves out fields that a schema does not have, and fills in defaults. The root has fields that no schema has.
pub fn complete(value: &mut Value, schema: &Value, is_root: bool) {
    match value {
        Value::Object(fields) => complete_fields(fields, schema, is_root),
        Value::Array(items) => {
            for item in items {
                complete(item, &schema["items"], false);
            }
        }
        _ => {}
    }
}

fn complete_fields(fields: &mut Map<String, Value>, schema: &Value, is_root: bool) {
    let (known, others) = (schema["properties"].as_object(), &schema["additionalProperties"]);
    if schema[PRESERVE] != true && others.is_null() {
        let of_root = |name: &str| is_root && ["apiVersion", "kind", "metadata"].contains(&name);
        fields.retain(|name, _| of_root(name) || known.is_some_and(|known| known.contains_key(name)));
    }
    for (name, schema) in known.into_iter().flatten() {
        let default = &schema["default"];
        let is_missing = |value: &Value| value.is_null() && schema["nullable"] != true;
        if !default.is_null() && fields.get(name).is_none_or(is_missing) {
            fields.insert(name.clone(), default.clone());
        }
    }
    for (name, value) in fields {
        match known.and_then(|known| known.get(name)) {
            Some(schema) => complete(value, schema, false),
            None if others.is_object() => complete(value, others, false),
            None => {}
        }
    }
}

/// Errors of an object.
pub fn check(object: &Value, schema: &Value) -> Vec<String> {
    let mut errors = Vec::new();
    check_at("", object, schema, &mut errors);
    errors
}

fn check_at(path: &str, value: &Value, schema: &Value, errors: &mut Vec<String>) {
    if value.is_null() && schema["nullable"] == true {
        return;
    }
    if let Some(expected) = schema["type"].as_str()
        && !has_type(value, expected)
    {
        errors.push(format!("{path}: Invalid value: must be of type {expected}"));
        return;
    }
    let (least, most) = (schema["minimum"].as_f64(), schema["maximum"].as_f64());
    if let Some(number) = value.as_f64() {
        if let Some(least) = least.filter(|least| number < *least) {
            errors.push(format!(
                "{path}: Invalid value: {value}: should be greater than or equal to {least}"
            ));
        }
        if let Some(most) = most.filter(|most| number > *most) {
            errors.push(format!(
                "{path}: Invalid value: {value}: should be less than or equal to {most}"
            ));
        }
    }
    let length = value.as_str().map_or(0, |text| text.chars().count() as u64);
    if schema["maxLength"].as_u64().is_some_and(|most| length > most) {
        errors.push(format!("{path}: Too long"));
    }
    if schema["enum"].as_array().is_some_and(|all| !all.contains(value)) {
        errors.push(format!("{path}: Unsupported value: {value}"));
    }
    let child = |name: &str| match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    match value {
        Value::Object(fields) => {
            for name in schema["required"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
            {
                if !fields.contains_key(name) {
                    errors.push(format!("{}: Required value", child(name)));
                }
            }
            for (name, value) in fields {
                match schema["properties"].get(name) {
                    Some(schema) => check_at(&child(name), value, schema, errors),
                    None if schema["additionalProperties"].is_object() => {
                        check_at(&child(name), value, &schema["additionalProperties"], errors);
                    }
                    None => {}
                }
            }
        }
        Value::Array(items) => {
            let number = items.len() as u64;
            if schema["minItems"].as_u64().is_some_and(|least| number < least) {
                errors.push(format!("{path}: Invalid value: should have more items"));
            }
            if schema["maxItems"].as_u64().is_some_and(|most| number > most) {
                errors.push(format!("{path}: Too many: {number}"));
            }
            for (index, item) in items.iter().enumerate() {
                check_at(&format!("{path}[{index}]"), item, &schema["items"], errors);
            }
        }
        _ => {}
    }
}

fn has_type(value: &Value, expected: &str) -> bool {
    match expected {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => panic!("a definition has the unknown type {other}"),
    }
}
