//! Flow lifetimes derived from the state of the isolated function that determines them.
//!
//! The worker reads that state directly. Whatever the bytes are, the result is one of the timeouts in the spec. A
//! function that writes wrong state about its own flows can only select a timeout that the spec allows.

use crate::memory::{Memory, read_only};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tailwater_chain::chain::IsolatedChain;
use tailwater_chain::flow_table::ReplicaConfig;
use tailwater_chain::function::Lifetimes;
use tailwater_net::{FlowKey, Nanos};

/// Maximum bytes of state that are read.
const MOST: usize = 256;

/// Read-only view of a function's flow state.
#[derive(Debug)]
pub(super) struct RemoteLifetimes {
    memory: Memory,
    config: ReplicaConfig,
    state: Range<usize>,
    by: Arc<dyn Lifetimes>,
}

impl RemoteLifetimes {
    /// Opens the flow state in a file of this shape. `by` computes a flow's lifetime from the first `bytes` bytes of
    /// the function's state.
    pub(super) fn open(
        flows: &File,
        config: ReplicaConfig,
        by: &Arc<dyn Lifetimes>,
        bytes: usize,
    ) -> io::Result<RemoteLifetimes> {
        if bytes > MOST {
            return Err(io::Error::other("more state than the limit"));
        }
        Ok(RemoteLifetimes {
            memory: Memory::map(&read_only(flows)?, config.file_bytes(), false)?,
            config,
            state: IsolatedChain::state_of(bytes),
            by: Arc::clone(by),
        })
    }
}

impl Lifetimes for RemoteLifetimes {
    /// `opened` is the worker's own state: the flow's generation and its slot in the file.
    fn idle_timeout(&self, key: &FlowKey, opened: &[u8]) -> Nanos {
        let word = |at: usize| opened[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
        let flow = (word(8) as u32, word(0));
        let mut bytes = [0; MOST];
        let state = &mut bytes[..self.state.len()];
        // If the function has not processed the flow yet, the state stays zero.
        self.config.read(&self.memory, flow, (self.state.start, state));
        self.by.idle_timeout(key, state)
    }
}
