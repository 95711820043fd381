//! The flows with packets in the system, and the dispatcher's own queue.

mod relief;

use super::held::Held;
use std::cell::Cell;
use tailwater_chain::batch::{Batch, Packet};
use tailwater_chain::chain::{ActiveFlow, Chain};
use tailwater_chain::parcel::{PacketStore, Parcel};
use tailwater_handover::owner::{Owner, Place as OwnerPlace};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::{BUCKETS, bucket_of};
use tailwater_policy::core::{CoreMapper, Flowlet, Helper, Load, Loads, Place, QueuedFlow};

/// A flow with packets in the system.
#[derive(Clone, Copy, Debug)]
struct Flow {
    /// Whose number this is; or, in a chain without a flow table, the RSS hash's lower half.
    flow: ActiveFlow,
    hash: u16,
    /// Where its packets go, and how many are with a helper.
    owner: Owner,
    /// The list for that place: read for every packet that is sorted, without a branch.
    list: u8,
    /// Packets in the own queue.
    queued: u32,
    /// Packets that are held until none is with the helper.
    held: u32,
    /// Only this core can process what is in the own queue: the flow must be opened here, or is split.
    bound: bool,
    /// Where it stands in `Backlog::queued`, or [`UNLISTED`].
    at: u32,
    /// None of its packets is in the system any more; the number is free once it is not listed.
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
            held: 0,
            bound: false,
            at: UNLISTED,
            over: false,
        }
    }

    /// Lets the flow's packets go elsewhere, if none is beyond recall. Whether they do now.
    #[inline]
    fn go_to(&mut self, wanted: OwnerPlace) -> bool {
        self.owner.settle(wanted);
        self.list = match self.owner.place() {
            OwnerPlace::Home | OwnerPlace::Split { .. } => OWN as u8,
            OwnerPlace::Helper(helper) => helper + 1,
        };
        self.owner.place() == wanted
    }

    /// The segment that its packets do not see here, and the helper that they go on to, if it is split.
    #[inline]
    fn split(&self) -> Option<(usize, usize)> {
        match self.owner.place() {
            OwnerPlace::Split { from, helper } => Some((from.into(), helper.into())),
            OwnerPlace::Home | OwnerPlace::Helper(_) => None,
        }
    }

    /// Whether none of its packets is in the system.
    #[inline]
    fn is_gone(&self) -> bool {
        self.queued == 0 && self.held == 0 && self.owner.in_flight() == 0
    }
}

/// The RSS bucket of a hash of which the lower half is known: it is told by fewer bits than that.
#[inline]
fn bucket_of_low(hash: u16) -> usize {
    usize::from(bucket_of(u32::from(hash)))
}

/// Numbers for flows without a flow table: by the lower half of their RSS hash. Flows that share it
/// share their place, which keeps order all the same.
type ByHash = Box<[u16; 1 << 16]>;

/// No number.
const NONE: u16 = u16::MAX;

/// No place in a list.
const UNLISTED: u32 = u32::MAX;

/// The list of flows in the own queue is tidied when more flows than this, and more than half, have
/// left the queue.
const TIDY: u32 = 64;

/// The own queue's list.
const OWN: usize = 0;

/// What a dispatcher knows of its packets.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// By number.
    flows: Vec<Flow>,
    free: Vec<u16>,
    /// Flows with packets in the system.
    active: u32,
    /// Of those, flows of each RSS bucket.
    active_in: Box<[u32; BUCKETS]>,
    by_hash: Option<ByHash>,
    /// The own queue's front, last packet first.
    front: Vec<Parcel>,
    /// By [place](Place::index): the own queue's back, and parcels for each helper that have not been
    /// pushed yet; last, those on their way to be held. One array, so that sorting takes no branch for
    /// each packet.
    lists: Vec<Vec<Parcel>>,
    /// Empty; changes places with the own queue's back when that is sorted.
    spare: Vec<Parcel>,
    /// Flows in the own queue, and `left` that were there, in order of their first packets.
    queued: Vec<QueuedFlow>,
    /// Their numbers.
    listed: Vec<u16>,
    /// Flows in these lists that have left the own queue, for good or for a helper.
    left: u32,
    /// What the own queue holds.
    here: Load,
    /// Packets of bound flows in the own queue.
    bound: u32,
    /// Flows that are split, by helper, and all together.
    split_with: Vec<u32>,
    split: u32,
    /// Helpers whose flows' packets are held, as a bit map.
    relieved: u64,
    held: Held,
    /// What is held.
    waiting: Load,
    /// Flows with held packets and none with a helper any more.
    free_to_go: Vec<u16>,
}

