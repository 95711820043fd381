//! Flow state of isolated functions that passes to another process of the server.
//!
//! It is read and written in the memory that the function's processes share, between two rounds. They take no part in
//! it: the server converts copies, for which any bytes are allowed, and the new server's processes find the flows as
//! if they had replaced the old ones.

use crate::memory::Memory;
use crate::message::Description;
use std::fmt;
use std::fs::File;
use std::io;
use std::time::Duration;
use tailwater_chain::chain::IsolatedState;
use tailwater_chain::flow_table::ReplicaConfig;
use tailwater_chain::function::{RemoteFlow, RemoteTransfer};
use tailwater_chain::shared_counters::SharedCounters;
use tailwater_functions::kind::{OpenImported, StateFormat, StateTransfer};
use tailwater_net::{FlowKey, Nanos};
use tailwater_sdk::program::StoredFlows;
use tailwater_sdk::protocol::layout::FlowSlot;

/// Flow state of one function.
pub(super) struct FlowTransfer {
    format: StateFormat,
    is_directed: bool,
    flows: SharedFlows,
    /// Opens what belongs to imported flows.
    open_imported: Option<OpenImported>,
}

impl fmt::Debug for FlowTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlowTransfer")
            .field("format", &self.format)
            .field("is_directed", &self.is_directed)
            .field("flows", &self.flows)
            .finish_non_exhaustive()
    }
}

/// Flows in the memory of a function's processes.
#[derive(Debug)]
enum SharedFlows {
    BuiltIn(IsolatedState, Memory),
    ThirdParty(StoredFlows),
}

impl FlowTransfer {
    /// Opens the flow state in a file of this shape, and tables in the counters that the function's processes share, if
    /// there are any; `None` if the state does not pass.
    pub(super) fn open(
        (file, counters): (&File, Option<&File>),
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
        let open_imported = match (&format.tables, counters) {
            (Some(tables), Some(counters)) => Some(tables(&SharedCounters::in_file(counters)?)),
            _ => None,
        };
        Ok(Some(FlowTransfer {
            open_imported,
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
        if let Some(open) = &self.open_imported {
            open(key, &mut state);
        }
        // The slot is one of the flow table, and the state has the format's size.
        match &self.flows {
            SharedFlows::BuiltIn(flows, memory) => flows.write(memory, (slot, generation), key, &state),
            SharedFlows::ThirdParty(flows) => flows.write(FlowSlot { flow: slot, generation }, key, &state),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::filled;

    fn description(state_bytes: usize, piece_bytes: usize) -> Description {
        Description {
            name: "test".to_owned(),
            state_bytes: state_bytes as u32,
            wants_flow_ends: false,
            opens_companions: false,
            durable: Some(3),
            can_restart: false,
            piece_bytes: piece_bytes as u32,
            drop_reasons: Vec::new(),
            counters: Vec::new(),
        }
    }

    /// State written by one server is read by it and by the next one in the same form, for each flow and direction.
    #[test]
    fn state_is_read_as_it_was_written() {
        const BYTES: usize = 12;
        let conversion = |by: u8| move |state: &mut [u8], _| state[0] = state[0].wrapping_add(by);
        let converted = StateFormat::converted((3, BYTES), conversion(1), conversion(255));
        let key = FlowKey::v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 1, 2);
        for (transfer, state_bytes) in [
            (StateTransfer::Converted(converted), 64),
            (StateTransfer::AsItIs, 64),
            (StateTransfer::ThirdParty, BYTES),
        ] {
            for directed in [false, true] {
                let config = ReplicaConfig {
                    capacity: 64,
                    state_bytes,
                    directed,
                };
                let file = filled("test", config.file_bytes()).unwrap();
                let open = || {
                    let function = description(state_bytes, BYTES);
                    FlowTransfer::open((&file, None), config, &function, &transfer)
                };
                let flows = open().unwrap().unwrap();
                assert_eq!((flows.format_version(), flows.bytes()), (3, BYTES));
                let flow = |slot, generation, is_reversed| RemoteFlow {
                    slot,
                    generation,
                    is_reversed,
                };
                let all = [(0, false), (0, true), (5, false), (5, true)];
                let all = all.into_iter().filter(|(_, is_reversed)| directed || !is_reversed);
                let state = |slot: u32, is_reversed: bool| [slot as u8 + 100 * u8::from(is_reversed); BYTES];
                let mut read = [0; BYTES];
                for (slot, is_reversed) in all.clone() {
                    let flow = flow(slot, 7, is_reversed);
                    assert!(!flows.export(flow, Nanos::ZERO, &mut read), "{flow:?}");
                    flows.import(flow, &key, Nanos::ZERO, &state(slot, is_reversed));
                }
                for (slot, is_reversed) in all {
                    assert!(flows.export(flow(slot, 7, is_reversed), Nanos::ZERO, &mut read));
                    assert_eq!(read, state(slot, is_reversed), "{transfer:?}");
                    // Another flow in the slot, and none.
                    assert!(!flows.export(flow(slot, 8, is_reversed), Nanos::ZERO, &mut read));
                    assert!(!flows.export(flow(slot, 0, is_reversed), Nanos::ZERO, &mut read));
                }
            }
        }
    }

    #[test]
    fn other_state_does_not_pass() {
        let config = ReplicaConfig {
            capacity: 64,
            state_bytes: 64,
            directed: false,
        };
        let file = filled("test", config.file_bytes()).unwrap();
        let without = Description {
            durable: None,
            ..description(64, 0)
        };
        let large = StateFormat::as_it_is(1, 100);
        for (function, transfer) in [
            (&description(64, 12), StateTransfer::None),
            (&without, StateTransfer::AsItIs),
            (&without, StateTransfer::ThirdParty),
            (&description(64, 12), StateTransfer::Converted(large)),
        ] {
            let opened = FlowTransfer::open((&file, None), config, function, &transfer).unwrap();
            assert!(opened.is_none(), "{transfer:?}");
        }
    }
}
