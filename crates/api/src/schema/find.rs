//! Fields by their paths, such as `spec.slo.latency`.

use super::types::{Field, FunctionSchema, Map, Type};
use crate::chain::BESIDE;
use crate::error::nearest;

/// Field below a type.
#[derive(Clone, Copy, Debug)]
pub struct Child {
    /// Name in a path. `NAME` or similar for the entries of a map whose keys are names.
    pub name: &'static str,
    /// Its type.
    pub ty: Type,
    /// Description; empty for entries.
    pub doc: &'static str,
    /// Its entry in the table of fields, unless it is a function or an entry.
    pub field: Option<&'static Field>,
    /// `true` if any name leads to it.
    pub is_entry: bool,
}

impl Child {
    fn new(field: &'static Field) -> Child {
        Child {
            name: field.name,
            ty: field.ty,
            doc: field.doc,
            field: Some(field),
            is_entry: false,
        }
    }
}

/// Error of a path that leads to no field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: expected {expected}, found \"{found}\"")]
pub struct PathError {
    /// Path up to the wrong part.
    pub at: String,
    /// Names that are allowed there.
    pub expected: String,
    /// The wrong part.
    pub found: String,
    /// The nearest name.
    pub suggestion: Option<&'static str>,
}

/// Returns the fields below a value of this type. Those of a list are the fields of its items.
pub fn children(ty: &Type, functions: &[FunctionSchema]) -> Vec<Child> {
    match ty {
        Type::Map(map) => fields(map),
        Type::List(item, ..) => children(item, functions),
        Type::OneOf(types) => types.iter().flat_map(|ty| children(ty, functions)).collect(),
        Type::Entries(entries) => vec![Child {
            name: entries.key,
            ty: entries.value,
            doc: "",
            field: None,
            is_entry: true,
        }],
        Type::Functions => {
            let kinds = functions.iter().map(|function| Child {
                name: function.name,
                ty: Type::Map(function.config),
                doc: function.doc,
                field: None,
                is_entry: false,
            });
            fields(&BESIDE).into_iter().chain(kinds).collect()
        }
        _ => Vec::new(),
    }
}

fn fields(map: &'static Map) -> Vec<Child> {
    map.fields.iter().map(Child::new).collect()
}

/// Returns the field that a path leads to from `start`, whose name in errors is `name`. Indices such as `[0]` are
/// ignored.
///
/// # Errors
/// If a part of the path is no field.
pub fn find<'p>(
    name: &str,
    start: Child,
    path: impl IntoIterator<Item = &'p str>,
    functions: &[FunctionSchema],
) -> Result<Child, PathError> {
    let mut at = name.to_owned();
    let mut found = start;
    for part in path {
        let part = part.split('[').next().unwrap_or(part);
        let below = children(&found.ty, functions);
        let same = below.iter().find(|child| child.name == part || child.is_entry);
        let Some(child) = same else {
            let names = below.iter().map(|child| child.name);
            let expected: Vec<&str> = names.clone().collect();
            return Err(PathError {
                at,
                expected: match expected.is_empty() {
                    true => "no field below it".to_owned(),
                    false => format!("one of the fields {}", expected.join(", ")),
                },
                found: part.to_owned(),
                suggestion: nearest(part, names),
            });
        };
        found = *child;
        at = format!("{at}.{part}");
    }
    Ok(found)
}
