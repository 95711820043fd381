//! Loop iterations of dispatching cores and of auxiliary cores, step by step as in the live data plane's `worker.rs`,
//! `scaling::dispatch` and `scaling::helper`.

use super::Engine;
use super::check::Segment;
use super::core::Claim;
use super::dispatch::{Dispatch, Turn};
use super::meter::{Sent, flow_hash};
use super::tree::NEVER;
use super::turn::{note_queue, spend_at, work};
use super::waiting::{NONE, Waiting};
use crate::chain::{Work, random, spend};
use tailwater_net::Nanos;
use tailwater_policy::core::{Flowlet, Loads, Notice, Place};

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
    pub(super) fn turn(&mut self, number: usize, tenant: usize, dispatch: &mut Dispatch, now: u64) {
        let before = dispatch.turn.take();
        let alone = before.is_none() && dispatch.is_quiet() && dispatch.recruited == 0;
        if alone && self.straight(number, tenant, now) {
            return;
        }
        let turn = before.unwrap_or(Turn {
            began: now,
            looked_up: 0,
        });
        let (received, more) = match self.cores[number].transit.is_still() {
            true => self.receive(number, tenant, dispatch, now),
            false => {
                let more = self.gather(number, tenant, now, dispatch.used());
                if alone && !more {
                    self.whole(number, tenant, now, false);
                    return;
                }
                let batch = std::mem::take(&mut self.batch);
                self.distribute(number, tenant, dispatch, now, batch.iter().copied());
                let received = batch.len();
                self.batch = batch;
                (received, more)
            }
        };
        let costs = &self.tenants[tenant].costs;
        let picos = costs.receive(received as u64);
        let mut time = now + spend(&mut self.cores[number].carry, picos);
        time = self.collect(number, tenant, dispatch, (now, time));
        let looked_up = turn.looked_up + received;
        let room = self.cores[number].room(dispatch.used());
        if received > 0 && more && room > 0 && looked_up < MOST_RECEIVED {
            dispatch.turn = Some(Turn { looked_up, ..turn });
            self.tenants[tenant].worked += time - now;
            self.cores[number].stats.busy += time - now;
            self.cores[number].ready = time;
            return;
        }
        if dispatch.mapper.due(Nanos(now), dispatch.here().packets) {
            time = self.decide(number, tenant, dispatch, (now, time));
        }
        time = self.flush(number, tenant, dispatch, time);
        self.tenants[tenant].worked += time - now;
        let core = &mut self.cores[number];
        core.stats.busy += time - now;
        core.ready = time;
        // Without room, nothing can be received before packets are processed.
        let only_hands_over = dispatch.boost && more && room > 0;
        if !only_hands_over || dispatch.has_bound() {
            self.process_queue(number, tenant, dispatch, (time, turn.began));
        }
        let core = &mut self.cores[number];
        if dispatch.is_empty() && !more {
            core.through = core.ready;
        }
        if dispatch.recruited != 0 || !dispatch.is_quiet() {
            core.watch = core.ready + self.timing.look;
        }
    }

    /// Moves packets from the ring to the places of their flows. Returns the number of packets, and `true` if more
    /// wait.
    fn receive(&mut self, number: usize, tenant: usize, dispatch: &mut Dispatch, now: u64) -> (usize, bool) {
        self.overflow(number, tenant, now);
        let core = &mut self.cores[number];
        let room = core.room(dispatch.used());
        // No other code accesses this ring meanwhile.
        let mut fifo = std::mem::take(&mut core.fifo);
        let arrived = fifo.arrived(now, room.min(self.tenants[tenant].costs.most));
        let count = arrived.len();
        self.distribute(number, tenant, dispatch, now, arrived.iter().map(Waiting::new));
        fifo.take(count);
        let more = fifo.has_more(now, 0);
        let core = &mut self.cores[number];
        core.fifo = fifo;
        core.stats.received += count as u64;
        if more {
            note_queue(core, now);
        }
        (count, more)
    }

    /// Sorts packets to the places of their flows.
    #[inline]
    fn distribute(
        &mut self,
        number: usize,
        tenant: usize,
        dispatch: &mut Dispatch,
        now: u64,
        packets: impl ExactSizeIterator<Item = Waiting>,
    ) {
        if packets.len() == 0 {
            return;
        }
        self.see_claims(number, dispatch);
        let held = dispatch.held().packets;
        let opens_at_home = self.tenants[tenant].costs.opens_at_home;
        let mut slots = std::mem::take(&mut self.tenants[tenant].slots);
        for waiting in packets {
            let packet = waiting.packet;
            let known = &mut slots[packet.flow as usize];
            let mut slot = *known;
            if slot == NONE {
                let bound = packet.is_first() && opens_at_home;
                let place = match bound {
                    true => Place::HERE,
                    false => {
                        let flowlet = Flowlet {
                            arrival: Nanos(packet.arrival),
                            new: packet.is_first(),
                            packets: 1,
                            held: false,
                        };
                        self.place(number, tenant, dispatch, flowlet, now)
                    }
                };
                slot = dispatch.open(&packet, place, bound);
                *known = slot;
            }
            dispatch.sort(Waiting { slot, ..waiting });
        }
        self.tenants[tenant].slots = slots;
        self.tenants[tenant].decisions.packets_held += u64::from(dispatch.held().packets - held);
    }

    /// Returns the place of a flow that can go to any core.
    fn place(&mut self, number: usize, tenant: usize, dispatch: &mut Dispatch, flowlet: Flowlet, now: u64) -> Place {
        let loads = Loads {
            now: Nanos(now),
            here: dispatch.here(),
            helpers: &dispatch.helpers,
        };
        let place = dispatch.mapper.place(flowlet, &loads);
        match place.as_helper() {
            Some(helper) if self.recruit(number, tenant, dispatch, helper, now) => place,
            _ => Place::HERE,
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
        for (helper, core) in dispatch.helpers.iter_mut().zip(&dispatch.cores) {
            helper.taken = !helper.recruited && !self.is_free(usize::from(*core));
        }
    }

    /// Returns `true` if a core can be activated as an auxiliary core.
    fn is_free(&self, number: usize) -> bool {
        let core = &self.cores[number];
        core.claim.is_none() && core.dedicated.is_none()
    }

    /// Activates an auxiliary core unless it is active for this dispatcher already. Returns `true` if it is active now.
    #[inline]
    fn recruit(&mut self, number: usize, tenant: usize, dispatch: &mut Dispatch, helper: usize, now: u64) -> bool {
        dispatch.helpers[helper].recruited || self.claim(number, tenant, dispatch, helper, now)
    }

    /// Activates an auxiliary core for a dispatcher, if it is free. Returns `true` on success.
    #[cold]
    fn claim(&mut self, number: usize, tenant: usize, dispatch: &mut Dispatch, helper: usize, now: u64) -> bool {
        let known = &mut dispatch.helpers[helper];
        let guest = usize::from(dispatch.cores[helper]);
        if !self.is_free(guest) {
            known.taken = true;
            return false;
        }
        known.recruited = true;
        dispatch.recruited |= 1 << helper;
        let (core, server) = (self.cores[number].node, self.cores[number].server);
        self.cores[guest].claim = Some(Claim {
            dispatcher: number as u16,
            helper: helper as u16,
            since: now,
            other_node: self.cores[guest].node != core,
        });
        self.servers[usize::from(server)].claims += 1;
        self.usage.begin(guest, now);
        self.tenants[tenant].decisions.recruited += 1;
        true
    }

    /// Releases an auxiliary core.
    pub(super) fn release(&mut self, number: usize, tenant: usize, dispatch: &mut Dispatch, helper: usize, now: u64) {
        dispatch.helpers[helper].recruited = false;
        dispatch.recruited &= !(1 << helper);
        let guest = usize::from(dispatch.cores[helper]);
        let claim = self.cores[guest].claim.take();
        let since = claim.map_or(now, |claim| claim.since);
        self.servers[usize::from(self.cores[number].server)].claims += 1;
        if self.cores[guest].dedicated.is_none() {
            self.usage.end(guest, now);
        }
        let until = self.used_until(now);
        let tenant = &mut self.tenants[tenant];
        tenant.auxiliary += until.saturating_sub(since);
        tenant.decisions.released += 1;
    }

    /// Processes the receipts of auxiliary cores up to `now`. Returns the time at which this ends, if it starts at
    /// `time`.
    fn collect(&mut self, number: usize, tenant: usize, dispatch: &mut Dispatch, (now, time): (u64, u64)) -> u64 {
        if dispatch.receipt_at > now {
            return time;
        }
        let told = self.hear(number, tenant, dispatch, now);
        let mut picos = self.tenants[tenant].costs.receipts(told);
        if !dispatch.free_to_go.is_empty() {
            picos += self.place_held(number, tenant, dispatch, now);
        }
        time + spend(&mut self.cores[number].carry, picos)
    }

    /// Processes the receipts of completed packets. Returns their number.
    fn hear(&mut self, number: usize, tenant: usize, dispatch: &mut Dispatch, now: u64) -> u64 {
        let mut told = 0;
        dispatch.receipt_at = NEVER;
        for helper in bits(dispatch.busy) {
            let receipts_due = dispatch.lanes[helper].receipts_due(now);
            told += receipts_due as u64;
            for at in 0..receipts_due {
                let slot = dispatch.lanes[helper].slot(at);
                if let Some(flow) = dispatch.done_by(slot, helper, now) {
                    self.tenants[tenant].slots[flow as usize] = NONE;
                }
                if self.cores[number].transit.leaving > 0 {
                    let known = dispatch.slot(slot);
                    self.left_unit(number, usize::from(known.bucket), known.flow, now);
                }
            }
            let lane = &mut dispatch.lanes[helper];
            lane.forget(receipts_due);
            dispatch.receipt_at = dispatch.receipt_at.min(lane.receipt_at());
        }
        told
    }

    /// Places flows that have left an auxiliary core, with their parked packets. Returns the time that this takes.
    fn place_held(&mut self, number: usize, tenant: usize, dispatch: &mut Dispatch, now: u64) -> u64 {
        let mut moved = 0;
        let mut free_to_go = std::mem::take(&mut dispatch.free_to_go);
        for slot in free_to_go.drain(..) {
            let (first, packets) = dispatch.first_held(slot);
            let flowlet = Flowlet {
                arrival: Nanos(first.packet.arrival),
                new: false,
                packets,
                held: true,
            };
            let place = self.place(number, tenant, dispatch, flowlet, now);
            moved += dispatch.let_go(slot, place);
        }
        dispatch.free_to_go = free_to_go;
        self.tenants[tenant].costs.moved(moved)
    }

    /// Runs the mapper and applies its plan. Returns the time at which this ends.
    fn decide(&mut self, number: usize, tenant: usize, dispatch: &mut Dispatch, (now, time): (u64, u64)) -> u64 {
        self.see_claims(number, dispatch);
        dispatch.ask(now);
        let plan = std::mem::take(&mut dispatch.plan);
        for split in &plan.splits {
            if self.recruit(number, tenant, dispatch, split.helper, now) {
                dispatch.split(split.flow, split.helper, split.last_functions);
                self.tenants[tenant].decisions.splits += 1;
            }
        }
        let mut flows = 0;
        for (listed, place) in plan.places.iter().enumerate() {
            let Some(helper) = place.as_helper() else {
                continue;
            };
            let bound = dispatch.queued()[listed].bound;
            if !bound && self.recruit(number, tenant, dispatch, helper, now) {
                dispatch.move_flow(listed, *place);
                flows += 1;
            }
        }
        let moved = if flows > 0 { dispatch.move_staged() } else { 0 };
        for helper in bits(plan.release) {
            let known = dispatch.helpers[helper];
            let idle = known.load.packets == 0 && dispatch.splits[helper] == 0;
            if known.recruited && idle {
                self.release(number, tenant, dispatch, helper, now);
            }
        }
        let relieved = dispatch.relieve(plan.relieve);
        let listed = plan.places.len() as u64;
        let tenant = &mut self.tenants[tenant];
        let decisions = &mut tenant.decisions;
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
        let picos = tenant.costs.decision(listed, moved);
        time + spend(&mut self.cores[number].carry, picos)
    }

    /// Offloads all staged packets, from `time` on. Returns the time at which this ends.
    fn flush(&mut self, number: usize, tenant: usize, dispatch: &mut Dispatch, mut time: u64) -> u64 {
        for helper in bits(std::mem::take(&mut dispatch.staging)) {
            let lane = &mut dispatch.lanes[helper];
            let packets = lane.put_down() as u64;
            let tenant = &mut self.tenants[tenant];
            time += spend(&mut self.cores[number].carry, tenant.costs.hand_over(packets));
            tenant.decisions.packets_handed += packets;
            let mut here = time + self.timing.hand_over;
            if lane.is_busy() {
                lane.hand_over(here);
                continue;
            }
            let core = usize::from(dispatch.cores[helper]);
            let guest = &mut self.cores[core];
            if time > guest.ready + self.timing.spin && guest.dedicated.is_none() {
                let asleep = time - guest.ready - self.timing.spin;
                let seed = (core as u64) << 48;
                let drawn = random(tenant.seed ^ seed, tenant.decisions.packets_handed);
                let wake = tenant.costs.wake(asleep, drawn).unwrap_or(self.timing.wake);
                here = here.max(time + wake);
                guest.attribution.woke(Nanos(wake));
            }
            lane.hand_over(here);
            guest.offloaded_at = here;
            self.schedule(core);
        }
        time
    }

    /// Processes a batch of the own queue, in an iteration that began at `began`.
    fn process_queue(&mut self, number: usize, tenant: usize, dispatch: &mut Dispatch, (now, began): (u64, u64)) {
        if dispatch.queue_is_empty() {
            return;
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        let most = self.tenants[tenant].costs.most.min(dispatch.batch);
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
        let work = self.work_here(tenant, &batch);
        let costs = &self.tenants[tenant].costs;
        let mut picos = costs.process(work);
        if split {
            picos -= left_out(costs, &batch, false).min(picos);
        }
        let more = dispatch.here().packets as usize > batch.len();
        self.process(number, tenant, (now, picos), &batch, more);
        let mut end = self.cores[number].ready;
        for waiting in &batch {
            let split = waiting.last_functions > 0;
            if split && let Some((helper, _)) = dispatch.slot(waiting.slot).split() {
                dispatch.stage(usize::from(helper), *waiting);
            }
            if let Some(flow) = dispatch.done_here(waiting.slot) {
                self.tenants[tenant].slots[flow as usize] = NONE;
            }
            if !split {
                self.left(number, &waiting.packet, end);
            }
        }
        if split {
            end = self.flush(number, tenant, dispatch, end);
            self.cores[number].ready = end;
        }
        let took = Nanos(end - began);
        let (packets, new) = (work.packets as u32, work.new as u32);
        dispatch.mapper.completed(packets, new, took);
        self.batch = batch;
    }

    /// Processes a batch of offloaded packets.
    pub(super) fn help(&mut self, number: usize, now: u64) {
        let Some(claim) = self.cores[number].claim else {
            unreachable!("a core is let go when nothing is left")
        };
        let dispatcher = usize::from(claim.dispatcher);
        let owner = &mut self.cores[dispatcher];
        let (Some((tenant, _)), Some(mut dispatch)) = (owner.dedicated, owner.dispatch.take()) else {
            unreachable!("who recruits has a queue until it has let all helpers go")
        };
        let helper = usize::from(claim.helper);
        let lane = &mut dispatch.lanes[helper];
        let tenant = &mut self.tenants[usize::from(tenant)];
        let core = &mut self.cores[number];
        let batch = lane.arrived(now, tenant.costs.most.min(dispatch.batch));
        let count = batch.len();
        let packets = batch.iter().map(|waiting| &waiting.packet);
        let work = work(packets, &mut tenant.warmth);
        let mut picos = tenant.costs.help(work, claim.other_node);
        if dispatch.split_flows > 0 {
            picos -= left_out(&tenant.costs, batch, true).min(picos);
        }
        if lane.has_more(now, count) {
            for waiting in batch {
                let hash = flow_hash(waiting.packet.flow);
                core.attribution.served(hash, Nanos(now));
            }
        }
        let end = spend_at(tenant, core, number, picos, now);
        if let Some(check) = &mut tenant.check {
            for waiting in batch {
                let holds = tenant.steering.holds(dispatcher, &waiting.packet);
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
            kept: false,
        });
        tenant.meter.sent(&core.attribution, packets, now, end);
        tenant.worked += end - now;
        core.stats.batch(count, end - now);
        core.ready = end;
        let told = end + self.timing.receipt;
        lane.finish(count, told);
        core.offloaded_at = lane.next();
        if !lane.is_busy() {
            core.attribution.idle();
        }
        dispatch.receipt_at = dispatch.receipt_at.min(told);
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
