//! Connections that pass to a process that takes over from this one. First fragments of datagrams, which are remembered
//! for a short time, do not.

use super::connection::{Connection, HALF_OPEN, LISTED, millis};
use super::function::Firewall;
use super::options::Options;
use super::shared_tables::Connections;
use super::table::{FirewallTable, HalfOpenCounters, SharedTables};
use crate::kind::StateFormat;
use std::sync::Arc;
use tailwater_chain::function::DurableState;
use tailwater_net::{FlowKey, Nanos};

/// Changes a connection in a flow's state.
fn change(state: &mut [u8], change: impl FnOnce(&mut Connection)) {
    let state = &mut state[..size_of::<Connection>()];
    let mut connection: Connection = bytemuck::pod_read_unaligned(state);
    change(&mut connection);
    state.copy_from_slice(bytemuck::bytes_of(&connection));
}

/// Version of the state's portable form.
const FORMAT_VERSION: u32 = 1;

/// Portable form of the state, made without an instance, for processes that share tables for `capacity` connections.
pub(super) fn state_format(options: Options, capacity: usize) -> StateFormat {
    StateFormat {
        tables: Some(Arc::new(move |counters| {
            let tables = SharedTables::sharing(options, capacity, counters);
            Arc::new(move |key, state| open_imported((&tables.connections, &tables.handshakes), key, state))
        })),
        ..StateFormat::converted(
            (FORMAT_VERSION, FirewallTable::STATE_BYTES),
            to_durable,
            restore_durable,
        )
    }
}

fn to_durable(state: &mut [u8], origin: Nanos) {
    change(state, |connection| {
        connection.last = connection.last.wrapping_add(millis(origin))
    });
}

fn restore_durable(state: &mut [u8], origin: Nanos) {
    change(state, |connection| {
        connection.last = connection.last.wrapping_sub(millis(origin))
    });
}

fn open_imported((connections, handshakes): (&Connections, &HalfOpenCounters), key: &FlowKey, state: &mut [u8]) {
    change(state, |connection| {
        if connection.has(LISTED) && !connections.insert(key) {
            connection.flags &= !LISTED;
        }
        let destination = connection.initiators(key).destination();
        if connection.has(HALF_OPEN) && !handshakes.begin(destination) {
            connection.flags &= !HALF_OPEN;
        }
    });
}

impl DurableState for Firewall {
    fn format_version(&self) -> u32 {
        FORMAT_VERSION
    }

    fn to_durable(&self, state: &mut [u8], origin: Nanos) {
        to_durable(state, origin);
    }

    fn restore_durable(&mut self, state: &mut [u8], origin: Nanos) {
        restore_durable(state, origin);
    }

    fn open_imported(&mut self, key: &FlowKey, state: &mut [u8]) {
        open_imported((&self.table.connections, &self.table.handshakes), key, state);
    }
}
