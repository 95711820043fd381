//! Candidate companions of a flow whose state is stored externally.

use crate::flow_table::FlowTable;
use tailwater_net::FlowKey;

/// Maximum number of candidate companion keys for one flow.
pub const MAX_CANDIDATES: usize = 4;

/// Candidate companions of a flow, as [`companion_candidates`](super::DurableState::companion_candidates) collects
/// them.
pub struct CompanionCandidates<'a> {
    pub(crate) table: &'a FlowTable,
    pub(crate) keys: &'a mut Vec<(u8, FlowKey)>,
    pub(crate) failed: bool,
}

impl CompanionCandidates<'_> {
    /// Returns `true` if no local flow has the key.
    pub fn is_free(&self, key: &FlowKey, bucket: u16) -> bool {
        match self.table.is_free_remotely(key, bucket) {
            Some(free) => free,
            None => !self.table.contains(key, bucket),
        }
    }

    /// Marks the candidates as unknown for now: the flow is not to be opened yet.
    pub fn fail(&mut self) {
        self.failed = true;
    }

    /// Adds a key to query, under this number.
    pub fn add(&mut self, number: u8, key: FlowKey) {
        self.keys.push((number, key));
    }
}
