//! Comparison of packets as they left two chains.

use super::rig::{Frame, Rig, Sent};
use std::collections::HashSet;

/// Packets of the checks that compare runs, and their flows.
pub const PACKETS: usize = 2_000;
pub const FLOWS: usize = 64;
/// Size of an ordinary batch.
pub const BATCH: usize = 32;
/// Packets with their numbers.
pub fn numbered(packets: &[(usize, Vec<u8>)]) -> Vec<Frame<'_>> {
    (0..)
        .zip(packets)
        .map(|(number, (_, frame))| (number, frame.as_slice()))
        .collect()
}

/// Compares packets as they left two chains. `counts` selects the packets that must be equal.
pub fn compare(one: &[Sent], other: &[Sent], counts: impl Fn(usize) -> bool) -> Result<(), String> {
    let different = one
        .iter()
        .zip(other)
        .enumerate()
        .filter(|(i, (a, b))| counts(*i) && a != b);
    let places: Vec<(usize, (&Sent, &Sent))> = different.collect();
    let Some((first, (a, b))) = places.first() else {
        return Ok(());
    };
    let what = match (a, b) {
        (Some(_), None) => "sent, then not",
        (None, Some(_)) => "not sent, then sent",
        _ => "sent with other bytes",
    };
    Err(format!(
        "{} packets differ; the first is packet {first}: {what}",
        places.len()
    ))
}

/// Ends rigs in order, as runs do.
pub fn drain(rigs: impl IntoIterator<Item = Rig>) {
    rigs.into_iter().for_each(Rig::drain);
}

/// Returns a test for packets of flows that had a packet in the first half.
pub fn known<'p>(packets: &'p [(usize, Vec<u8>)]) -> impl Fn(usize) -> bool + 'p {
    let half = packets.len() / 2;
    let seen: HashSet<usize> = packets[..half].iter().map(|(flow, _)| *flow).collect();
    move |i| i < half || seen.contains(&packets[i].0)
}
