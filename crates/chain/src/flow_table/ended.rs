//! Flows that have left a flow table, for the functions to be told.

use crate::batch::MAX_BATCH;
use tailwater_net::FlowKey;

/// Flows that left the table, with their last state, until the functions have been told.
#[derive(Debug, Default)]
pub(crate) struct EndedFlows {
    keys: Vec<FlowKey>,
    states: Vec<u8>,
    /// Whether anybody wants to know.
    wanted: bool,
}

impl EndedFlows {
    /// Room for what one batch and one turn of the timers can end, so that it never grows. Without
    /// `wanted` nothing is kept.
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

    /// Shows every ended flow to `each`.
    pub(crate) fn each(&self, mut each: impl FnMut(&FlowKey, &[u8])) {
        let state_bytes = self.states.len() / self.keys.len().max(1);
        for (i, key) in self.keys.iter().enumerate() {
            each(key, &self.states[i * state_bytes..(i + 1) * state_bytes]);
        }
    }

    /// Hands every ended flow to `each` and forgets it.
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
