//! Lists in files of their own, which a crash or a full disk can leave empty.

use tailwater_api::error::SpecError;
use tailwater_api::located::Fields;
use tailwater_api::schema::{Field, Type};

/// Field that accepts an empty file.
pub(crate) const ALLOW_EMPTY: &str = "allowEmpty";

/// Field `allowEmpty` beside `rulesFile`.
pub(crate) const ALLOW_EMPTY_RULES: Field = Field::new(
    ALLOW_EMPTY,
    Type::Bool,
    "Accepts a file without a rule. Otherwise it is refused, as a crash or a full disk may have emptied it.",
)
.or("false")
.only_with("rulesFile");

/// Returns `true` if `allowEmpty` accepts an empty list in the file that `file_field` names.
///
/// # Errors
/// If it is set without that file.
pub(crate) fn allows_empty(fields: &Fields<'_>, file_field: &str) -> Result<bool, SpecError> {
    let Some(node) = fields.optional(ALLOW_EMPTY) else {
        return Ok(false);
    };
    if fields.optional(file_field).is_none() {
        return Err(node.error(format!("expected {ALLOW_EMPTY} only with {file_field}")));
    }
    node.word(&[("true", true), ("false", false)])
}

/// Checks that a list of a file is not empty: everything would be allowed, or denied, without a word.
///
/// # Errors
/// If it is empty. `what` is one of its items.
pub(crate) fn check_not_empty(name: &str, what: &str, count: usize) -> Result<(), SpecError> {
    match count {
        0 => Err(SpecError::whole_file(
            name,
            format!("expected at least one {what}, found none; {ALLOW_EMPTY}: true accepts an empty file"),
        )),
        _ => Ok(()),
    }
}
