//! Chains: functions in order, run to completion on one batch at a time.

mod external_state;
mod forks;
mod isolated;
mod opening;
mod segment;
mod snapshotter;
mod stage;
mod stopwatch;

pub use external_state::{DurableFlow, DurableFunction, PersistState, durable_functions, state_bytes_with_persistence};
pub use isolated::IsolatedChain;
pub use segment::Cuts;
pub use stage::{Outcome, Reason};
pub use stopwatch::{FunctionTime, ReadClock};

use crate::batch::{Batch, MAX_BATCH, Packet, Verdict};
use crate::branches::START;
use crate::flow_table::{EndedFlows, FlowCounters, FlowIndex, FlowTable, Partition};
use crate::function::{FlowStates, NetworkFunction, StateSlot, UNSEEN};
use external_state::ExternalState;
use forks::SplitPool;
use segment::{Layout, Segment};
use snapshotter::Snapshotter;
use stage::Stage;
use std::ops::Range;
use stopwatch::Stopwatch;
use tailwater_api::PacketAction;
use tailwater_net::Nanos;
use tailwater_net::parse::{Fragment, Malformed, Network, parse, parse_ordinary};

/// Flows whose timers are checked in one call: about as many as a batch can open.
const EXPIRE_BUDGET: usize = 64;

/// Verdict on a packet that functions cannot process.
fn unfit_verdict(fate: PacketAction) -> Verdict {
    match fate {
        PacketAction::Drop => Verdict::Drop(0),
        PacketAction::Pass => Verdict::Bypass,
    }
}

/// Treatment of packets in front of the first function.
#[derive(Clone, Copy, Debug)]
pub struct InputPolicy {
    /// Packets whose headers are truncated, contradictory or out of range.
    pub malformed: PacketAction,
    /// Packets that are not IP (ARP, LLDP, ...).
    pub non_ip: PacketAction,
}

/// Returns the size in bytes of the flow state that these functions need together.
pub fn state_bytes(functions: &[(String, Box<dyn NetworkFunction>)]) -> usize {
    state_bytes_with_cuts(functions, Cuts::NONE)
}

/// Returns the size in bytes of the flow state that these functions need together, in a chain with these cuts.
pub fn state_bytes_with_cuts(functions: &[(String, Box<dyn NetworkFunction>)], cuts: Cuts) -> usize {
    Layout::new(functions, cuts).bytes
}

/// Instance of a chain on one worker.
pub struct Chain {
    stages: Vec<Stage>,
    segments: Vec<Segment>,
    table: Option<FlowTable>,
    ends: EndedFlows,
    input: InputPolicy,
    malformed: [u64; Malformed::COUNT],
    non_ip: u64,
    flow_table_full: u64,
    bucket_not_owned: u64,
    lost: u64,
    /// Batch indices of packets whose flows a function has not seen.
    unseen: Vec<u16>,
    /// Flow state kept in Redis; `None` if all flow state is local.
    external_state: Option<Box<ExternalState>>,
    /// Writes snapshots of an isolated function's flows, if its state is kept in Redis.
    snapshotter: Option<Box<Snapshotter>>,
    /// `true` if the chain's other functions run in other processes.
    isolated: bool,
    /// `true` if the chain has branches.
    branches: bool,
    /// Packets that wait while other branches run.
    waiting: SplitPool,
    /// Timer of the functions, if they are timed.
    stopwatch: Option<Box<Stopwatch>>,
}

/// Flow with packets in the system, as returned by [`Chain::activate`].
#[derive(Clone, Copy, Debug)]
pub struct ActiveFlow(FlowIndex);

impl ActiveFlow {
    /// No flow.
    pub const NONE: ActiveFlow = ActiveFlow(FlowIndex::NONE);
}

