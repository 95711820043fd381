//! State of a dispatching core: the flows with packets in the system, and its own queue. The rules are those of the
//! live data plane's `scaling`.

use super::offload_queue::OffloadQueue;
use super::parked::{List, ParkedPackets};
use super::queue::Queue;
use super::tree::NEVER;
use super::waiting::{NONE, Waiting};
use crate::traffic::Packet;
use tailwater_net::Nanos;
use tailwater_policy::core::{AuxiliaryCore, CoreMapper, Destination, Load, Plan, QueuedFlow};

/// No place in a list.
const UNLISTED: u32 = u32::MAX;

/// Minimum number of flows that must have left before the list of queued flows is compacted. They must also be more
/// than half.
const TIDY: u32 = 64;

/// Restriction on the cores that can process a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The flow must be opened here.
    Unopened,
    Opened,
    /// None of its packets is in the system. The slot is free once it is not listed.
    Over,
}

/// Flow with packets in the system, in half a cache line. A core has fewer than 2^16 packet buffers.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(crate) struct Slot {
    /// Arrival of the packet that opened the slot.
    since: u64,
    pub flow: u32,
    /// Index in the list of queued flows.
    at: u32,
    pub bucket: u16,
    /// Packets in the own queue.
    queued: u16,
    /// Packets on an auxiliary core.
    away: u16,
    /// Packets parked until none is on the auxiliary core.
    parked: List,
    /// Destination of its packets.
    place: Destination,
    state: State,
    /// Auxiliary core that runs the chain's last functions, and their number. 0 stands for no split.
    split: (u8, u8),
}

impl Slot {
    /// Returns the auxiliary core that runs the chain's last functions, and their number.
    #[inline]
    pub fn split(&self) -> Option<(u8, u8)> {
        (self.split.1 > 0).then_some(self.split)
    }

    /// Returns the number of packets in the system.
    #[inline]
    fn packets(&self) -> u32 {
        u32::from(self.queued) + u32::from(self.away) + u32::from(self.parked.packets)
    }

    /// Returns `true` if only this core can process its packets in the own queue.
    #[inline]
    fn is_for_here(&self) -> bool {
        self.state == State::Unopened || self.split.1 > 0
    }

    /// Returns `true` if the flow cannot move.
    #[inline]
    fn is_bound(&self) -> bool {
        self.state == State::Unopened || self.away > 0
    }
}

const _: () = assert!(size_of::<Slot>() == 32, "two slots share a cache line");

/// Unfinished iteration of the core's loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopIteration {
    pub began: u64,
    pub looked_up: usize,
}

/// Dispatching part of a core.
pub(crate) struct Dispatch {
    pub mapper: Box<dyn CoreMapper>,
    /// Maximum batch size set by the mapper.
    pub batch: usize,
    pub auxiliaries: Vec<AuxiliaryCore>,
    /// Cores of the auxiliary cores.
    pub cores: Vec<u16>,
    /// Auxiliary cores with packets, and activated ones, as bit maps.
    pub busy: u64,
    pub active_auxiliaries: u64,
    /// By auxiliary core: its packets, including staged ones. `staged` is a bit map of those with staged packets.
    pub offload_queues: Vec<OffloadQueue>,
    pub staging: u64,
    /// Time of the next receipt.
    pub receipt_at: u64,
    /// By auxiliary core: number of flows split with it. Such a core is needed even without packets.
    pub splits: Vec<u32>,
    /// Total of these.
    pub split_flows: u32,
    pub plan: Plan,
    pub boost: bool,
    pub iteration: Option<LoopIteration>,
    /// Value of the server's claim counter at the last check.
    pub seen_claims: u64,
    slots: Vec<Slot>,
    free: Vec<u16>,
    active: u32,
    queue: Queue<Waiting>,
    queued: Vec<QueuedFlow>,
    listed: Vec<u16>,
    left: u32,
    here: Load,
    /// Packets in the own queue that only this core can process.
    bound: u32,
    /// Packets on auxiliary cores.
    away: u32,
    /// Auxiliary cores whose flows' packets are parked, as a bit map.
    relieved: u64,
    parked: ParkedPackets,
    /// Total of parked packets.
    waiting: Load,
    /// Flows with parked packets that no longer have any on an auxiliary core.
    pub free_to_go: Vec<u16>,
}

impl std::fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatch")
            .field("here", &self.here)
            .field("away", &self.away)
            .finish_non_exhaustive()
    }
}

