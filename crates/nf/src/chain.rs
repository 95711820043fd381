//! A chain: functions in order, run to completion on one batch at a time.

mod stage;

pub use stage::{Outcome, Reason};

use crate::batch::{Batch, MAX_BATCH, Packet, Verdict};
use crate::flow_table::{EndedFlows, FlowCounters, FlowIndex, FlowTable, Partition};
use crate::function::{FlowStates, NetworkFunction, NewFlow, SHOWN_BEFORE, StateSlot, UNSEEN};
use crate::spec::Fate;
use stage::Stage;
use std::ops::Range;
use tailwater_net::Nanos;
use tailwater_net::parse::{Fragment, Malformed, Network, parse, parse_ordinary};

/// The verdict on a packet that the functions cannot handle.
fn unfit_verdict(fate: Fate) -> Verdict {
    match fate {
        Fate::Drop => Verdict::Drop(0),
        Fate::Pass => Verdict::Bypass,
    }
}

/// How a chain treats packets before its first function.
#[derive(Clone, Copy, Debug)]
pub struct InputPolicy {
    /// Packets whose headers are truncated, contradictory or absurd.
    pub malformed: Fate,
    /// Packets that are not IP (ARP, LLDP, ...).
    pub non_ip: Fate,
}

/// Where each function's piece of a flow's state lies, and how many bytes all take.
///
/// First stands the [settled version](Chain::settled_version), then the functions' versions, then
/// their own bytes, each aligned to 8. All of one chain segment's state of a flow is contiguous and
/// starts a cache line.
fn layout(functions: &[(String, Box<dyn NetworkFunction>)]) -> (Vec<Option<StateSlot>>, usize) {
    let stateful = functions
        .iter()
        .filter(|(_, function)| function.state_bytes() > 0)
        .count();
    if stateful == 0 {
        return (functions.iter().map(|_| None).collect(), 0);
    }
    let mut end = SETTLED.end + 4 * stateful;
    let mut versions = SETTLED.end;
    let slots = functions
        .iter()
        .map(|(_, function)| {
            let bytes = function.state_bytes();
            (bytes > 0).then(|| {
                let start = end.next_multiple_of(8);
                end = start + bytes;
                versions += 4;
                StateSlot {
                    version: versions - 4,
                    state: start..end,
                }
            })
        })
        .collect();
    (slots, end)
}

/// Where in a flow's state the settled version stands.
const SETTLED: Range<usize> = 0..4;

/// Bytes of flow state that these functions need together.
pub fn state_bytes(functions: &[(String, Box<dyn NetworkFunction>)]) -> usize {
    layout(functions).1
}

/// One worker's instance of a chain.
pub struct Chain {
    stages: Vec<Stage>,
    table: Option<FlowTable>,
    ends: EndedFlows,
    input: InputPolicy,
    malformed: [u64; Malformed::COUNT],
    non_ip: u64,
    no_place: u64,
    foreign: u64,
    lost: u64,
    opens_companions: bool,
    /// Packets, by place in the batch, whose flows a function has not seen.
    unseen: Vec<u16>,
    /// The settled version at the last look-up, if some function opens companions.
    settled: u32,
}

/// A flow with packets in the system, as [`Chain::activate`] gives it.
#[derive(Clone, Copy, Debug)]
pub struct ActiveFlow(FlowIndex);

impl ActiveFlow {
    /// No flow.
    pub const NONE: ActiveFlow = ActiveFlow(FlowIndex::NONE);
}

impl Chain {
    /// A chain of named functions. `table` is a view of the flow table made for
    /// [`state_bytes`] of these functions; without it no flow is looked up.
    ///
    /// # Panics
    /// If a function has state and there is no table, or one too narrow; if a function has more
    /// than [`MAX_DROP_REASONS`](crate::function::MAX_DROP_REASONS).
    pub fn new(
        functions: Vec<(String, Box<dyn NetworkFunction>)>,
        table: Option<FlowTable>,
        input: InputPolicy,
    ) -> Chain {
        let (slots, bytes) = layout(&functions);
        let room = table.as_ref().map_or(0, FlowTable::state_bytes);
        assert!(
            bytes <= room,
            "the flow table has {room} bytes a flow, the chain needs {bytes}"
        );
        let wanted = functions
            .iter()
            .any(|(_, function)| function.wants_flow_ends());
        let opens_companions = functions
            .iter()
            .any(|(_, function)| function.opens_companions());
        let stages = functions
            .into_iter()
            .zip(slots)
            .map(|((name, function), slot)| Stage::new(name, function, slot))
            .collect();
        Chain {
            stages,
            ends: EndedFlows::new(room, wanted),
            table,
            input,
            malformed: [0; Malformed::COUNT],
            non_ip: 0,
            no_place: 0,
            foreign: 0,
            lost: 0,
            opens_companions,
            unseen: Vec::with_capacity(MAX_BATCH),
            settled: 0,
        }
    }

