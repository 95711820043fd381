//! Structural OpenAPI v3 schemas, as Kubernetes' custom resource definitions require them.
//!
//! A structural schema has neither references nor types in alternatives. Fields that can be a number or a text have
//! `x-kubernetes-int-or-string`; fields of other alternatives are not checked by the API server. Conditions on several
//! fields are rules in CEL, whose estimated cost the API server bounds: it multiplies a rule's cost with the maximum
//! lengths of the lists around it.

use super::json::{number, pairs};
use super::text::literal;
use super::types::{Field, FunctionSchema, Map, Only, Rule, Type};
use super::values::{BIT_RATE, DURATION, PACKET_RATE, RATE, SIZE, UNIT_LENGTH};
use crate::chain::{BESIDE, MAX_FUNCTIONS};
use serde_json::{Map as Object, Value, json};
use tailwater_net::Nanos;

/// Field of values that are not checked.
const UNCHECKED: &str = "x-kubernetes-preserve-unknown-fields";
/// Field of rules in CEL.
const RULES: &str = "x-kubernetes-validations";
/// Maximum number of nodes at which a rule may be evaluated. Rules of nodes that can be more are left to the parser.
const MOST_EVALUATIONS: usize = 20_000;
/// Levels of branches whose functions are checked. Those of deeper ones are left to the parser.
const CHECKED_LEVELS: usize = 1;
/// Largest whole number up to which all are exact as floating-point numbers.
const EXACT: u64 = 1 << 53;

/// Functions of kinds that are not listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// They are refused.
    Refused,
    /// They are accepted unchecked.
    Allowed,
}

/// Returns the structural schema of a map, such as a `spec`. `functions` are the kinds of functions that a chain can
/// have.
pub fn structural_schema(of: &Map, functions: &[FunctionSchema], foreign: Foreign) -> Value {
    let context = Context {
        functions,
        foreign,
        level: 0,
        nodes: 1,
    };
    context.map(of)
}

/// Place of a node.
#[derive(Clone, Copy)]
struct Context<'a> {
    functions: &'a [FunctionSchema],
    foreign: Foreign,
    /// Number of branches around the node.
    level: usize,
    /// Maximum number of nodes at this place.
    nodes: usize,
}

