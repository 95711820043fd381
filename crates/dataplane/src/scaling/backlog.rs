//! The flows with packets in the system, and the dispatcher's own queue.

use std::cell::Cell;
use std::collections::VecDeque;
use tailwater_handover::owner::{Owner, Place as OwnerPlace};
use tailwater_net::Nanos;
use tailwater_nf::batch::{Batch, Packet};
use tailwater_nf::chain::{ActiveFlow, Chain};
use tailwater_nf::parcel::{PacketStore, Parcel};
use tailwater_policy::core::{CoreMapper, Flowlet, Helper, Load, Loads, Place, QueuedFlow};

/// A flow with packets in the system.
#[derive(Clone, Copy, Debug)]
struct Flow {
    /// Whose number this is; or, in a chain without a flow table, the RSS hash's lower half.
    flow: ActiveFlow,
    hash: u16,
    /// Where its packets go, and how many are with a helper.
    owner: Owner,
    /// Packets in the own queue.
    queued: u32,
    /// It must be opened here.
    bound: bool,
    /// It stands in `Backlog::listed`.
    listed: bool,
    /// None of its packets is in the system any more; the number is free once it is not listed.
    over: bool,
}

impl Flow {
    fn new(hash: u16) -> Flow {
        Flow {
            flow: ActiveFlow::NONE,
            hash,
            owner: Owner::default(),
            queued: 0,
            bound: false,
            listed: false,
            over: false,
        }
    }
}

/// Numbers for flows without a flow table: by the lower half of their RSS hash. Flows that share it
/// share their place, which keeps order all the same.
type ByHash = Box<[u16; 1 << 16]>;

/// No number.
const NONE: u16 = u16::MAX;

/// The list of flows in the own queue is tidied when it is longer than this and twice as long as need
/// be.
const TIDY: usize = 64;

/// What a dispatcher knows of its packets.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// By number.
    flows: Vec<Flow>,
    free: Vec<u16>,
    /// Flows with packets in the system.
    active: u32,
    by_hash: Option<ByHash>,
    /// The own queue, in order of arrival.
    queue: VecDeque<Parcel>,
    /// Flows with packets in the own queue, and some that had, in order of their first packets.
    listed: Vec<u16>,
    /// What the own queue holds.
    here: Load,
    /// Packets of bound flows in the own queue.
    bound: u32,
    /// For each flow listed, what a mapper sees of it.
    queued: Vec<QueuedFlow>,
    /// Parcels for each helper that have not been pushed yet.
    staged: Vec<Vec<Parcel>>,
    /// While the queue is sorted anew: where each flow's packets go, by number.
    sorting: Vec<Place>,
}

