//! Parking of packets whose flows are on auxiliary cores that are being relieved, until the flows move.

use super::Backlog;
use crate::flow::{OWN, UNLISTED};
use tailwater_handover::owner::Placement;
use tailwater_policy::core::QueuedFlow;

impl<F, P> Backlog<F, P> {
    /// Sets the auxiliary cores to relieve, as a bit map. From now on packets of flows that have some in flight there
    /// are parked. Returns the number of auxiliary cores that were not relieved before.
    pub(crate) fn relieve(&mut self, auxiliaries: u64) -> u32 {
        let auxiliaries = auxiliaries | self.withdrawn;
        let begun = auxiliaries & !std::mem::replace(&mut self.relieved, auxiliaries);
        begun.count_ones()
    }

    /// Parks a packet that was [received](Backlog::receive) for it.
    pub fn park(&mut self, number: u16, packet: P) {
        let flow = &mut self.flows[usize::from(number)];
        self.parked_load.flows += u32::from(flow.parked == 0);
        self.parked_load.packets += 1;
        self.parked.push(number, packet, flow.parked == 0);
        flow.parked += 1;
    }

    /// Returns the number of the flow at this index among those that have parked packets and none in flight.
    #[inline]
    pub(crate) fn free_to_go(&self, at: usize) -> Option<u16> {
        self.free_to_go.get(at).copied()
    }

    /// Empties the list of these flows: all were moved.
    #[inline]
    pub(crate) fn clear_free_to_go(&mut self) {
        self.free_to_go.clear();
    }

    /// Returns the first parked packet of a flow, and the number of its parked packets.
    pub(crate) fn first_parked(&self, number: u16) -> (Option<&P>, u32) {
        (self.parked.first(number), self.flow(number).parked.into())
    }

    /// Moves a flow that has left an auxiliary core to its next destination, with its parked packets. Each is passed to
    /// `put` with the list that it joins. Returns their number.
    pub(crate) fn unpark(&mut self, number: u16, to: Option<usize>, put: impl FnMut(usize, P)) -> u32 {
        let flow = &mut self.flows[usize::from(number)];
        let packets = flow.parked;
        let placement = to.map_or(Placement::Home, |to| Placement::Auxiliary(to as u8));
        let is_there = flow.go_to(placement);
        assert!(is_there, "a parked flow moves that has packets in flight");
        match to {
            None => self.enqueue_parked(number, put),
            Some(to) => {
                flow.sent_many(packets);
                let load = &mut self.auxiliaries[to].load;
                load.flows += 1;
                load.packets += u32::from(packets);
                self.take_parked(number, to + 1, put);
            }
        }
        packets.into()
    }

    /// Passes a flow's parked packets on to a list.
    fn take_parked(&mut self, number: u16, list: usize, mut put: impl FnMut(usize, P)) {
        let packets = std::mem::take(&mut self.flows[usize::from(number)].parked);
        self.parked.take(number, packets, |packet| put(list, packet));
        self.parked_load.flows -= 1;
        self.parked_load.packets -= u32::from(packets);
    }

    /// Moves the parked packets of a flow that is still split into the local queue. Each is passed to `put`. Returns
    /// their number.
    pub(crate) fn unpark_split(&mut self, number: u16, put: impl FnMut(usize, P)) -> u32 {
        let packets = self.flow(number).parked;
        self.enqueue_parked(number, put);
        packets.into()
    }

    /// Returns `true` if a flow waits to be placed with its parked packets.
    #[inline]
    pub fn has_free_to_go(&self) -> bool {
        !self.free_to_go.is_empty()
    }

    /// Moves a flow's parked packets into the local queue, as if they had just arrived.
    fn enqueue_parked(&mut self, number: u16, put: impl FnMut(usize, P)) {
        if self.flow(number).at != UNLISTED {
            // The flow moved out of the queue, and is still listed at its old index.
            self.tidy();
        }
        let flow = &mut self.flows[usize::from(number)];
        flow.at = self.queued.len() as u16;
        flow.queued = flow.parked;
        self.bound += if flow.is_bound() { u32::from(flow.queued) } else { 0 };
        self.listed.push(number);
        self.queued.push(QueuedFlow {
            packets: flow.queued.into(),
            bound: flow.is_bound(),
        });
        self.here.flows += 1;
        self.here.packets += u32::from(flow.queued);
        self.take_parked(number, OWN, put);
    }

    /// Moves all parked packets into the local queue, although packets in front of them are on auxiliary cores. No
    /// packet is processed after this.
    pub fn unpark_all(&mut self, mut put: impl FnMut(P)) {
        if self.parked_load.packets == 0 {
            return;
        }
        for number in 0..self.flows.len() {
            let flow = &mut self.flows[number];
            if flow.parked == 0 {
                continue;
            }
            // One whose parts are to be joined can have queued packets, too.
            let queued = u32::from(flow.queued);
            if queued > 0 {
                self.leave_all(number as u16);
                self.flows[number].queued = 0;
            }
            self.enqueue_parked(number as u16, |_, packet| put(packet));
            let flow = &mut self.flows[number];
            flow.queued += queued as u16;
            self.queued[usize::from(flow.at)].packets = flow.queued.into();
            self.here.packets += queued;
        }
    }
}
