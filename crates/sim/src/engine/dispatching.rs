//! Turns of cores that hand flows to helpers, and of the helpers: what the live data plane's
//! `worker.rs`, `scaling::dispatch` and `scaling::helper` do, step by step.

use super::Engine;
use super::check::Segment;
use super::core::{Claim, Waiting};
use super::dispatch::{Dispatch, NONE, Turn};
use super::meter::{Sent, flow_hash};
use super::turn::{spend_at, work};
use crate::chain::{Work, random, spend};
use tailwater_net::Nanos;
use tailwater_policy::core::{Flowlet, Loads, Notice, Place};

/// Most packets looked up in one turn: the own queue is served again before more are.
const MOST_RECEIVED: usize = 2048;

/// The bits of a map that are set.
fn bits(mut map: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (map != 0).then(|| map.trailing_zeros() as usize)?;
        map &= map - 1;
        Some(bit)
    })
}

impl Engine<'_> {
    /// A turn, or what is left of one.
    pub(super) fn turn(&mut self, number: usize, tenant: usize, dispatch: &mut Dispatch, now: u64) {
        let before = dispatch.turn.take();
        let turn = before.unwrap_or(Turn {
            began: now,
            looked_up: 0,
        });
        let more = self.gather(number, tenant, now, dispatch.used());
        let received = self.batch.len();
        let straight = before.is_none() && !more;
        if straight && dispatch.is_quiet() && dispatch.recruited == 0 {
            self.whole(number, tenant, now, false);
            return;
        }
        let mut time = self.distribute(number, tenant, dispatch, now);
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
        // Without room nothing more can be received before something is processed.
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

    /// Sorts the batch to the places of its flows. Returns when that is done.
    fn distribute(
        &mut self,
        number: usize,
        tenant: usize,
        dispatch: &mut Dispatch,
        now: u64,
    ) -> u64 {
        let received = self.batch.len() as u64;
        if received == 0 {
            return now;
        }
        self.see_claims(number, dispatch);
        let held = dispatch.held().packets;
        let mut batch = std::mem::take(&mut self.batch);
        for waiting in batch.drain(..) {
            let packet = waiting.packet;
            let mut slot = self.tenants[tenant].slots[packet.flow as usize];
            if slot == NONE {
                let bound = packet.is_first() && self.tenants[tenant].costs.opens_at_home;
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
                slot = dispatch.open(&waiting, place, bound);
                self.tenants[tenant].slots[packet.flow as usize] = slot;
            }
            dispatch.sort(Waiting { slot, ..waiting });
        }
        self.batch = batch;
        let tenant = &mut self.tenants[tenant];
        tenant.decisions.packets_held += u64::from(dispatch.held().packets - held);
        now + spend(
            &mut self.cores[number].carry,
            tenant.costs.receive(received),
        )
    }

    /// Where the packets of a flow go that may go anywhere.
    fn place(
        &mut self,
        number: usize,
        tenant: usize,
        dispatch: &mut Dispatch,
        flowlet: Flowlet,
        now: u64,
    ) -> Place {
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

    /// Tells a dispatcher which helpers are taken, if that has changed.
    fn see_claims(&self, number: usize, dispatch: &mut Dispatch) {
        let server = usize::from(self.cores[number].server);
        let claims = self.servers[server].claims;
        if dispatch.seen_claims == claims {
            return;
        }
        dispatch.seen_claims = claims;
        for (helper, core) in dispatch.helpers.iter_mut().zip(&dispatch.cores) {
            helper.taken = !helper.recruited && !self.is_free(usize::from(*core));
        }
    }

    /// Whether a core can be recruited.
    fn is_free(&self, number: usize) -> bool {
        let core = &self.cores[number];
        core.guest.claim.is_none() && core.dedicated.is_none()
    }

    /// Makes sure that a helper works for a dispatcher. Whether it does.
    fn recruit(
        &mut self,
        number: usize,
        tenant: usize,
        dispatch: &mut Dispatch,
        helper: usize,
        now: u64,
    ) -> bool {
        let known = &mut dispatch.helpers[helper];
        if known.recruited {
            return true;
        }
        let guest = usize::from(dispatch.cores[helper]);
        if !self.is_free(guest) {
            known.taken = true;
            return false;
        }
        known.recruited = true;
        dispatch.recruited |= 1 << helper;
        let (core, server) = (self.cores[number].node, self.cores[number].server);
        self.cores[guest].guest.claim = Some(Claim {
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

    /// Lets a helper go.
    pub(super) fn release(
        &mut self,
        number: usize,
        tenant: usize,
        dispatch: &mut Dispatch,
        helper: usize,
        now: u64,
    ) {
        dispatch.helpers[helper].recruited = false;
        dispatch.recruited &= !(1 << helper);
        let guest = usize::from(dispatch.cores[helper]);
        let claim = self.cores[guest].guest.claim.take();
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

    /// Hears of what helpers have done by `now`. Returns when that is done, `time` having come.
    fn collect(
        &mut self,
        number: usize,
        tenant: usize,
        dispatch: &mut Dispatch,
        (now, time): (u64, u64),
    ) -> u64 {
        let mut told = 0;
        for helper in bits(dispatch.busy) {
            while let Some(&(at, slot)) = dispatch.receipts[helper].front()
                && at <= now
            {
                dispatch.receipts[helper].pop_front();
                told += 1;
                if let Some(flow) = dispatch.done_by(slot, helper, now) {
                    self.tenants[tenant].slots[flow as usize] = NONE;
                }
                if self.cores[number].transit.leaving > 0 {
                    let known = dispatch.slot(slot);
                    self.left_unit(number, usize::from(known.bucket), known.flow, now);
                }
            }
        }
        let mut picos = self.tenants[tenant].costs.receipts(told);
        if !dispatch.free_to_go.is_empty() {
            picos += self.place_held(number, tenant, dispatch, now);
        }
        time + spend(&mut self.cores[number].carry, picos)
    }

    /// Places flows that have left a helper, with what was held of them. Returns what that takes.
    fn place_held(
        &mut self,
        number: usize,
        tenant: usize,
        dispatch: &mut Dispatch,
        now: u64,
    ) -> u64 {
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

    /// Asks the mapper, and does what it says. Returns when that is done.
    fn decide(
        &mut self,
        number: usize,
        tenant: usize,
        dispatch: &mut Dispatch,
        (now, time): (u64, u64),
    ) -> u64 {
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

    /// Hands over what was put down for helpers, from `time` on. Returns when that is done.
    fn flush(
        &mut self,
        number: usize,
        tenant: usize,
        dispatch: &mut Dispatch,
        mut time: u64,
    ) -> u64 {
        for helper in bits(std::mem::take(&mut dispatch.staging)) {
            let mut staged = std::mem::take(&mut dispatch.staged[helper]);
            let picos = self.tenants[tenant].costs.hand_over(staged.len() as u64);
            time += spend(&mut self.cores[number].carry, picos);
            self.tenants[tenant].decisions.packets_handed += staged.len() as u64;
            let core = usize::from(dispatch.cores[helper]);
            let guest = &mut self.cores[core];
            let mut here = time + self.timing.hand_over;
            let sleeps = guest.guest.queue.is_empty() && time > guest.ready + self.timing.spin;
            if sleeps && guest.dedicated.is_none() {
                let asleep = time - guest.ready - self.timing.spin;
                let (tenant, seed) = (&self.tenants[tenant], (core as u64) << 48);
                let drawn = random(tenant.seed ^ seed, tenant.decisions.packets_handed);
                let wake = tenant.costs.wake(asleep, drawn).unwrap_or(self.timing.wake);
                here = here.max(time + wake);
                guest.attribution.woke(Nanos(wake));
            }
            // What was handed over before is there before.
            here = guest
                .guest
                .queue
                .back()
                .map_or(here, |last| last.at.max(here));
            let waiting = staged.drain(..).map(|waiting| Waiting {
                at: here,
                ..waiting
            });
            guest.guest.queue.extend(waiting);
            dispatch.staged[helper] = staged;
            self.schedule(core);
        }
        time
    }

    /// Processes a batch of the own queue, of a turn that began at `began`.
    fn process_queue(
        &mut self,
        number: usize,
        tenant: usize,
        dispatch: &mut Dispatch,
        (now, began): (u64, u64),
    ) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        dispatch.take(self.tenants[tenant].costs.most, &mut batch);
        if batch.is_empty() {
            self.batch = batch;
            return;
        }
        let mut split = false;
        for waiting in &mut batch {
            if let Some((_, last_functions)) = dispatch.slot(waiting.slot).split {
                waiting.last_functions = last_functions;
                split = true;
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
            if let Some((helper, _)) = dispatch.slot(waiting.slot).split {
                dispatch.stage(usize::from(helper), *waiting);
            }
            let split = waiting.last_functions > 0;
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

    /// A batch of what others handed over.
    pub(super) fn help(&mut self, number: usize, now: u64) {
        let core = &mut self.cores[number];
        let Some(claim) = core.guest.claim else {
            unreachable!("a core is let go when nothing is left")
        };
        let dispatcher = usize::from(claim.dispatcher);
        let Some((owner, _)) = self.cores[dispatcher].dedicated else {
            unreachable!("who recruits has a queue until it has let all helpers go")
        };
        let tenant = &mut self.tenants[usize::from(owner)];
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        let core = &mut self.cores[number];
        let arrived = core.guest.queue.iter().take(tenant.costs.most);
        let count = arrived.take_while(|waiting| waiting.at <= now).count();
        batch.extend(core.guest.queue.drain(..count));
        let more = core.guest.queue.front().is_some_and(|w| w.at <= now);
        let packets = batch.iter().map(|waiting| &waiting.packet);
        let work = work(packets, &mut tenant.warmth);
        let mut picos = tenant.costs.help(work, claim.other_node);
        if batch.iter().any(|waiting| waiting.last_functions > 0) {
            picos -= left_out(&tenant.costs, &batch, true).min(picos);
        }
        if more {
            for waiting in &batch {
                let hash = flow_hash(waiting.packet.flow);
                core.attribution.served(hash, Nanos(now));
            }
        }
        let end = spend_at(tenant, core, number, picos, now);
        if let Some(check) = &mut tenant.check {
            for waiting in &batch {
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
            // That it came late to a helper is no fault of the network.
            at: waiting.packet.arrival,
            kept: false,
        });
        tenant.meter.sent(&core.attribution, packets, now, end);
        tenant.worked += end - now;
        core.stats.batch(batch.len(), end - now);
        core.ready = end;
        if core.guest.queue.is_empty() {
            core.attribution.idle();
        }
        let told = end + self.timing.receipt;
        let helper = usize::from(claim.helper);
        if let Some(dispatch) = &mut self.cores[dispatcher].dispatch {
            let receipts = batch.iter().map(|waiting| (told, waiting.slot));
            dispatch.receipts[helper].extend(receipts);
        }
        self.batch = batch;
    }
}

/// What packets of split flows do not take of a core that has one part of the chain.
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
