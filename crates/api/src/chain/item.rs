//! One item of a chain's list of functions.

use super::on_failure::OnFailure;
use crate::error::{SpecError, nearest, quoted};
use crate::located::Located;
use crate::schema::{Field, LABEL, Map, Type};
use crate::values::label;

/// Key of the name in an item. No kind of function has it.
const NAME: &str = "name";
/// Keys beside the function's, none of which is a kind's.
pub static BESIDE: Map = Map {
    fields: &[
        Field::new(NAME, Type::Text(&LABEL), "Name in reports; unique in the chain.")
            .otherwise("the function's key; of a `library` or `program`, its own name")
            .example("edge"),
        Field::new(
            OnFailure::KEY,
            Type::Words(&["hold", "bypass", "drop"]),
            "With isolation: treatment of packets while the function's process is replaced.",
        )
        // Some functions have no process and refuse the field, so it is not set for all.
        .otherwise("drop"),
    ],
    ..Map::PLAIN
};

/// Returns `true` if this is a key beside the function's.
fn is_beside(key: &str) -> bool {
    BESIDE.field(key).is_some()
}

/// Function as an item of a chain's list gives it.
#[derive(Clone)]
pub struct FunctionItem<'d, K> {
    /// Name, if the spec gives one.
    pub name: Option<String>,
    /// Kind of the function.
    pub kind: K,
    /// Configuration under the kind's key.
    pub config: Located<'d>,
    /// Treatment of packets while the function has no process, if the spec gives one.
    pub on_failure: Option<OnFailure>,
}

impl<'d, K: Copy> FunctionItem<'d, K> {
    /// Reads an item: the key of a kind with the configuration, and optional keys beside it. `kind_of` returns the kind
    /// of a key, if it has one. Errors list `kinds`, the known keys.
    ///
    /// # Errors
    /// If there is not exactly one function in the item, or the name is no label.
    pub fn parse(
        item: &Located<'d>,
        kinds: &[&str],
        kind_of: impl Fn(&'d str) -> Option<K>,
    ) -> Result<FunctionItem<'d, K>, SpecError> {
        let what = match kinds {
            [] => "one function".to_owned(),
            _ => format!("one function ({})", kinds.join(", ")),
        };
        if !item.is_map() {
            return Err(not_a_map(item, &what, kinds));
        }
        let entries = item.entries(&what)?;
        let kind_of = |key: &'d str| kind_of(key).filter(|_| !is_beside(key));
        // Checks all keys before any configuration: the fields of a configuration that is not indented far enough
        // appear as keys next to its function.
        let mut function: Option<(&str, K, &Located<'d>)> = None;
        for (key, config) in &entries {
            match (function, kind_of(key)) {
                _ if is_beside(key) => {}
                (None, Some(kind)) => function = Some((*key, kind, config)),
                (Some((first, ..)), Some(_)) => {
                    let message = format!(
                        "expected {what} in each item, found {} and {}",
                        quoted(key),
                        quoted(first)
                    );
                    return Err(item.error_at_key(key, message));
                }
                (_, None) => {
                    let mut keys = entries.iter().map(|(key, _)| *key);
                    let beside = keys.find(|key| kind_of(key).is_some());
                    return Err(unknown_key(item, key, beside, &what, kinds));
                }
            }
        }
        let value_of = |key: &str| entries.iter().find(|(other, _)| *other == key).map(|(_, value)| value);
        let name = value_of(NAME).map(label).transpose()?;
        let on_failure = value_of(OnFailure::KEY).filter(|value| !value.is_null());
        let on_failure = on_failure.map(OnFailure::parse).transpose()?;
        match function {
            Some((_, kind, config)) => Ok(FunctionItem {
                name,
                kind,
                config: config.clone(),
                on_failure,
            }),
            None if entries.is_empty() => Err(item.error(format!("expected {what}, found none"))),
            None => {
                let beside = if name.is_some() { "a name" } else { OnFailure::KEY };
                Err(item.error(format!("expected {what}, found only {beside}")))
            }
        }
    }
}

/// Creates the error for an item that is no map, such as `- forward` instead of `- forward:`.
fn not_a_map(item: &Located<'_>, what: &str, kinds: &[&str]) -> SpecError {
    let text = item.text("").unwrap_or_default();
    let suggestion = nearest(text, kinds.iter().copied()).map(|kind| format!("{kind}: {{}}"));
    item.expected(&format!("a map with {what}")).suggest(suggestion)
}

/// Creates the error for a key that is no kind's, next to that of a function or to none.
fn unknown_key(item: &Located<'_>, key: &str, beside: Option<&str>, what: &str, kinds: &[&str]) -> SpecError {
    let message = match beside {
        None => format!("expected {what}, found {}", quoted(key)),
        Some(kind) => format!(
            "expected no field but name and onFailure next to {kind}, found {}, which must be indented further if it \
             belongs to {kind}",
            quoted(key)
        ),
    };
    let candidates = kinds.iter().copied().filter(|_| beside.is_none());
    let suggestion = nearest(key, candidates.chain(BESIDE.fields.iter().map(|field| field.name)));
    item.error_at_key(key, message).suggest(suggestion)
}
