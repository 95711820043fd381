//! One item of a chain's list of functions.

use crate::kind::{AnyConfig, Context};
use crate::registry;
use tailwater_api::error::{SpecError, nearest, quoted};
use tailwater_api::located::Located;
use tailwater_api::values::label;

/// Reads one item of `functions`: its type's key with the configuration, and an optional name.
pub(crate) fn parse(item: &Located<'_>, context: &Context<'_>) -> Result<(Option<String>, AnyConfig), SpecError> {
    let kinds = registry::names();
    let what = format!("one function ({})", kinds.clone().collect::<Vec<_>>().join(", "));
    if !item.is_map() {
        // `- forward` instead of `- forward:`.
        let text = item.text("").unwrap_or_default();
        let suggestion = nearest(text, kinds).map(|kind| format!("{kind}: {{}}"));
        let what = format!("a map with {what}");
        return Err(item.expected(&what).suggest(suggestion));
    }
    let entries = item.entries(&what)?;
    let is_kind = |key: &str| registry::kind(key).is_some();
    // Checks all keys before any configuration: the fields of a configuration that is not indented far enough appear as
    // keys next to its function.
    let mut function = None;
    for (key, value) in &entries {
        match function {
            _ if *key == "name" => {}
            None if is_kind(key) => function = Some((*key, value)),
            Some((first, _)) if is_kind(key) => {
                let message = format!(
                    "expected {what} in each item, found {} and {}",
                    quoted(key),
                    quoted(first)
                );
                return Err(item.error_at_key(key, message));
            }
            _ => {
                let beside = entries.iter().find(|(key, _)| is_kind(key));
                let error = match beside {
                    None => format!("expected {what}, found {}", quoted(key)),
                    Some((kind, _)) => format!(
                        "expected no field but name next to {kind}, found {}, which must be indented further if it \
                         belongs to {kind}",
                        quoted(key)
                    ),
                };
                let candidates = kinds.clone().filter(|_| beside.is_none());
                let suggestion = nearest(key, candidates.chain(["name"]));
                return Err(item.error_at_key(key, error).suggest(suggestion));
            }
        }
    }
    let name = entries.iter().find(|(key, _)| *key == "name");
    let name = name.map(|(_, value)| label(value)).transpose()?;
    let config = function.and_then(|(key, value)| Some((registry::kind(key)?.parse)(value, context)));
    match config {
        Some(config) => Ok((name, config?)),
        None if entries.is_empty() => Err(item.error(format!("expected {what}, found none"))),
        None => Err(item.error(format!("expected {what}, found only a name"))),
    }
}
