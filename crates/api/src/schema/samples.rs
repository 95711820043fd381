//! Documents that a kind's parser must accept or refuse, made from the tables of its fields. Tests pass them to the
//! parser, so that tables and parsers cannot differ.

use super::text::literal;
use super::types::{Field, FunctionSchema, Kind, Map, Only, Rule, Type};
use crate::chain::BESIDE;
use crate::document::API_VERSION;
use crate::error::SpecError;
use serde_json::{Map as Object, Value, json};

/// Document with one value to be checked.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Path of the value.
    pub path: String,
    /// The document, as JSON, which is YAML.
    pub text: String,
    /// Behaviour of a parser that agrees with the table.
    pub expected: Expected,
}

/// Behaviour of a parser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It does not complain about the value.
    Accepted,
    /// It complains about the value, or something in it.
    Refused,
    /// It complains about the value with a message that contains this text.
    Message(String),
}

impl Sample {
    /// Returns the difference between the parser's behaviour and the table, if there is one.
    pub fn difference(&self, outcome: Result<(), SpecError>) -> Option<String> {
        let errors: Vec<SpecError> = match &outcome {
            Ok(()) => Vec::new(),
            Err(error) => error.each().cloned().collect(),
        };
        let below = |error: &&SpecError| {
            error.path == self.path
                || error
                    .path
                    .strip_prefix(&self.path)
                    .is_some_and(|rest| rest.starts_with(['.', '[']))
        };
        let about = errors.iter().find(below);
        let agrees = match &self.expected {
            Expected::Accepted => !errors.iter().any(|error| error.path == self.path),
            Expected::Refused => about.is_some(),
            Expected::Message(text) => about.is_some_and(|error| error.message.contains(text)),
        };
        let found = outcome.map_or_else(|error| error.to_string(), |()| "no error".to_owned());
        (!agrees).then(|| format!("{}: {:?}, found {found}\n    {}", self.path, self.expected, self.text))
    }
}

/// Two documents that mean the same: one with a field that has its default, and one without it.
#[derive(Clone, Debug)]
pub struct Same {
    /// Path of the field.
    pub path: String,
    /// Document with the field.
    pub with: String,
    /// Document without the field.
    pub without: String,
}

/// Returns the samples of a kind.
pub fn samples(kind: &Kind, functions: &[FunctionSchema]) -> Vec<Sample> {
    of_kind(kind, functions).list
}

/// Returns documents of a kind that mean the same, for each field with a constant default.
pub fn defaults(kind: &Kind, functions: &[FunctionSchema]) -> Vec<Same> {
    of_kind(kind, functions).same
}

fn of_kind<'a>(kind: &Kind, functions: &'a [FunctionSchema]) -> Samples<'a> {
    let document = |spec: Value| {
        json!({
            "apiVersion": API_VERSION,
            "kind": kind.name,
            "metadata": {"name": "test"},
            "spec": spec,
        })
    };
    let mut samples = Samples {
        functions,
        list: Vec::new(),
        same: Vec::new(),
    };
    samples.map("spec", kind.spec, &document, 0);
    samples
}

/// Value of this type that a parser accepts by itself.
pub fn sample(ty: &Type) -> Value {
    match ty {
        Type::Text(text) => text.example.into(),
        Type::Any(_) => "text".into(),
        Type::Words(words) => words[0].into(),
        Type::Bool | Type::True => true.into(),
        Type::Whole(least, _) => (*least).into(),
        Type::Number { least, most, .. } => json!((least + most) / 2.0),
        Type::Duration(least, _) => format!("{}ns", least.0).into(),
        Type::Rate | Type::PacketRate => "2Mpps".into(),
        Type::BitRate => "10Mbps".into(),
        Type::Size(least, _) => size(*least),
        Type::List(item, least, _) => list(sample(item), item, *least),
        Type::Map(map) => minimal(map),
        Type::Entries(entries) => json!({entries.keys.example: sample(&entries.value)}),
        Type::OneOf(types) => sample(&types[0]),
        Type::Functions => json!([{"forward": {}}]),
        Type::Object => json!({}),
    }
}

/// List of at least this number of items, of which this is the first.
fn list(first: Value, item: &Type, least: usize) -> Value {
    let rest = (1..least).map(|_| sample(item));
    std::iter::once(first).chain(rest).collect()
}