impl Chain {
    /// Creates a chain of named functions with one segment. `table` is a view of the flow table created for
    /// [`state_bytes`] of these functions; without it, no flow is looked up.
    ///
    /// # Panics
    /// - If a function has state, and there is no table or its rows are too narrow.
    /// - If a function has more than [`MAX_DROP_REASONS`](crate::function::MAX_DROP_REASONS).
    /// - If one function [tracks connections](NetworkFunction::tracks_connections) and another [opens
    ///   companions](NetworkFunction::opens_companions).
    pub fn new(
        functions: Vec<(String, Box<dyn NetworkFunction>)>,
        table: Option<FlowTable>,
        input: InputPolicy,
    ) -> Chain {
        Chain::with_cuts(functions, table, input, Cuts::NONE)
    }

    /// Same as [`new`](Chain::new), cut into segments. `table` is sized for [`state_bytes_with_cuts`].
    ///
    /// # Panics
    /// Same as [`new`](Chain::new).
    pub fn with_cuts(
        functions: Vec<(String, Box<dyn NetworkFunction>)>,
        table: Option<FlowTable>,
        input: InputPolicy,
        cuts: Cuts,
    ) -> Chain {
        let layout = Layout::new(&functions, cuts);
        Chain::with_layout(functions, table, input, layout)
    }

    fn with_layout(
        functions: Vec<(String, Box<dyn NetworkFunction>)>,
        mut table: Option<FlowTable>,
        input: InputPolicy,
        layout: Layout,
    ) -> Chain {
        let Layout {
            segments,
            slots,
            bytes,
            connections,
        } = layout;
        let room = table.as_ref().map_or(0, FlowTable::state_bytes);
        assert!(
            bytes <= room,
            "the flow table has {room} bytes a flow, the chain needs {bytes}"
        );
        let wanted = functions.iter().any(|(_, function)| function.wants_flow_ends());
        let companions = segments.iter().any(|segment| segment.opens_companions);
        assert!(
            !(connections && companions),
            "a flow that is a connection has no companion"
        );
        if let Some(table) = &mut table {
            table.of_connections(connections);
            let mut lifetimes = functions
                .iter()
                .zip(&slots)
                .filter_map(|((_, f), slot)| Some((f.lifetimes()?, slot.as_ref()?.state.clone())));
            table.set_lifetimes(lifetimes.next());
            let looks = functions.iter().filter_map(|(_, f)| f.timer_interval());
            table.set_timer_interval(looks.min(), EXPIRE_BUDGET);
        }
        // State of other segments may be in another core's cache; the core that processes a packet prefetches it.
        if let (Some(table), [first, _, ..]) = (&mut table, &segments[..]) {
            table.fetch_at_look_up(first.bytes.clone());
        }
        let stages = functions
            .into_iter()
            .zip(slots)
            .map(|((name, function), slot)| Stage::new(name, function, slot))
            .collect();
        Chain {
            stages,
            segments,
            ends: EndedFlows::new(room, wanted),
            table,
            input,
            malformed: [0; Malformed::COUNT],
            non_ip: 0,
            flow_table_full: 0,
            bucket_not_owned: 0,
            lost: 0,
            unseen: Vec::with_capacity(MAX_BATCH),
            external_state: None,
            snapshotter: None,
            isolated: false,
            branches: false,
            waiting: SplitPool::default(),
            stopwatch: None,
        }
    }

    /// Takes over the flows of an RSS bucket.
    pub fn adopt(&mut self, partition: Partition) {
        if let Some(table) = &mut self.table {
            table.adopt(partition);
        }
    }

    /// Releases the flows of an RSS bucket, for another instance to [adopt](Chain::adopt). Returns `None` if this
    /// instance does not hold them or has no flow table. None of their packets may be in the system here.
    pub fn release(&mut self, bucket: u16) -> Option<Partition> {
        let table = self.table.as_mut()?;
        for stage in &mut self.stages {
            stage.function.before_flows_move();
        }
        table.release(bucket)
    }

