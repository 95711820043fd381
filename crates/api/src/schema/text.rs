//! Types and fields in words, and literals of the tables as JSON.

use super::types::{Field, Only, Type};
use crate::located::Located;
use crate::yaml;
use serde_json::Value;

impl Type {
    /// Name of the type with its range, such as `duration, 1us to 10s`.
    pub fn to_words(&self) -> String {
        match self {
            Type::Text(text) => text.what.to_owned(),
            Type::Any(_) => "text".to_owned(),
            Type::Words(words) => words.join(" or "),
            Type::Bool => "true or false".to_owned(),
            Type::True => "true".to_owned(),
            Type::Whole(least, most) => format!("whole number, {least} to {most}"),
            Type::Number {
                least,
                most,
                above,
                below,
            } => {
                let least = if *above {
                    format!("above {least}")
                } else {
                    format!("from {least}")
                };
                match below {
                    true => format!("number, {least}, below {most}"),
                    false => format!("number, {least} to {most}"),
                }
            }
            Type::Duration(least, most) => format!("duration, {least} to {most}"),
            Type::Rate => "rate, such as 2Mpps or 10Gbps".to_owned(),
            Type::PacketRate => "rate in packets, such as 2Mpps".to_owned(),
            Type::BitRate => "rate in bits, such as 10Gbps".to_owned(),
            Type::Size(least, most) => format!("size, {} to {}", size(*least), size(*most)),
            Type::List(item, least, most) => format!("list of {least} to {most}: {}", item.to_words()),
            Type::Map(_) => "map".to_owned(),
            Type::Entries(entries) => format!("map of {} to {} entries", entries.least, entries.most),
            Type::OneOf(types) => {
                let words: Vec<String> = types.iter().map(Type::to_words).collect();
                words.join("; or ")
            }
            Type::Functions => format!("list of 1 to {} functions", crate::chain::MAX_FUNCTIONS),
            Type::Object => "map, not interpreted".to_owned(),
        }
    }

    /// Range that JSON Schema cannot express.
    fn range(&self) -> Option<String> {
        match self {
            Type::Duration(..) | Type::Size(..) => Some(capitalized(&self.to_words())),
            Type::OneOf(types) => types.iter().find_map(Type::range),
            _ => None,
        }
    }
}

impl Field {
    /// Description with what JSON Schema has no word for: ranges of durations and sizes, defaults that are no
    /// constants, and conditions.
    pub(super) fn to_description(self) -> String {
        let mut text = self.doc.to_owned();
        let mut add = |sentence: String| {
            text.push(' ');
            text.push_str(&sentence);
            text.push('.');
        };
        if let Some(range) = self.ty.range() {
            add(range);
        }
        if let Some(default) = self.otherwise {
            add(format!("Default: {default}"));
        }
        if let Some(only) = self.only {
            add(capitalized(&only.to_words()));
        }
        text
    }
}

impl Only {
    /// Condition in words, such as `only with mode: strict`.
    pub fn to_words(self) -> String {
        match self {
            Only::With(field) => format!("only with {field}"),
            Only::If(field, value) | Only::Unless(field, value) => format!("only with {field}: {value}"),
        }
    }
}

/// Size with the largest unit that leaves a whole number.
fn size(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let unit = units
        .into_iter()
        .find(|(unit, _)| bytes.is_multiple_of(*unit) && bytes > 0);
    match unit {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => format!("{bytes} bytes"),
    }
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}

/// Converts a literal of a table, which is YAML, to JSON.
///
/// # Panics
/// If it is not YAML. Tests convert all of them.
pub(super) fn literal(text: &str) -> Value {
    let node = yaml::parse(text, "schema").ok().flatten();
    let node = node.unwrap_or_else(|| panic!("not YAML: {text}"));
    let json = Located::root("schema", &node).json();
    let json = json.unwrap_or_else(|error| panic!("{error}"));
    serde_json::from_str(&json).unwrap_or_else(|error| panic!("{text}: {error}"))
}
