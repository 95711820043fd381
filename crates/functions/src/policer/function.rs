//! The `Policer` network function.

use super::limits::{Limit, Outcome, PolicerRules, Scope, SharedBuckets};
use bytemuck::{Pod, Zeroable};
use std::sync::Arc;
use tailwater_chain::batch::{Batch, MAX_BATCH, Packet, Verdict};
use tailwater_chain::function::{FlowStates, NetworkFunction, NewFlow};
use tailwater_chain::live::{Live, Version};
use tailwater_net::Nanos;
use tailwater_net::checksum::ChecksumDelta;

/// How a packet stands to its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Colour {
    Conforming,
    Exceeding,
    Violating,
}

const NO_LIMIT: u8 = 0;

/// Notes: packets that pass all the same.
const NOTES: &[&str] = &["exceeding-passed", "violating-passed"];

/// No limit matches the flow.
const NONE: u32 = u32::MAX;

/// What is kept of a flow.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct FlowState {
    /// The flow's own buckets, if its limit is per flow.
    committed: u64,
    peak: u64,
    /// The place of its limit, or [`NONE`].
    limit: u32,
    /// The version of the limits that it is a place in.
    version: u32,
}

impl FlowState {
    /// Finds the limit of a flow that another version of the limits, or another key, was decided by. What it took counts
    /// on if the key is the same, as far as its burst goes.
    #[cold]
    fn decide(&mut self, held: &Version<PolicerRules>, packet: &Packet) {
        let found = held.value.find(&packet.headers.key);
        let limit = found.map_or(NONE, |place| place as u32);
        if self.version == held.number && self.limit != limit {
            *self = FlowState::zeroed();
        }
        if let Some(limit) = found.map(|place| &held.value.limits()[place]) {
            self.committed = limit.committed.take_over(self.committed, packet.arrival);
            let peak = |peak: &super::Meter| peak.take_over(self.peak, packet.arrival);
            self.peak = limit.peak.as_ref().map_or(0, peak);
        }
        (self.limit, self.version) = (limit, held.number);
    }
}

/// Lets packets pass at a rate, with bursts, and drops or marks those beyond it.
pub struct Policer {
    rules: Arc<Live<PolicerRules>>,
    held: Arc<Version<PolicerRules>>,
    /// Whether flows' limits are kept with them, and their buckets can be.
    in_flow: bool,
    /// Packets of limits with shared buckets: the limit and the place in the batch.
    pending: Vec<(u32, u16)>,
    /// Places of packets of one such limit, and how they stand to one of its rates.
    places: Vec<u16>,
    conforms: Vec<bool>,
    notes: [u64; 2],
}

impl Policer {
    /// A worker's instance. Buckets that are not a flow's own are shared with all others.
    /// Flows are looked up unless one limit is for all packets; should limits that replace it not be so, they are found for
    /// each packet.
    pub fn new(rules: Arc<Live<PolicerRules>>) -> Policer {
        let held = rules.current();
        Policer {
            rules,
            in_flow: held.value.are_of_flows(),
            held,
            pending: Vec::with_capacity(MAX_BATCH),
            places: Vec::with_capacity(MAX_BATCH),
            conforms: Vec::with_capacity(MAX_BATCH),
            notes: [0; 2],
        }
    }
}

/// Does with a packet what its limit says.
#[inline]
fn apply(limit: &Limit, colour: Colour, batch: &mut Batch, place: u16, notes: &mut [u64; 2]) {
    let (outcome, reason) = match colour {
        Colour::Conforming => (limit.conforming, 0),
        Colour::Exceeding => (limit.exceeding, 1),
        Colour::Violating => (limit.violating, 2),
    };
    let (packet, frame) = batch.packet_mut(usize::from(place));
    if outcome == Outcome::Drop {
        packet.verdict = Verdict::Drop(reason);
        return;
    }
    if reason > 0 {
        notes[usize::from(reason) - 1] += 1;
    }
    if let Outcome::Mark(point) = outcome {
        mark(packet, frame, point);
    }
}

/// Writes a code point into an IP header, and leaves the two bits of explicit congestion notification.
#[inline]
fn mark(packet: &Packet, frame: &mut [u8], point: u8) {
    let Some(ip) = frame.get_mut(usize::from(packet.headers.network_offset)..) else {
        return;
    };
    match ip {
        [first, class, rest @ ..] if *first >> 4 == 4 && rest.len() >= 10 => {
            let old = u16::from_be_bytes([*first, *class]);
            *class = point << 2 | *class & 3;
            let delta = ChecksumDelta::u16(old, u16::from_be_bytes([*first, *class]));
            let checksum = u16::from_be_bytes([rest[8], rest[9]]);
            [rest[8], rest[9]] = delta.apply(checksum).to_be_bytes();
        }
        [first, second, ..] => {
            *first = *first & 0xf0 | point >> 2;
            *second = *second & 0x3f | point << 6;
        }
        _ => {}
    }
}

