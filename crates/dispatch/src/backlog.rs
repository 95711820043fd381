//! Flows with packets in the system: who owns them, where their packets are, and how many.

mod behind;
mod changes;
mod relief;
mod splits;

use crate::fairness::Fairness;
use crate::flow::{Flow, OWN, UNLISTED};
use crate::parked::ParkedPackets;
use crate::split::{MOST_SPLIT, SplitRecord};
use tailwater_handover::owner::Placement;
use tailwater_net::Nanos;
use tailwater_policy::core::{AuxiliaryCore, Load, MAX_AUXILIARY_CORES, QUEUES, QueuedFlow};

/// The list of queued flows is compacted once more flows than this, and more than half, have left the local queue.
const TIDY: u32 = 64;

/// Buffers for packets that are received with the last that fit: a batch.
const RESERVE: u32 = 32;

/// Maximum number of flow numbers: they have 16 bits, and one means none.
const MOST_NUMBERS: usize = u16::MAX as usize;

/// Dispatcher's record of its packets in the system, by flow. Callers have a key `F` for a flow, and parked packets
/// `P`.
///
/// A packet is counted in by [`receive`](Backlog::receive), and out by [`done_here`](Backlog::done_here) or
/// [`done_by`](Backlog::done_by).
#[derive(Debug)]
pub struct Backlog<F, P> {
    /// Flows by number.
    flows: Vec<Flow<F>>,
    free: Vec<u16>,
    /// Maximum number of flow numbers.
    most: usize,
    /// Flows with packets in the system.
    active: u32,
    /// Flows in the local queue, and `left` flows that have left it, in order of their first packets.
    queued: Vec<QueuedFlow>,
    /// Numbers of these flows.
    listed: Vec<u16>,
    /// Flows in these lists that have left the local queue, for good or for an auxiliary core.
    left: u32,
    /// Load of the local queue, without the flows behind.
    here: Load,
    fairness: Fairness,
    /// Packets of bound flows in the local queue.
    bound: u32,
    auxiliaries: Vec<AuxiliaryCore>,
    /// Split flows, and the number of them by auxiliary core on their route.
    splits: Vec<SplitRecord>,
    split_with: Vec<u32>,
    /// Auxiliary cores being relieved, whose flows' packets are parked, as a bit map. Contains the withdrawn ones.
    relieved: u64,
    /// Active auxiliary cores that are withdrawn, as a bit map.
    withdrawn: u64,
    /// Active auxiliary cores that are dedicated cores, as a bit map.
    helping: u64,
    /// Auxiliary cores that flows can be placed on, as a bit map.
    usable: u64,
    /// Packets pass the local queue even if there is no such core.
    always_queues: bool,
    /// Packets in the system, and the number of them beyond which nothing is received.
    inside: u32,
    packets: u32,
    /// The same for the local queue, and for each auxiliary core.
    share: u32,
    /// Packets that have been counted out.
    left_system: u64,
    parked: ParkedPackets<P>,
    /// Load of the parked packets.
    parked_load: Load,
    /// Flows with parked packets and none in flight.
    free_to_go: Vec<u16>,
}

impl<F, P> Backlog<F, P> {
    /// Creates a backlog with this many auxiliary cores, for `packets` packets, whose memory grows as flows come.
    ///
    /// # Panics
    /// If there are more than [`MAX_AUXILIARY_CORES`].
    pub fn new(auxiliaries: usize, packets: usize) -> Backlog<F, P> {
        assert!(
            auxiliaries <= MAX_AUXILIARY_CORES,
            "at most {MAX_AUXILIARY_CORES} auxiliary cores"
        );
        Backlog {
            flows: Vec::new(),
            free: Vec::new(),
            most: MOST_NUMBERS,
            active: 0,
            queued: Vec::new(),
            listed: Vec::new(),
            left: 0,
            here: Load::default(),
            fairness: Fairness::new(packets as u32),
            bound: 0,
            auxiliaries: vec![AuxiliaryCore::default(); auxiliaries],
            splits: Vec::new(),
            split_with: vec![0; auxiliaries],
            relieved: 0,
            withdrawn: 0,
            helping: 0,
            usable: !(u64::MAX << auxiliaries),
            always_queues: false,
            inside: 0,
            packets: (packets as u32).saturating_sub(RESERVE).max(1),
            share: (packets as u32 / QUEUES).max(1),
            left_system: 0,
            parked: ParkedPackets::new(),
            parked_load: Load::default(),
            free_to_go: Vec::new(),
        }
    }

