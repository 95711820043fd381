//! Offloading: packets on their way to auxiliary cores, their processing there, and their receipts.

use super::Engine;
use super::check::FUNCTIONS;
use super::core::Activation;
use super::dispatch::{AuxiliaryLinks, Dispatch};
use super::late::discard_late;
use super::meter::{Sent, flow_hash};
use super::tree::NEVER;
use super::turn::{left_out, spend_at, work};
use super::waiting::{NONE, Waiting};
use crate::chain::{random, spend};
use tailwater_dispatch::AuxiliaryCores;
use tailwater_net::Nanos;

/// Name of the segment that begins with the chain's last functions, in the state machine: later ones have larger names.
pub(super) const LAST_SEGMENT: usize = 128;

/// Returns the number of functions from a segment on, or 0 for no segment.
pub(super) fn functions_from(segment: usize) -> u8 {
    match segment {
        0 => 0,
        _ => (LAST_SEGMENT - segment) as u8,
    }
}

/// Returns the set bits of a map.
fn bits(mut map: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (map != 0).then(|| map.trailing_zeros() as usize)?;
        map &= map - 1;
        Some(bit)
    })
}

/// Activation of the auxiliary cores of a dispatcher at one time.
pub(super) struct Activations<'a, 'e> {
    pub(super) engine: &'a mut Engine<'e>,
    /// Core and chain of the dispatcher.
    number: usize,
    chain: usize,
    links: &'a mut AuxiliaryLinks,
    now: u64,
}

impl<'a, 'e> Activations<'a, 'e> {
    pub(super) fn new(
        engine: &'a mut Engine<'e>,
        (number, chain): (usize, usize),
        links: &'a mut AuxiliaryLinks,
        now: u64,
    ) -> Activations<'a, 'e> {
        Activations {
            engine,
            number,
            chain,
            links,
            now,
        }
    }
}

impl AuxiliaryCores for Activations<'_, '_> {
    #[cold]
    fn activate(&mut self, auxiliary: usize) -> bool {
        let Activations { engine, links, now, .. } = self;
        let serving = usize::from(links.cores[auxiliary]);
        if !engine.is_free(serving, *now) || !engine.may_activate(self.number, serving, *now) {
            return false;
        }
        links.active |= 1 << auxiliary;
        let (core, server) = (engine.cores[self.number].node, engine.cores[self.number].server);
        engine.cores[serving].activation = Some(Activation {
            dispatcher: self.number as u16,
            auxiliary: auxiliary as u16,
            // A dedicated core counts as such.
            since: match engine.cores[serving].dedicated {
                Some(_) => NEVER,
                None => *now,
            },
            other_node: engine.cores[serving].node != core,
        });
        engine.servers[usize::from(server)].claims += 1;
        engine.usage.begin(serving, *now);
        engine.chains[self.chain].decisions.activated += 1;
        true
    }

    fn release(&mut self, auxiliary: usize) {
        let Activations { engine, links, now, .. } = self;
        links.active &= !(1 << auxiliary);
        let serving = usize::from(links.cores[auxiliary]);
        let claim = engine.cores[serving].activation.take();
        let since = claim.map_or(*now, |claim| claim.since);
        let server = usize::from(engine.cores[self.number].server);
        engine.servers[server].claims += 1;
        engine.end_lease(self.number, serving);
        if engine.cores[serving].dedicated.is_none() {
            engine.usage.end(serving, *now);
        }
        let until = engine.used_until(*now);
        let chain = &mut engine.chains[self.chain];
        chain.auxiliary += until.saturating_sub(since);
        chain.decisions.released += 1;
    }
}