    /// Number of RSS buckets whose flows this instance holds.
    pub fn buckets(&self) -> usize {
        self.table.as_ref().map_or(0, FlowTable::buckets)
    }

    /// Maximum size of the next batch, if a function requires one.
    #[inline]
    pub fn wanted_batch(&self) -> Option<usize> {
        let sizes = self.stages.iter();
        let sizes = sizes.filter_map(|stage| stage.function.wanted_batch());
        sizes.min()
    }

    /// Returns `true` if the chain looks flows up.
    pub fn has_flows(&self) -> bool {
        self.table.is_some()
    }

    /// Counters of the flow table, if there is one.
    pub fn flow_counters(&self) -> Option<FlowCounters> {
        self.table.as_ref().map(FlowTable::counters)
    }

    /// Number of flows in this worker's partitions.
    pub fn flows(&self) -> usize {
        self.table.as_ref().map_or(0, FlowTable::flows)
    }

    /// Runs the batch through all functions. The packets that remain in it are to be sent.
    pub fn process(&mut self, batch: &mut Batch, now: Nanos) {
        self.look_up(batch, now);
        if self.segments.len() > 1 {
            self.prefetch_segments(1..self.segments.len(), batch);
        }
        self.run(batch, now);
    }

    /// First half of [`process`](Chain::process): finds headers and flows. Packets that must not reach the functions
    /// leave the batch and rejoin it at the end of [`run`](Chain::run).
    #[inline]
    pub fn look_up(&mut self, batch: &mut Batch, now: Nanos) {
        self.classify(batch);
        if self.branches {
            // A packet may come from another chain.
            batch.iter_mut().for_each(|packet| packet.path = START);
        }
        for segment in 0..self.segments.len() {
            if self.segments[segment].opens_companions {
                self.segments[segment].settled = self.settled_version(segment);
            }
        }
        if let Some(table) = &mut self.table {
            table.lookup(batch.slots_mut(), now, &mut self.ends);
            report_flow_ends(&mut self.stages, &mut self.ends);
            // A packet without an entry for its flow cannot be processed.
            let mut refused = false;
            for packet in batch.iter_mut().filter(|packet| packet.flow().is_none()) {
                packet.verdict = Verdict::Drop(0);
                refused = true;
            }
            if refused {
                let table = &*table;
                batch.compact(|packet, _| {
                    self.lost += 1;
                    match table.holds(packet.rss_hash) {
                        true => self.flow_table_full += 1,
                        false => self.bucket_not_owned += 1,
                    }
                });
            }
        }
    }

    /// Times each function from now on with the clock `read`. Batches processed at a time before `from` do not count.
    /// The cost is two clock readings for each function and batch.
    pub fn time_functions(&mut self, read: ReadClock, from: Nanos) {
        self.stopwatch = Some(Box::new(Stopwatch::new(read, from, self.stages.len())));
    }

    /// Returns the time each function took, in chain order; empty if they were not [timed](Chain::time_functions).
    pub fn function_times(&self) -> Vec<FunctionTime> {
        let spent = self.stopwatch.iter().flat_map(|watch| watch.spent());
        let times = self.stages.iter().zip(spent).map(|(stage, spent)| FunctionTime {
            function: stage.name.clone(),
            packets: spent.packets,
            timed: spent.timed,
            time: Nanos(spent.nanos),
        });
        times.collect()
    }

    /// Number of segments; at least 1 if the chain has a function.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// Returns the segment that begins with the last `functions` functions; `None` if none does, or if it is the first.
    pub fn segment_of_last(&self, functions: usize) -> Option<usize> {
        let first = self.stages.len().checked_sub(functions)?;
        let mut segments = self.segments.iter().skip(1);
        Some(1 + segments.position(|segment| segment.stages.start == first)?)
    }