fn size(bytes: u64) -> Value {
    format!("{}KiB", bytes as f64 / 1024.0).into()
}

fn value_of(field: &Field) -> Value {
    field.example.map_or_else(|| sample(&field.ty), literal)
}

/// Map with the required fields, and the first one of each condition.
pub fn minimal(map: &Map) -> Value {
    let required = map.fields.iter().filter(|field| field.required);
    let mut object: Object<String, Value> = required.map(|field| (field.name.to_owned(), value_of(field))).collect();
    for rule in map.rules {
        if let Rule::ExactlyOne(names) | Rule::AtLeastOne(names) = rule
            && !names.iter().any(|name| object.contains_key(*name))
        {
            // One with an example of its own needs no file.
            let fields: Vec<&Field> = names.iter().filter_map(|name| map.field(name)).collect();
            let chosen = fields.iter().find(|field| field.example.is_some());
            if let Some(field) = chosen.or(fields.first()) {
                object.insert(field.name.to_owned(), value_of(field));
            }
        }
    }
    object.into()
}

/// Minimal map with a field, and without what excludes it.
fn with(map: &'static Map, field: &Field, value: Value) -> Value {
    let mut object = minimal(map);
    match field.only {
        None => {}
        Some(Only::With(other)) => set(map, &mut object, other, None),
        Some(Only::If(other, value) | Only::Unless(other, value)) => set(map, &mut object, other, Some(literal(value))),
    }
    set(map, &mut object, field.name, Some(value));
    object
}

/// Sets a field, and removes others that exclude it.
fn set(map: &'static Map, object: &mut Value, name: &str, value: Option<Value>) {
    let Some(fields) = object.as_object_mut() else {
        return;
    };
    for rule in map.rules {
        if let Rule::ExactlyOne(names) | Rule::AtMostOne(names) = rule
            && names.contains(&name)
        {
            fields.retain(|other, _| !names.contains(&&**other));
        }
    }
    let value = value.or_else(|| map.field(name).map(value_of));
    fields.insert(name.to_owned(), value.unwrap_or_default());
}

struct Samples<'a> {
    functions: &'a [FunctionSchema],
    list: Vec<Sample>,
    same: Vec<Same>,
}

