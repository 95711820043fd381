//! Check of a position in a trace, from which a queue of another process continues.

use super::image::Image;
use crate::port::{QueuePosition, TrafficIdentity};

/// Latest time that a position may name: later ones would overflow.
const LATEST: u64 = u64::MAX / 4;

/// Traffic of a trace NIC.
pub(super) fn identity(image: &Image, queues: u16) -> TrafficIdentity {
    let trace = &image.trace;
    TrafficIdentity {
        name: trace.name().to_owned(),
        packets: trace.len() as u64,
        bytes: trace.bytes(),
        duration: trace.duration().0,
        queues,
    }
}

/// Returns `true` if a position is one of a trace of `packets` packets, for a queue with a ring of `ring` packets.
pub(super) fn is_known(position: &QueuePosition, packets: usize, ring: usize) -> bool {
    let packets = packets as u64;
    let mut waiting = position.waiting.iter();
    position.next < packets
        && position.start.max(position.lap_start) <= LATEST
        && position.waiting.len() <= ring
        && waiting.all(|(arrival, number, _)| u64::from(*number) < packets && *arrival <= LATEST)
}
