//! Flows of a repeated trace.

use tailwater_net::FlowKey;

/// Flows that have other addresses each time the trace is repeated, so that they are new ones.
#[derive(Clone, Copy, Debug)]
pub enum Renumber {
    /// None.
    None,
    /// All.
    All,
    /// Those for whose packets the function returns `true`. The others stay the same.
    Some(fn(&FlowKey) -> bool),
}

impl Renumber {
    /// Returns `true` if a flow is renumbered.
    pub(super) fn includes(self, key: &FlowKey) -> bool {
        match self {
            Renumber::None => false,
            Renumber::All => true,
            Renumber::Some(is_included) => is_included(key),
        }
    }
}