impl Samples<'_> {
    fn add(&mut self, path: &str, document: Value, expected: Expected) {
        self.list.push(Sample {
            path: path.to_owned(),
            text: document.to_string(),
            expected,
        });
    }

    /// Adds the samples of a map at a path; `document` puts a value there.
    fn map(&mut self, path: &str, map: &'static Map, document: &dyn Fn(Value) -> Value, branches: usize) {
        let names: Vec<&str> = map.fields.iter().map(|field| field.name).collect();
        let mut unknown = minimal(map);
        unknown["zzzzz"] = 1.into();
        let message = format!("expected one of the fields {}, found", names.join(", "));
        // Backends of a load balancer have the fields of one of two modes.
        let message = match map.rules {
            [Rule::ExactlyOne(["address", "mac"])] => "expected one of the fields".to_owned(),
            _ => message,
        };
        self.add(&format!("{path}.zzzzz"), document(unknown), Expected::Message(message));
        for field in map.fields {
            let path = format!("{path}.{}", field.name);
            if field.required {
                let mut without = minimal(map);
                if let Some(fields) = without.as_object_mut() {
                    fields.remove(field.name);
                }
                self.add(&path, document(without), Expected::Message("missing".to_owned()));
            }
            if let Some(default) = field.default {
                let with = with(map, field, literal(default));
                let mut without = with.clone();
                if let Some(fields) = without.as_object_mut() {
                    fields.remove(field.name);
                }
                self.same.push(Same {
                    path: path.clone(),
                    with: document(with).to_string(),
                    without: document(without).to_string(),
                });
            }
            let document = |value: Value| document(with(map, field, value));
            self.add(&path, document(value_of(field)), Expected::Accepted);
            if let Some(default) = field.default {
                self.add(&path, document(literal(default)), Expected::Accepted);
            }
            self.values(&path, &field.ty, &document, branches);
        }
    }

    /// Adds the samples of a value's type.
    fn values(&mut self, path: &str, ty: &Type, document: &dyn Fn(Value) -> Value, branches: usize) {
        let mut accept = Vec::new();
        let mut refuse = vec![json!([[]])];
        match ty {
            Type::Text(text) => {
                accept.push(text.example.into());
                if let Some((least, most)) = text.whole {
                    accept.extend([least.into(), most.into()]);
                    refuse.push((most + 1).into());
                }
            }
            Type::Any(_) => {}
            Type::Words(words) => {
                accept.extend(words.iter().map(|word| Value::from(*word)));
                let message = format!("expected {}, found", words.join(" or "));
                self.add(path, document("zzzzz".into()), Expected::Message(message));
            }
            Type::Bool => {
                accept.extend([true.into(), false.into()]);
                refuse.push("zzzzz".into());
            }
            Type::True => refuse.extend([false.into(), "zzzzz".into()]),
            Type::Whole(least, most) => {
                accept.extend([(*least).into(), (*most).into()]);
                refuse.extend([(most + 1).into(), "zzzzz".into()]);
                refuse.extend(least.checked_sub(1).map(Value::from));
            }
            Type::Number {
                least,
                most,
                above,
                below,
            } => {
                let ends = [(*least, *above, -1.0), (*most, *below, 1.0)];
                for (end, is_excluded, beyond) in ends {
                    match is_excluded {
                        true => refuse.push(super::json::number(end)),
                        false => accept.push(super::json::number(end)),
                    }
                    if end + beyond >= 0.0 {
                        refuse.push(super::json::number(end + beyond));
                    }
                }
            }
            Type::Duration(least, most) => {
                accept.extend([least.0, most.0].map(|end| Value::from(format!("{end}ns"))));
                refuse.extend(
                    [Some(most.0 + 1), least.0.checked_sub(1)]
                        .into_iter()
                        .flatten()
                        .map(|end| Value::from(format!("{end}ns"))),
                );
                refuse.push("zzzzz".into());
            }
            Type::Rate => {
                accept.extend(["1pps".into(), "10000Gbps".into()]);
                refuse.push("10001Gbps".into());
            }
            Type::PacketRate => refuse.push("10Mbps".into()),
            Type::BitRate => refuse.push("2Mpps".into()),
            Type::Size(least, most) => {
                accept.extend([size(*least), size(*most)]);
                refuse.extend([size(most + 1024), size(least - 1), "zzzzz".into()]);
            }
            Type::List(item, least, _) => {
                refuse = vec!["zzzzz".into(), json!({"zzzzz": 1})];
                match least {
                    0 => accept.push(json!([])),
                    _ => refuse.push(json!([])),
                }
                let document = |value: Value| document(list(value, item, *least));
                self.values(&format!("{path}[0]"), item, &document, branches);
            }
            Type::Map(map) => {
                refuse.push("zzzzz".into());
                self.map(path, map, document, branches);
            }
            Type::Entries(entries) => {
                refuse.push("zzzzz".into());
                let key = entries.keys.example;
                self.values(
                    &format!("{path}.{key}"),
                    &entries.value,
                    &|value| document(json!({key: value})),
                    branches,
                );
            }
            Type::OneOf(types) => {
                for ty in *types {
                    if let Type::Map(map) = ty {
                        self.map(path, map, document, branches);
                    }
                }
                accept.extend(types.iter().map(sample));
                if types.iter().any(|ty| matches!(ty, Type::List(..))) {
                    refuse = vec![json!({"zzzzz": 1})];
                }
            }
            Type::Functions => self.functions(path, document, branches),
            Type::Object => {}
        }
        for value in accept {
            self.add(path, document(value), Expected::Accepted);
        }
        for value in refuse {
            self.add(path, document(value), Expected::Refused);
        }
    }

    fn functions(&mut self, path: &str, document: &dyn Fn(Value) -> Value, branches: usize) {
        let item = format!("{path}[0]");
        for field in BESIDE.fields {
            let document = |value: Value| document(json!([{"forward": {}, field.name: value}]));
            self.values(&format!("{item}.{}", field.name), &field.ty, &document, branches);
        }
        if branches > 0 {
            return;
        }
        for function in self.functions {
            let document = |value: Value| document(json!([{function.name: value}]));
            self.values(
                &format!("{item}.{}", function.name),
                &Type::Map(function.config),
                &document,
                branches + 1,
            );
        }
    }
}