    /// Creates a backlog for `packets` packets, which never allocates again.
    ///
    /// # Panics
    /// If there are 2^16 - 1 packets or more, or more than [`MAX_AUXILIARY_CORES`] auxiliary cores.
    pub fn with_capacity(auxiliaries: usize, packets: usize) -> Backlog<F, P>
    where
        F: Clone + Default,
    {
        assert!(packets < MOST_NUMBERS, "numbers have 16 bits");
        // Numbers of ended flows become free only when the lists are compacted. With twice as many numbers as packets,
        // that costs a step or two per packet, even when all packets are in the system.
        let numbers = (2 * packets).min(MOST_NUMBERS);
        Backlog {
            flows: vec![Flow::new(F::default(), false); numbers],
            free: (0..numbers as u16).rev().collect(),
            most: numbers,
            queued: Vec::with_capacity(numbers),
            listed: Vec::with_capacity(numbers),
            parked: ParkedPackets::with_capacity(packets, numbers),
            free_to_go: Vec::with_capacity(numbers),
            splits: Vec::with_capacity(MOST_SPLIT),
            ..Backlog::new(auxiliaries, packets)
        }
    }

    /// Returns the load of the local queue, without the flows [behind](Backlog::behind).
    #[inline]
    pub fn here(&self) -> Load {
        self.here
    }

    /// Returns the load of the packets parked until their flows have left auxiliary cores.
    #[inline]
    pub fn parked(&self) -> Load {
        self.parked_load
    }

    /// Returns the parked packets, in no order.
    pub fn parked_packets(&self) -> impl Iterator<Item = &P> {
        self.parked.all()
    }

    /// Returns the auxiliary cores as the mapper sees them.
    #[inline]
    pub fn auxiliaries(&self) -> &[AuxiliaryCore] {
        &self.auxiliaries
    }

    /// Lets packets pass the local queue even if there is no auxiliary core that a flow can be placed on.
    pub(crate) fn set_always_queues(&mut self, always: bool) {
        self.always_queues = always;
    }

    /// Returns `true` if there is no auxiliary core that a flow can be placed on, and the local queue is of no use.
    #[inline]
    pub fn is_single(&self) -> bool {
        self.usable == 0 && !self.always_queues
    }

    /// Returns `true` if packets are to be received now: the local queue or an auxiliary core has room for them. A
    /// [single](Backlog::is_single) dispatcher receives when its local queue is empty, or while it
    /// [looks](Backlog::looks_for_whales) for flows with too many packets.
    #[inline]
    pub fn receives(&self) -> bool {
        if self.is_single() && !self.fairness.is_looking() {
            return self.waiting() == 0;
        }
        self.inside < self.packets && (self.here.packets < self.share || self.has_room_elsewhere())
    }

    #[cold]
    fn has_room_elsewhere(&self) -> bool {
        let mut auxiliaries = self.auxiliaries.iter();
        // Dedicated cores take little at a time.
        auxiliaries.any(|auxiliary| !auxiliary.taken && !auxiliary.dedicated && auxiliary.load.packets < self.share)
    }

    /// Returns the number of packets so far that this core has done, or that auxiliary cores have.
    #[inline]
    pub(crate) fn off_hands(&self) -> u64 {
        self.left_system + u64::from(self.inside - self.waiting() - self.parked_load.packets)
    }

    /// Returns `true` if auxiliary cores have packets.
    #[inline]
    pub(crate) fn is_helped(&self) -> bool {
        let mut auxiliaries = self.auxiliaries.iter();
        auxiliaries.any(|auxiliary| auxiliary.load.packets > 0)
    }