    /// Returns `true` if a function in front of this segment [needs](NetworkFunction::needs_payload) whole frames.
    pub fn needs_payload_before(&self, segment: usize) -> bool {
        let end = self.segments[segment].stages.start;
        let mut stages = self.stages[..end].iter();
        stages.any(|stage| stage.function.needs_payload())
    }

    /// Prefetches the flow state for this segment and later ones, of packets that were looked up earlier or on another
    /// core.
    #[inline]
    pub fn prefetch_from(&self, segment: usize, batch: &Batch) {
        self.prefetch_segments(segment..self.segments.len(), batch);
    }

    /// Same as [`prefetch_from`](Chain::prefetch_from), for the segments in front of this one.
    #[inline]
    pub fn prefetch_before(&self, segment: usize, batch: &Batch) {
        self.prefetch_segments(0..segment, batch);
    }

    #[inline]
    fn prefetch_segments(&self, segments: Range<usize>, batch: &Batch) {
        if let Some(table) = &self.table {
            for segment in &self.segments[segments] {
                let packets = batch.iter();
                packets.for_each(|packet| table.prefetch_state(packet.flow, &segment.bytes));
            }
        }
    }

    /// Second half of [`process`](Chain::process): runs packets that were looked up, in this instance or, if they were
    /// offloaded, in another one, through all functions.
    #[inline]
    pub fn run(&mut self, batch: &mut Batch, now: Nanos) {
        self.run_from(0, batch, now);
    }

    /// Runs packets that were looked up through the functions in front of a segment. The remaining packets
    /// [continue](Chain::run_from) there, possibly in another instance; their metadata goes with them.
    #[inline]
    pub fn run_before(&mut self, segment: usize, batch: &mut Batch, now: Nanos) {
        for before in 0..segment {
            self.run_segment(before, batch, now);
        }
        for packet in batch.iter_mut() {
            packet.segment = segment as u8;
        }
    }

    /// Runs packets that have passed the functions in front of a segment through the others.
    #[inline]
    pub fn run_from(&mut self, segment: usize, batch: &mut Batch, now: Nanos) {
        for segment in segment..self.segments.len() {
            self.run_segment(segment, batch, now);
        }
        batch.rejoin_bypass();
    }

    #[inline]
    fn run_segment(&mut self, segment: usize, batch: &mut Batch, now: Nanos) {
        let unsettled = self.mark_settled(segment, batch);
        if self.segments[segment].forks.is_some() {
            self.run_forks(segment, batch, (now, unsettled));
        } else {
            for i in self.segments[segment].stages.clone() {
                if batch.is_empty() {
                    break;
                }
                self.run_stage(i, segment, batch, (now, unsettled));
            }
        }
        if unsettled {
            self.settle(segment, batch);
        }
    }

    /// Runs packets through function `i`, which belongs to this segment. `unsettled` is `true` if it may not have seen
    /// all of their flows.
    #[inline(always)]
    fn run_stage(&mut self, i: usize, segment: usize, batch: &mut Batch, (now, unsettled): (Nanos, bool)) {
        let timed = self.stopwatch.as_ref();
        let timed = timed.map(|watch| (batch.len(), watch.read()));
        if unsettled {
            self.open_new_flows(i, segment, batch, now);
        }
        let stage = &mut self.stages[i];
        let slot = stage.slot.as_ref();
        let mut flows = FlowStates {
            ends: &mut self.ends,
            now,
            version: stage.function.version(),
            table: if slot.is_some() { self.table.as_mut() } else { None },
            slot: slot.unwrap_or(
                const {
                    &StateSlot {
                        version: 0,
                        state: 0..0,
                        version_apart: 0,
                        state_apart: 0,
                    }
                },
            ),
        };
        stage.function.process(batch, &mut flows);
        self.lost += stage.compact(batch);
        if let (Some((packets, began)), Some(watch)) = (timed, &mut self.stopwatch) {
            watch.note(i, packets, [now, began]);
        }
        if self.segments[segment].opens_companions {
            report_flow_ends(&mut self.stages, &mut self.ends);
        }
    }

