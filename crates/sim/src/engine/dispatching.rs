//! Loop iterations of dispatching cores and of auxiliary cores, step by step as in the live data plane's `worker.rs`,
//! `scaling::dispatch` and `scaling::auxiliary`.

use super::Engine;
use super::check::Segment;
use super::core::Activation;
use super::dispatch::{Dispatch, LoopIteration};
use super::meter::{Sent, flow_hash};
use super::tree::NEVER;
use super::turn::{record_queue, spend_at, work};
use super::waiting::{NONE, Waiting};
use crate::chain::{Work, random, spend};
use tailwater_net::Nanos;
use tailwater_policy::core::{Destination, Flowlet, Loads, Notice};

/// Maximum packets looked up in one iteration, before the own queue is served again.
const MOST_RECEIVED: usize = 2048;

/// Returns the set bits of a map.
fn bits(mut map: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (map != 0).then(|| map.trailing_zeros() as usize)?;
        map &= map - 1;
        Some(bit)
    })
}

impl Engine<'_> {
    /// Runs an iteration, or the rest of one.
    pub(super) fn turn(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, now: u64) {
        let before = dispatch.iteration.take();
        let alone = before.is_none() && dispatch.is_quiet() && dispatch.active_auxiliaries == 0;
        if alone && self.straight(number, chain, now) {
            return;
        }
        let turn = before.unwrap_or(LoopIteration {
            began: now,
            looked_up: 0,
        });
        let (received, more) = match self.cores[number].transit.is_still() {
            true => self.receive(number, chain, dispatch, now),
            false => {
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
        let costs = &self.chains[chain].costs;
        let picos = costs.receive(received as u64);
        let mut time = now + spend(&mut self.cores[number].carry, picos);
        time = self.collect(number, chain, dispatch, (now, time));
        let looked_up = turn.looked_up + received;
        let room = self.cores[number].room(dispatch.used());
        if received > 0 && more && room > 0 && looked_up < MOST_RECEIVED {
            dispatch.iteration = Some(LoopIteration { looked_up, ..turn });
            self.chains[chain].worked += time - now;
            self.cores[number].stats.busy += time - now;
            self.cores[number].ready = time;
            return;
        }
        if dispatch.mapper.due(Nanos(now), dispatch.here().packets) {
            time = self.decide(number, chain, dispatch, (now, time));
        }
        time = self.flush(number, chain, dispatch, time);
        self.chains[chain].worked += time - now;
        let core = &mut self.cores[number];
        core.stats.busy += time - now;
        core.ready = time;
        // Without room, nothing can be received before packets are processed.
        let only_hands_over = dispatch.boost && more && room > 0;
        if !only_hands_over || dispatch.has_bound() {
            self.process_queue(number, chain, dispatch, (time, turn.began));
        }
        let core = &mut self.cores[number];
        if dispatch.is_empty() && !more {
            core.through = core.ready;
        }
        if dispatch.active_auxiliaries != 0 || !dispatch.is_quiet() {
            core.watch = core.ready + self.timing.poll_interval;
        }
    }

    /// Moves packets from the ring to the places of their flows. Returns the number of packets, and `true` if more
    /// wait.
    fn receive(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, now: u64) -> (usize, bool) {
        self.overflow(number, chain, now);
        let core = &mut self.cores[number];
        let room = core.room(dispatch.used());
        // No other code accesses this ring meanwhile.
        let mut fifo = std::mem::take(&mut core.fifo);
        let arrived = fifo.arrived(now, room.min(self.chains[chain].costs.most));
        let count = arrived.len();
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

    /// Sorts packets to the places of their flows.
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
        self.see_claims(number, dispatch);
        let held = dispatch.parked().packets;
        let opens_at_home = self.chains[chain].costs.opens_at_home;
        let mut slots = std::mem::take(&mut self.chains[chain].slots);
        for waiting in packets {
            let packet = waiting.packet;
            let known = &mut slots[packet.flow as usize];
            let mut slot = *known;
            if slot == NONE {
                let bound = packet.is_first() && opens_at_home;
                let place = match bound {
                    true => Destination::OWN_CORE,
                    false => {
                        let flowlet = Flowlet {
                            arrival: Nanos(packet.arrival),
                            new: packet.is_first(),
                            packets: 1,
                            parked: false,
                        };
                        self.place(number, chain, dispatch, flowlet, now)
                    }
                };
                slot = dispatch.open(&packet, place, bound);
                *known = slot;
            }
            dispatch.sort(Waiting { slot, ..waiting });
        }
        self.chains[chain].slots = slots;
        self.chains[chain].decisions.packets_parked += u64::from(dispatch.parked().packets - held);
    }

    /// Returns the place of a flow that can go to any core.
    fn place(
        &mut self,
        number: usize,
        chain: usize,
        dispatch: &mut Dispatch,
        flowlet: Flowlet,
        now: u64,
    ) -> Destination {
        let loads = Loads {
            now: Nanos(now),
            here: dispatch.here(),
            auxiliaries: &dispatch.auxiliaries,
        };
        let place = dispatch.mapper.place(flowlet, &loads);
        match place.as_auxiliary() {
            Some(auxiliary) if self.activate_auxiliary(number, chain, dispatch, auxiliary, now) => place,
            _ => Destination::OWN_CORE,
        }
    }

    /// Updates a dispatcher's view of taken auxiliary cores, if that has changed.
    #[inline]
    fn see_claims(&self, number: usize, dispatch: &mut Dispatch) {
        let server = usize::from(self.cores[number].server);
        let claims = self.servers[server].claims;
        if dispatch.seen_claims != claims {
            dispatch.seen_claims = claims;
            self.look_for_taken(dispatch);
        }
    }

    #[cold]
    fn look_for_taken(&self, dispatch: &mut Dispatch) {
        for (auxiliary, core) in dispatch.auxiliaries.iter_mut().zip(&dispatch.cores) {
            auxiliary.taken = !auxiliary.active && !self.is_free(usize::from(*core));
        }
    }

    /// Returns `true` if a core can be activated as an auxiliary core.
    fn is_free(&self, number: usize) -> bool {
        let core = &self.cores[number];
        core.activation.is_none() && core.dedicated.is_none()
    }

    /// Activates an auxiliary core unless it is active for this dispatcher already. Returns `true` if it is active now.
    #[inline]
    fn activate_auxiliary(
        &mut self,
        number: usize,
        chain: usize,
        dispatch: &mut Dispatch,
        auxiliary: usize,
        now: u64,
    ) -> bool {
        dispatch.auxiliaries[auxiliary].active || self.claim(number, chain, dispatch, auxiliary, now)
    }

    /// Activates an auxiliary core for a dispatcher, if it is free. Returns `true` on success.
    #[cold]
    fn claim(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, auxiliary: usize, now: u64) -> bool {
        let known = &mut dispatch.auxiliaries[auxiliary];
        let serving = usize::from(dispatch.cores[auxiliary]);
        if !self.is_free(serving) {
            known.taken = true;
            return false;
        }
        known.active = true;
        dispatch.active_auxiliaries |= 1 << auxiliary;
        let (core, server) = (self.cores[number].node, self.cores[number].server);
        self.cores[serving].activation = Some(Activation {
            dispatcher: number as u16,
            auxiliary: auxiliary as u16,
            since: now,
            other_node: self.cores[serving].node != core,
        });
        self.servers[usize::from(server)].claims += 1;
        self.usage.begin(serving, now);
        self.chains[chain].decisions.activated += 1;
        true
    }

    /// Releases an auxiliary core.
    pub(super) fn release(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, auxiliary: usize, now: u64) {
        dispatch.auxiliaries[auxiliary].active = false;
        dispatch.active_auxiliaries &= !(1 << auxiliary);
        let serving = usize::from(dispatch.cores[auxiliary]);
        let claim = self.cores[serving].activation.take();
        let since = claim.map_or(now, |claim| claim.since);
        self.servers[usize::from(self.cores[number].server)].claims += 1;
        if self.cores[serving].dedicated.is_none() {
            self.usage.end(serving, now);
        }
        let until = self.used_until(now);
        let chain = &mut self.chains[chain];
        chain.auxiliary += until.saturating_sub(since);
        chain.decisions.released += 1;
    }

    /// Processes the receipts of auxiliary cores up to `now`. Returns the time at which this ends, if it starts at
    /// `time`.
    fn collect(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, (now, time): (u64, u64)) -> u64 {
        if dispatch.receipt_at > now {
            return time;
        }
        let receipts = self.process_receipts(number, chain, dispatch, now);
        let mut picos = self.chains[chain].costs.receipts(receipts);
        if !dispatch.free_to_go.is_empty() {
            picos += self.place_parked(number, chain, dispatch, now);
        }
        time + spend(&mut self.cores[number].carry, picos)
    }

    /// Processes the receipts of completed packets. Returns their number.
    fn process_receipts(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, now: u64) -> u64 {
        let mut receipts = 0;
        dispatch.receipt_at = NEVER;
        for auxiliary in bits(dispatch.busy) {
            let receipts_due = dispatch.offload_queues[auxiliary].receipts_due(now);
            receipts += receipts_due as u64;
            for at in 0..receipts_due {
                let slot = dispatch.offload_queues[auxiliary].slot(at);
                if let Some(flow) = dispatch.done_by(slot, auxiliary, now) {
                    self.chains[chain].slots[flow as usize] = NONE;
                }
                if self.cores[number].transit.leaving > 0 {
                    let known = dispatch.slot(slot);
                    self.left_unit(number, usize::from(known.bucket), known.flow, now);
                }
            }
            let lane = &mut dispatch.offload_queues[auxiliary];
            lane.forget(receipts_due);
            dispatch.receipt_at = dispatch.receipt_at.min(lane.receipt_at());
        }
        receipts
    }

    /// Places flows that have left an auxiliary core, with their parked packets. Returns the time that this takes.
    fn place_parked(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, now: u64) -> u64 {
        let mut moved = 0;
        let mut free_to_go = std::mem::take(&mut dispatch.free_to_go);
        for slot in free_to_go.drain(..) {
            let (first, packets) = dispatch.first_parked(slot);
            let flowlet = Flowlet {
                arrival: Nanos(first.packet.arrival),
                new: false,
                packets,
                parked: true,
            };
            let place = self.place(number, chain, dispatch, flowlet, now);
            moved += dispatch.unpark(slot, place);
        }
        dispatch.free_to_go = free_to_go;
        self.chains[chain].costs.moved(moved)
    }

    /// Runs the mapper and applies its plan. Returns the time at which this ends.
    fn decide(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, (now, time): (u64, u64)) -> u64 {
        self.see_claims(number, dispatch);
        dispatch.run_mapper(now);
        let plan = std::mem::take(&mut dispatch.plan);
        for split in &plan.splits {
            if self.activate_auxiliary(number, chain, dispatch, split.auxiliary, now) {
                dispatch.split(split.flow, split.auxiliary, split.last_functions);
                self.chains[chain].decisions.splits += 1;
            }
        }
        let mut flows = 0;
        for (listed, place) in plan.destinations.iter().enumerate() {
            let Some(auxiliary) = place.as_auxiliary() else {
                continue;
            };
            let bound = dispatch.queued()[listed].bound;
            if !bound && self.activate_auxiliary(number, chain, dispatch, auxiliary, now) {
                dispatch.move_flow(listed, *place);
                flows += 1;
            }
        }
        let moved = if flows > 0 { dispatch.move_staged() } else { 0 };
        for auxiliary in bits(plan.release) {
            let known = dispatch.auxiliaries[auxiliary];
            let idle = known.load.packets == 0 && dispatch.splits[auxiliary] == 0;
            if known.active && idle {
                self.release(number, chain, dispatch, auxiliary, now);
            }
        }
        let relieved = dispatch.relieve(plan.relieve);
        let listed = plan.destinations.len() as u64;
        let chain = &mut self.chains[chain];
        let decisions = &mut chain.decisions;
        decisions.decisions += 1;
        decisions.moves += u64::from(flows > 0);
        decisions.flows_moved += flows;
        decisions.relieved += relieved;
        decisions.boosts += u64::from(plan.boost && !dispatch.boost);
        match plan.notice {
            Some(Notice::WhaleBeyondSplit { .. }) => decisions.whales_beyond_split += 1,
            Some(Notice::OutOfCores { .. }) => decisions.out_of_cores += 1,
            None => {}
        }
        dispatch.boost = plan.boost;
        dispatch.plan = plan;
        let picos = chain.costs.decision(listed, moved);
        time + spend(&mut self.cores[number].carry, picos)
    }

    /// Offloads all staged packets, from `time` on. Returns the time at which this ends.
    fn flush(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, mut time: u64) -> u64 {
        for auxiliary in bits(std::mem::take(&mut dispatch.staging)) {
            let lane = &mut dispatch.offload_queues[auxiliary];
            let packets = lane.put_down() as u64;
            let chain = &mut self.chains[chain];
            time += spend(&mut self.cores[number].carry, chain.costs.hand_over(packets));
            chain.decisions.packets_handed += packets;
            let mut here = time + self.timing.hand_over;
            if lane.is_busy() {
                lane.hand_over(here);
                continue;
            }
            let core = usize::from(dispatch.cores[auxiliary]);
            let serving = &mut self.cores[core];
            if time > serving.ready + self.timing.spin && serving.dedicated.is_none() {
                let asleep = time - serving.ready - self.timing.spin;
                let seed = (core as u64) << 48;
                let drawn = random(chain.seed ^ seed, chain.decisions.packets_handed);
                let wake = chain.costs.wake(asleep, drawn).unwrap_or(self.timing.wake);
                here = here.max(time + wake);
                serving.attribution.woke(Nanos(wake));
            }
            lane.hand_over(here);
            serving.offloaded_at = here;
            self.schedule(core);
        }
        time
    }

    /// Processes a batch of the own queue, in an iteration that began at `began`.
    fn process_queue(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, (now, began): (u64, u64)) {
        if dispatch.queue_is_empty() {
            return;
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        let most = self.chains[chain].costs.most.min(dispatch.batch);
        dispatch.take(most, &mut batch);
        let mut split = false;
        if dispatch.split_flows > 0 {
            for waiting in &mut batch {
                if let Some((_, last_functions)) = dispatch.slot(waiting.slot).split() {
                    waiting.last_functions = last_functions;
                    split = true;
                }
            }
        }
        let work = self.work_here(chain, &batch);
        let costs = &self.chains[chain].costs;
        let mut picos = costs.process(work);
        if split {
            picos -= left_out(costs, &batch, false).min(picos);
        }
        let more = dispatch.here().packets as usize > batch.len();
        self.process(number, chain, (now, picos), &batch, more);
        let mut end = self.cores[number].ready;
        for waiting in &batch {
            let split = waiting.last_functions > 0;
            if split && let Some((auxiliary, _)) = dispatch.slot(waiting.slot).split() {
                dispatch.stage(usize::from(auxiliary), *waiting);
            }
            if let Some(flow) = dispatch.done_here(waiting.slot) {
                self.chains[chain].slots[flow as usize] = NONE;
            }
            if !split {
                self.left(number, &waiting.packet, end);
            }
        }
        if split {
            end = self.flush(number, chain, dispatch, end);
            self.cores[number].ready = end;
        }
        let took = Nanos(end - began);
        let (packets, new) = (work.packets as u32, work.new as u32);
        dispatch.mapper.completed(packets, new, took);
        self.batch = batch;
    }

    /// Processes a batch of offloaded packets.
    pub(super) fn help(&mut self, number: usize, now: u64) {
        let Some(claim) = self.cores[number].activation else {
            unreachable!("a core is let go when nothing is left")
        };
        let dispatcher = usize::from(claim.dispatcher);
        let owner = &mut self.cores[dispatcher];
        let (Some((chain, _)), Some(mut dispatch)) = (owner.dedicated, owner.dispatch.take()) else {
            unreachable!("who recruits has a queue until it has let all helpers go")
        };
        let auxiliary = usize::from(claim.auxiliary);
        let lane = &mut dispatch.offload_queues[auxiliary];
        let chain = &mut self.chains[usize::from(chain)];
        let core = &mut self.cores[number];
        let batch = lane.arrived(now, chain.costs.most.min(dispatch.batch));
        let count = batch.len();
        let packets = batch.iter().map(|waiting| &waiting.packet);
        let work = work(packets, &mut chain.warmth);
        let mut picos = chain.costs.help(work, claim.other_node);
        if dispatch.split_flows > 0 {
            picos -= left_out(&chain.costs, batch, true).min(picos);
        }
        if lane.has_more(now, count) {
            for waiting in batch {
                let hash = flow_hash(waiting.packet.flow);
                core.attribution.served(hash, Nanos(now));
            }
        }
        let end = spend_at(chain, core, number, picos, now);
        if let Some(check) = &mut chain.check {
            for waiting in batch {
                let holds = chain.steering.holds(dispatcher, &waiting.packet);
                assert!(holds, "core {dispatcher} hands over what is not its own");
                let flow = (waiting.packet.flow, waiting.packet.arrival);
                let segment = match waiting.last_functions {
                    0 => Segment::Whole,
                    _ => Segment::Last,
                };
                check.processed(flow, segment, number, (now, end));
            }
        }
        let packets = batch.iter().map(|waiting| Sent {
            packet: &waiting.packet,
            // The delay on the way to an auxiliary core is not attributed to the network.
            at: waiting.packet.arrival,
            buffered: false,
        });
        chain.meter.sent(&core.attribution, packets, now, end);
        chain.worked += end - now;
        core.stats.batch(count, end - now);
        core.ready = end;
        let receipt_at = end + self.timing.receipt;
        lane.finish(count, receipt_at);
        core.offloaded_at = lane.next();
        if !lane.is_busy() {
            core.attribution.idle();
        }
        dispatch.receipt_at = dispatch.receipt_at.min(receipt_at);
        self.cores[dispatcher].dispatch = Some(dispatch);
    }
}

/// Returns the cost that packets of split flows do not incur on a core with one part of the chain.
fn left_out(costs: &crate::chain::Costs, batch: &[Waiting], last_part: bool) -> u64 {
    let parts = batch.iter().filter(|waiting| waiting.last_functions > 0);
    let picos = parts.map(|waiting| {
        let work = Work {
            packets: 1,
            bytes: waiting.packet.bytes.into(),
            ..Work::default()
        };
        costs.left_out(work, waiting.last_functions.into(), last_part)
    });
    picos.sum()
}
