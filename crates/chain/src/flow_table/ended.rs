//! Flows that have left a flow table, to be reported to the functions.

use crate::batch::size::MAX_BATCH;
use tailwater_net::FlowKey;

/// Flows that have left the table, with their last state, until the functions have received them.
#[derive(Debug, Default)]
pub(crate) struct EndedFlows {
    keys: Vec<FlowKey>,
    states: Vec<u8>,
    /// `true` if a function needs the flows.
    wanted: bool,
}

impl EndedFlows {
    /// Allocates room for the flows that one batch and one timer call can end, so that it never grows. Without
    /// `wanted`, no flow is recorded.
    pub(crate) fn new(state_bytes: usize, wanted: bool) -> EndedFlows {
        let room = if wanted { 8 * MAX_BATCH } else { 0 };
        EndedFlows {
            keys: Vec::with_capacity(room),
            states: Vec::with_capacity(room * state_bytes),
            wanted,
        }
    }

    pub(super) fn push(&mut self, key: &FlowKey, state: &[u8]) {
        if self.wanted {
            self.keys.push(*key);
            self.states.extend_from_slice(state);
        }
    }

    /// Calls `each` on every ended flow.
    pub(crate) fn each(&self, mut each: impl FnMut(&FlowKey, &[u8])) {
        let state_bytes = self.states.len() / self.keys.len().max(1);
        for (i, key) in self.keys.iter().enumerate() {
            each(key, &self.states[i * state_bytes..(i + 1) * state_bytes]);
        }
    }

    /// Calls `each` on every ended flow and removes it.
    #[inline]
    pub(crate) fn drain(&mut self, mut each: impl FnMut(&FlowKey, &[u8])) {
        if self.keys.is_empty() {
            return;
        }
        let state_bytes = self.states.len() / self.keys.len();
        for (i, key) in self.keys.iter().enumerate() {
            each(key, &self.states[i * state_bytes..(i + 1) * state_bytes]);
        }
        self.keys.clear();
        self.states.clear();
    }
}
