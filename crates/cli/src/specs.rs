//! Specs as such: `tailwater validate`, `tailwater explain-spec`, `tailwater schema`.

mod documents;
mod explain;
mod kinds;
mod schema;
mod validate;

pub use explain::{EXPLAIN_SPEC_EXAMPLES, ExplainSpecArgs, explain_spec};
pub use schema::{SCHEMA_EXAMPLES, SchemaArgs, schema};
pub use validate::{VALIDATE_EXAMPLES, ValidateArgs, validate};
