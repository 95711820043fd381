//! Reception by a worker whose RSS buckets may migrate.

use crate::attribution::Cause;
use crate::port::{PortQueue, Received};
use crate::scaling::buckets::Buckets;
use crate::scaling::dispatch::Dispatch;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_net::Nanos;

/// Receives from the port, and packets buffered for a migrated RSS bucket.
#[inline]
pub(super) fn receive(
    (queue, buckets): (&mut dyn PortQueue, Option<&mut Buckets>),
    now: Nanos,
    pool: &mut BufferPool,
    batch: &mut Batch,
) -> Received {
    match buckets {
        None => queue.receive(now, pool, batch),
        Some(buckets) => buckets.receive(queue, now, pool, batch),
    }
}

/// Cause of a full ring whose worker was running. Either buffered packets of migrating buckets hold all buffers, or
/// auxiliary cores hold most of them, so little can be received. Otherwise the load exceeds the worker's capacity.
pub(super) fn cause_of_full(pool: &BufferPool, dispatch: Option<&Dispatch>, buckets: Option<&Buckets>) -> Cause {
    let offloaded = dispatch.map_or(0, Dispatch::offloaded) as usize;
    if buckets.is_some_and(Buckets::no_buffer) {
        Cause::Migration
    } else if 2 * offloaded > pool.most() as usize {
        Cause::Waking
    } else {
        Cause::RingFull
    }
}
