//! Flow state of isolated functions that passes to another process of the server.
//!
//! It is read and written in the memory that the function's processes share, between two rounds. They take no part in
//! it: the server converts copies, for which any bytes are allowed, and the new server's processes find the flows as
//! if they had replaced the old ones.

use crate::memory::Memory;
use crate::message::Description;
use std::fs::File;
use std::io;
use std::time::Duration;
use tailwater_chain::chain::IsolatedState;
use tailwater_chain::flow_table::ReplicaConfig;
use tailwater_chain::function::{RemoteFlow, RemoteTransfer};
use tailwater_functions::kind::{StateFormat, StateTransfer};
use tailwater_net::{FlowKey, Nanos};
use tailwater_sdk::program::StoredFlows;
use tailwater_sdk::protocol::layout::FlowSlot;

/// Flow state of one function.
#[derive(Debug)]
pub(super) struct FlowTransfer {
    format: StateFormat,
    is_directed: bool,
    flows: SharedFlows,
}

/// Flows in the memory of a function's processes.
#[derive(Debug)]
enum SharedFlows {
    BuiltIn(IsolatedState, Memory),
    ThirdParty(StoredFlows),
}

impl FlowTransfer {
    /// Opens the flow state in a file of this shape; `None` if it does not pass.
    pub(super) fn open(
        file: &File,
        config: ReplicaConfig,
        function: &Description,
        transfer: &StateTransfer,
    ) -> io::Result<Option<FlowTransfer>> {
        let as_it_is = || {
            let version = function.durable?;
            Some(StateFormat::as_it_is(version, function.piece_bytes as usize))
        };
        let format = match transfer {
            StateTransfer::None => None,
            StateTransfer::AsItIs | StateTransfer::ThirdParty => as_it_is(),
            StateTransfer::Converted(format) => Some(format.clone()),
        };
        let Some(format) = format.filter(|format| format.bytes > 0) else {
            return Ok(None);
        };
        // No page is accessed before a take-over.
        let memory = Memory::whole(file, Duration::ZERO)?;
        let flows = match transfer {
            StateTransfer::ThirdParty => SharedFlows::ThirdParty(StoredFlows::open(memory, config.state_bytes)?),
            _ => match IsolatedState::new(config, format.bytes) {
                Some(state) => SharedFlows::BuiltIn(state, memory),
                None => return Ok(None),
            },
        };
        Ok(Some(FlowTransfer {
            format,
            is_directed: config.directed,
            flows,
        }))
    }

    /// Slot in the function's memory, which has two for a connection whose directions have states of their own.
    fn slot(&self, flow: RemoteFlow) -> u32 {
        match self.is_directed {
            true => flow.slot << 1 | u32::from(flow.is_reversed),
            false => flow.slot,
        }
    }
}

impl RemoteTransfer for FlowTransfer {
    fn format_version(&self) -> u32 {
        self.format.version
    }

    fn bytes(&self) -> usize {
        self.format.bytes
    }

    fn is_directed(&self) -> bool {
        self.is_directed
    }

    fn export(&self, flow: RemoteFlow, origin: Nanos, to: &mut [u8]) -> bool {
        let (slot, generation) = (self.slot(flow), flow.generation);
        let is_seen = match &self.flows {
            SharedFlows::BuiltIn(state, memory) => state.read(memory, (slot, generation), to),
            SharedFlows::ThirdParty(flows) => flows.read(FlowSlot { flow: slot, generation }, to),
        };
        if is_seen {
            (self.format.to_durable)(to, origin);
        }
        is_seen
    }

    fn import(&self, flow: RemoteFlow, key: &FlowKey, origin: Nanos, from: &[u8]) {
        let (slot, generation) = (self.slot(flow), flow.generation);
        let mut state = from.to_vec();
        (self.format.restore_durable)(&mut state, origin);
        // The slot is one of the flow table, and the state has the format's size.
        match &self.flows {
            SharedFlows::BuiltIn(flows, memory) => flows.write(memory, (slot, generation), key, &state),
            SharedFlows::ThirdParty(flows) => flows.write(FlowSlot { flow: slot, generation }, key, &state),
        };
    }
}
