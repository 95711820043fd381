//! Schemas that no Rust type of this crate has: specs that another crate reads.

use schemars::Schema;
use serde_json::json;

/// Field of rules in CEL.
pub(super) const RULES: &str = "x-kubernetes-validations";

/// Schema of a map that is passed on as it is.
pub(super) fn any_map(description: &str) -> Schema {
    let schema = json!({
        "type": "object",
        "description": description,
        "x-kubernetes-preserve-unknown-fields": true,
    });
    Schema::try_from(schema).expect("an object")
}
