//! Treatment of packets while a function has no process, as its spec says.

use super::process::Program;
use tailwater_functions::spec::OnFailure;

/// Treatment of a function's packets while it has no process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outage {
    pub(super) on_failure: OnFailure,
    /// `true` in a round that bypasses the function.
    pub(super) is_bypassed: bool,
    /// Packets that waited for a successor, or bypassed the function.
    pub(super) packets: u64,
}

impl Outage {
    pub(super) fn new(program: &Program) -> Outage {
        Outage {
            on_failure: program.on_failure,
            ..Outage::default()
        }
    }
}

/// Returns the name of the counter of packets that a function's outages affected without losing them.
pub(super) fn counter_name(on_failure: OnFailure) -> Option<&'static str> {
    match on_failure {
        OnFailure::Hold => Some("held"),
        OnFailure::Bypass => Some("bypassed"),
        OnFailure::Drop => None,
    }
}
