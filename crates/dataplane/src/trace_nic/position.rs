//! Positions in a trace, from which queues of another process continue.

use super::image::{Image, Lap};
use crate::port::{QueuePosition, TrafficIdentity, round_robin};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::bucket_of;

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
        renumber_bits: image.renumber_bits,
    }
}

/// Packets that may wait in a queue at most.
const MOST_WAITING: usize = 1 << 20;

/// Returns `true` if a position is one of a trace of `packets` packets.
pub(super) fn is_known(position: &QueuePosition, packets: usize) -> bool {
    let packets = packets as u64;
    let mut waiting = position.waiting.iter();
    position.next < packets
        && position.start.max(position.lap_start) <= LATEST
        && position.waiting.len() <= MOST_WAITING
        && waiting.all(|(arrival, number, _)| u64::from(*number) < packets && *arrival <= LATEST)
}

/// Positions of `queues` queues that continue at these of another number of queues. Each gets what waits of its RSS
/// buckets, and all continue at the packet to which the furthest one has come: the packets up to there have arrived.
/// Packets arrive for `duration`, if that is given, or once. `None` if the positions are of other traffic.
pub(super) fn divide(
    image: &Image,
    positions: &[QueuePosition],
    queues: u16,
    duration: Option<Nanos>,
) -> Option<Vec<QueuePosition>> {
    let packets = image.descriptors.len();
    if !positions.iter().all(|position| is_known(position, packets)) {
        return None;
    }
    let furthest = positions
        .iter()
        .max_by_key(|position| (position.lap_start, position.next))?;
    let (before, after) = (round_robin(positions.len() as u16), round_robin(queues));
    let mut waiting: Vec<(u64, u32, u32)> = Vec::new();
    for (queue, position) in positions.iter().enumerate() {
        waiting.extend(&position.waiting);
        let end = duration.map_or(u64::MAX, |duration| position.start.saturating_add(duration.0));
        let mut lap = Lap::new(image, position.lap, Nanos(position.lap_start));
        let mut next = position.next as usize;
        let mut passed = 0;
        while !position.ended && (lap.start.0, next as u64) < (furthest.lap_start, furthest.next) {
            let descriptor = &image.descriptors[next];
            let arrival = lap.start + descriptor.arrival;
            let is_own = usize::from(before[usize::from(bucket_of(lap.rss_hash(descriptor)))]) == queue;
            if is_own && arrival.0 < end {
                waiting.push((arrival.0, next as u32, lap.number));
            }
            // Queues are polled within milliseconds of each other.
            passed += 1;
            if passed > MOST_WAITING {
                return None;
            }
            next += 1;
            if next == packets {
                (next, lap) = (0, lap.next(image));
            }
        }
    }
    // In the order of their arrival, which is that of a flow.
    waiting.sort_by_key(|(arrival, number, _)| (*arrival, *number));
    let mut divided: Vec<QueuePosition> = (0..queues)
        .map(|_| QueuePosition {
            waiting: Vec::new(),
            ..furthest.clone()
        })
        .collect();
    let mut of_lap: Option<Lap> = None;
    for packet in waiting {
        let (_, number, lap) = packet;
        let lap = match of_lap {
            Some(same) if same.number == lap => same,
            _ => Lap::new(image, lap, Nanos::ZERO),
        };
        of_lap = Some(lap);
        let bucket = bucket_of(lap.rss_hash(&image.descriptors[number as usize]));
        divided[usize::from(after[usize::from(bucket)])].waiting.push(packet);
    }
    Some(divided)
}
