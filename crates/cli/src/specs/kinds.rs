//! Kinds of specs that people write.

use crate::error::CliError;
use tailwater_api::chain;
use tailwater_api::document::nearest;
use tailwater_api::schema::Kind;
use tailwater_api::server;
use tailwater_placement::spec::{CLUSTER, SLO_SET};
use tailwater_sim::spec::SCHEMA as RACK;

/// All kinds, in the order of the documentation.
pub const KINDS: [&Kind; 5] = [&chain::SCHEMA, &server::SCHEMA, &SLO_SET, &CLUSTER, &RACK];

/// Returns the names of all kinds, separated by commas.
pub fn names() -> String {
    KINDS.map(|kind| kind.name).join(", ")
}

/// Returns the kind of this name, in any case.
pub fn kind(name: &str) -> Option<&'static Kind> {
    KINDS.into_iter().find(|kind| kind.name.eq_ignore_ascii_case(name))
}

/// Returns the error for a name that is no kind's.
pub fn unknown(name: &str) -> CliError {
    let lower: Vec<String> = KINDS.iter().map(|kind| kind.name.to_lowercase()).collect();
    let found = nearest(&name.to_lowercase(), lower.iter().map(String::as_str)).and_then(kind);
    let suggestion = found.map_or(String::new(), |kind| format!("; did you mean \"{}\"?", kind.name));
    CliError::Input(format!(
        "expected one of the kinds {}, found \"{name}\"{suggestion}",
        names()
    ))
}
