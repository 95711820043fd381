//! JSON Schema 2020-12 of documents, for editors and other programs.

use super::VERSION;
use super::text::literal;
use super::types::{Field, FunctionSchema, Kind, Map, Only, Rule, Type};
use super::values::{BIT_RATE, DURATION, PACKET_RATE, RATE, SIZE, UNIT_LENGTH};
use crate::chain::{BESIDE, MAX_FUNCTIONS};
use crate::document::{API_VERSION, METADATA};
use serde_json::{Map as Object, Value, json};

/// Dialect of the schemas.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
/// Reference to the list of functions.
const FUNCTIONS: &str = "#/$defs/functions";
/// Reference to one function.
const FUNCTION: &str = "#/$defs/function";

/// Returns the JSON Schema of documents of a kind. `functions` are the kinds of functions that a chain can have.
pub fn document_schema(kind: &Kind, functions: &[FunctionSchema]) -> Value {
    let mut schema = json!({
        "$schema": DIALECT,
        "$id": format!("https://tailwater.dev/schemas/{VERSION}/{}.json", kind.name.to_lowercase()),
        "title": kind.name,
        "description": kind.doc,
        "type": "object",
        "properties": {
            "apiVersion": {"const": API_VERSION, "description": "Version of this format."},
            "kind": {"const": kind.name, "description": "Kind of the object."},
            "metadata": map(&METADATA),
            "spec": map(kind.spec),
        },
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "additionalProperties": false,
    });
    add_definitions(&mut schema, functions);
    schema
}

/// Returns the JSON Schema of a map, such as a `spec`.
pub fn json_schema(of: &Map, functions: &[FunctionSchema]) -> Value {
    let mut schema = map(of);
    schema["$schema"] = DIALECT.into();
    add_definitions(&mut schema, functions);
    schema
}

/// Adds the definitions of functions, if the schema refers to them.
fn add_definitions(schema: &mut Value, functions: &[FunctionSchema]) {
    if !refers(schema) {
        return;
    }
    schema["$defs"] = json!({
        "functions": {
            "type": "array",
            "items": {"$ref": FUNCTION},
            "minItems": 1,
            "maxItems": MAX_FUNCTIONS,
        },
        "function": function(functions),
    });
}

/// Returns `true` if the list of functions is referred to.
fn refers(schema: &Value) -> bool {
    match schema {
        Value::Object(fields) => fields
            .iter()
            .any(|(name, value)| (name == "$ref" && value == FUNCTIONS) || refers(value)),
        Value::Array(items) => items.iter().any(refers),
        _ => false,
    }
}

/// Schema of one function.
fn function(functions: &[FunctionSchema]) -> Value {
    let mut properties = function_keys();
    for function in functions {
        let mut schema = map(function.config);
        schema["description"] = function.doc.into();
        properties.insert(function.name.to_owned(), schema);
    }
    let kinds = functions.iter().map(|function| json!({"required": [function.name]}));
    json!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
        "oneOf": kinds.collect::<Vec<_>>(),
    })
}

/// Keys beside that of the function.
fn function_keys() -> Object<String, Value> {
    let keys = BESIDE.fields.iter();
    keys.map(|item| (item.name.to_owned(), field(item))).collect()
}

fn map(of: &Map) -> Value {
    let properties = of.fields.iter().map(|item| (item.name.to_owned(), field(item)));
    let properties: Object<String, Value> = properties.collect();
    let required: Vec<&str> = of.fields.iter().filter(|f| f.required).map(|f| f.name).collect();
    let mut schema = json!({
        "type": if of.nullable { json!(["object", "null"]) } else { json!("object") },
        "properties": properties,
        "additionalProperties": false,
    });
    if of.nullable && !required.is_empty() {
        schema["type"] = "object".into();
    }
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    let mut all: Vec<Value> = of.rules.iter().flat_map(conditions).collect();
    all.extend(of.fields.iter().filter_map(only));
    if !all.is_empty() {
        schema["allOf"] = all.into();
    }
    schema
}

/// Conditions of a rule, all of which must hold.
pub(super) fn conditions(rule: &Rule) -> Vec<Value> {
    let each = |fields: &[&str]| -> Vec<Value> { fields.iter().map(|field| json!({"required": [field]})).collect() };
    match rule {
        Rule::ExactlyOne(fields) => vec![json!({"oneOf": each(fields)})],
        Rule::AtLeastOne(fields) => vec![json!({"anyOf": each(fields)})],
        Rule::AtMostOne(fields) => pairs(fields).map(|pair| json!({"not": {"required": pair}})).collect(),
    }
}

