//! A built-in function in a program of its own: configured, then attached to the memory of its chain.

use super::companions::CompanionClient;
use crate::message::Description;
use std::io;
use std::sync::Arc;
use tailwater_chain::batch::MAX_BATCH;
use tailwater_chain::buffer::{BufferMemory, HEADROOM};
use tailwater_chain::chain::IsolatedChain;
use tailwater_chain::flow_table::{Companions, FlowTableReplica, ReplicaConfig};
use tailwater_chain::function::NetworkFunction;
use tailwater_functions::accounting::ExportError;
use tailwater_sdk::program::{AttachedMemory, Configuration, ProgramError, Refusal, UnattachedFunction, serve};
use tailwater_sdk::protocol::snapshots::FlowSnapshots;

/// A configured function.
pub struct Configured {
    /// The function.
    pub function: Box<dyn NetworkFunction>,
    /// Work that remains at the end of the run, after the function has been dropped.
    pub at_end: Box<dyn FnOnce() -> Result<(), ExportError>>,
}

/// Runs a function for the server at the other end of standard input, until the chain ends. `configure` builds the
/// function.
///
/// # Errors
/// There is no server, it disconnects, or the configuration is rejected.
pub fn run(configure: impl FnOnce(&Configuration) -> Result<Configured, Refusal>) -> Result<(), ProgramError> {
    serve(|configuration| {
        let Configured { function, at_end } = configure(configuration)?;
        Ok((Waiting::new(function), at_end))
    })
}

/// A function that has no memory yet.
pub struct Waiting {
    function: Box<dyn NetworkFunction>,
    /// State bytes per flow, with the chain's own data.
    state_bytes: usize,
    /// Version of the state's format, if it can be stored externally.
    durable: Option<u32>,
    /// Bytes of it that are stored externally.
    piece_bytes: usize,
    wants_flow_ends: bool,
}

impl Waiting {
    /// Wraps a function.
    pub fn new(function: Box<dyn NetworkFunction>) -> Waiting {
        let named = [(function.kind().to_owned(), function)];
        let state_bytes = IsolatedChain::state_bytes(&named);
        let [(_, mut function)] = named;
        let durable = function.durable().map(|durable| durable.format_version());
        Waiting {
            durable,
            piece_bytes: durable.map_or(0, |_| function.state_bytes()),
            wants_flow_ends: function.flow_ends().is_some(),
            state_bytes,
            function,
        }
    }
}

impl UnattachedFunction for Waiting {
    type Attached = IsolatedChain;

    fn describe(&self) -> Description {
        let function = &*self.function;
        let reasons = function.drop_reasons().iter().enumerate();
        Description {
            name: function.kind().to_owned(),
            state_bytes: self.state_bytes as u32,
            wants_flow_ends: self.wants_flow_ends,
            opens_companions: function.properties().opens_companions,
            durable: self.durable,
            can_restart: function.can_restart(),
            piece_bytes: self.piece_bytes as u32,
            drop_reasons: reasons
                .map(|(i, name)| ((*name).to_owned(), function.is_loss(i as u8)))
                .collect(),
            counters: function.counters().iter().map(|&name| name.to_owned()).collect(),
        }
    }

    /// One of the few functions with `unsafe` code.
    fn attach(self, given: AttachedMemory) -> io::Result<IsolatedChain> {
        let AttachedMemory {
            packets,
            buffer_bytes,
            flows,
            snapshots: images,
            responses: slate,
        } = given;
        if buffer_bytes <= HEADROOM {
            return Err(io::Error::other("buffers without room for frames"));
        }
        let flows = match flows {
            None => None,
            Some((capacity, memory)) => {
                let undirected = ReplicaConfig {
                    capacity,
                    state_bytes: self.state_bytes,
                    directed: false,
                };
                // The file is larger where each direction of a flow has its own slot.
                let directed = memory.len() > undirected.file_bytes();
                let config = ReplicaConfig { directed, ..undirected };
                // SAFETY: the server gives these flows only to processes of this function, and each flow's packets to
                // one process at a time. In this process one thread accesses them, only during its turn.
                let mirror = unsafe { FlowTableReplica::open(memory, config)? };
                let asking: Box<dyn Companions> = Box::new(CompanionClient::new(slate));
                Some((mirror, asking))
            }
        };
        let base = packets.base();
        let size = [buffer_bytes, buffer_bytes];
        // SAFETY: `packets`, the owner, keeps this many bytes mapped, for reading and writing, or for reading alone if
        // the function writes to no frame; if it does, the kernel ends the process. Any bytes are initialised. This
        // process accesses them only through this memory's handles. Other processes write them during their turns. A
        // process that writes during another's turn can only make it misread a frame, which is plain bytes that are
        // validated when read.
        let memory = unsafe { BufferMemory::lent(base, MAX_BATCH as u32, size, Arc::new(packets))? };
        let named = (self.function.kind().to_owned(), self.function);
        // SAFETY: batches run only during this process's turns.
        let alone = unsafe { IsolatedChain::new(named, memory, flows) };
        Ok(match images {
            None => alone,
            Some((origin, memory)) => alone.with_snapshots(FlowSnapshots::open(memory, self.piece_bytes)?, origin),
        })
    }
}
