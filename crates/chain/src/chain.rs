//! Chains: functions in order, run to completion on one batch at a time.

mod branching;
mod build;
mod classify;
mod counts;
mod durable;
mod end;
mod external_state;
mod flow_callbacks;
mod forks;
pub(crate) mod input;
mod isolated;
mod offload;
mod opening;
mod predecessor;
mod segment;
mod snapshotter;
mod stage;
mod stopwatch;
mod succession;
mod tracing;
mod transfer;

pub use build::{state_bytes, state_bytes_with_cuts};
pub use external_state::{DurableFlow, DurableFunction, PersistState, durable_functions, state_bytes_with_persistence};
pub use input::InputPolicy;
pub use isolated::{IsolatedChain, IsolatedState};
pub use offload::ActiveFlow;
pub use predecessor::FlowShare;
pub use segment::Cuts;
pub use stage::{Outcome, Reason};
pub use stopwatch::{FunctionTime, FunctionTotals, ReadClock};
pub use succession::DividedChain;
pub use transfer::{ImportedFlows, TransferError, TransferFunction, TransferState};

use crate::batch::{Batch, DroppedBy, Verdict};
use crate::branches::START;
use crate::flow_table::{EndedFlows, FlowCounters, FlowTable, Partition};
use crate::function::{FlowStates, StateSlot};
use crate::packet_traces::{PacketTraces, TracePlace, TracedFunction};
use external_state::ExternalState;
use flow_callbacks::{before_flows_move, report_flow_ends};
use forks::SplitPool;
use predecessor::Predecessor;
use segment::Segment;
use snapshotter::Snapshotter;
use stage::Stage;
use std::ops::Range;
use std::sync::Arc;
use stopwatch::Stopwatch;
use tailwater_net::Nanos;
use tailwater_net::parse::Malformed;

/// Slot of a function without state.
const NO_STATE: &StateSlot = &StateSlot {
    version: 0,
    state: 0..0,
    version_apart: 0,
    state_apart: 0,
};

/// Instance of a chain on one worker.
pub struct Chain {
    stages: Vec<Stage>,
    segments: Vec<Segment>,
    table: Option<FlowTable>,
    ends: EndedFlows,
    input: InputPolicy,
    malformed: [u64; Malformed::COUNT],
    non_ip: u64,
    /// Above 0 if recent packets were a mixture: see [`classify`](Chain::classify).
    mixture: i32,
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
    /// Chain that this one has succeeded, until all of its flows are here.
    predecessor: Option<Box<Predecessor>>,
    /// No flow ends, and no timer runs: see [`hold_flows`](Chain::hold_flows).
    flows_are_held: bool,
    /// Timer of the functions, if they are timed.
    stopwatch: Option<Box<Stopwatch>>,
}

impl Chain {
    /// Takes over the flows of an RSS bucket.
    pub fn adopt(&mut self, partition: Partition) {
        if let Some(table) = &mut self.table {
            table.adopt(partition);
        }
    }

    /// Releases the flows of an RSS bucket, for another instance to [adopt](Chain::adopt). Returns `None` if this
    /// instance does not hold them or has no flow table. None of their packets may be in the system here.
    pub fn release(&mut self, bucket: u16) -> Option<Partition> {
        self.claim_bucket(bucket);
        let table = self.table.as_mut()?;
        before_flows_move(&mut self.stages);
        table.release(bucket)
    }

    /// Number of RSS buckets whose flows this instance holds.
    pub fn buckets(&self) -> usize {
        self.table.as_ref().map_or(0, FlowTable::buckets)
    }

    /// Maximum size of the next batch, if a function requires one.
    #[inline]
    pub fn wanted_batch(&self) -> Option<usize> {
        let remote = self.stages.iter().filter_map(|stage| stage.function.remote());
        remote.filter_map(|function| function.wanted_batch()).min()
    }

    /// Returns `true` if a function runs in a process of its own.
    pub fn has_isolated_functions(&self) -> bool {
        self.stages.iter().any(|stage| stage.function.remote().is_some())
    }

    /// Returns `true` while packets have to wait for the process of an isolated function.
    #[inline]
    pub fn awaits_process(&self) -> bool {
        let mut remote = self.stages.iter().filter_map(|stage| stage.function.remote());
        remote.any(|function| function.awaits_process())
    }

    /// Gives the core of isolated functions back to ordinary programs, before the thread of an auxiliary core sleeps.
    #[inline]
    pub fn before_sleep(&self) {
        let remote = self.stages.iter().filter_map(|stage| stage.function.remote());
        remote.for_each(|function| function.before_sleep());
    }

    /// Returns `true` if the chain looks flows up.
    pub fn has_flows(&self) -> bool {
        self.table.is_some()
    }

    /// Returns `true` if the flow look-up or a function reads packets' RSS hashes.
    pub fn reads_hashes(&self) -> bool {
        self.has_flows() || self.stages.iter().any(|stage| stage.properties.reads_hash)
    }

    /// Counters of the flow table, if there is one.
    pub fn flow_counters(&self) -> Option<FlowCounters> {
        self.table.as_ref().map(FlowTable::counters)
    }

    /// Number of flows in this worker's partitions.
    pub fn flows(&self) -> usize {
        let unclaimed = self.predecessor.as_ref().map_or(0, |predecessor| predecessor.flows());
        self.table.as_ref().map_or(0, FlowTable::flows) + unclaimed
    }

