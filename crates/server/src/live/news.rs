//! Lines that ports, external functions and stores report while a chain runs.

use crate::events::Severity;

/// Severity of a port's news.
pub(super) fn severity_of(line: &str) -> Severity {
    match line.ends_with("link up") {
        true => Severity::Normal,
        false => Severity::Warning,
    }
}

/// Returns `true` for a warning about the store of flow state, of a chain's news.
pub(super) fn is_of_state(line: &str) -> bool {
    line.starts_with("spec.state")
}
