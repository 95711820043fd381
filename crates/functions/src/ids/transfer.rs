//! Connections that pass to a process that takes over from this one, with their streams. Connections inside tunnels do
//! not, nor do the counts of thresholds.
//!
//! Rules have numbers in flow state: those of a process that has read its rules once, from the same text, are the same.

use super::function::Ids;
use tailwater_chain::function::DurableState;
use tailwater_ids::connection::Connection;
use tailwater_ids::transfer;
use tailwater_net::Nanos;

/// Bytes of the fingerprint of the rules, before those of the streams.
const FINGERPRINT: usize = size_of::<u64>();

fn connection(state: &[u8]) -> Connection {
    bytemuck::pod_read_unaligned(&state[..size_of::<Connection>()])
}

impl DurableState for Ids {
    fn format_version(&self) -> u32 {
        1
    }

    fn has_attachments(&self) -> bool {
        true
    }

    fn detach(&mut self, state: &[u8], now: Nanos, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.table.fingerprint().unwrap_or_default().to_le_bytes());
        transfer::detach(&connection(state), &mut self.slots, now, out);
    }

    fn attach(&mut self, state: &mut [u8], bytes: &[u8], now: Nanos) {
        let (fingerprint, bytes) = bytes.split_at_checked(FINGERPRINT).unwrap_or_default();
        let has_same_rules = self
            .table
            .fingerprint()
            .is_some_and(|own| own.to_le_bytes() == *fingerprint);
        let mut connection = connection(state);
        transfer::attach(&mut connection, bytes, has_same_rules, &mut self.slots, now);
        state[..size_of::<Connection>()].copy_from_slice(bytemuck::bytes_of(&connection));
    }
}
