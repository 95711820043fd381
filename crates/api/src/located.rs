//! Conversion of a YAML tree to types. Every node records its file, position and field path, so that an error can
//! report all three.

mod json;

use crate::error::{SpecError, nearest, quoted};
use crate::schema::Map;
use crate::yaml::{Node, Value};
use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::rc::Rc;

/// Maximum number of fields in a table.
const MOST_FIELDS: usize = 32;

/// Node of a spec with its file and field path.
#[derive(Clone)]
pub struct Located<'a> {
    file: &'a str,
    node: &'a Node,
    path: Rc<Path<'a>>,
}

/// Path from the document's root to a node.
enum Path<'a> {
    Root,
    Field(Rc<Path<'a>>, &'a str),
    Item(Rc<Path<'a>>, usize),
}

impl Path<'_> {
    fn write(&self, text: &mut String) {
        match self {
            Path::Root => {}
            Path::Field(parent, name) => {
                parent.write(text);
                if !text.is_empty() {
                    text.push('.');
                }
                // Any text can be a key; truncation keeps paths readable.
                text.extend(name.chars().take(64));
            }
            Path::Item(parent, index) => {
                parent.write(text);
                text.push_str(&format!("[{index}]"));
            }
        }
    }
}

impl<'a> Located<'a> {
    /// Root of a document.
    pub fn root(file: &'a str, node: &'a Node) -> Self {
        let path = Rc::new(Path::Root);
        Located { file, node, path }
    }

