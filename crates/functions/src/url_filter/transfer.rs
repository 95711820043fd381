//! Streams that pass to a process that takes over from this one, with what they have in buffers.

use super::function::{Stream, UrlFilter};
use tailwater_chain::function::DurableState;
use tailwater_net::Nanos;

impl DurableState for UrlFilter {
    fn format_version(&self) -> u32 {
        1
    }

    fn has_attachments(&self) -> bool {
        true
    }

    fn detach(&mut self, state: &[u8], now: Nanos, out: &mut Vec<u8>) {
        let stream: Stream = bytemuck::pod_read_unaligned(&state[..size_of::<Stream>()]);
        if let Some(lease) = stream.lease() {
            self.pool.copy_out(lease, now, out);
        }
    }

    fn attach(&mut self, state: &mut [u8], bytes: &[u8], now: Nanos) {
        let mut stream: Stream = bytemuck::pod_read_unaligned(&state[..size_of::<Stream>()]);
        if stream.lease().is_none() {
            return;
        }
        match self.pool.copy_in(bytes, now) {
            Some(lease) => stream.set_lease(lease),
            None => stream.lose_lease(self.pool.number()),
        }
        state[..size_of::<Stream>()].copy_from_slice(bytemuck::bytes_of(&stream));
    }
}
