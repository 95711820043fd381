//! Flows with packets in the system, and the dispatcher's local queue.

mod relief;

use super::parked::ParkedPackets;
use std::cell::Cell;
use tailwater_chain::batch::{Batch, Packet};
use tailwater_chain::chain::{ActiveFlow, Chain};
use tailwater_chain::parcel::{PacketStore, Parcel};
use tailwater_handover::owner::{Owner, Placement as OwnerPlace};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::{BUCKETS, bucket_of};
use tailwater_policy::core::{AuxiliaryCore, CoreMapper, Destination, Flowlet, Load, Loads, QueuedFlow};

/// Flow with packets in the system.
#[derive(Clone, Copy, Debug)]
struct Flow {
    /// Reference to the flow in the flow table. Without a flow table, `hash` identifies it: the RSS hash's lower half.
    flow: ActiveFlow,
    hash: u16,
    /// Destination of its packets, and the number on an auxiliary core.
    owner: Owner,
    /// List for that destination: read for every packet that is sorted, without a branch.
    list: u8,
    /// Packets in the local queue.
    queued: u32,
    /// Packets parked until none is on the auxiliary core.
    parked: u32,
    /// Only this core can process its packets in the local queue: the flow must be opened here, or is split.
    bound: bool,
    /// Index in `Backlog::queued`, or [`UNLISTED`].
    at: u32,
    /// None of its packets is in the system any more. The number is free once the flow is not listed.
    over: bool,
}

impl Flow {
    fn new(hash: u16) -> Flow {
        Flow {
            flow: ActiveFlow::NONE,
            hash,
            owner: Owner::default(),
            list: OWN as u8,
            queued: 0,
            parked: 0,
            bound: false,
            at: UNLISTED,
            over: false,
        }
    }

    /// Changes the destination of the flow's packets, if none is in flight. Returns `true` if it is the wanted one now.
    #[inline]
    fn go_to(&mut self, wanted: OwnerPlace) -> bool {
        self.owner.settle(wanted);
        self.list = match self.owner.placement() {
            OwnerPlace::Home | OwnerPlace::Split { .. } => OWN as u8,
            OwnerPlace::Auxiliary(helper) => helper + 1,
        };
        self.owner.placement() == wanted
    }

    /// First segment on the auxiliary core, and that core's index, if the flow is split.
    #[inline]
    fn split(&self) -> Option<(usize, usize)> {
        match self.owner.placement() {
            OwnerPlace::Split {
                from,
                auxiliary: helper,
            } => Some((from.into(), helper.into())),
            OwnerPlace::Home | OwnerPlace::Auxiliary(_) => None,
        }
    }

    /// Returns `true` if none of its packets is in the system.
    #[inline]
    fn is_gone(&self) -> bool {
        self.queued == 0 && self.parked == 0 && self.owner.in_flight() == 0
    }
}

/// RSS bucket of a hash, given its lower half, which has all the bits needed.
#[inline]
fn bucket_of_low(hash: u16) -> usize {
    usize::from(bucket_of(u32::from(hash)))
}

/// Flow numbers without a flow table, by the lower half of the RSS hash. Flows that share it share a destination, which
/// preserves the order.
type ByHash = Box<[u16; 1 << 16]>;

/// Means no flow number.
const NONE: u16 = u16::MAX;

/// Means no index in a list.
const UNLISTED: u32 = u32::MAX;

/// The list of flows in the local queue is compacted once more flows than this, and more than half, have left the
/// queue.
const TIDY: u32 = 64;

/// Index of the local queue's list.
const OWN: usize = 0;