    /// Returns `true` if no packet is in the system.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.active == 0
    }

    /// Returns `true` if the local queue has packets that only this core can process.
    #[inline]
    pub fn has_bound(&self) -> bool {
        self.bound > 0
    }

    /// Returns the flows with packets in the system.
    pub fn flows(&self) -> impl Iterator<Item = &Flow<F>> {
        self.flows.iter().filter(|flow| flow.packets() > 0)
    }

    /// Returns a flow, given its number.
    #[inline]
    pub fn flow(&self, number: u16) -> &Flow<F> {
        &self.flows[usize::from(number)]
    }

    /// Returns the list of a flow's packets, if that is an auxiliary core's.
    #[inline]
    pub fn auxiliary_list_of(&self, number: u16) -> Option<usize> {
        match self.flow(number).placement() {
            Placement::Auxiliary(auxiliary) => Some(usize::from(auxiliary) + 1),
            Placement::Home | Placement::Split { .. } => None,
        }
    }

    /// Returns `true` if a list is that of an auxiliary core.
    #[inline]
    pub fn is_elsewhere(&self, list: usize) -> bool {
        list.wrapping_sub(OWN + 1) < self.auxiliaries.len()
    }

    /// Returns the index, one beyond all other lists, that stands for parking.
    #[inline]
    pub fn parking(&self) -> usize {
        self.auxiliaries.len() + 1
    }

    /// Prepares for a batch of packets, each of which may be the first of a flow.
    #[inline]
    pub fn make_room(&mut self, packets: usize) {
        let numbers = self.free.len() + (self.most - self.flows.len());
        if numbers < packets || self.left > TIDY.max(self.here.flows) {
            self.tidy();
        }
    }

    /// Assigns a number to a flow without packets in the system, for which `key` returns the caller's key. The flow's
    /// packet is [received](Backlog::receive) next. If `is_bound`, this core must open the flow. Returns `None` if
    /// there are more packets than the backlog was created for.
    #[inline]
    pub fn open(&mut self, is_bound: bool, key: impl FnOnce(u16) -> F) -> Option<u16> {
        let number = match self.free.pop() {
            Some(number) => {
                self.flows[usize::from(number)] = Flow::new(key(number), is_bound);
                number
            }
            None if self.flows.len() < self.most => {
                let number = self.flows.len() as u16;
                self.flows.push(Flow::new(key(number), is_bound));
                number
            }
            None => return None,
        };
        self.active += 1;
        Some(number)
    }

    /// Sends the packets of a flow, of which none is in the system yet, to an auxiliary core.
    #[inline]
    pub(crate) fn begin_at(&mut self, number: u16, auxiliary: usize) {
        self.flows[usize::from(number)].go_to(Placement::Auxiliary(auxiliary as u8));
        self.auxiliaries[auxiliary].load.flows += 1;
    }

    /// Counts an arrived packet of a flow in. Returns the list that it joins: [`OWN`](crate::OWN), that of an auxiliary
    /// core, [`behind`](Backlog::behind) (see there), [`parking`](Backlog::parking), for which the caller
    /// [parks](Backlog::park) it before the end of its batch, or [`refusing`](Backlog::refusing): it was not counted
    /// in, and is lost. `hash` tells the packets of flows in one bucket apart; where flows are the unit, all packets
    /// have the same.
    #[inline]
    pub fn receive(&mut self, number: u16, hash: u32) -> usize {
        if self.fairness.concerns(&self.flows[usize::from(number)])
            && let Some(list) = self.receive_of_many(number, hash)
        {
            return list;
        }
        let flow = &mut self.flows[usize::from(number)];
        match flow.placement() {
            Placement::Split { .. } if flow.is_joining() => {
                self.inside += 1;
                return self.parking();
            }
            Placement::Home | Placement::Split { .. } => {
                self.queue(number);
                return OWN;
            }
            // A flow that was just placed there has no packets to wait for.
            Placement::Auxiliary(auxiliary)
                if flow.parked > 0 || self.relieved >> auxiliary & 1 != 0 && flow.in_flight() > 0 =>
            {
                self.inside += 1;
                return self.parking();
            }
            Placement::Auxiliary(auxiliary) => {
                self.fairness.note(flow);
                flow.sent();
                self.auxiliaries[usize::from(auxiliary)].load.packets += 1;
            }
        }
        self.inside += 1;
        // No flow behind comes here.
        flow.list(OWN)
    }

    /// Counts a packet into the local queue.
    #[inline]
    fn queue(&mut self, number: u16) {
        let flow = &mut self.flows[usize::from(number)];
        self.fairness.note(flow);
        if flow.at == UNLISTED {
            flow.at = self.queued.len() as u16;
            self.listed.push(number);
            self.queued.push(QueuedFlow {
                packets: 0,
                bound: flow.is_bound(),
            });
        }
        self.here.flows += u32::from(flow.queued == 0);
        self.here.packets += 1;
        flow.queued += 1;
        self.queued[usize::from(flow.at)].packets = flow.queued.into();
        self.bound += u32::from(flow.is_bound());
        self.inside += 1;
    }

    /// Counts a packet of the local queue out: it was processed completely. Returns the flow's key if none of its
    /// packets is in the system any more.
    #[inline]
    pub fn done_here(&mut self, number: u16) -> Option<&F> {
        self.inside -= 1;
        self.left_system = self.left_system.wrapping_add(1);
        self.leave_queue(number);
        let flow = &self.flows[usize::from(number)];
        if !flow.is_gone() {
            if flow.is_joining() {
                self.end_drain(number);
            }
            return None;
        }
        self.left += 1;
        Some(self.forget(number))
    }

    /// Counts a packet of the local queue out that is [too late](crate::Freshness) and was discarded. Returns the same
    /// as [`done_here`](Backlog::done_here).
    #[inline]
    pub fn discarded_here(&mut self, number: u16) -> Option<&F> {
        // It was no work that this core got off its hands.
        self.left_system = self.left_system.wrapping_sub(1);
        self.done_here(number)
    }

    /// Counts a packet out of the local queue.
    #[inline]
    fn leave_queue(&mut self, number: u16) {
        let flow = &mut self.flows[usize::from(number)];
        flow.queued -= 1;
        self.bound -= u32::from(flow.is_bound());
        self.queued[usize::from(flow.at)].packets = flow.queued.into();
        if flow.is_behind() {
            return self.leave_beside_behind(number);
        }
        self.here.packets -= 1;
        self.here.flows -= u32::from(flow.queued == 0);
    }

    /// Counts a packet out that an auxiliary core reported done, at `now`. Returns the flow's key if none of its
    /// packets is in the system any more.
    #[inline]
    pub fn done_by(&mut self, number: u16, auxiliary: usize, now: Nanos) -> Option<&F> {
        let flow = &mut self.flows[usize::from(number)];
        let known = &mut self.auxiliaries[auxiliary];
        flow.returned();
        self.inside -= 1;
        self.left_system += 1;
        known.load.packets -= 1;
        known.last_done = now;
        if !self.splits.is_empty() && flow.split().is_some() {
            return self.done_by_part(number, auxiliary);
        }
        if flow.in_flight() > 0 {
            return None;
        }
        known.load.flows -= 1;
        if flow.parked > 0 {
            self.free_to_go.push(number);
        }
        match flow.is_gone() {
            true => Some(self.forget(number)),
            false => None,
        }
    }

    /// Removes a flow of which no packet is in the system any more.
    fn forget(&mut self, number: u16) -> &F {
        self.make_whole(number);
        self.active -= 1;
        let flow = &mut self.flows[usize::from(number)];
        flow.end();
        if flow.is_voted() {
            self.fairness.end_vote(number);
        }
        if flow.at == UNLISTED {
            self.free.push(number);
        }
        flow.key()
    }

    /// Updates the list of flows in the local queue, for the mapper.
    pub(crate) fn update_list(&mut self) {
        if self.left > 0 || self.has_splits() {
            self.tidy();
        }
        if self.has_splits() {
            // Split flows without a packet in flight may be moved, or split anew.
            for (number, queued) in self.listed.iter().zip(&mut self.queued) {
                let flow = &self.flows[usize::from(*number)];
                if flow.split().is_some() {
                    queued.bound = flow.in_flight() > 0 || flow.is_joining();
                }
            }
        }
    }

    /// Returns the flows in the local queue, as of the last update.
    #[inline]
    pub(crate) fn listed(&self) -> &[QueuedFlow] {
        &self.queued
    }

    /// Removes flows without packets in the local queue from the lists.
    fn tidy(&mut self) {
        let mut kept = 0;
        for at in 0..self.listed.len() {
            let (number, queued) = (self.listed[at], self.queued[at]);
            let flow = &mut self.flows[usize::from(number)];
            if flow.queued == 0 {
                flow.at = UNLISTED;
                if flow.is_over() {
                    self.free.push(number);
                }
                continue;
            }
            flow.at = kept as u16;
            (self.listed[kept], self.queued[kept]) = (number, queued);
            kept += 1;
        }
        self.listed.truncate(kept);
        self.queued.truncate(kept);
        self.left = 0;
    }
}