    /// Returns the active number of the packet's flow, if it has packets in the system.
    ///
    /// # Panics
    /// If the packet was not looked up in this instance.
    #[inline]
    pub fn active(&self, packet: &Packet) -> Option<u16> {
        self.table.as_ref()?.active(packet.flow)
    }

    /// Assigns an active number below 65,535 to the packet's flow. Until it is [removed](Chain::deactivate), the flow
    /// stays in the table.
    ///
    /// # Panics
    /// If the packet was not looked up in this instance.
    #[inline]
    pub fn activate(&mut self, packet: &Packet, number: u16) -> ActiveFlow {
        if let Some(table) = &mut self.table {
            table.set_active(packet.flow, Some(number));
        }
        ActiveFlow(packet.flow)
    }

    /// Removes the active number: the flow has no packets in the system any more.
    #[inline]
    pub fn deactivate(&mut self, flow: ActiveFlow) {
        if let Some(table) = &mut self.table {
            table.set_active(flow.0, None);
        }
    }

    /// Returns `true` if the core that looked the packet up must process it: a function opens a companion for each
    /// flow, and has not opened one for this flow. This includes flows that branches keep away from such a function's
    /// segment, because their branch is not known yet.
    #[inline]
    pub fn is_bound(&mut self, packet: &Packet) -> bool {
        let Some(table) = &mut self.table else {
            return false;
        };
        let mut opening = self.segments.iter().filter(|s| s.opens_companions);
        opening.any(|segment| *table.word(packet.flow, segment.settled_at(packet.is_reversed())) != segment.settled)
    }

    /// Expires idle flows, up to a fixed budget for each call.
    #[inline]
    pub fn expire(&mut self, now: Nanos) {
        if let Some(table) = &mut self.table {
            table.expire(now, EXPIRE_BUDGET, &mut self.ends);
            while let Some(flow) = table.take_due_flow() {
                run_timers(&mut self.stages, table, flow, now);
            }
            if let Some(keep) = &mut self.external_state {
                self.ends.each(|key, state| keep.record_ended(key, state));
            }
            report_flow_ends(&mut self.stages, &mut self.ends);
        }
    }

    /// Ends the run after the last packet: ends every remaining flow, so that functions that report flows see all of
    /// them. Returns the packets counted during the call for each of the [`reasons`](Chain::reasons).
    pub fn drain(mut self) -> Vec<u64> {
        let before: Vec<u64> = self.reason_counts().collect();
        self.end_flows();
        for stage in &mut self.stages {
            stage.function.after_flow_ends();
        }
        let counted = self.reason_counts().zip(before);
        counted.map(|(after, before)| after - before).collect()
    }

    fn end_flows(&mut self) {
        for stage in &mut self.stages {
            stage.function.drain();
        }
        let wanted = self.stages.iter().any(|stage| stage.function.wants_flow_ends());
        let Some(table) = self.table.as_mut().filter(|_| wanted) else {
            return;
        };
        loop {
            // At most the number of flows, with companions, that `ends` has room for.
            let more = table.end_some(MAX_BATCH, &mut self.ends);
            report_flow_ends(&mut self.stages, &mut self.ends);
            if !more {
                return;
            }
        }
    }

    /// Parses each packet's headers, and sorts out the packets that must not reach the functions.
    #[inline]
    fn classify(&mut self, batch: &mut Batch) {
        let mut unfit = false;
        batch.for_each(|packet, frame| {
            if !parse_ordinary(frame, &mut packet.headers) {
                unfit |= self.classify_other(packet, frame);
            }
        });
        if unfit {
            batch.compact(|_, _| {});
        }
    }

