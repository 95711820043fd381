//! The `Policer` network function.

use super::bucket::STEPS;
use super::limits::{ExceedAction, Limit, PolicerRules, Scope, SharedBuckets};
use crate::kind::StateFormat;
use bytemuck::{Pod, Zeroable};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tailwater_chain::batch::{Batch, MAX_BATCH, Packet, Verdict};
use tailwater_chain::function::{
    DurableState, Explanation, FlowStates, FunctionProperties, NetworkFunction, NewFlow, TracedPacket,
};
use tailwater_chain::live::{Live, Version};
use tailwater_net::Nanos;
use tailwater_net::checksum::ChecksumDelta;

/// Colour of a packet under its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Colour {
    Conforming,
    Exceeding,
    Violating,
}

const NO_LIMIT: u8 = 0;

/// Counters of packets beyond a limit that pass nevertheless.
const COUNTERS: &[&str] = &["exceeding-passed", "violating-passed"];

/// Value for flows that match no limit.
const NONE: u32 = u32::MAX;

/// Flow state.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct FlowState {
    /// Buckets of the flow, if its limit is per flow.
    committed: u64,
    peak: u64,
    /// Index of its limit, or [`NONE`].
    limit: u32,
    /// Version of the limits the index refers to.
    version: u32,
}

impl FlowState {
    /// Finds the flow's limit anew after a change of the limits or of its key. If the key is the same, tokens taken
    /// still count, up to the new burst.
    #[cold]
    fn decide(&mut self, cached_rules: &Version<PolicerRules>, packet: &Packet) {
        let found = cached_rules.value.find(&packet.headers.key);
        let limit = found.map_or(NONE, |place| place as u32);
        if self.version == cached_rules.number && self.limit != limit {
            *self = FlowState::zeroed();
        }
        if let Some(limit) = found.map(|place| &cached_rules.value.limits()[place]) {
            self.committed = limit.committed.take_over(self.committed, packet.arrival);
            let peak = |peak: &super::Meter| peak.take_over(self.peak, packet.arrival);
            self.peak = limit.peak.as_ref().map_or(0, peak);
        }
        (self.limit, self.version) = (limit, cached_rules.number);
    }
}

/// Network function that enforces rates with bursts: packets beyond are dropped or marked.
pub struct Policer {
    rules: Arc<Live<PolicerRules>>,
    held: Arc<Version<PolicerRules>>,
    /// `true` if the flow state holds limits and per-flow buckets.
    in_flow: bool,
    /// Packets of limits with shared buckets: limit and index in the batch.
    pending: Vec<(u32, u16)>,
    /// Batch indices of one such limit's packets; `conforms` holds their results for one rate.
    places: Vec<u16>,
    conforms: Vec<bool>,
    counters: [u64; 2],
}

impl Policer {
    /// Creates a worker's instance. Buckets that are not per flow are shared by all instances.
    ///
    /// Flows are looked up unless one limit covers all packets. If such a limit is later replaced by narrower ones,
    /// these are matched per packet.
    pub fn new(rules: Arc<Live<PolicerRules>>) -> Policer {
        let held = rules.current();
        Policer {
            rules,
            in_flow: held.value.are_of_flows(),
            held,
            pending: Vec::with_capacity(MAX_BATCH),
            places: Vec::with_capacity(MAX_BATCH),
            conforms: Vec::with_capacity(MAX_BATCH),
            counters: [0; 2],
        }
    }
}

/// Applies a limit's outcome for this colour to a packet.
#[inline]
fn apply(limit: &Limit, colour: Colour, batch: &mut Batch, place: u16, notes: &mut [u64; 2]) {
    let (outcome, reason) = match colour {
        Colour::Conforming => (limit.conforming, 0),
        Colour::Exceeding => (limit.exceeding, 1),
        Colour::Violating => (limit.violating, 2),
    };
    let (packet, frame) = batch.packet_mut(usize::from(place));
    if outcome == ExceedAction::Drop {
        packet.verdict = Verdict::Drop(reason);
        return;
    }
    if reason > 0 {
        notes[usize::from(reason) - 1] += 1;
    }
    if let ExceedAction::Mark(point) = outcome {
        mark(packet, frame, point);
    }
}

/// Writes a DSCP into an IP header and preserves the two ECN bits.
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

/// Returns a packet's colour by unshared buckets.
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

/// Meters the packets at these indices, all of one limit, by its shared buckets, and applies the outcomes. The peak
/// bucket comes first: packets it refuses take no committed tokens.
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

