//! Connections that pass to a process that takes over from this one. First fragments of datagrams, which are remembered
//! for a short time, do not.

use super::connection::{Connection, HALF_OPEN, LISTED, millis};
use super::function::Firewall;
use tailwater_chain::function::DurableState;
use tailwater_net::{FlowKey, Nanos};

/// Changes a connection in a flow's state.
fn change(state: &mut [u8], change: impl FnOnce(&mut Connection)) {
    let state = &mut state[..size_of::<Connection>()];
    let mut connection: Connection = bytemuck::pod_read_unaligned(state);
    change(&mut connection);
    state.copy_from_slice(bytemuck::bytes_of(&connection));
}

impl DurableState for Firewall {
    fn format_version(&self) -> u32 {
        1
    }

    fn to_durable(&self, state: &mut [u8], origin: Nanos) {
        change(state, |connection| {
            connection.last = connection.last.wrapping_add(millis(origin))
        });
    }

    fn restore_durable(&mut self, state: &mut [u8], origin: Nanos) {
        change(state, |connection| {
            connection.last = connection.last.wrapping_sub(millis(origin))
        });
    }

    fn open_imported(&mut self, key: &FlowKey, state: &mut [u8]) {
        let table = &self.table;
        change(state, |connection| {
            if connection.has(LISTED) && !table.connections.insert(key) {
                connection.flags &= !LISTED;
            }
            let destination = connection.initiators(key).destination();
            if connection.has(HALF_OPEN) && !table.handshakes.begin(destination) {
                connection.flags &= !HALF_OPEN;
            }
        });
    }
}