    fn field(&self, name: &'a str, node: &'a Node) -> Located<'a> {
        let path = Rc::new(Path::Field(self.path.clone(), name));
        Located { path, node, ..*self }
    }

    /// Field path, such as `spec.functions[0].acl`.
    pub fn path(&self) -> String {
        let mut text = String::new();
        self.path.write(&mut text);
        text
    }

    /// Line of the node, from 1.
    pub fn line(&self) -> usize {
        self.node.line as usize
    }

    /// Creates an error about this node.
    pub fn error(&self, message: impl Into<String>) -> SpecError {
        SpecError::whole_file(self.file, message)
            .at(self.node.line as usize, self.node.column as usize)
            .in_field(self.path())
    }

    /// Creates the error `expected <what>, found <this node>`.
    pub fn expected(&self, what: &str) -> SpecError {
        self.error(format!("expected {what}, found {}", self.found()))
    }

    fn found(&self) -> String {
        match &self.node.value {
            Value::Null => "nothing".to_string(),
            Value::List(_) => "a list".to_string(),
            Value::Map(_) => "a map".to_string(),
            // Numbers without quotes, so that a number differs from a quoted one.
            Value::Scalar { text, plain: true } if is_number_or_bool(text) => text.to_string(),
            Value::Scalar { text, .. } => quoted(text),
        }
    }

    /// Returns `true` if the node is empty or `null`.
    pub fn is_null(&self) -> bool {
        matches!(self.node.value, Value::Null)
    }

    /// Returns `true` if the node is a list.
    pub fn is_list(&self) -> bool {
        matches!(self.node.value, Value::List(_))
    }

    /// Returns `true` if the node is a list without items.
    pub fn is_empty_list(&self) -> bool {
        matches!(&self.node.value, Value::List(items) if items.is_empty())
    }

    /// Returns `true` if the node is a map.
    pub fn is_map(&self) -> bool {
        matches!(self.node.value, Value::Map(_))
    }

    /// Returns the items of a list.
    ///
    /// # Errors
    /// If the node is not a list of 1 to `most` items.
    pub fn list(&self, what: &str, most: usize) -> Result<Vec<Located<'a>>, SpecError> {
        let Value::List(items) = &self.node.value else {
            return Err(self.expected(&format!("a list of {what}")));
        };
        if items.is_empty() || items.len() > most {
            let found = items.len();
            return Err(self.error(format!("expected a list of 1 to {most} {what}, found {found}")));
        }
        Ok(self.items(items).collect())
    }

    /// Iterates over the items of this list.
    fn items(&self, items: &'a [Node]) -> impl Iterator<Item = Located<'a>> {
        let items = items.iter().enumerate();
        items.map(|(index, node)| Located {
            path: Rc::new(Path::Item(self.path.clone(), index)),
            node,
            ..*self
        })
    }

    /// Returns the entries of a map.
    ///
    /// # Errors
    /// If the node is not a map, or a key is duplicate, not a scalar, or a merge key.
    pub fn entries(&self, what: &str) -> Result<Vec<(&'a str, Located<'a>)>, SpecError> {
        let Value::Map(entries) = &self.node.value else {
            return Err(self.expected(&format!("a map of {what}")));
        };
        let mut seen = HashSet::with_capacity(entries.len());
        let mut found = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            let Value::Scalar { text: name, .. } = &key.value else {
                let key = Located {
                    node: key,
                    ..self.clone()
                };
                return Err(key.expected("the name of a field"));
            };
            if !seen.insert(&**name) {
                let first = entries
                    .iter()
                    .find(|(first, _)| matches!(&first.value, Value::Scalar { text, .. } if text == name));
                let line = first.map_or(0, |(key, _)| key.line);
                let message = format!("expected each field once, found it again (first on line {line})");
                return Err(self.field(name, key).error(message));
            }
            if &**name == "<<" {
                let message = "expected plain fields, found a merge key, which is not supported";
                return Err(self.field(name, key).error(message));
            }
            found.push((&**name, self.field(name, value)));
        }
        Ok(found)
    }

    /// Returns the fields of a map, all of which must be among `known`.
    ///
    /// # Errors
    /// Same as [`entries`](Self::entries), and if a field is unknown.
    pub fn fields(&self, known: &[&'static str]) -> Result<Fields<'a>, SpecError> {
        // Only errors need the text: a list can have a million maps.
        let names = match self.is_map() {
            true => String::new(),
            false => known.join(", "),
        };
        let entries = self.entries(&names)?;
        for &(name, _) in &entries {
            if !known.contains(&name) {
                let names = known.join(", ");
                let message = format!("expected one of the fields {names}, found {}", quoted(name));
                let suggestion = nearest(name, known.iter().copied());
                return Err(self.error_at_key(name, message).suggest(suggestion));
            }
        }
        Ok(Fields {
            map: self.clone(),
            entries,
        })
    }

    /// Same as [`fields`](Self::fields), where an empty node is a map without fields.
    ///
    /// # Errors
    /// Same as [`fields`](Self::fields).
    pub fn fields_or_none(&self, known: &[&'static str]) -> Result<Fields<'a>, SpecError> {
        if self.is_null() {
            return Ok(Fields {
                map: self.clone(),
                entries: Vec::new(),
            });
        }
        self.fields(known)
    }

    /// Returns the fields of a map, all of which must be in its table. If the table allows it, an empty node is a map
    /// without fields.
    ///
    /// # Errors
    /// Same as [`fields`](Self::fields).
    pub fn fields_of(&self, map: &Map) -> Result<Fields<'a>, SpecError> {
        let mut names = [""; MOST_FIELDS];
        let mut known = 0;
        for (name, field) in names.iter_mut().zip(map.fields) {
            *name = field.name;
            known += 1;
        }
        debug_assert_eq!(known, map.fields.len(), "more fields than MOST_FIELDS");
        match map.nullable {
            true => self.fields_or_none(&names[..known]),
            false => self.fields(&names[..known]),
        }
    }

    /// Creates an error about the key of a field of this map.
    pub fn error_at_key(&self, name: &str, message: impl Into<String>) -> SpecError {
        let key = match &self.node.value {
            Value::Map(entries) => entries
                .iter()
                .map(|(key, _)| key)
                .find(|key| matches!(&key.value, Value::Scalar { text, .. } if &**text == name)),
            _ => None,
        };
        let node = key.unwrap_or(self.node);
        let path = Rc::new(Path::Field(self.path.clone(), name));
        Located {
            path,
            node,
            file: self.file,
        }
        .error(message)
    }

    /// Returns the text of any scalar, number or not.
    ///
    /// # Errors
    /// If the node is empty, a list or a map.
    pub fn text(&self, what: &str) -> Result<&'a str, SpecError> {
        match &self.node.value {
            Value::Scalar { text, .. } => Ok(text),
            _ => Err(self.expected(what)),
        }
    }

    /// Returns a string: text that YAML does not interpret as a number or a boolean.
    ///
    /// # Errors
    /// If the node is anything else.
    pub fn string(&self, what: &str) -> Result<&'a str, SpecError> {
        match &self.node.value {
            Value::Scalar { text, plain: true } if is_number_or_bool(text) => Err(self.error(format!(
                "expected {what}, found {text}, which needs quotes to be a string"
            ))),
            _ => self.text(what),
        }
    }

    /// Parses one of several words.
    ///
    /// # Errors
    /// If the node is anything else. The error suggests the nearest word.
    pub fn word<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, SpecError> {
        let names = || words.iter().map(|&(name, _)| name);
        let what = names().collect::<Vec<_>>().join(" or ");
        let text = self.text(&what)?;
        match words.iter().find(|&&(name, _)| name == text) {
            Some(&(_, value)) => Ok(value),
            None => Err(self.expected(&what).suggest(nearest(text, names()))),
        }
    }

    /// Parses a whole number in a range.
    ///
    /// # Errors
    /// If the node is anything else.
    pub fn whole(&self, range: RangeInclusive<u64>) -> Result<u64, SpecError> {
        let number = match &self.node.value {
            Value::Scalar { text, plain: true } => digits(text),
            _ => None,
        };
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            let (low, high) = (range.start(), range.end());
            self.expected(&format!("a whole number from {low} to {high}"))
        })
    }

    /// Parses a decimal number written without quotes.
    ///
    /// # Errors
    /// If the node is anything else.
    pub fn number(&self, what: &str) -> Result<f64, SpecError> {
        match &self.node.value {
            Value::Scalar { text, plain: true } => decimal(text),
            _ => None,
        }
        .ok_or_else(|| self.expected(what))
    }
}