/// A packet's colour by buckets that nobody else uses.
#[inline]
fn colour(limit: &Limit, [committed, peak]: [&mut u64; 2], now: Nanos, bytes: usize) -> Colour {
    if let Some(meter) = &limit.peak
        && !meter.take(peak, now, bytes)
    {
        return Colour::Violating;
    }
    match limit.committed.take(committed, now, bytes) {
        true => Colour::Conforming,
        false if limit.peak.is_some() => Colour::Exceeding,
        false => Colour::Violating,
    }
}

/// Judges the packets at these places, which are those of one limit, by its shared buckets, and does what is
/// to be done. The peak's bucket comes first: what it refuses takes no committed tokens.
fn judge(
    (limit, buckets): (&Limit, &SharedBuckets),
    batch: &mut Batch,
    (places, conforms): (&mut Vec<u16>, &mut Vec<bool>),
    notes: &mut [u64; 2],
) {
    let sizes = |places: &[u16], batch: &Batch, conforms: &mut Vec<bool>, peak| {
        let packets = places.iter().map(|place| {
            let packet = batch.packet(usize::from(*place));
            (packet.arrival, packet.length())
        });
        match peak {
            Some(meter) => super::Meter::take_all(meter, &buckets.peak, packets, conforms),
            None => limit.committed.take_all(&buckets.committed, packets, conforms),
        }
    };
    if let Some(peak) = &limit.peak {
        sizes(places, batch, conforms, Some(peak));
        let mut at = 0;
        places.retain(|place| {
            let conforms = conforms[at];
            at += 1;
            if !conforms {
                apply(limit, Colour::Violating, batch, *place, notes);
            }
            conforms
        });
    }
    sizes(places, batch, conforms, None);
    let beyond = match limit.peak {
        Some(_) => Colour::Exceeding,
        None => Colour::Violating,
    };
    for (place, conforms) in places.iter().zip(&*conforms) {
        let colour = if *conforms { Colour::Conforming } else { beyond };
        apply(limit, colour, batch, *place, notes);
    }
}

impl NetworkFunction for Policer {
    fn kind(&self) -> &'static str {
        "Policer"
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        &["no-limit", "exceeding", "violating"]
    }

    fn notes(&self) -> &'static [&'static str] {
        NOTES
    }

    fn note_counts(&self) -> &[u64] {
        &self.notes
    }

    fn needs_payload(&self) -> bool {
        false
    }

    fn state_bytes(&self) -> usize {
        match self.in_flow {
            true => size_of::<FlowState>(),
            false => 0,
        }
    }

    fn version(&self) -> u32 {
        self.rules.number()
    }

    fn new_flow(&mut self, packet: &Packet, _: &[u8], flow: &mut NewFlow<'_>) -> Verdict {
        self.rules.refresh(&mut self.held);
        flow.state::<FlowState>().decide(&self.held, packet);
        Verdict::Forward
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut FlowStates<'_>) {
        self.rules.refresh(&mut self.held);
        let Policer {
            held,
            in_flow,
            pending,
            places,
            conforms,
            notes,
            ..
        } = self;
        let rules = &held.value;
        let limits = rules.limits();
        if rules.is_one_for_all() {
            places.clear();
            places.extend(0..batch.len() as u16);
            let shared = (&limits[0], &*rules.shared[0]);
            return judge(shared, batch, (places, conforms), notes);
        }
        let mut none;
        for place in 0..batch.len() as u16 {
            let packet = batch.packet(usize::from(place));
            let (now, bytes) = (packet.arrival, packet.length());
            let state = match in_flow {
                true => flows.state::<FlowState>(packet),
                false => {
                    none = FlowState::zeroed();
                    &mut none
                }
            };
            if state.version != held.number {
                // Limits were replaced between the batch's look-up and here, or nothing is kept.
                state.decide(held, packet);
            }
            let Some(limit) = limits.get(state.limit as usize) else {
                match rules.default {
                    Outcome::Drop => {
                        let (packet, _) = batch.packet_mut(usize::from(place));
                        packet.verdict = Verdict::Drop(NO_LIMIT);
                    }
                    Outcome::Mark(point) => {
                        let (packet, frame) = batch.packet_mut(usize::from(place));
                        mark(packet, frame, point);
                    }
                    Outcome::Pass => {}
                }
                continue;
            };
            match limit.scope {
                Scope::All => pending.push((state.limit, place)),
                Scope::Flow => {
                    let buckets = [&mut state.committed, &mut state.peak];
                    let colour = colour(limit, buckets, now, bytes);
                    apply(limit, colour, batch, place, notes);
                }
            }
        }
        // Limit by limit, each in order of arrival: shared buckets are touched once a batch.
        while let Some(&(first, _)) = pending.first() {
            places.clear();
            pending.retain(|(limit, place)| {
                if *limit == first {
                    places.push(*place);
                }
                *limit != first
            });
            let shared = (&limits[first as usize], &*rules.shared[first as usize]);
            judge(shared, batch, (places, conforms), notes);
        }
    }
}