impl Dispatch {
    /// Creates the state for auxiliary cores on these cores.
    pub fn new(mapper: Box<dyn CoreMapper>, cores: Vec<u16>) -> Dispatch {
        Dispatch {
            batch: mapper.batch(),
            mapper,
            auxiliaries: vec![AuxiliaryCore::default(); cores.len()],
            busy: 0,
            active_auxiliaries: 0,
            offload_queues: cores.iter().map(|_| OffloadQueue::default()).collect(),
            staging: 0,
            receipt_at: NEVER,
            splits: vec![0; cores.len()],
            split_flows: 0,
            cores,
            plan: Plan::default(),
            boost: false,
            iteration: None,
            seen_claims: u64::MAX,
            slots: Vec::new(),
            free: Vec::new(),
            active: 0,
            queue: Queue::default(),
            queued: Vec::new(),
            listed: Vec::new(),
            left: 0,
            here: Load::default(),
            bound: 0,
            away: 0,
            relieved: 0,
            parked: ParkedPackets::default(),
            waiting: Load::default(),
            free_to_go: Vec::new(),
        }
    }

    /// Returns the number of packet buffers in use.
    #[inline]
    pub fn used(&self) -> usize {
        (self.here.packets + self.away + self.waiting.packets) as usize
    }

    /// Returns `true` if the core continues immediately when it is ready.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.iteration.is_some() || !self.queue.is_empty()
    }

    #[inline]
    pub fn queue_is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns `true` if no packet waits or is on an auxiliary core.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.active == 0 && !self.boost
    }

    /// Returns `true` if no packet is in the system.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.active == 0
    }

    /// Returns the load of the own queue.
    #[inline]
    pub fn here(&self) -> Load {
        self.here
    }

    /// Returns the load that is parked until its flows leave auxiliary cores.
    #[inline]
    pub fn parked(&self) -> Load {
        self.waiting
    }

    #[inline]
    pub fn has_bound(&self) -> bool {
        self.bound > 0
    }

    #[inline]
    pub fn slot(&self, number: u16) -> &Slot {
        &self.slots[usize::from(number)]
    }

    /// Returns the arrival time of the oldest packet that opened a slot still in use.
    pub fn oldest_active(&self) -> u64 {
        let active = self.slots.iter().filter(|slot| slot.state != State::Over);
        active.map(|slot| slot.since).min().unwrap_or(NEVER)
    }

    /// Returns each flow's packets in the own queue, on auxiliary cores and parked.
    pub fn inside(&self) -> impl Iterator<Item = (u16, u32, u32)> {
        let queued = |slot: &Slot| (slot.bucket, slot.flow, slot.packets());
        self.slots.iter().filter(|slot| slot.state != State::Over).map(queued)
    }

    /// Returns the arrival time of the first packet in the own queue.
    pub fn oldest(&self) -> Option<Nanos> {
        let first = self.queue.first()?;
        Some(Nanos(first.packet.arrival))
    }

    /// Opens a slot for a flow, whose packet is sorted next.
    #[inline]
    pub fn open(&mut self, packet: &Packet, place: Destination, bound: bool) -> u16 {
        if self.left > TIDY.max(self.here.flows) {
            self.tidy();
        }
        self.active += 1;
        let slot = Slot {
            since: packet.arrival,
            flow: packet.flow,
            at: UNLISTED,
            bucket: packet.bucket() as u16,
            queued: 0,
            away: 0,
            parked: List::EMPTY,
            place,
            state: if bound { State::Unopened } else { State::Opened },
            split: (0, 0),
        };
        match self.free.pop() {
            Some(number) => {
                self.slots[usize::from(number)] = slot;
                number
            }
            None => {
                let number = self.slots.len() as u16;
                assert!(number != NONE, "there are fewer buffers than numbers");
                self.slots.push(slot);
                number
            }
        }
    }

    /// Sorts a packet to its flow's place.
    #[inline]
    pub fn sort(&mut self, waiting: Waiting) {
        let slot = &self.slots[usize::from(waiting.slot)];
        match slot.place.as_auxiliary() {
            None => self.enqueue(waiting),
            // A flow that was just placed there has no packets to wait for.
            Some(auxiliary) if slot.parked.packets > 0 || self.relieved >> auxiliary & 1 != 0 && slot.away > 0 => {
                self.park(waiting);
            }
            Some(auxiliary) => self.stage(auxiliary, waiting),
        }
    }

    /// Appends a packet to the own queue.
    #[inline]
    fn enqueue(&mut self, waiting: Waiting) {
        let slot = &mut self.slots[usize::from(waiting.slot)];
        if slot.at == UNLISTED {
            slot.at = self.queued.len() as u32;
            self.listed.push(waiting.slot);
            self.queued.push(QueuedFlow {
                packets: 0,
                bound: false,
            });
        }
        self.here.flows += u32::from(slot.queued == 0);
        self.here.packets += 1;
        slot.queued += 1;
        self.queued[slot.at as usize] = QueuedFlow {
            packets: slot.queued.into(),
            bound: slot.is_bound(),
        };
        self.bound += u32::from(slot.is_for_here());
        self.queue.push(waiting);
    }

    /// Parks a packet until its flow's packets have left the auxiliary core.
    #[cold]
    fn park(&mut self, waiting: Waiting) {
        let list = &mut self.slots[usize::from(waiting.slot)].parked;
        self.waiting.flows += u32::from(list.packets == 0);
        self.waiting.packets += 1;
        self.parked.push(list, waiting);
    }

    /// Starts parking packets of flows that have some on one of these auxiliary cores. Returns the number of auxiliary
    /// cores that were not relieved before.
    pub fn relieve(&mut self, auxiliaries: u64) -> u64 {
        let begun = auxiliaries & !std::mem::replace(&mut self.relieved, auxiliaries);
        u64::from(begun.count_ones())
    }

    /// Returns a flow's first parked packet, and the number of its parked packets.
    pub fn first_parked(&self, number: u16) -> (Waiting, u32) {
        let list = &self.slots[usize::from(number)].parked;
        (self.parked.first(list), list.packets.into())
    }

    /// Moves a flow with its parked packets to its new place. Returns their number.
    pub fn unpark(&mut self, number: u16, place: Destination) -> u64 {
        if place == Destination::OWN_CORE && self.slots[usize::from(number)].at != UNLISTED {
            // The flow moved out of the queue, but its old entry is still listed.
            self.tidy();
        }
        let slot = &mut self.slots[usize::from(number)];
        assert!(slot.away == 0, "a held flow is moved that is with a helper");
        slot.place = place;
        self.waiting.flows -= 1;
        let mut list = std::mem::replace(&mut slot.parked, List::EMPTY);
        let packets = u32::from(list.packets);
        self.waiting.packets -= packets;
        while let Some(waiting) = self.parked.pop(&mut list) {
            match place.as_auxiliary() {
                None => self.enqueue(waiting),
                Some(auxiliary) => self.stage(auxiliary, waiting),
            }
        }
        packets.into()
    }

    /// Stages a packet for an auxiliary core.
    #[inline(always)]
    pub fn stage(&mut self, auxiliary: usize, waiting: Waiting) {
        let slot = &mut self.slots[usize::from(waiting.slot)];
        assert!(slot.parked.packets == 0, "a packet overtakes those that are held");
        self.auxiliaries[auxiliary].load.flows += u32::from(slot.away == 0);
        self.auxiliaries[auxiliary].load.packets += 1;
        slot.away += 1;
        self.away += 1;
        self.busy |= 1 << auxiliary;
        self.staging |= 1 << auxiliary;
        self.offload_queues[auxiliary].put(waiting);
    }

    /// Updates the list of flows in the own queue.
    pub fn list(&mut self) {
        if self.left > 0 {
            self.tidy();
        }
        for (number, queued) in self.listed.iter().zip(&mut self.queued) {
            let slot = &self.slots[usize::from(*number)];
            queued.bound = slot.is_bound();
        }
    }

    /// Returns the listed flows, for a mapper.
    #[inline]
    pub fn queued(&self) -> &[QueuedFlow] {
        &self.queued
    }

    /// Runs the mapper.
    pub fn run_mapper(&mut self, now: u64) {
        let oldest = self.oldest().unwrap_or(Nanos(now));
        self.list();
        let view = tailwater_policy::core::View {
            now: Nanos(now),
            oldest,
            queued: &self.queued,
            packets: self.here.packets,
            parked: self.waiting,
            auxiliaries: &self.auxiliaries,
        };
        self.plan.clear(self.queued.len());
        self.mapper.decide(&view, &mut self.plan);
    }

    /// Removes flows without packets in the own queue from the lists.
    fn tidy(&mut self) {
        let mut kept = 0;
        for at in 0..self.listed.len() {
            let (number, queued) = (self.listed[at], self.queued[at]);
            let slot = &mut self.slots[usize::from(number)];
            if slot.queued == 0 {
                slot.at = UNLISTED;
                if slot.state == State::Over {
                    self.free.push(number);
                }
                continue;
            }
            slot.at = kept as u32;
            (self.listed[kept], self.queued[kept]) = (number, queued);
            kept += 1;
        }
        self.listed.truncate(kept);
        self.queued.truncate(kept);
        self.left = 0;
    }

    /// Splits a listed flow: its last functions move to an auxiliary core.
    pub fn split(&mut self, listed: usize, auxiliary: usize, last_functions: usize) {
        let slot = &mut self.slots[usize::from(self.listed[listed])];
        assert!(!self.queued[listed].bound, "a flow that is bound is split");
        match slot.split() {
            Some((before, _)) => self.splits[usize::from(before)] -= 1,
            None => {
                self.bound += u32::from(slot.queued);
                self.split_flows += 1;
            }
        }
        slot.split = (auxiliary as u8, last_functions as u8);
        self.splits[auxiliary] += 1;
    }

    /// Moves a listed flow to an auxiliary core. [`move_staged`](Dispatch::move_staged) moves its packets.
    pub fn move_flow(&mut self, listed: usize, place: Destination) {
        let slot = &mut self.slots[usize::from(self.listed[listed])];
        assert!(
            !self.queued[listed].bound && slot.away == 0,
            "a flow that is bound is moved"
        );
        slot.place = place;
        if let Some((before, _)) = slot.split() {
            slot.split = (0, 0);
            self.splits[usize::from(before)] -= 1;
            self.split_flows -= 1;
            self.bound -= u32::from(slot.queued);
        }
        self.here.flows -= 1;
        self.here.packets -= u32::from(slot.queued);
        slot.queued = 0;
        self.queued[listed].packets = 0;
        self.left += 1;
    }

    /// Stages the packets of moved flows for their auxiliary cores. Returns their number.
    pub fn move_staged(&mut self) -> u64 {
        let mut queue = std::mem::take(&mut self.queue);
        let mut moved = 0;
        queue.retain(
            |waiting| match self.slots[usize::from(waiting.slot)].place.as_auxiliary() {
                None => true,
                Some(auxiliary) => {
                    self.stage(auxiliary, *waiting);
                    moved += 1;
                    false
                }
            },
        );
        self.queue = queue;
        moved
    }

    /// Takes up to `most` packets out of the own queue. [`done_here`](Dispatch::done_here) subtracts them from the
    /// counters.
    pub fn take(&mut self, most: usize, batch: &mut Vec<Waiting>) {
        let count = most.min(self.queue.len());
        batch.extend_from_slice(&self.queue.as_slice()[..count]);
        self.queue.take(count);
    }

    /// Records that a packet of the own queue has been processed. If its flow is split, the packet continues on its
    /// auxiliary core. Returns the flow if none of its packets is left in the system.
    #[inline]
    pub fn done_here(&mut self, number: u16) -> Option<u32> {
        let slot = &mut self.slots[usize::from(number)];
        slot.queued -= 1;
        self.here.packets -= 1;
        self.bound -= u32::from(slot.is_for_here());
        self.queued[slot.at as usize].packets = slot.queued.into();
        if slot.queued > 0 {
            return None;
        }
        self.here.flows -= 1;
        self.left += 1;
        // The flow is opened now.
        slot.state = State::Opened;
        self.forget(number)
    }

    /// Records that an auxiliary core completed a packet. Returns the flow if none of its packets is left in the
    /// system.
    #[inline]
    pub fn done_by(&mut self, number: u16, auxiliary: usize, now: u64) -> Option<u32> {
        let slot = &mut self.slots[usize::from(number)];
        let known = &mut self.auxiliaries[auxiliary];
        slot.away -= 1;
        self.away -= 1;
        known.load.packets -= 1;
        known.last_done = Nanos(now);
        if slot.away > 0 {
            return None;
        }
        known.load.flows -= 1;
        if known.load.packets == 0 {
            self.busy &= !(1 << auxiliary);
        }
        if self.slots[usize::from(number)].parked.packets > 0 {
            self.free_to_go.push(number);
            return None;
        }
        self.forget(number)
    }

    fn forget(&mut self, number: u16) -> Option<u32> {
        let slot = &mut self.slots[usize::from(number)];
        if slot.packets() > 0 {
            return None;
        }
        self.active -= 1;
        slot.state = State::Over;
        if let Some((auxiliary, _)) = slot.split() {
            self.splits[usize::from(auxiliary)] -= 1;
            self.split_flows -= 1;
        }
        if slot.at == UNLISTED {
            self.free.push(number);
        }
        Some(slot.flow)
    }
}