impl Backlog {
    /// For a dispatcher with `buffers` buffers and `helpers` helpers.
    pub(crate) fn new(buffers: u32, helpers: usize, has_flows: bool) -> Backlog {
        let most = buffers as usize;
        assert!(most < usize::from(NONE), "numbers have 16 bits");
        // Numbers of flows that are over are free again only when the lists are tidied. With twice as
        // many as packets, that comes to a step or two for each packet, even when all buffers are full.
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
            held: Held::new(most, numbers),
            waiting: Load::default(),
            free_to_go: Vec::with_capacity(numbers),
        }
    }

    /// What the own queue holds.
    pub(crate) fn here(&self) -> Load {
        self.here
    }

    /// Whether packets wait in the own queue that only this core can process.
    pub(crate) fn has_bound(&self) -> bool {
        self.bound > 0
    }

    /// Whether flows are split with this helper, which goes on with them.
    pub(crate) fn is_needed(&self, helper: usize) -> bool {
        self.split_with[helper] > 0
    }

    /// Whether no packet is in the system.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.active == 0
    }

    /// Whether no packet of this RSS bucket is in the system.
    pub(crate) fn is_free_of(&self, bucket: u16) -> bool {
        self.active_in[usize::from(bucket)] == 0
    }

    /// When the packet that has waited longest in the own queue arrived.
    pub(crate) fn oldest(&self, store: &PacketStore) -> Option<Nanos> {
        let oldest = self.front.last().or(self.lists[OWN].first());
        oldest.map(|parcel| store.arrival(parcel))
    }

    /// Moves the packets of a batch to the own queue, or stages them for helpers: a flow that has
    /// packets in the system goes where they are, any other where `mapper` places it.
    pub(crate) fn distribute(
        &mut self,
        batch: &mut Batch,
        chain: &mut Chain,
        store: &PacketStore,
        (mapper, helpers): (&mut dyn CoreMapper, &mut [Helper]),
        now: Nanos,
        mut recruit: impl FnMut(usize, &mut Helper) -> bool,
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
                            held: false,
                        };
                        let loads = Loads {
                            now,
                            here: *here,
                            helpers,
                        };
                        let wanted = mapper.place(flowlet, &loads).as_helper();
                        if let Some(helper) = wanted
                            && recruit(helper, &mut helpers[helper])
                        {
                            flow.go_to(OwnerPlace::Helper(helper as u8));
                            helpers[helper].load.flows += 1;
                        }
                    }
                    number
                }
            };
            let flow = &mut flows[usize::from(number)];
            list.set(usize::from(flow.list));
            match flow.owner.place() {
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
                // One that was just placed there has none to wait for.
                OwnerPlace::Helper(helper)
                    if flow.held > 0 || *relieved >> helper & 1 != 0 && flow.owner.in_flight() > 0 =>
                {
                    list.set(aside);
                }
                OwnerPlace::Helper(helper) => {
                    flow.owner.sent();
                    helpers[usize::from(helper)].load.packets += 1;
                }
            }
            Some(number)
        };
        batch.send_away(store, number, |parcel| lists[list.get()].push(parcel));
        self.hold();
    }

    /// The flows in the own queue, for the mapper. Their order holds until packets come or go.
    pub(crate) fn queued(&mut self) -> &[QueuedFlow] {
        if self.left > 0 || self.split > 0 {
            self.tidy();
        }
        if self.split > 0 {
            // Those without a packet at their helper may be moved, or split anew.
            for (number, queued) in self.listed.iter().zip(&mut self.queued) {
                let flow = &self.flows[usize::from(*number)];
                if flow.split().is_some() {
                    queued.bound = flow.owner.in_flight() > 0;
                }
            }
        }
        &self.queued
    }

    /// Takes flows without packets in the own queue off the lists.
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

    /// Moves flows of the own queue, in the order of [`queued`](Backlog::queued), to their `places`:
    /// their packets are staged, in order. Returns how many flows moved.
    pub(crate) fn move_flows(
        &mut self,
        places: &[Place],
        helpers: &mut [Helper],
        mut recruit: impl FnMut(usize, &mut Helper) -> bool,
    ) -> u32 {
        let mut moved = 0;
        for (at, place) in places.iter().enumerate().take(self.listed.len()) {
            let Some(to) = place.as_helper() else {
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
            flow.go_to(OwnerPlace::Helper(to as u8));
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

    /// Splits a flow of the own queue, by its place in [`queued`](Backlog::queued): from now on its
    /// packets go to a helper for the functions from segment `from` on. Whether that is new.
    pub(crate) fn split(
        &mut self,
        at: usize,
        (from, to): (usize, usize),
        helpers: &mut [Helper],
        recruit: impl FnOnce(&mut Helper) -> bool,
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
        if !flow.go_to(OwnerPlace::Split { from, helper }) {
            return false;
        }
        flow.bound = true;
        self.bound += flow.queued;
        self.split_with[to] += 1;
        self.split += 1;
        true
    }

    /// Ends the split of a flow, if it is split: none of its packets is with the helper.
    fn make_whole(&mut self, number: u16) {
        let flow = &mut self.flows[usize::from(number)];
        let Some((_, helper)) = flow.split() else {
            return;
        };
        let home = flow.go_to(OwnerPlace::Home);
        assert!(home, "packets of a split flow are with the helper");
        flow.bound = false;
        self.bound -= flow.queued;
        self.split_with[helper] -= 1;
        self.split -= 1;
    }

    /// Puts the own queue's packets where their flows are now.
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

    /// The parcels staged for a helper.
    #[inline]
    pub(crate) fn staged(&mut self, helper: usize) -> &mut Vec<Parcel> {
        &mut self.lists[helper + 1]
    }

    /// Takes up to `most` packets out of the own queue, in order, and says in front of which segment
    /// each is to leave for a helper: 0 for none. They are counted out when they are
    /// [done](Backlog::done_here) or [go on](Backlog::pass_on).
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

    /// Stages the packets of a batch, of split flows and processed as far as this core does, for the
    /// helpers that go on with them.
    pub(crate) fn pass_on(&mut self, batch: &mut Batch, store: &PacketStore, helpers: &mut [Helper]) {
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
        batch.send_away(store, number, |parcel| lists[list.get()].push(parcel));
    }

    /// A packet of the own queue is done.
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

    /// A packet came back from a helper.
    #[inline]
    pub(crate) fn done_by(&mut self, number: u16, helper: &mut Helper, chain: &mut Chain, now: Nanos) {
        let flow = &mut self.flows[usize::from(number)];
        flow.owner.returned();
        helper.load.packets -= 1;
        helper.last_done = now;
        if flow.owner.in_flight() == 0 {
            helper.load.flows -= 1;
        }
        if flow.held > 0 && flow.owner.in_flight() == 0 {
            self.free_to_go.push(number);
        }
        if flow.is_gone() {
            // One that is split may still be listed.
            self.left += u32::from(flow.split().is_some() && flow.at != UNLISTED);
            self.forget(number, chain);
        }
    }

    /// None of the flow's packets is in the system any more.
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
