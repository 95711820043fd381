//! Loop iterations of dispatching cores, step by step as in the live data plane's `worker::dispatching`, with the same
//! state machine.

use super::Engine;
use super::dispatch::{AuxiliaryLinks, Dispatch, FlowReference, LoopIteration, hash_of};
use super::meter::flow_hash;
use super::offloading::{Activations, LAST_SEGMENT, functions_from};
use super::turn::{left_out, record_queue};
use super::waiting::{NONE, Waiting};
use crate::chain::spend;
use crate::report::Loss;
use crate::traffic::Packet;
use tailwater_dispatch::{Availability, Dispatcher, Iteration};
use tailwater_net::Nanos;
use tailwater_policy::core::{Flowlet, Notice, Unit};

impl Engine<'_> {
    /// Runs an iteration, or the rest of one.
    pub(super) fn turn(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, now: u64) {
        let before = dispatch.iteration.take();
        if !self.brokers.is_empty() {
            self.update_brokered(number, chain, dispatch, now);
        }
        self.see_claims(number, chain, dispatch, now);
        let is_still = before.is_none() && dispatch.machine.is_quiet();
        let alone = is_still && dispatch.links.active == 0;
        if alone && dispatch.machine.backlog.is_single() {
            let core = &self.cores[number];
            let is_long = core.fifo.has_more(now, core.ring / 2);
            if let Some(first) = core.fifo.first().filter(|_| core.fifo.has_more(now, 1)) {
                dispatch.machine.backlog.sample(flow_hash(first.packet.flow));
            }
            if !dispatch.machine.backlog.looks_for_whales(Nanos(now), is_long) {
                let done = self.plain(number, chain, now);
                dispatch.learn(done, self.cores[number].ready.saturating_sub(now));
                return;
            }
        } else if is_still
            && (alone || !dispatch.machine.is_due(Nanos(now)))
            && self.straight(number, chain, dispatch, (now, alone))
        {
            if !alone {
                self.cores[number].watch = self.cores[number].ready.max(now) + self.timing.poll_interval;
            }
            return;
        }
        let mut turn = before.unwrap_or(LoopIteration {
            began: now,
            progress: Iteration::default(),
        });
        let lost_before = self.chains[chain].meter.flow_overload();
        let (received, more) = match (
            dispatch.machine.backlog.receives(),
            self.cores[number].transit.is_still(),
        ) {
            (false, _) => (0, self.cores[number].fifo.has_more(now, 0)),
            (true, true) => self.receive(number, chain, dispatch, now),
            (true, false) => {
                let more = self.gather(number, chain, now, dispatch.used());
                if alone && !more {
                    self.whole(number, chain, now, false);
                    return;
                }
                let batch = std::mem::take(&mut self.batch);
                self.distribute(number, chain, dispatch, now, batch.iter().copied());
                let received = batch.len();
                self.batch = batch;
                (received, more)
            }
        };
        dispatch.machine.backlog.end_look(Nanos(now));
        let costs = &self.chains[chain].costs;
        let picos = costs.receive(received as u64);
        let mut time = now + spend(&mut self.cores[number].carry, picos);
        time = self.collect(number, chain, dispatch, (now, time));
        // An iteration that only received what it refuses would process nothing.
        let refused = self.chains[chain].meter.flow_overload() > lost_before;
        let has_room = self.cores[number].room(dispatch.used()) > 0 && dispatch.machine.backlog.receives() && !refused;
        if turn.progress.receives_again(received, more, has_room) && received > 0 {
            dispatch.iteration = Some(turn);
            self.chains[chain].worked += time - now;
            self.cores[number].stats.busy += time - now;
            self.cores[number].ready = time;
            return;
        }
        if dispatch.machine.is_due(Nanos(now)) {
            time = self.decide(number, chain, dispatch, (now, time));
        }
        time = self.flush(number, chain, dispatch, time);
        dispatch.machine.dispatched(Nanos(time - turn.began));
        self.chains[chain].worked += time - now;
        let core = &mut self.cores[number];
        core.stats.busy += time - now;
        core.ready = time;
        // Without room, nothing can be received before packets are processed.
        if dispatch.machine.processes(more && has_room) {
            self.process_queue(number, chain, dispatch, (time, turn.began));
        }
        let core = &mut self.cores[number];
        // Packets on auxiliary cores, and those of a whale, are no backlog that another dedicated core could help with.
        if dispatch.lists.own_is_empty() && !more {
            core.through = core.ready;
        }
        let no_benefit = dispatch.machine.turned(Nanos(core.ready), more);
        self.chains[chain].decisions.no_benefit += u64::from(no_benefit);
        if dispatch.links.active != 0 || !dispatch.machine.is_quiet() {
            core.watch = core.ready + self.timing.poll_interval;
        }
    }

    /// Moves packets from the ring to the places of their flows or buckets. Returns the number of packets, and `true`
    /// if more wait.
    fn receive(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, now: u64) -> (usize, bool) {
        self.overflow(number, chain, now);
        let core = &mut self.cores[number];
        let room = core.room(dispatch.used());
        // No other code accesses this ring meanwhile.
        let mut fifo = std::mem::take(&mut core.fifo);
        let arrived = fifo.arrived(now, room.min(self.chains[chain].costs.most));
        let count = arrived.len();
        let is_waiting = fifo.has_more(now, count) || dispatch.machine.backlog.waiting() > 0;
        let arrived = match is_waiting {
            true => &arrived[self.discard_received(number, chain, now, arrived)..],
            false => arrived,
        };
        self.distribute(number, chain, dispatch, now, arrived.iter().map(Waiting::new));
        fifo.take(count);
        let more = fifo.has_more(now, 0);
        let core = &mut self.cores[number];
        core.fifo = fifo;
        core.stats.received += count as u64;
        if more {
            record_queue(core, now);
        }
        (count, more)
    }

    /// Sorts packets to the places of their flows or buckets.
    #[inline]
    fn distribute(
        &mut self,
        number: usize,
        chain: usize,
        dispatch: &mut Dispatch,
        now: u64,
        packets: impl ExactSizeIterator<Item = Waiting>,
    ) {
        if packets.len() == 0 {
            return;
        }
        let Dispatch {
            machine,
            slots: by_bucket,
            lists,
            links,
            ..
        } = dispatch;
        let unit = self.chains[chain].costs.unit;
        let parked = machine.backlog.parked().packets;
        let (parking, refusing) = (machine.backlog.parking(), machine.backlog.refusing());
        let mut refused = std::mem::take(&mut self.lost);
        machine.backlog.make_room(packets.len());
        let mut slots = std::mem::take(&mut self.chains[chain].slots);
        for waiting in packets {
            let packet = waiting.packet;
            let known = match unit {
                Unit::Flow => &mut slots[packet.flow as usize],
                Unit::Bucket => &mut by_bucket[packet.bucket()],
            };
            if *known == NONE {
                *known = self.open_slot((number, chain), machine, links, &packet, now);
            }
            let slot = *known;
            let waiting = Waiting { slot, ..waiting };
            let hash = hash_of(unit, &packet);
            match machine.backlog.receive(slot, hash) {
                list if list == parking => machine.backlog.park(slot, waiting),
                list if list == refusing => refused.push(packet),
                list => {
                    if let Some(overtaken) = machine.backlog.take_overtaken() {
                        let is_overtaken =
                            |waiting: &Waiting| overtaken.concerns(waiting.slot, hash_of(unit, &waiting.packet));
                        let moved = lists.overtake(is_overtaken);
                        machine.backlog.overtook(overtaken.number, moved);
                    }
                    lists.push(list, waiting);
                }
            }
        }
        self.chains[chain].slots = slots;
        for packet in refused.drain(..) {
            self.chains[chain].meter.lost(Loss::FlowOverload);
            self.left(number, &packet, now);
        }
        self.lost = refused;
        self.chains[chain].decisions.packets_parked += u64::from(machine.backlog.parked().packets - parked);
    }

    /// Opens a slot for the flow or bucket of a packet, and places it.
    fn open_slot(
        &mut self,
        (number, chain): (usize, usize),
        machine: &mut Dispatcher<FlowReference, Waiting>,
        links: &mut AuxiliaryLinks,
        packet: &Packet,
        now: u64,
    ) -> u16 {
        let costs = &self.chains[chain].costs;
        // A dispatcher that offloads buckets does not parse the packet.
        let opens = packet.is_first() && costs.unit == Unit::Flow;
        let is_bound = opens && costs.opens_at_home;
        let slot = machine.backlog.open(is_bound, |_| FlowReference::new(packet));
        let slot = slot.expect("there are fewer buffers than numbers");
        if !is_bound {
            let flowlet = Flowlet {
                arrival: Nanos(packet.arrival),
                new: opens,
                packets: 1,
                parked: false,
            };
            let mut activations = Activations::new(self, (number, chain), links, now);
            machine.place(slot, flowlet, Nanos(now), &mut activations);
        }
        slot
    }

    /// Returns the entry of a flow's or bucket's slot.
    #[inline]
    pub(super) fn slot_of<'s>(
        &'s mut self,
        chain: usize,
        by_bucket: &'s mut [u16],
        known: &FlowReference,
    ) -> &'s mut u16 {
        match self.chains[chain].costs.unit {
            Unit::Flow => &mut self.chains[chain].slots[known.flow as usize],
            Unit::Bucket => &mut by_bucket[usize::from(known.bucket)],
        }
    }

    /// Updates a dispatcher's view of its auxiliary cores, if some core was activated, released or dedicated, or if
    /// other dedicated cores may help.
    #[inline]
    fn see_claims(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, now: u64) {
        let server = usize::from(self.cores[number].server);
        let claims = self.servers[server].claims;
        let is_pause = dispatch.machine.is_pause(Nanos(now));
        let core = &self.cores[number];
        // Other dedicated cores have few packets at one time and many at another.
        let may_be_helped = dispatch.machine.may_be_helped(false)
            && (dispatch.links.active != 0
                || !dispatch.machine.is_quiet()
                || !dispatch.machine.is_in_time(core.fifo.waiting(now).min(core.ring)));
        if may_be_helped || (dispatch.seen_claims, dispatch.was_pause) != (claims, is_pause) {
            (dispatch.seen_claims, dispatch.was_pause) = (claims, is_pause);
            self.look_for_taken(number, chain, dispatch, now);
        }
    }

    #[cold]
    fn look_for_taken(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, now: u64) {
        let cores = &dispatch.links.cores;
        let core = &self.cores[number];
        let may_be_helped = dispatch.machine.may_be_helped(core.fifo.has_more(now, core.ring / 2));
        let is_helpful = |core: &super::core::Core| may_be_helped && core.can_help(now);
        let active = dispatch.links.active;
        let availability = |auxiliary: usize| {
            let serving = usize::from(cores[auxiliary]);
            let core = &self.cores[serving];
            let is_active = active >> auxiliary & 1 == 1;
            if !self.may_use(number, serving, is_active) {
                return match is_active {
                    true => Availability::Withdrawn,
                    false => Availability::Taken,
                };
            }
            match (core.dedicated, core.activation) {
                (Some(_), Some(claim)) if usize::from(claim.dispatcher) != number => Availability::Taken,
                (Some((tenant, _)), _) if usize::from(tenant) == chain && is_helpful(core) => Availability::Helpful,
                (Some(_), _) => Availability::Withdrawn,
                (None, Some(_)) => Availability::Taken,
                (None, None) => Availability::Free,
            }
        };
        dispatch.machine.update_available(Nanos(now), availability);
        self.release_withdrawn(number, chain, dispatch, now);
    }

    /// Releases withdrawn auxiliary cores that are done.
    pub(super) fn release_withdrawn(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, now: u64) {
        let mut activations = Activations::new(self, (number, chain), &mut dispatch.links, now);
        dispatch.machine.backlog.release_withdrawn(&mut activations);
    }

    /// Returns `true` if a core can be activated as an auxiliary core.
    pub(super) fn is_free(&self, number: usize, now: u64) -> bool {
        let core = &self.cores[number];
        core.activation.is_none() && (core.dedicated.is_none() || core.can_help(now))
    }

    /// Releases all auxiliary cores of a dispatcher, which has no packets any more.
    pub(super) fn release_all(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, now: u64) {
        let mut activations = Activations::new(self, (number, chain), &mut dispatch.links, now);
        dispatch.machine.backlog.release_all(&mut activations);
    }

    /// Runs the mapper and applies its plan. Returns the time at which this ends.
    fn decide(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, (now, time): (u64, u64)) -> u64 {
        let Dispatch {
            machine, lists, links, ..
        } = dispatch;
        let mut activations = Activations::new(self, (number, chain), links, now);
        // Functions that open flows for others run on one core per bucket.
        let costs = &activations.engine.chains[chain].costs;
        let can_split = costs.unit == Unit::Flow || !costs.opens_at_home;
        let first_segment = |last_functions| can_split.then_some(LAST_SEGMENT - last_functions);
        let decision = machine.decide(Nanos(now), lists.oldest(), first_segment, &mut activations);
        let moved = match decision.flows_moved {
            0 => 0,
            _ => lists.sort(|slot| machine.backlog.auxiliary_list_of(slot)),
        };
        let chain = &mut self.chains[chain];
        let decisions = &mut chain.decisions;
        decisions.decisions += 1;
        decisions.splits += u64::from(decision.splits);
        decisions.joins += u64::from(decision.joins);
        decisions.moves += u64::from(decision.flows_moved > 0);
        decisions.flows_moved += u64::from(decision.flows_moved);
        decisions.relieved += u64::from(decision.relieved);
        decisions.boosts += u64::from(decision.boosted);
        match decision.notice {
            Some(Notice::WhaleBeyondSplit { .. }) => decisions.whales_beyond_split += 1,
            Some(Notice::OutOfCores { .. }) => decisions.out_of_cores += 1,
            None => {}
        }
        let picos = chain.costs.decision(decision.flows as u64, moved);
        time + spend(&mut self.cores[number].carry, picos)
    }

    /// Processes a batch of the own queue, in an iteration that began at `began`.
    fn process_queue(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, (now, began): (u64, u64)) {
        if dispatch.lists.is_empty() {
            return;
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        let most = self.chains[chain].costs.most.min(dispatch.batch);
        let list = dispatch
            .machine
            .backlog
            .next_list(self.cores[number].transit.leaving > 0);
        dispatch.lists.take(list, most, &mut batch);
        let more = dispatch.machine.backlog.waiting() as usize > batch.len();
        let now = self.discard_queued(number, chain, dispatch, now, &mut batch, more);
        if batch.is_empty() {
            self.batch = batch;
            return;
        }
        let mut split = false;
        if dispatch.machine.backlog.has_splits() {
            for waiting in &mut batch {
                if let Some((from, _)) = dispatch.machine.backlog.split_of(waiting.slot) {
                    waiting.last_functions = functions_from(from);
                    split = true;
                }
            }
        }
        let work = self.work_here(number, chain, &batch);
        let costs = &self.chains[chain].costs;
        let mut picos = costs.process(work);
        if split {
            picos -= left_out(costs, &batch, false).min(picos);
        }
        self.process(number, chain, (now, picos), &batch, more);
        let mut end = self.cores[number].ready;
        for waiting in &batch {
            let (slot, backlog) = (waiting.slot, &mut dispatch.machine.backlog);
            if waiting.last_functions > 0 {
                let (list, until) = backlog.pass_on(slot);
                let left = functions_from(until);
                dispatch.lists.push(list, Waiting { left, ..*waiting });
                continue;
            }
            if let Some(known) = backlog.done_here(slot) {
                *self.slot_of(chain, &mut dispatch.slots, known) = NONE;
            }
            self.left(number, &waiting.packet, end);
        }
        if split {
            end = self.flush(number, chain, dispatch, end);
            self.cores[number].ready = end;
        }
        // A turn with packets of split flows gives no per-packet cost.
        if !split {
            let took = Nanos(end - began);
            let (packets, new) = (work.packets as u32, work.new as u32);
            dispatch.machine.completed(packets, new, took);
        }
        self.batch = batch;
    }
}