/// Buckets of flows pass to a process that takes over from this one.
/// Version of the state's portable form.
const FORMAT_VERSION: u32 = 1;

/// Portable form of the state, made without an instance.
pub(super) fn state_format() -> StateFormat {
    StateFormat::converted((FORMAT_VERSION, size_of::<FlowState>()), to_durable, restore_durable)
}

fn to_durable(state: &mut [u8], origin: Nanos) {
    change(state, |time| time.wrapping_add(origin.0.wrapping_shl(STEPS)));
}

fn restore_durable(state: &mut [u8], origin: Nanos) {
    change(state, |time| time.wrapping_sub(origin.0.wrapping_shl(STEPS)));
}

impl DurableState for Policer {
    fn format_version(&self) -> u32 {
        FORMAT_VERSION
    }

    fn to_durable(&self, state: &mut [u8], origin: Nanos) {
        to_durable(state, origin);
    }

    fn restore_durable(&mut self, state: &mut [u8], origin: Nanos) {
        restore_durable(state, origin);
    }
}

/// Changes the times of a flow's buckets. Its limit is found anew.
fn change(state: &mut [u8], change: impl Fn(u64) -> u64) {
    let state = &mut state[..size_of::<FlowState>()];
    let mut flow: FlowState = bytemuck::pod_read_unaligned(state);
    (flow.committed, flow.peak) = (change(flow.committed), change(flow.peak));
    (flow.limit, flow.version) = (NONE, 0);
    state.copy_from_slice(bytemuck::bytes_of(&flow));
}

impl NetworkFunction for Policer {
    fn kind(&self) -> &'static str {
        "Policer"
    }

    fn drop_reasons(&self) -> &'static [&'static str] {
        &["no-limit", "exceeding", "violating"]
    }

    fn counters(&self) -> &'static [&'static str] {
        COUNTERS
    }

    fn counter_values(&self) -> &[u64] {
        &self.counters
    }

    fn state_bytes(&self) -> usize {
        match self.in_flow {
            true => size_of::<FlowState>(),
            false => 0,
        }
    }

    /// A bucket of all packets begins full: at most one burst more passes.
    fn can_restart(&self) -> bool {
        !self.in_flow
    }

    fn properties(&self) -> FunctionProperties {
        FunctionProperties::HEADERS_ONLY
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
            counters: notes,
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
                // The limits were replaced after the batch's lookup, or there is no flow state.
                state.decide(held, packet);
            }
            let Some(limit) = limits.get(state.limit as usize) else {
                match rules.default {
                    ExceedAction::Drop => {
                        let (packet, _) = batch.packet_mut(usize::from(place));
                        packet.verdict = Verdict::Drop(NO_LIMIT);
                    }
                    ExceedAction::Mark(point) => {
                        let (packet, frame) = batch.packet_mut(usize::from(place));
                        mark(packet, frame, point);
                    }
                    ExceedAction::Pass => {}
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
        // Grouped by limit, each group in order of arrival: a shared bucket is updated once per batch.
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

    fn explain(&self, traced: &TracedPacket<'_>, flows: &mut FlowStates<'_>, text: &mut Explanation) {
        let (packet, rules) = (traced.packet(), &self.held.value);
        let found = match rules.is_one_for_all() {
            true => Some(0),
            false => rules.find(&traced.key),
        };
        let Some((at, limit)) = found.and_then(|at| Some((at, rules.limits().get(at)?))) else {
            return text.add(format_args!("no limit"));
        };
        text.add(format_args!("limit {}", at + 1));
        let state = match (self.in_flow, limit.scope) {
            (true, Scope::Flow) => Some(*flows.state::<FlowState>(packet)),
            _ => None,
        };
        let [committed, peak] = match (state, rules.shared.get(at)) {
            (Some(state), _) => {
                text.add(format_args!(" per flow"));
                [state.committed, state.peak]
            }
            (None, Some(shared)) => [&shared.committed, &shared.peak].map(|bucket| bucket.load(Ordering::Relaxed)),
            (None, None) => return,
        };
        let mut left = |name: &str, meter: &super::Meter, bucket| {
            let (left, all) = meter.level(bucket, packet.arrival);
            text.add_part(format_args!("{left} of {all} {}{name} left", meter.unit()));
        };
        left("", &limit.committed, committed);
        if let Some(meter) = &limit.peak {
            left(" of the peak", meter, peak);
        }
    }

    fn portable(&mut self) -> Option<&mut dyn DurableState> {
        Some(self)
    }
}
