//! Parking and placement of flows on auxiliary cores that are being relieved.

use super::{Backlog, OWN, OwnerPlace, UNLISTED};
use tailwater_chain::parcel::PacketStore;
use tailwater_net::Nanos;
use tailwater_policy::core::{AuxiliaryCore, CoreMapper, Flowlet, Load, Loads, QueuedFlow};

impl Backlog {
    /// Load of the packets parked until their flows have left auxiliary cores.
    pub(crate) fn parked(&self) -> Load {
        self.parked_load
    }

    /// Sets the auxiliary cores to relieve, as a bit map. From now on packets of flows that have some there are parked.
    pub(crate) fn relieve(&mut self, helpers: u64) {
        self.relieved = helpers;
    }

    /// Parks the packets that were set aside.
    pub(super) fn park(&mut self) {
        let Backlog {
            flows,
            lists,
            parked: held,
            parked_load: waiting,
            ..
        } = self;
        let aside = lists.len() - 1;
        for parcel in lists[aside].drain(..) {
            let flow = &mut flows[usize::from(parcel.number())];
            waiting.flows += u32::from(flow.parked == 0);
            waiting.packets += 1;
            held.push(parcel, flow.parked == 0);
            flow.parked += 1;
        }
    }

    /// Places flows that have left an auxiliary core, with their parked packets.
    pub(crate) fn place_parked(
        &mut self,
        store: &PacketStore,
        (mapper, helpers): (&mut dyn CoreMapper, &mut [AuxiliaryCore]),
        now: Nanos,
        mut recruit: impl FnMut(usize, &mut AuxiliaryCore) -> bool,
    ) {
        for i in 0..self.free_to_go.len() {
            let number = self.free_to_go[i];
            let packets = self.flows[usize::from(number)].parked;
            let first = self.parked.first(number);
            let flowlet = Flowlet {
                arrival: first.map_or(now, |parcel| store.arrival(parcel)),
                new: false,
                packets,
                parked: true,
            };
            let loads = Loads {
                now,
                here: self.here,
                auxiliaries: helpers,
            };
            let helper = mapper.place(flowlet, &loads).as_auxiliary();
            let helper = helper.filter(|helper| recruit(*helper, &mut helpers[*helper]));
            let flow = &mut self.flows[usize::from(number)];
            let Some(helper) = helper else {
                flow.go_to(OwnerPlace::Home);
                self.unpark_locally(number);
                continue;
            };
            flow.go_to(OwnerPlace::Auxiliary(helper as u8));
            flow.owner.sent_many(packets);
            helpers[helper].load.flows += 1;
            helpers[helper].load.packets += packets;
            self.unpark(number, helper + 1);
        }
        self.free_to_go.clear();
    }

    /// Appends a flow's parked packets to a list.
    fn unpark(&mut self, number: u16, list: usize) {
        let packets = std::mem::take(&mut self.flows[usize::from(number)].parked);
        let list = &mut self.lists[list];
        self.parked.take(number, packets, |parcel| list.push(parcel));
        self.parked_load.flows -= 1;
        self.parked_load.packets -= packets;
    }

    /// Moves a flow's parked packets into the local queue, as if they had just arrived.
    fn unpark_locally(&mut self, number: u16) {
        if self.flows[usize::from(number)].at != UNLISTED {
            // The flow moved out of the queue, and is still listed at its old index.
            self.tidy();
        }
        let flow = &mut self.flows[usize::from(number)];
        flow.at = self.queued.len() as u32;
        flow.queued = flow.parked;
        self.listed.push(number);
        self.queued.push(QueuedFlow {
            packets: flow.queued,
            bound: flow.bound,
        });
        self.here.flows += 1;
        self.here.packets += flow.queued;
        self.unpark(number, OWN);
    }

    /// Moves all parked packets into the local queue, although packets in front of them are on auxiliary cores. No
    /// packet is processed after this.
    pub(crate) fn unpark_all(&mut self) {
        // If the mapper panicked in the middle of a batch, some packets were not parked yet.
        self.park();
        if self.parked_load.packets == 0 {
            return;
        }
        for number in 0..self.flows.len() {
            if self.flows[number].parked > 0 {
                self.unpark_locally(number as u16);
            }
        }
    }
}