/// All pairs of fields.
pub(super) fn pairs(fields: &'static [&'static str]) -> impl Iterator<Item = [&'static str; 2]> {
    let rest = move |at: usize| fields[at + 1..].iter().map(move |other| [fields[at], *other]);
    (0..fields.len()).flat_map(rest)
}

/// Condition under which a field is allowed.
fn only(field: &Field) -> Option<Value> {
    let then = match field.only? {
        Only::With(other) => json!({"required": [other]}),
        Only::If(other, value) => json!({"required": [other], "properties": {other: {"const": literal(value)}}}),
        Only::Unless(other, value) => json!({"properties": {other: {"const": literal(value)}}}),
    };
    Some(json!({"if": {"required": [field.name]}, "then": then}))
}

fn field(field: &Field) -> Value {
    let mut schema = type_schema(&field.ty);
    if !field.required {
        allow_null(&mut schema);
    }
    schema["description"] = field.to_description().into();
    if let Some(default) = field.default {
        schema["default"] = literal(default);
    }
    if let Some(example) = field.example {
        schema["examples"] = json!([literal(example)]);
    }
    schema
}

/// Accepts an empty value: the parsers treat the field as absent.
fn allow_null(schema: &mut Value) {
    if let Some(alternatives) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        alternatives.push(json!({"type": "null"}));
        return;
    }
    let types = match schema.get("type") {
        Some(Value::Array(types)) => types.clone(),
        Some(one) => vec![one.clone()],
        None => return,
    };
    if !types.contains(&json!("null")) {
        schema["type"] = types.into_iter().chain([json!("null")]).collect();
    }
    if let Some(words) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        words.push(Value::Null);
    }
}

fn type_schema(ty: &Type) -> Value {
    match ty {
        Type::Text(text) => {
            let mut schema = json!({"type": "string", "pattern": text.pattern, "maxLength": text.most});
            if let Some((least, most)) = text.whole {
                schema["type"] = json!(["integer", "string"]);
                schema["minimum"] = least.into();
                schema["maximum"] = most.into();
            }
            schema
        }
        Type::Any(most) => json!({"type": "string", "maxLength": most}),
        Type::Words(words) => json!({"type": "string", "enum": words}),
        Type::Bool => json!({"type": "boolean"}),
        Type::True => json!({"type": "boolean", "enum": [true]}),
        Type::Whole(least, most) => json!({"type": "integer", "minimum": least, "maximum": most}),
        Type::Number {
            least,
            most,
            above,
            below,
        } => {
            let mut schema = json!({"type": "number"});
            schema[if *above { "exclusiveMinimum" } else { "minimum" }] = number(*least);
            schema[if *below { "exclusiveMaximum" } else { "maximum" }] = number(*most);
            schema
        }
        Type::Duration(..) => unit(DURATION),
        Type::Rate => unit(RATE),
        Type::PacketRate => unit(PACKET_RATE),
        Type::BitRate => unit(BIT_RATE),
        Type::Size(..) => unit(SIZE),
        Type::List(item, least, most) => {
            json!({"type": "array", "items": type_schema(item), "minItems": least, "maxItems": most})
        }
        Type::Map(fields) => map(fields),
        Type::Entries(entries) => json!({
            "type": "object",
            "propertyNames": {"pattern": entries.keys.pattern, "maxLength": entries.keys.most},
            "additionalProperties": type_schema(&entries.value),
            "minProperties": entries.least,
            "maxProperties": entries.most,
        }),
        Type::OneOf(types) => json!({"anyOf": types.iter().map(type_schema).collect::<Vec<_>>()}),
        Type::Functions => json!({"$ref": FUNCTIONS}),
        Type::Object => json!({"type": "object"}),
    }
}

/// Text of a number with a unit.
fn unit(pattern: &str) -> Value {
    json!({"type": "string", "pattern": pattern, "maxLength": UNIT_LENGTH})
}

/// Number without a decimal point, if it is whole.
pub(super) fn number(number: f64) -> Value {
    match number.fract() == 0.0 && number.abs() < 1e15 {
        true => json!(number as i64),
        false => json!(number),
    }
}