impl Backlog {
    /// For a dispatcher with `buffers` buffers and `helpers` helpers.
    pub(crate) fn new(buffers: u32, helpers: usize, has_flows: bool) -> Backlog {
        let most = buffers as usize;
        assert!(most < usize::from(NONE), "numbers have 16 bits");
        Backlog {
            flows: vec![Flow::new(0); most],
            active: 0,
            free: (0..most as u16).rev().collect(),
            by_hash: (!has_flows).then(|| Box::new([NONE; 1 << 16])),
            queue: VecDeque::with_capacity(most),
            listed: Vec::with_capacity(most),
            here: Load::default(),
            bound: 0,
            queued: Vec::with_capacity(most),
            staged: (0..helpers).map(|_| Vec::with_capacity(most)).collect(),
            sorting: vec![Place::HERE; most],
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

    /// Whether no packet is in the system.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.active == 0
    }

    /// When the packet that has waited longest in the own queue arrived.
    pub(crate) fn oldest(&self, store: &PacketStore) -> Option<Nanos> {
        self.queue.front().map(|parcel| store.arrival(parcel))
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
        if self.free.len() < batch.len() || self.listed.len() > TIDY + 2 * self.here.flows as usize
        {
            self.tidy();
        }
        let Backlog {
            flows,
            free,
            active,
            by_hash,
            queue,
            listed,
            here,
            bound,
            staged,
            ..
        } = self;
        let place = Cell::new(OwnerPlace::Home);
        let number = |packet: &Packet| {
            let hash = packet.rss_hash as u16;
            let found = match by_hash {
                None => chain.active(packet),
                Some(by_hash) => Some(by_hash[usize::from(hash)]).filter(|n| *n != NONE),
            };
            let number = match found {
                Some(number) => number,
                None => {
                    // There are as many numbers as buffers.
                    let number = free.pop()?;
                    *active += 1;
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
                            flow.owner.settle(OwnerPlace::Helper(helper as u8));
                            helpers[helper].load.flows += 1;
                        }
                    }
                    number
                }
            };
            let flow = &mut flows[usize::from(number)];
            place.set(flow.owner.place());
            match flow.owner.place() {
                OwnerPlace::Home => {
                    here.flows += u32::from(flow.queued == 0);
                    here.packets += 1;
                    flow.queued += 1;
                    *bound += u32::from(flow.bound);
                    if !flow.listed {
                        flow.listed = true;
                        listed.push(number);
                    }
                }
                OwnerPlace::Helper(helper) => {
                    flow.owner.sent();
                    helpers[usize::from(helper)].load.packets += 1;
                }
            }
            Some(number)
        };
        batch.send_away(store, number, |parcel| match place.get() {
            OwnerPlace::Home => queue.push_back(parcel),
            OwnerPlace::Helper(helper) => staged[usize::from(helper)].push(parcel),
        });
    }

    /// The flows in the own queue, for the mapper. Their order holds until packets come or go.
    pub(crate) fn queued(&mut self) -> &[QueuedFlow] {
        self.tidy();
        &self.queued
    }

    /// Takes flows without packets in the own queue off the list.
    fn tidy(&mut self) {
        let (flows, free, queued) = (&mut self.flows, &mut self.free, &mut self.queued);
        queued.clear();
        self.listed.retain(|&number| {
            let flow = &mut flows[usize::from(number)];
            if flow.queued == 0 {
                flow.listed = false;
                if flow.over {
                    free.push(number);
                }
                return false;
            }
            queued.push(QueuedFlow {
                packets: flow.queued,
                bound: flow.bound,
            });
            true
        });
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
        for (&number, &place) in self.listed.iter().zip(places) {
            let flow = &mut self.flows[usize::from(number)];
            self.sorting[usize::from(number)] = Place::HERE;
            let Some(helper) = place.as_helper().filter(|_| !flow.bound) else {
                continue;
            };
            if !recruit(helper, &mut helpers[helper]) {
                continue;
            }
            self.sorting[usize::from(number)] = place;
            flow.owner.settle(OwnerPlace::Helper(helper as u8));
            (0..flow.queued).for_each(|_| flow.owner.sent());
            let load = &mut helpers[helper].load;
            load.flows += 1;
            load.packets += flow.queued;
            self.here.flows -= 1;
            self.here.packets -= flow.queued;
            flow.queued = 0;
            moved += 1;
        }
        if moved == 0 {
            return 0;
        }
        for _ in 0..self.queue.len() {
            let Some(parcel) = self.queue.pop_front() else {
                break;
            };
            match self.sorting[usize::from(parcel.number())].as_helper() {
                None => self.queue.push_back(parcel),
                Some(helper) => self.staged[helper].push(parcel),
            }
        }
        moved
    }

    /// The parcels staged for a helper.
    pub(crate) fn staged(&mut self, helper: usize) -> &mut Vec<Parcel> {
        &mut self.staged[helper]
    }

    /// Up to `most` packets of the own queue, which are counted out when they are
    /// [done](Backlog::done_here).
    pub(crate) fn take(&mut self, most: usize) -> impl Iterator<Item = Parcel> {
        let most = most.min(self.queue.len());
        self.queue.drain(..most)
    }

    /// A packet of the own queue is done.
    #[inline]
    pub(crate) fn done_here(&mut self, number: u16, chain: &mut Chain) {
        let flow = &mut self.flows[usize::from(number)];
        flow.queued -= 1;
        self.here.packets -= 1;
        self.bound -= u32::from(flow.bound);
        if flow.queued == 0 {
            self.here.flows -= 1;
            self.forget(number, chain);
        }
    }

    /// A packet came back from a helper.
    #[inline]
    pub(crate) fn done_by(
        &mut self,
        number: u16,
        helper: &mut Helper,
        chain: &mut Chain,
        now: Nanos,
    ) {
        let flow = &mut self.flows[usize::from(number)];
        flow.owner.returned();
        helper.load.packets -= 1;
        if flow.owner.in_flight() == 0 {
            helper.load.flows -= 1;
            if helper.load.packets == 0 {
                helper.idle_since = now;
            }
            self.forget(number, chain);
        }
    }

    /// None of the flow's packets is in the system any more.
    fn forget(&mut self, number: u16, chain: &mut Chain) {
        let flow = &mut self.flows[usize::from(number)];
        match &mut self.by_hash {
            None => chain.deactivate(flow.flow),
            Some(by_hash) => by_hash[usize::from(flow.hash)] = NONE,
        }
        self.active -= 1;
        flow.over = true;
        if !flow.listed {
            self.free.push(number);
        }
    }
}