impl Context<'_> {
    /// Place of an item of a list or map of at most `most` items.
    fn each(self, most: usize) -> Self {
        Context {
            nodes: self.nodes.saturating_mul(most),
            ..self
        }
    }

    /// Adds rules to a schema, if there are not too many nodes at this place.
    fn add_rules(self, schema: &mut Value, rules: impl IntoIterator<Item = (String, String)>) {
        if self.nodes > MOST_EVALUATIONS {
            return;
        }
        let rules = rules.into_iter();
        let rules: Vec<Value> = rules
            .map(|(rule, message)| json!({"rule": rule, "message": message}))
            .collect();
        if !rules.is_empty() {
            schema[RULES] = rules.into();
        }
    }

    /// Adds the conditions on several fields: as rules, whose messages say what is wrong, or as alternatives if there
    /// are too many nodes for rules, or if a field has no type, so that rules do not know it.
    fn add_conditions(self, schema: &mut Value, of: &Map) {
        let is_untyped = |name: &&str| of.field(name).is_some_and(|field| matches!(field.ty, Type::OneOf(_)));
        let is_for_rules = |fields: &[&str]| self.nodes <= MOST_EVALUATIONS && !fields.iter().any(is_untyped);
        let (mut rules, mut alternatives) = (Vec::new(), Vec::new());
        for rule in of.rules {
            match is_for_rules(rule.fields()) {
                true => rules.extend(conditions(rule)),
                false => alternatives.extend(super::json::conditions(rule)),
            }
        }
        for field in of.fields {
            let Some(only) = field.only else {
                continue;
            };
            match is_for_rules(&[field.name, only.field()]) {
                true => rules.push(only_rule(field.name, only)),
                false => alternatives.push(only_alternatives(field.name, only)),
            }
        }
        if !alternatives.is_empty() {
            schema["allOf"] = alternatives.into();
        }
        self.add_rules(schema, rules);
    }

    fn map(self, of: &Map) -> Value {
        let field = |field: &Field| (field.name.to_owned(), self.field(field, !of.is_conditional(field)));
        let properties: Object<String, Value> = of.fields.iter().map(field).collect();
        let required: Vec<&str> = of.fields.iter().filter(|f| f.required).map(|f| f.name).collect();
        let mut schema = json!({"type": "object", "properties": properties});
        match required.is_empty() {
            true if of.nullable => schema["nullable"] = true.into(),
            true => {}
            false => schema["required"] = required.into(),
        }
        self.add_conditions(&mut schema, of);
        schema
    }

    /// Schema of a field. Its default is set only if `with_default`: the API server adds it to every map.
    fn field(self, field: &Field, with_default: bool) -> Value {
        let mut schema = self.schema(&field.ty);
        schema["description"] = field.to_description().into();
        let is_checked = schema.get(UNCHECKED).is_none();
        match field.default.filter(|_| with_default && is_checked) {
            Some(default) => schema["default"] = literal(default),
            // Without a default, an empty field counts as absent, as in files.
            // The API server finds no null among the words of an `enum`.
            None if !field.required && is_checked && schema.get("enum").is_none() => {
                schema["nullable"] = true.into();
            }
            None => {}
        }
        schema
    }

    fn schema(self, ty: &Type) -> Value {
        match ty {
            Type::Text(text) => match text.whole {
                None => json!({"type": "string", "pattern": text.pattern, "maxLength": text.most}),
                Some((least, most)) => json!({
                    "x-kubernetes-int-or-string": true,
                    "pattern": text.pattern,
                    "maxLength": text.most,
                    "minimum": least,
                    "maximum": most,
                }),
            },
            Type::Any(most) => json!({"type": "string", "maxLength": most}),
            Type::Words(words) => json!({"type": "string", "enum": words}),
            Type::Bool => json!({"type": "boolean"}),
            Type::True => json!({"type": "boolean", "enum": [true]}),
            Type::Whole(least, most) => {
                let mut schema = json!({"type": "integer", "format": "int64", "minimum": least});
                // The API server reads bounds as floating-point numbers.
                if *most <= EXACT {
                    schema["maximum"] = (*most).into();
                }
                schema
            }
            Type::Number {
                least,
                most,
                above,
                below,
            } => {
                let mut schema = json!({"type": "number", "minimum": number(*least), "maximum": number(*most)});
                for (name, is_excluded) in [("exclusiveMinimum", above), ("exclusiveMaximum", below)] {
                    if *is_excluded {
                        schema[name] = true.into();
                    }
                }
                schema
            }
            Type::Duration(least, most) => self.duration(*least, *most),
            Type::Rate => unit(RATE),
            Type::PacketRate => unit(PACKET_RATE),
            Type::BitRate => unit(BIT_RATE),
            Type::Size(..) => unit(SIZE),
            Type::List(item, least, most) => {
                let items = self.each(*most).schema(item);
                json!({"type": "array", "items": items, "minItems": least, "maxItems": most})
            }
            Type::Map(fields) => self.map(fields),
            Type::Entries(entries) => json!({
                "type": "object",
                "additionalProperties": self.each(entries.most).schema(&entries.value),
                "minProperties": entries.least,
                "maxProperties": entries.most,
            }),
            // Alternatives have no types.
            Type::OneOf(_) => json!({UNCHECKED: true}),
            Type::Functions => self.functions(),
            Type::Object => json!({"type": "object", UNCHECKED: true}),
        }
    }

    fn duration(self, least: Nanos, most: Nanos) -> Value {
        let mut schema = unit(DURATION);
        let value = "duration(self.replace(' ', ''))";
        let rule = format!("{value} >= duration('{least}') && {value} <= duration('{most}')");
        self.add_rules(
            &mut schema,
            [(rule, format!("expected a duration from {least} to {most}"))],
        );
        schema
    }

    fn functions(self) -> Value {
        let mut list = json!({"type": "array", "minItems": 1, "maxItems": MAX_FUNCTIONS});
        if self.level > CHECKED_LEVELS {
            list["items"] = json!({"type": "object", UNCHECKED: true});
            return list;
        }
        let context = Context {
            level: self.level + 1,
            ..self.each(MAX_FUNCTIONS)
        };
        let mut properties: Object<String, Value> = Object::new();
        for field in BESIDE.fields {
            properties.insert(field.name.to_owned(), context.field(field, true));
        }
        for function in self.functions {
            let mut schema = context.map(function.config);
            schema["description"] = function.doc.into();
            properties.insert(function.name.to_owned(), schema);
        }
        let mut item = json!({"type": "object", "properties": properties});
        let kinds: Vec<String> = self.functions.iter().map(|f| format!("has(self.{})", f.name)).collect();
        let kinds = kinds.join(", ");
        if !self.functions.is_empty() {
            // A function without fields can be empty, which rules do not see.
            let rule = format!("[{kinds}].filter(kind, kind).size() <= 1");
            context.add_rules(&mut item, [(rule, "expected one function in each item".to_owned())]);
        }
        match self.foreign {
            Foreign::Refused => {
                let kinds = self
                    .functions
                    .iter()
                    .map(|function| json!({"required": [function.name]}));
                item["anyOf"] = kinds.collect();
            }
            Foreign::Allowed => item[UNCHECKED] = true.into(),
        }
        list["items"] = item;
        let unique = "self.all(f, !has(f.name) || self.exists_one(g, has(g.name) && g.name == f.name))";
        let message = "expected a different name for each function";
        self.add_rules(&mut list, [(unique.to_owned(), message.to_owned())]);
        list
    }
}