/// Fields of a map whose names are known.
pub struct Fields<'a> {
    map: Located<'a>,
    entries: Vec<(&'a str, Located<'a>)>,
}

impl<'a> Fields<'a> {
    /// Returns an optional field; an empty one counts as absent.
    pub fn optional(&self, name: &str) -> Option<Located<'a>> {
        self.given(name).filter(|value| !value.is_null())
    }

    /// Returns a field that is present, even if it is empty.
    pub fn given(&self, name: &str) -> Option<Located<'a>> {
        let found = self.entries.iter().find(|&&(field, _)| field == name);
        found.map(|(_, value)| value.clone())
    }

    /// Returns a required field; errors call it `what`.
    ///
    /// # Errors
    /// If the field is absent or empty.
    pub fn required(&self, name: &'a str, what: &str) -> Result<Located<'a>, SpecError> {
        match self.given(name) {
            Some(value) if value.is_null() => Err(value.expected(what)),
            Some(value) => Ok(value),
            None => Err(self
                .map
                .field(name, self.map.node)
                .error(format!("missing, expected {what}"))),
        }
    }

    /// Creates an error about the whole map.
    pub fn error(&self, message: impl Into<String>) -> SpecError {
        self.map.error(message)
    }
}

/// Parses a decimal whole number: digits only.
pub fn digits(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

/// Parses a decimal number without sign or exponent: `2`, `99.9`.
pub fn decimal(text: &str) -> Option<f64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let short = text.len() <= 32;
    (short && all_digits(whole) && all_digits(fraction))
        .then(|| text.parse().ok())
        .flatten()
}

/// Returns `true` if YAML interprets a plain scalar as something other than a string.
fn is_number_or_bool(text: &str) -> bool {
    const BOOLS: [&str; 6] = ["true", "True", "TRUE", "false", "False", "FALSE"];
    let starts_like_number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    let radix = |prefix| {
        text.strip_prefix(prefix)
            .is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    let number = || text.parse::<f64>().is_ok() || radix("0x") || radix("0o");
    BOOLS.contains(&text) || (text.len() <= 64 && starts_like_number && number())
}