    /// Takes over an RSS bucket's flows.
    pub fn adopt(&mut self, partition: Partition) {
        if let Some(table) = &mut self.table {
            table.adopt(partition);
        }
    }

    /// Gives an RSS bucket's flows away, for another instance to [adopt](Chain::adopt); `None` if this one
    /// does not hold them, or there is no flow table. No packet of theirs may be in the system here.
    pub fn release(&mut self, bucket: u16) -> Option<Partition> {
        self.table.as_mut()?.release(bucket)
    }

    /// RSS buckets whose flows this instance holds.
    pub fn buckets(&self) -> usize {
        self.table.as_ref().map_or(0, FlowTable::buckets)
    }

    /// Whether the chain looks flows up.
    pub fn has_flows(&self) -> bool {
        self.table.is_some()
    }

    /// What the flow table did, if there is one.
    pub fn flow_counters(&self) -> Option<FlowCounters> {
        self.table.as_ref().map(FlowTable::counters)
    }

    /// Flows in this worker's partitions.
    pub fn flows(&self) -> usize {
        self.table.as_ref().map_or(0, FlowTable::flows)
    }

    /// Runs the batch through all functions. What is left in it is to be sent.
    pub fn process(&mut self, batch: &mut Batch, now: Nanos) {
        self.look_up(batch, now);
        self.run(batch, now);
    }