    /// Runs the batch through all functions. The packets that remain in it are to be sent.
    pub fn process(&mut self, batch: &mut Batch, now: Nanos) {
        self.look_up(batch, now);
        if self.segments.len() > 1 {
            self.prefetch_segments(1..self.segments.len(), batch);
        }
        self.run(batch, now);
    }

    /// Same as [`process`](Chain::process). Returns the number of packets that opened flows.
    #[inline]
    pub fn process_counting(&mut self, batch: &mut Batch, now: Nanos) -> usize {
        self.look_up(batch, now);
        if self.segments.len() > 1 {
            self.prefetch_segments(1..self.segments.len(), batch);
        }
        let new = batch.iter().filter(|packet| packet.is_new()).count();
        self.run(batch, now);
        new
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
        if self.predecessor.is_some() {
            self.claim_flows_of(batch, now);
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
                batch.compact_by(DroppedBy::FlowTable, |packet, _| {
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
        self.stopwatch = Some(Box::new(Stopwatch::new(
            read,
            from,
            PacketTraces::timing_all(),
            self.stages.len(),
        )));
    }

    /// Counts each function's packets from now on, and times those batches that `traces` says with the clock `read`.
    /// Traces name this instance's core and, where it is a part of a chain, its first function by `place`.
    pub fn sample_functions(&mut self, read: ReadClock, traces: Arc<PacketTraces>, place: TracePlace) {
        for (stage, number) in self.stages.iter_mut().zip(place.first..) {
            stage.number = number.min(u8::MAX.into()) as u8;
        }
        let mut watch = Stopwatch::new(read, Nanos::ZERO, traces, self.stages.len());
        watch.set_place(place);
        self.stopwatch = Some(Box::new(watch));
    }

    /// Names of the functions, in chain order.
    pub fn function_names(&self) -> impl Iterator<Item = &str> {
        self.stages.iter().map(|stage| stage.name.as_str())
    }

    /// Functions as traces name them, in chain order.
    pub fn traced_functions(&self) -> impl Iterator<Item = TracedFunction> {
        self.stages.iter().map(|stage| TracedFunction {
            name: stage.name.clone(),
            reasons: stage
                .function
                .drop_reasons()
                .iter()
                .map(|reason| (*reason).to_owned())
                .collect(),
        })
    }

    /// Totals of each function, in chain order; empty if they were neither [timed](Chain::time_functions) nor
    /// [sampled](Chain::sample_functions).
    pub fn function_totals(&self) -> &[FunctionTotals] {
        self.stopwatch.as_ref().map_or(&[], |watch| watch.spent())
    }

    /// Returns the time each function took, in chain order; empty if they were not [timed](Chain::time_functions).
    pub fn function_times(&self) -> Vec<FunctionTime> {
        let times = self
            .stages
            .iter()
            .zip(self.function_totals())
            .map(|(stage, spent)| FunctionTime {
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

    /// Returns `true` if a function in front of this segment
    /// [needs](crate::function::FunctionProperties::needs_payload) whole frames.
    pub fn needs_payload_before(&self, segment: usize) -> bool {
        let end = self.segments[segment].stages.start;
        let mut stages = self.stages[..end].iter();
        stages.any(|stage| stage.properties.needs_payload)
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

    /// Same as [`prefetch_from`](Chain::prefetch_from), for these segments.
    #[inline]
    pub fn prefetch_segments(&self, segments: Range<usize>, batch: &Batch) {
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
        self.run_between(0..segment, batch, now);
    }

    /// Same as [`run_before`](Chain::run_before), for packets that have passed the functions in front of the first of
    /// these segments.
    #[inline]
    pub fn run_between(&mut self, segments: Range<usize>, batch: &mut Batch, now: Nanos) {
        self.start_stopwatch(batch, segments.start == 0);
        for segment in segments.clone() {
            self.run_segment(segment, batch, now);
        }
        for packet in batch.iter_mut() {
            packet.segment = segments.end as u8;
        }
    }

    /// Runs packets that have passed the functions in front of a segment through the others.
    #[inline]
    pub fn run_from(&mut self, segment: usize, batch: &mut Batch, now: Nanos) {
        self.start_stopwatch(batch, segment == 0);
        for segment in segment..self.segments.len() {
            self.run_segment(segment, batch, now);
        }
        batch.rejoin_bypass();
    }

    #[inline]
    fn start_stopwatch(&mut self, batch: &mut Batch, is_new: bool) {
        if let Some(watch) = &mut self.stopwatch {
            watch.next_batch(batch, (is_new, self.table.as_ref()));
        }
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
        let timed = self.stopwatch.as_mut();
        let timed = timed.map(|watch| (batch.len(), watch.start(batch)));
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
            slot: slot.unwrap_or(NO_STATE),
        };
        stage.function.process(batch, &mut flows);
        if let (Some((_, Some(_))), Some(watch)) = (timed, &self.stopwatch)
            && watch.has_traced()
        {
            self.trace_stage(i, batch, now);
        }
        let stage = &mut self.stages[i];
        self.lost += stage.compact(batch);
        if let (Some((packets, began)), Some(watch)) = (timed, &mut self.stopwatch) {
            watch.note(i, packets, now, began);
        }
        if self.segments[segment].opens_companions {
            report_flow_ends(&mut self.stages, &mut self.ends);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
