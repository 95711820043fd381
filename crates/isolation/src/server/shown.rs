//! How long flows are kept, by what the function that decides it has in its state of them.
//!
//! The worker reads that state, and asks nobody: what it makes of the bytes, whatever they are, is one of the times that
//! the spec has. So a function that lies about its own flows has them kept for a time that the spec allows, and no more.

use crate::memory::{Memory, read_only};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use tailwater_chain::chain::Alone;
use tailwater_chain::flow_table::MirrorConfig;
use tailwater_chain::function::Lifetimes;
use tailwater_net::{FlowKey, Nanos};

/// The most bytes of state that are looked at.
const MOST: usize = 256;

/// A function's flows, to read.
#[derive(Debug)]
pub(super) struct Shown {
    memory: Memory,
    config: MirrorConfig,
    state: Range<usize>,
    by: Arc<dyn Lifetimes>,
}

impl Shown {
    /// Flows in a file of this shape, which are kept as `by` says, told so many bytes of the function's state.
    pub(super) fn open(
        flows: &File,
        config: MirrorConfig,
        (by, bytes): (&Arc<dyn Lifetimes>, usize),
    ) -> io::Result<Shown> {
        if bytes > MOST {
            return Err(io::Error::other("more state than is looked at"));
        }
        Ok(Shown {
            memory: Memory::map(&read_only(flows)?, config.file_bytes(), false)?,
            config,
            state: Alone::state_of(bytes),
            by: Arc::clone(by),
        })
    }
}

impl Lifetimes for Shown {
    /// The state is that of the worker, which says where in the file the flow is.
    fn idle_timeout(&self, key: &FlowKey, opened: &[u8]) -> Nanos {
        let word = |at: usize| opened[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
        let flow = (word(8) as u32, word(0));
        let mut bytes = [0; MOST];
        let state = &mut bytes[..self.state.len()];
        // Without one the state is zero: the function has not seen the flow.
        self.config.read(&self.memory, flow, (self.state.start, state));
        self.by.idle_timeout(key, state)
    }
}