impl Engine<'_> {
    /// Offloads all staged packets, from `time` on. Returns the time at which this ends.
    pub(super) fn flush(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, mut time: u64) -> u64 {
        for auxiliary in bits(std::mem::take(&mut dispatch.lists.staging)) {
            let lane = &mut dispatch.lists.offload_queues[auxiliary];
            let packets = lane.put_down() as u64;
            let chain = &mut self.chains[chain];
            time += spend(&mut self.cores[number].carry, chain.costs.hand_over(packets));
            chain.decisions.packets_handed += packets;
            let mut here = time + self.timing.hand_over;
            if lane.is_busy() {
                lane.hand_over(here);
                continue;
            }
            let core = usize::from(dispatch.links.cores[auxiliary]);
            let serving = &mut self.cores[core];
            if time > serving.ready + self.timing.spin && serving.dedicated.is_none() {
                let asleep = time - serving.ready - self.timing.spin;
                let seed = (core as u64) << 48;
                let drawn = random(chain.seed ^ seed, chain.decisions.packets_handed);
                let wake = chain.costs.wake(asleep, drawn).unwrap_or(self.timing.wake);
                here = here.max(time + wake);
                serving.attribution.woke(Nanos(wake));
                lane.woke = Some(wake);
            }
            lane.hand_over(here);
            serving.offloaded_at = here;
            self.schedule(core);
        }
        time
    }

    /// Processes the receipts of auxiliary cores up to `now`. Returns the time at which this ends, if it starts at
    /// `time`.
    pub(super) fn collect(
        &mut self,
        number: usize,
        chain: usize,
        dispatch: &mut Dispatch,
        (now, time): (u64, u64),
    ) -> u64 {
        let has_parked = dispatch.machine.backlog.has_free_to_go();
        if dispatch.lists.receipt_at > now && !has_parked {
            return time;
        }
        let receipts = self.process_receipts(number, chain, dispatch, now);
        self.release_withdrawn(number, chain, dispatch, now);
        let mut picos = self.chains[chain].costs.receipts(receipts);
        picos += self.place_parked(number, chain, dispatch, now);
        time + spend(&mut self.cores[number].carry, picos)
    }

    /// Processes the receipts of completed packets. Returns their number.
    fn process_receipts(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, now: u64) -> u64 {
        let mut receipts = 0;
        let Dispatch {
            machine,
            slots: by_bucket,
            lists,
            ..
        } = dispatch;
        lists.receipt_at = NEVER;
        for auxiliary in bits(lists.busy) {
            let receipts_due = lists.offload_queues[auxiliary].receipts_due(now);
            receipts += receipts_due as u64;
            if receipts_due > 0
                && let Some(took) = lists.offload_queues[auxiliary].woke.take()
            {
                machine.woke(Nanos(took));
            }
            for at in 0..receipts_due {
                let waiting = lists.offload_queues[auxiliary].get(at);
                let slot = waiting.slot;
                if waiting.left > 0 {
                    let from = LAST_SEGMENT - usize::from(waiting.left);
                    let (list, until) = machine.backlog.relay(slot, auxiliary, from, Nanos(now));
                    let (last_functions, left) = (waiting.left, functions_from(until));
                    lists.push(
                        list,
                        Waiting {
                            last_functions,
                            left,
                            ..waiting
                        },
                    );
                    continue;
                }
                if let Some(known) = machine.backlog.done_by(slot, auxiliary, Nanos(now)) {
                    *self.slot_of(chain, by_bucket, known) = NONE;
                }
                if self.cores[number].transit.leaving > 0 {
                    let known = machine.backlog.flow(slot).key();
                    self.left_unit(number, usize::from(known.bucket), known.flow, now);
                }
            }
            let is_idle = machine.backlog.auxiliaries()[auxiliary].load.packets == 0;
            lists.forget(auxiliary, receipts_due, is_idle);
        }
        receipts
    }

    /// Places flows that have left an auxiliary core, with their parked packets. Returns the time that this takes.
    fn place_parked(&mut self, number: usize, chain: usize, dispatch: &mut Dispatch, now: u64) -> u64 {
        let Dispatch {
            machine, lists, links, ..
        } = dispatch;
        let mut activations = Activations::new(self, (number, chain), links, now);
        let arrival = |waiting: &Waiting| Nanos(waiting.packet.arrival);
        let put = |list, waiting| lists.push(list, waiting);
        let moved = machine.place_parked(Nanos(now), arrival, &mut activations, put);
        self.chains[chain].costs.moved(moved.into())
    }

    /// Processes a batch of offloaded packets.
    pub(super) fn process_offloaded(&mut self, number: usize, now: u64) {
        let Some(claim) = self.cores[number].activation else {
            unreachable!("an auxiliary core is released when it has no packets left")
        };
        let dispatcher = usize::from(claim.dispatcher);
        let owner = &mut self.cores[dispatcher];
        let (Some((chain, _)), Some(mut dispatch)) = (owner.dedicated, owner.dispatch.take()) else {
            unreachable!("a dispatcher has its queue until it has released all auxiliary cores")
        };
        let auxiliary = usize::from(claim.auxiliary);
        let lane = &mut dispatch.lists.offload_queues[auxiliary];
        let chain = &mut self.chains[usize::from(chain)];
        let core = &mut self.cores[number];
        let batch = lane.arrived(now, chain.costs.most.min(dispatch.batch));
        let count = batch.len();
        let more = lane.has_more(now, count);
        let late = discard_late(
            (&mut core.freshness, &core.attribution, &mut core.stats),
            &mut chain.meter,
            batch.iter().map(Sent::offloaded),
            (now, more),
        );
        let batch = &batch[late..];
        let packets = batch.iter().map(|waiting| &waiting.packet);
        let work = work(number, packets, &mut chain.warmth);
        let mut picos = match batch.is_empty() {
            true => 0,
            false => chain.costs.help(work, claim.other_node),
        };
        if dispatch.machine.backlog.has_splits() {
            picos -= left_out(&chain.costs, batch, true).min(picos);
        }
        picos += chain.costs.discard(late);
        if more {
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
                let first = match waiting.last_functions {
                    0 => FUNCTIONS,
                    functions => functions,
                };
                check.processed(flow, [first, waiting.left], number, (now, end));
            }
        }
        let sent = batch.iter().filter(|waiting| waiting.left == 0).map(Sent::offloaded);
        let remediable = chain.meter.sent(&core.attribution, sent, now, end);
        core.stats.late += remediable;
        if let Some(freshness) = core.freshness.as_mut().filter(|_| more) {
            freshness.processed(batch.len(), Nanos(end - now));
        }
        chain.worked += end - now;
        core.stats.batch(batch.len(), end - now);
        core.ready = end;
        let receipt_at = end + self.timing.receipt;
        if late > 0 {
            lane.discard(late);
        }
        lane.finish(count, receipt_at);
        core.offloaded_at = lane.next();
        if !lane.is_busy() {
            core.attribution.idle();
        }
        dispatch.lists.receipt_at = dispatch.lists.receipt_at.min(receipt_at);
        if !self.brokers.is_empty() {
            // The core works for several chains in a period: a mapper sees the counters of its own.
            let stats = &mut self.cores[dispatcher].stats;
            stats.late += remediable;
            stats.processed += count as u64;
        }
        self.cores[dispatcher].dispatch = Some(dispatch);
    }
}