    /// The first half of [`process`](Chain::process): finds headers and flows. Packets that the
    /// functions are not to see leave the batch, to rejoin it at the end of [`run`](Chain::run).
    #[inline]
    pub fn look_up(&mut self, batch: &mut Batch, now: Nanos) {
        self.classify(batch);
        if self.opens_companions {
            self.settled = self.settled_version();
        }
        if let Some(table) = &mut self.table {
            table.lookup(batch.slots_mut(), now, &mut self.ends);
            tell_ends(&mut self.stages, &mut self.ends);
            // Without a place for its flow, a packet cannot be processed.
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
                        true => self.no_place += 1,
                        false => self.foreign += 1,
                    }
                });
            }
        }
    }

    /// Starts to fetch the flow state of packets that were looked up a while ago, or on another core.
    #[inline]
    pub fn prefetch(&self, batch: &Batch) {
        if let Some(table) = &self.table {
            batch
                .iter()
                .for_each(|packet| table.prefetch_state(packet.flow));
        }
    }

    /// The second half of [`process`](Chain::process): runs packets that were looked up through all
    /// functions, in this instance or, if they were handed over, in another one.
    #[inline]
    pub fn run(&mut self, batch: &mut Batch, now: Nanos) {
        let unsettled = self.mark_settled(batch);
        for i in 0..self.stages.len() {
            if batch.is_empty() {
                break;
            }
            if unsettled {
                self.open_new_flows(i, batch, now);
            }
            let stage = &mut self.stages[i];
            let slot = stage.slot.as_ref();
            let mut flows = FlowStates {
                table: if slot.is_some() {
                    self.table.as_mut()
                } else {
                    None
                },
                slot: slot.unwrap_or(
                    const {
                        &StateSlot {
                            version: 0,
                            state: 0..0,
                        }
                    },
                ),
            };
            stage.function.process(batch, &mut flows);
            self.lost += stage.compact(batch);
        }
        if unsettled {
            self.settle(batch);
        }
        batch.rejoin_bypass();
    }

    /// The number that a packet's flow has among those with packets in the system, if it has one.
    ///
    /// # Panics
    /// If the packet was not looked up here.
    #[inline]
    pub fn active(&self, packet: &Packet) -> Option<u16> {
        self.table.as_ref()?.active(packet.flow)
    }

    /// Gives a packet's flow such a number, below 65,535. Until it is [taken away](Chain::deactivate) the
    /// flow stays in the table.
    ///
    /// # Panics
    /// If the packet was not looked up here.
    #[inline]
    pub fn activate(&mut self, packet: &Packet, number: u16) -> ActiveFlow {
        if let Some(table) = &mut self.table {
            table.set_active(packet.flow, Some(number));
        }
        ActiveFlow(packet.flow)
    }

    /// Takes the number away: none of the flow's packets is in the system any more.
    #[inline]
    pub fn deactivate(&mut self, flow: ActiveFlow) {
        if let Some(table) = &mut self.table {
            table.set_active(flow.0, None);
        }
    }

    /// Whether the packet must be processed by the core that looked it up: a function opens a companion
    /// for each flow, and this flow has not been opened.
    #[inline]
    pub fn is_bound(&mut self, packet: &Packet) -> bool {
        if !self.opens_companions {
            return false;
        }
        let version = self.settled.to_ne_bytes();
        let table = self.table.as_mut();
        table.is_some_and(|table| table.state(packet.flow)[SETTLED] != version)
    }

    /// Forgets idle flows; a little in every turn of the worker's loop.
    #[inline]
    pub fn expire(&mut self, now: Nanos) {
        /// Flows looked at in a turn: about as many as a batch could open.
        const BUDGET: usize = 64;
        if let Some(table) = &mut self.table {
            table.expire(now, BUDGET, &mut self.ends);
            tell_ends(&mut self.stages, &mut self.ends);
        }
    }

    /// Ends the run: every flow that is still there, so that functions that report flows have all of
    /// them. For after the last packet.
    pub fn finish(mut self) {
        for stage in &mut self.stages {
            stage.function.finish();
        }
        let wanted = self
            .stages
            .iter()
            .any(|stage| stage.function.wants_flow_ends());
        let Some(table) = self.table.as_mut().filter(|_| wanted) else {
            return;
        };
        loop {
            // Within what `ends` has room for, with companions.
            let more = table.end_some(MAX_BATCH, &mut self.ends);
            tell_ends(&mut self.stages, &mut self.ends);
            if !more {
                return;
            }
        }
    }

    /// Finds each packet's headers, and sorts out what the functions are not to see.
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

    /// Finds the headers of a packet that is not an ordinary one. Whether it is unfit for the functions.
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

    /// One number for the versions of all functions with state. A flow that all of them have seen
    /// under their present versions bears it, so that for nearly every packet one look tells that
    /// there is nothing to open. Never 0. Every instance of a chain comes to the same number.
    #[inline]
    fn settled_version(&self) -> u32 {
        let stages = self.stages.iter().filter(|stage| stage.slot.is_some());
        let mixed = stages.fold(0u32, |mixed, stage| {
            // Odd, so that no change of one version is lost.
            (mixed ^ stage.function.version()).wrapping_mul(0x9e37_79b1)
        });
        mixed.max(1)
    }

    /// Notes which packets' flows all functions have seen. Whether there are others.
    #[inline]
    fn mark_settled(&mut self, batch: &mut Batch) -> bool {
        let version = self.settled_version();
        let Some(table) = self.table.as_mut().filter(|table| table.state_bytes() > 0) else {
            return false;
        };
        let mut unsettled = false;
        for packet in batch.iter_mut() {
            let settled = table.state(packet.flow)[SETTLED] == version.to_ne_bytes();
            packet.settled = settled;
            unsettled |= !settled;
        }
        unsettled
    }

    /// Notes the flows that all functions have seen by now: those of the packets that none dropped.
    fn settle(&mut self, batch: &mut Batch) {
        let version = self.settled_version();
        let Some(table) = &mut self.table else {
            return;
        };
        for packet in batch.iter_mut().filter(|packet| !packet.settled) {
            let state = table.state(packet.flow);
            let mut slots = self.stages.iter().filter_map(|stage| {
                let slot = stage.slot.as_ref()?;
                Some((slot, stage.function.version()))
            });
            // A version may have changed since the flow was opened under the last.
            if slots.all(|(slot, version)| slot.seen_version(state) == version) {
                state[SETTLED].copy_from_slice(&version.to_ne_bytes());
            }
        }
    }

    /// Shows function `i` the flows that it has not seen under its present version.
    fn open_new_flows(&mut self, i: usize, batch: &mut Batch, now: Nanos) {
        let Some((Stage { function, slot, .. }, later)) = self.stages[i..].split_first_mut() else {
            return;
        };
        let (Some(slot), Some(table)) = (slot, &mut self.table) else {
            return;
        };
        let version = function.version();
        debug_assert!(
            ![UNSEEN, SHOWN_BEFORE].contains(&version),
            "no version has that number"
        );
        self.unseen.clear();
        for (at, packet) in batch.iter().enumerate() {
            if !packet.settled && slot.seen_version(table.state(packet.flow)) != version {
                self.unseen.push(at as u16);
            }
        }
        if self.unseen.is_empty() {
            return;
        }
        function.prepare(batch, &self.unseen);
        let mut refused = false;
        for &at in &self.unseen {
            let (packet, frame) = batch.packet_mut(usize::from(at));
            let seen = slot.seen_version(table.state(packet.flow));
            if seen == version {
                // An earlier packet of the batch has opened the flow.
                continue;
            }
            let mut flow = NewFlow {
                table,
                ends: &mut self.ends,
                slot,
                packet,
                now,
                version,
                at,
                rekeyed: false,
            };
            let verdict = function.new_flow(packet, frame, &mut flow);
            // Nobody behind has seen a flow that is new here, so there is nothing to show again.
            if flow.rekeyed && seen != UNSEEN {
                show_again(later, table.state(packet.flow));
            }
            match verdict {
                Verdict::Drop(reason) => {
                    packet.verdict = Verdict::Drop(reason);
                    refused = true;
                }
                Verdict::Forward | Verdict::Bypass => {
                    slot.set_seen_version(table.state(packet.flow), version);
                }
            }
        }
        if refused {
            self.lost += self.stages[i].compact(batch);
        }
        tell_ends(&mut self.stages, &mut self.ends);
    }

    /// Every reason for which the chain counts packets.
    pub fn reasons(&self) -> Vec<Reason> {
        let outcome = |fate| match fate {
            Fate::Drop => Outcome::Dropped,
            Fate::Pass => Outcome::Passed,
        };
        let malformed = Malformed::ALL.iter().map(|reason| Reason {
            name: format!("malformed/{}", reason.name()),
            outcome: outcome(self.input.malformed),
        });
        let non_ip = Reason {
            name: "non-ip".to_owned(),
            outcome: outcome(self.input.non_ip),
        };
        let lost = ["flow-table-full", "bucket-not-held"].map(|name| Reason {
            name: name.to_owned(),
            outcome: Outcome::Lost,
        });
        let functions = self.stages.iter().flat_map(Stage::reasons);
        malformed
            .chain([non_ip])
            .chain(lost)
            .chain(functions)
            .collect()
    }

    /// The packets counted so far for each of the [`reasons`](Chain::reasons), in their order.
    pub fn reason_counts(&self) -> impl Iterator<Item = u64> {
        let functions = self.stages.iter().flat_map(Stage::reason_counts);
        let own = [self.non_ip, self.no_place, self.foreign];
        self.malformed.iter().copied().chain(own).chain(functions)
    }

    /// Packets lost so far: the counts of all reasons whose outcome is [`Outcome::Lost`].
    #[inline]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

/// Has the functions behind one that rekeyed a flow be shown it again, now or, if something drops the
/// packet before, with a later one.
#[cold]
fn show_again(later: &[Stage], state: &mut [u8]) {
    // Until then the flow is unsettled, whatever versions come.
    state[SETTLED].fill(0);
    for Stage { function, slot, .. } in later {
        if let Some(slot) = slot
            && !function.opens_companions()
            && slot.seen_version(state) != UNSEEN
        {
            slot.set_seen_version(state, SHOWN_BEFORE);
        }
    }
}

/// Tells the functions which flows have left the table.
#[inline]
fn tell_ends(stages: &mut [Stage], ends: &mut EndedFlows) {
    ends.drain(|key, state| {
        for Stage { function, slot, .. } in stages.iter_mut() {
            if let Some(slot) = slot
                && function.wants_flow_ends()
                && slot.seen_version(state) != UNSEEN
            {
                function.flow_ended(key, &state[slot.state.clone()]);
            }
        }
    });
}

#[cfg(test)]
pub(crate) mod tests;