/// Dispatcher's record of its packets in the system.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// Flows by number.
    flows: Vec<Flow>,
    free: Vec<u16>,
    /// Flows with packets in the system.
    active: u32,
    /// Active flows of each RSS bucket.
    active_in: Box<[u32; BUCKETS]>,
    by_hash: Option<ByHash>,
    /// Front of the local queue, last packet first.
    front: Vec<Parcel>,
    /// Lists by [`Destination::index`]: the back of the local queue, then parcels for each auxiliary core that have not been
    /// pushed yet, and finally packets about to be parked. One array, so sorting needs no branch per packet.
    lists: Vec<Vec<Parcel>>,
    /// Empty list, swapped with the back of the local queue when that is sorted.
    spare: Vec<Parcel>,
    /// Flows in the local queue, and `left` flows that have left it, in order of their first packets.
    queued: Vec<QueuedFlow>,
    /// Numbers of these flows.
    listed: Vec<u16>,
    /// Flows in these lists that have left the local queue, for good or for an auxiliary core.
    left: u32,
    /// Load of the local queue.
    here: Load,
    /// Packets of bound flows in the local queue.
    bound: u32,
    /// Split flows, by auxiliary core. `split` is their total.
    split_with: Vec<u32>,
    split: u32,
    /// Auxiliary cores being relieved, whose flows' packets are parked, as a bit map.
    relieved: u64,
    parked: ParkedPackets,
    /// Load of the parked packets.
    parked_load: Load,
    /// Flows with parked packets and none left on an auxiliary core.
    free_to_go: Vec<u16>,
}

impl Backlog {
    /// For a dispatcher with `buffers` buffers and `helpers` auxiliary cores.
    pub(crate) fn new(buffers: u32, helpers: usize, has_flows: bool) -> Backlog {
        let most = buffers as usize;
        assert!(most < usize::from(NONE), "numbers have 16 bits");
        // Numbers of ended flows become free only when the lists are compacted. With twice as many numbers as packets,
        // that costs a step or two per packet, even when all buffers are in use.
        let numbers = (2 * most).min(usize::from(NONE));
        Backlog {
            flows: vec![Flow::new(0); numbers],
            active: 0,
            active_in: Box::new([0; BUCKETS]),
            free: (0..numbers as u16).rev().collect(),
            by_hash: (!has_flows).then(|| Box::new([NONE; 1 << 16])),
            front: Vec::with_capacity(most),
            lists: (0..helpers + 2).map(|_| Vec::with_capacity(most)).collect(),
            spare: Vec::with_capacity(most),
            queued: Vec::with_capacity(numbers),
            listed: Vec::with_capacity(numbers),
            left: 0,
            here: Load::default(),
            bound: 0,
            split_with: vec![0; helpers],
            split: 0,
            relieved: 0,
            parked: ParkedPackets::new(most, numbers),
            parked_load: Load::default(),
            free_to_go: Vec::with_capacity(numbers),
        }
    }

    /// Load of the local queue.
    pub(crate) fn here(&self) -> Load {
        self.here
    }

    /// Returns `true` if the local queue has packets that only this core can process.
    pub(crate) fn has_bound(&self) -> bool {
        self.bound > 0
    }

    /// Returns `true` if flows are split with this auxiliary core.
    pub(crate) fn is_needed(&self, helper: usize) -> bool {
        self.split_with[helper] > 0
    }