    /// Parses a packet that is not an ordinary one. Returns `true` if functions cannot process it.
    #[inline(never)]
    fn classify_other(&mut self, packet: &mut Packet, frame: &[u8]) -> bool {
        match parse(frame) {
            Ok(headers) if headers.network == Network::NotIp => {
                self.non_ip += 1;
                packet.headers = headers;
                packet.verdict = unfit_verdict(self.input.non_ip);
                true
            }
            Ok(headers) => {
                packet.headers = headers;
                if headers.fragment != Fragment::Whole {
                    packet.headers.key = headers.key.of_fragment();
                }
                false
            }
            Err(reason) => {
                self.malformed[reason.index()] += 1;
                packet.verdict = unfit_verdict(self.input.malformed);
                true
            }
        }
    }

    /// All reasons under which the chain counts packets.
    pub fn reasons(&self) -> Vec<Reason> {
        let outcome = |fate| match fate {
            PacketAction::Drop => Outcome::Dropped,
            PacketAction::Pass => Outcome::Passed,
        };
        let malformed = Malformed::ALL.iter().map(|reason| Reason {
            function: None,
            name: format!("malformed/{}", reason.name()),
            outcome: outcome(self.input.malformed),
        });
        let non_ip = Reason {
            function: None,
            name: "non-ip".to_owned(),
            outcome: outcome(self.input.non_ip),
        };
        let lost_unavailable = self.external_state.as_ref().map(|_| "state-unavailable");
        let lost = ["flow-table-full", "bucket-not-held"].into_iter();
        let lost = lost.chain(lost_unavailable).map(|name| Reason {
            function: None,
            name: name.to_owned(),
            outcome: Outcome::Lost,
        });
        let functions = self.stages.iter().flat_map(Stage::reasons);
        malformed.chain([non_ip]).chain(lost).chain(functions).collect()
    }

    /// Packets counted so far under each of the [`reasons`](Chain::reasons), in their order.
    pub fn reason_counts(&self) -> impl Iterator<Item = u64> {
        let functions = self.stages.iter().flat_map(Stage::reason_counts);
        let own = [self.non_ip, self.flow_table_full, self.bucket_not_owned];
        let lost_unavailable = self.external_state.as_ref().map(|keep| keep.lost_unavailable);
        let own = own.into_iter().chain(lost_unavailable);
        self.malformed.iter().copied().chain(own).chain(functions)
    }

    /// Packets lost so far: sum over all reasons whose outcome is [`Outcome::Lost`].
    #[inline]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

/// Calls the timer of each function that has one, on its state of a flow.
fn run_timers(stages: &mut [Stage], table: &mut FlowTable, flow: FlowIndex, now: Nanos) {
    let key = table.key(flow);
    for Stage { function, slot, .. } in stages {
        let Some(slot) = slot.as_ref().filter(|_| function.timer_interval().is_some()) else {
            continue;
        };
        let directions = if slot.is_directed() { 2 } else { 1 };
        for reversed in [false, true].into_iter().take(directions) {
            if *table.word(flow, slot.version_at(reversed)) != UNSEEN {
                let key = if reversed { key.reversed() } else { key };
                function.on_timer(&key, table.state(flow, &slot.state_of(reversed)), now);
            }
        }
    }
}

/// Reports the flows that have left the table to the functions.
#[inline]
fn report_flow_ends(stages: &mut [Stage], ends: &mut EndedFlows) {
    ends.drain(|key, state| {
        for Stage { function, slot, .. } in stages.iter_mut() {
            let Some(slot) = slot.as_ref().filter(|_| function.wants_flow_ends()) else {
                continue;
            };
            let directions = if slot.is_directed() { 2 } else { 1 };
            for reversed in [false, true].into_iter().take(directions) {
                if slot.seen_version(state, reversed) != UNSEEN {
                    let key = if reversed { key.reversed() } else { *key };
                    function.flow_ended(&key, &state[slot.state_of(reversed)]);
                }
            }
        }
    });
}

#[cfg(test)]
pub(crate) mod tests;