/// Text of a number with a unit.
fn unit(pattern: &str) -> Value {
    json!({"type": "string", "pattern": pattern, "maxLength": UNIT_LENGTH})
}

/// Conditions of a rule with their messages.
fn conditions(rule: &Rule) -> Vec<(String, String)> {
    let each = |fields: &[&str]| {
        let each: Vec<String> = fields.iter().map(|field| format!("has(self.{field})")).collect();
        each.join(", ")
    };
    match rule {
        Rule::ExactlyOne(fields) => vec![(
            format!("[{}].exists_one(given, given)", each(fields)),
            format!("expected exactly one of {}", fields.join(", ")),
        )],
        Rule::AtLeastOne(fields) => vec![(
            format!("[{}].exists(given, given)", each(fields)),
            format!("expected at least one of {}", fields.join(", ")),
        )],
        Rule::AtMostOne(fields) => pairs(fields)
            .map(|[one, other]| {
                (
                    format!("!(has(self.{one}) && has(self.{other}))"),
                    format!("expected either {one} or {other}, found both"),
                )
            })
            .collect(),
    }
}

/// Condition under which a field is allowed, as a rule with its message.
fn only_rule(name: &str, only: Only) -> (String, String) {
    let equal = |other: &str, value: &str| match literal(value) {
        Value::String(text) => format!("self.{other} == '{text}'"),
        value => format!("self.{other} == {value}"),
    };
    let condition = match only {
        Only::With(other) => format!("has(self.{other})"),
        Only::If(other, value) => format!("(has(self.{other}) && {})", equal(other, value)),
        Only::Unless(other, value) => format!("!has(self.{other}) || {}", equal(other, value)),
    };
    let message = format!("expected {name} {}", only.to_words());
    (format!("!has(self.{name}) || {condition}"), message)
}

/// Condition under which a field is allowed, as alternatives.
fn only_alternatives(name: &str, only: Only) -> Value {
    let without = |name: &str| json!({"not": {"required": [name]}});
    match only {
        Only::With(other) => json!({"anyOf": [without(name), {"required": [other]}]}),
        Only::If(other, value) => json!({"anyOf": [
            without(name),
            {"required": [other], "properties": {other: {"enum": [literal(value)]}}},
        ]}),
        Only::Unless(other, value) => json!({"anyOf": [
            without(name),
            without(other),
            {"properties": {other: {"enum": [literal(value)]}}},
        ]}),
    }
}