    /// Returns `true` if no packet is in the system.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.active == 0
    }

    /// Returns `true` if no packet of this RSS bucket is in the system.
    pub(crate) fn is_free_of(&self, bucket: u16) -> bool {
        self.active_in[usize::from(bucket)] == 0
    }

    /// Arrival of the oldest packet in the local queue.
    pub(crate) fn oldest(&self, store: &PacketStore) -> Option<Nanos> {
        let oldest = self.front.last().or(self.lists[OWN].first());
        oldest.map(|parcel| store.arrival(parcel))
    }

    /// Moves the packets of a batch to the local queue, or stages them for auxiliary cores. A flow that has packets in
    /// the system goes where they are, any other where `mapper` places it.
    pub(crate) fn distribute(
        &mut self,
        batch: &mut Batch,
        chain: &mut Chain,
        store: &PacketStore,
        (mapper, helpers): (&mut dyn CoreMapper, &mut [AuxiliaryCore]),
        now: Nanos,
        mut recruit: impl FnMut(usize, &mut AuxiliaryCore) -> bool,
    ) {
        if self.free.len() < batch.len() || self.left > TIDY.max(self.here.flows) {
            self.tidy();
        }
        let Backlog {
            flows,
            free,
            active,
            active_in,
            by_hash,
            queued,
            listed,
            here,
            bound,
            lists,
            relieved,
            ..
        } = self;
        let aside = lists.len() - 1;
        let list = Cell::new(OWN);
        let number = |packet: &Packet| {
            let hash = packet.rss_hash as u16;
            let found = match by_hash {
                None => chain.active(packet),
                Some(by_hash) => Some(by_hash[usize::from(hash)]).filter(|n| *n != NONE),
            };
            let number = match found {
                Some(number) => number,
                None => {
                    // There are more numbers than buffers.
                    let number = free.pop()?;
                    *active += 1;
                    active_in[bucket_of_low(hash)] += 1;
                    let flow = &mut flows[usize::from(number)];
                    *flow = Flow::new(hash);
                    match by_hash {
                        None => {
                            flow.bound = chain.is_bound(packet);
                            flow.flow = chain.activate(packet, number);
                        }
                        Some(by_hash) => by_hash[usize::from(hash)] = number,
                    }
                    if !flow.bound {
                        let flowlet = Flowlet {
                            arrival: packet.arrival,
                            new: packet.is_new(),
                            packets: 1,
                            parked: false,
                        };
                        let loads = Loads {
                            now,
                            here: *here,
                            auxiliaries: helpers,
                        };
                        let wanted = mapper.place(flowlet, &loads).as_auxiliary();
                        if let Some(helper) = wanted
                            && recruit(helper, &mut helpers[helper])
                        {
                            flow.go_to(OwnerPlace::Auxiliary(helper as u8));
                            helpers[helper].load.flows += 1;
                        }
                    }
                    number
                }
            };
            let flow = &mut flows[usize::from(number)];
            list.set(usize::from(flow.list));
            match flow.owner.placement() {
                OwnerPlace::Home | OwnerPlace::Split { .. } => {
                    if flow.at == UNLISTED {
                        flow.at = queued.len() as u32;
                        listed.push(number);
                        queued.push(QueuedFlow {
                            packets: 0,
                            bound: flow.bound,
                        });
                    }
                    here.flows += u32::from(flow.queued == 0);
                    here.packets += 1;
                    flow.queued += 1;
                    queued[flow.at as usize].packets = flow.queued;
                    *bound += u32::from(flow.bound);
                }
                // A flow that was just placed there has no packets to wait for.
                OwnerPlace::Auxiliary(helper)
                    if flow.parked > 0 || *relieved >> helper & 1 != 0 && flow.owner.in_flight() > 0 =>
                {
                    list.set(aside);
                }
                OwnerPlace::Auxiliary(helper) => {
                    flow.owner.sent();
                    helpers[usize::from(helper)].load.packets += 1;
                }
            }
            Some(number)
        };
        batch.offload(store, number, |parcel| lists[list.get()].push(parcel));
        self.park();
    }

    /// Flows in the local queue, for the mapper. Their order is stable until packets arrive or leave.
    pub(crate) fn queued(&mut self) -> &[QueuedFlow] {
        if self.left > 0 || self.split > 0 {
            self.tidy();
        }
        if self.split > 0 {
            // Split flows without a packet on their auxiliary core may be moved, or split anew.
            for (number, queued) in self.listed.iter().zip(&mut self.queued) {
                let flow = &self.flows[usize::from(*number)];
                if flow.split().is_some() {
                    queued.bound = flow.owner.in_flight() > 0;
                }
            }
        }
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
                if flow.over {
                    self.free.push(number);
                }
                continue;
            }
            flow.at = kept as u32;
            (self.listed[kept], self.queued[kept]) = (number, queued);
            kept += 1;
        }
        self.listed.truncate(kept);
        self.queued.truncate(kept);
        self.left = 0;
    }

    /// Moves flows of the local queue, in the order of [`queued`](Backlog::queued), to their `places`: their packets
    /// are staged, in order. Returns the number of flows moved.
    pub(crate) fn move_flows(
        &mut self,
        places: &[Destination],
        helpers: &mut [AuxiliaryCore],
        mut recruit: impl FnMut(usize, &mut AuxiliaryCore) -> bool,
    ) -> u32 {
        let mut moved = 0;
        for (at, place) in places.iter().enumerate().take(self.listed.len()) {
            let Some(to) = place.as_auxiliary() else {
                continue;
            };
            let helper = &mut helpers[to];
            if self.queued[at].bound || !recruit(to, helper) {
                continue;
            }
            let number = self.listed[at];
            if self.split > 0 {
                self.make_whole(number);
            }
            let (flow, queued) = (&mut self.flows[usize::from(number)], &mut self.queued[at]);
            flow.go_to(OwnerPlace::Auxiliary(to as u8));
            flow.owner.sent_many(flow.queued);
            helper.load.flows += 1;
            helper.load.packets += flow.queued;
            self.here.flows -= 1;
            self.here.packets -= flow.queued;
            (flow.queued, queued.packets) = (0, 0);
            moved += 1;
        }
        self.left += moved;
        if moved > 0 {
            self.sort();
        }
        moved
    }

    /// Splits a flow of the local queue, given its index in [`queued`](Backlog::queued). From now on an auxiliary core
    /// runs the segments from `from` on. Returns `true` if the flow was not split so before.
    pub(crate) fn split(
        &mut self,
        at: usize,
        (from, to): (usize, usize),
        helpers: &mut [AuxiliaryCore],
        recruit: impl FnOnce(&mut AuxiliaryCore) -> bool,
    ) -> bool {
        let (Some(&number), Some(queued)) = (self.listed.get(at), self.queued.get(at)) else {
            return false;
        };
        let same = self.flows[usize::from(number)].split() == Some((from, to));
        if queued.bound || same || !recruit(&mut helpers[to]) {
            return false;
        }
        self.make_whole(number);
        let flow = &mut self.flows[usize::from(number)];
        let (from, helper) = (from as u8, to as u8);
        if !flow.go_to(OwnerPlace::Split {
            from,
            auxiliary: helper,
        }) {
            return false;
        }
        flow.bound = true;
        self.bound += flow.queued;
        self.split_with[to] += 1;
        self.split += 1;
        true
    }

    /// Ends the split of a flow, if it is split. None of its packets may be on the auxiliary core.
    fn make_whole(&mut self, number: u16) {
        let flow = &mut self.flows[usize::from(number)];
        let Some((_, helper)) = flow.split() else {
            return;
        };
        let home = flow.go_to(OwnerPlace::Home);
        assert!(home, "packets of a split flow are on the auxiliary core");
        flow.bound = false;
        self.bound -= flow.queued;
        self.split_with[helper] -= 1;
        self.split -= 1;
    }

    /// Moves the local queue's packets to the lists of their flows' destinations.
    fn sort(&mut self) {
        let Backlog {
            flows,
            front,
            lists,
            spare,
            ..
        } = self;
        std::mem::swap(&mut lists[OWN], spare);
        let mut put = |parcel: Parcel| {
            let list = flows[usize::from(parcel.number())].list;
            lists[usize::from(list)].push(parcel);
        };
        front.drain(..).rev().for_each(&mut put);
        spare.drain(..).for_each(&mut put);
    }

    /// Parcels staged for an auxiliary core.
    #[inline]
    pub(crate) fn staged(&mut self, helper: usize) -> &mut Vec<Parcel> {
        &mut self.lists[helper + 1]
    }

    /// Takes up to `most` packets out of the local queue, in order. Passes each with the segment before which it leaves
    /// for an auxiliary core, or 0 if it stays. They are counted out when they are [done](Backlog::done_here) or
    /// [passed on](Backlog::pass_on).
    #[inline]
    pub(crate) fn take(&mut self, most: usize, mut each: impl FnMut(Parcel, usize)) {
        for _ in 0..most {
            if self.front.is_empty() {
                std::mem::swap(&mut self.front, &mut self.lists[OWN]);
                self.front.reverse();
            }
            let Some(parcel) = self.front.pop() else {
                return;
            };
            let split = match self.split {
                0 => None,
                _ => self.flows[usize::from(parcel.number())].split(),
            };
            each(parcel, split.map_or(0, |(from, _)| from));
        }
    }

    /// Stages the packets of a batch for the auxiliary cores that continue with them. They belong to split flows, and
    /// have passed this core's segments.
    pub(crate) fn pass_on(&mut self, batch: &mut Batch, store: &PacketStore, helpers: &mut [AuxiliaryCore]) {
        let Backlog {
            flows,
            queued,
            here,
            bound,
            lists,
            ..
        } = self;
        let list = Cell::new(OWN);
        let number = |packet: &Packet| {
            let number = packet.number();
            let flow = &mut flows[usize::from(number)];
            let (_, helper) = flow.split().expect("only split flows are passed on");
            flow.queued -= 1;
            queued[flow.at as usize].packets = flow.queued;
            here.packets -= 1;
            here.flows -= u32::from(flow.queued == 0);
            *bound -= 1;
            let load = &mut helpers[helper].load;
            load.flows += u32::from(flow.owner.in_flight() == 0);
            load.packets += 1;
            flow.owner.sent();
            list.set(helper + 1);
            Some(number)
        };
        batch.offload(store, number, |parcel| lists[list.get()].push(parcel));
    }

    /// Counts out a packet of the local queue that is done.
    #[inline]
    pub(crate) fn done_here(&mut self, number: u16, chain: &mut Chain) {
        let flow = &mut self.flows[usize::from(number)];
        flow.queued -= 1;
        self.here.packets -= 1;
        self.bound -= u32::from(flow.bound);
        self.queued[flow.at as usize].packets = flow.queued;
        self.here.flows -= u32::from(flow.queued == 0);
        if flow.is_gone() {
            self.left += 1;
            self.forget(number, chain);
        }
    }

    /// Counts out a packet that came back from an auxiliary core.
    #[inline]
    pub(crate) fn done_by(&mut self, number: u16, helper: &mut AuxiliaryCore, chain: &mut Chain, now: Nanos) {
        let flow = &mut self.flows[usize::from(number)];
        flow.owner.returned();
        helper.load.packets -= 1;
        helper.last_done = now;
        if flow.owner.in_flight() == 0 {
            helper.load.flows -= 1;
        }
        if flow.parked > 0 && flow.owner.in_flight() == 0 {
            self.free_to_go.push(number);
        }
        if flow.is_gone() {
            // A split flow may still be listed.
            self.left += u32::from(flow.split().is_some() && flow.at != UNLISTED);
            self.forget(number, chain);
        }
    }

    /// Removes a flow of which no packet is in the system any more.
    fn forget(&mut self, number: u16, chain: &mut Chain) {
        self.make_whole(number);
        let flow = &mut self.flows[usize::from(number)];
        match &mut self.by_hash {
            None => chain.deactivate(flow.flow),
            Some(by_hash) => by_hash[usize::from(flow.hash)] = NONE,
        }
        self.active -= 1;
        self.active_in[bucket_of_low(flow.hash)] -= 1;
        flow.over = true;
        if flow.at == UNLISTED {
            self.free.push(number);
        }
    }
}
