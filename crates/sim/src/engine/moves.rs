//! Migration of RSS buckets and flows between cores.
//!
//! From the time at which a move is in force, packets go to the new core. The new core buffers them, in order, until
//! the old core has completed all earlier ones: in its ring, in its own queue and on its auxiliary cores. Then the
//! bucket or flow is transferred, and the buffered packets are processed first.

use super::Engine;
use super::chain_state::{Moving, NO_CORE, Steering};
use super::dispatch::Dispatch;
use super::tree::NEVER;
use super::waiting::Waiting;
use crate::traffic::Packet;
use tailwater_net::Nanos;

impl Engine<'_> {
    /// Gives a core a queue of a tenant, if it has none.
    pub(super) fn dedicate(&mut self, number: usize, chain: usize, section: usize, now: u64) {
        self.cores[number].reclaim = false;
        if self.is_stopped(number) {
            self.cores[number].stopped_for = Some(chain as u16);
            return;
        }
        if self.cores[number].dedicated.is_some() {
            return;
        }
        let auxiliaries = self.auxiliaries_of(number, chain);
        let mapper = self.chains[chain].make.as_ref().map(|make| make());
        let (slo, unit) = (self.chains[chain].meter.slo, self.chains[chain].costs.unit);
        let is_brokered = !self.brokers.is_empty();
        let core = &mut self.cores[number];
        if is_brokered {
            // Its counters are from its time as an auxiliary core.
            core.stats.clear();
        }
        core.dedicated = Some((chain as u16, section as u16));
        core.since = now;
        core.through = now;
        core.attribution = tailwater_measure::attribution::Attribution::new(slo);
        core.dispatch = mapper.map(|mapper| Box::new(Dispatch::new(mapper, unit, auxiliaries, core.buffers)));
        self.dispatchers += u32::from(core.dispatch.is_some());
        let server = usize::from(core.server);
        self.servers[server].claims += 1;
        self.chains[chain].cores += 1;
        self.usage.begin(number, now);
        self.counts_once(number, now);
        self.report_dedicated(chain, section, now);
    }

    /// Ends a core's time as an auxiliary core when it gets a queue. It still processes its offloaded packets, but
    /// counts as a core with a queue.
    fn counts_once(&mut self, number: usize, now: u64) {
        let Some(claim) = &mut self.cores[number].activation else {
            return;
        };
        let since = std::mem::replace(&mut claim.since, NEVER);
        let dispatcher = usize::from(claim.dispatcher);
        if let Some((chain, _)) = self.cores[dispatcher].dedicated {
            self.chains[usize::from(chain)].auxiliary += now.saturating_sub(since);
        }
    }

    /// Returns the possible auxiliary cores of a core: those of the same server, its own node first. They are sorted
    /// from the highest number down, since dedicated cores are taken from the lowest up.
    fn auxiliaries_of(&self, number: usize, chain: usize) -> Vec<u16> {
        let me = &self.cores[number];
        let others = (0..self.cores.len()).rev();
        let others = others.filter(|&core| core != number && self.cores[core].server == me.server);
        let others = others.map(|core| core as u16);
        let mut auxiliaries: Vec<u16> = match &self.chains[chain].auxiliaries {
            None => others.collect(),
            Some(own) => others.filter(|core| own.contains(core)).collect(),
        };
        auxiliaries.sort_by_key(|core| self.cores[usize::from(*core)].node != me.node);
        auxiliaries.truncate(tailwater_policy::core::MAX_AUXILIARY_CORES);
        auxiliaries
    }

    /// Starts the migration of a bucket of a steering domain to another core.
    pub(super) fn move_bucket(&mut self, chain: usize, section: usize, bucket: usize, to: u16, now: u64) {
        let Steering::Buckets(steering) = &mut self.chains[chain].steering else {
            return;
        };
        let from = steering.sections[section].table[bucket];
        if from == to {
            return;
        }
        assert!(
            steering.sections[section].transit[bucket] == 0,
            "a bucket moves that is on its way"
        );
        steering.sections[section].table[bucket] = to;
        steering.sections[section].moving += 1;
        let transit = self.begin(chain, bucket as u32, from, to, now);
        if let Steering::Buckets(steering) = &mut self.chains[chain].steering {
            steering.sections[section].transit[bucket] = transit;
        }
        self.cores[usize::from(from)].owned -= 1;
        self.cores[usize::from(to)].owned += 1;
        self.chains[chain].decisions.buckets_moved += 1;
        self.dedicate(usize::from(to), chain, section, now);
    }

    /// Starts the migration of a flow to another core, given by its number for the mapper. Flows already in migration
    /// keep their destination.
    pub(super) fn move_flow(&mut self, chain: usize, flow: u32, to: u16, now: u64) {
        let Steering::Flows(steering) = &mut self.chains[chain].steering else {
            return;
        };
        let known = steering.flows[flow as usize];
        if known.core == NO_CORE || known.core == to || known.transit != 0 {
            return;
        }
        let (from, target) = (steering.cores[usize::from(known.core)], steering.cores[usize::from(to)]);
        let transit = self.begin(chain, flow, from, target, now);
        if let Steering::Flows(steering) = &mut self.chains[chain].steering {
            let known = &mut steering.flows[flow as usize];
            (known.core, known.transit, known.stranger) = (to, transit, true);
        }
        self.cores[usize::from(from)].owned -= 1;
        self.cores[usize::from(target)].owned += 1;
        self.chains[chain].decisions.flows_migrated += 1;
        self.dedicate(usize::from(target), chain, 0, now);
    }

    fn begin(&mut self, chain: usize, unit: u32, from: u16, to: u16, since: u64) -> u32 {
        self.cores[usize::from(from)].transit.leaving += 1;
        self.cores[usize::from(to)].transit.awaited += 1;
        self.moving += 1;
        self.chains[chain].transit(Moving {
            unit,
            from,
            to,
            outstanding: 0,
            since,
        })
    }

    /// Counts the packets that the old cores hold of all migrations that have just begun. Those without any are
    /// transferred at once.
    pub(super) fn count_leaving(&mut self, chain: usize, now: u64) {
        for number in 0..self.cores.len() {
            let core = &self.cores[number];
            let mine = core.dedicated.is_some_and(|d| usize::from(d.0) == chain);
            if core.transit.leaving == 0 || !mine {
                continue;
            }
            let mut counted: Vec<u32> = Vec::new();
            let mut count = |transit: u32, packets: u32, chain: &super::chain_state::ChainState| {
                let moving = transit.checked_sub(1).map(|t| chain.transits[t as usize]);
                if moving.is_some_and(|m| usize::from(m.from) == number && m.since == now) {
                    (0..packets).for_each(|_| counted.push(transit - 1));
                }
            };
            let owner = &self.chains[chain];
            let ring = core.fifo.iter().map(|arrived| &arrived.packet);
            let next = core.transit.next.iter().map(|waiting| &waiting.packet);
            for packet in ring.chain(next) {
                let transit = self.transit_of(chain, number, packet.bucket(), packet.flow);
                count(transit, 1, owner);
            }
            if let Some(dispatch) = &core.dispatch {
                for (bucket, flow, packets) in dispatch.inside() {
                    let transit = self.transit_of(chain, number, bucket.into(), flow);
                    count(transit, packets, owner);
                }
            }
            for transit in counted {
                self.chains[chain].transits[transit as usize].outstanding += 1;
            }
        }
        // The old core's current work is done when the core is ready.
        for transit in 0..self.chains[chain].transits.len() {
            let moving = self.chains[chain].transits[transit];
            let begun = moving.from != NO_CORE && moving.since == now;
            if begun && moving.outstanding == 0 {
                let ready = self.cores[usize::from(moving.from)].ready;
                self.transfer(chain, transit as u32, now.max(ready));
            }
        }
    }

    /// Returns the transit of a packet's bucket or flow at a core, or 0.
    fn transit_of(&self, chain: usize, core: usize, bucket: usize, flow: u32) -> u32 {
        let section = self.cores[core].dedicated.map_or(0, |(_, section)| section);
        match &self.chains[chain].steering {
            Steering::Buckets(steering) => steering.sections[usize::from(section)].transit[bucket],
            Steering::Flows(steering) => steering.flows[flow as usize].transit,
        }
    }

    /// Records that a core has completed a packet.
    #[inline]
    pub(super) fn left(&mut self, number: usize, packet: &Packet, end: u64) {
        if self.cores[number].transit.leaving > 0 {
            self.left_unit(number, packet.bucket(), packet.flow, end);
        }
    }

    /// Records that a core has completed a packet of a bucket and a flow.
    #[cold]
    pub(super) fn left_unit(&mut self, number: usize, bucket: usize, flow: u32, end: u64) {
        let Some((chain, _)) = self.cores[number].dedicated else {
            return;
        };
        let chain = usize::from(chain);
        let transit = self.transit_of(chain, number, bucket, flow);
        let Some(transit) = transit.checked_sub(1) else {
            return;
        };
        let moving = &mut self.chains[chain].transits[transit as usize];
        if usize::from(moving.from) != number || moving.outstanding == 0 {
            return;
        }
        moving.outstanding -= 1;
        if moving.outstanding == 0 {
            self.transfer(chain, transit, end);
        }
    }

    /// Transfers a bucket or flow from the old core.
    pub(super) fn transfer(&mut self, chain: usize, transit: u32, time: u64) {
        let moving = &mut self.chains[chain].transits[transit as usize];
        let (from, to) = (usize::from(moving.from), usize::from(moving.to));
        // No core holds it now.
        moving.from = NO_CORE;
        let here = time + self.timing.migration;
        self.cores[from].transit.leaving -= 1;
        if self.cores[from].transit.leaving == 0 {
            self.retiring.push((from as u16, time));
        }
        if self.is_stopped(to) {
            return self.end_migration(chain, transit);
        }
        self.cores[to].transit.inbox.push((here, transit));
        self.schedule(to);
    }

    /// Takes over buckets and flows that have arrived at a core by `now`.
    pub(super) fn adopt(&mut self, number: usize, now: u64) {
        let Some((chain, section)) = self.cores[number].dedicated else {
            return;
        };
        let chain = usize::from(chain);
        let mut inbox = std::mem::take(&mut self.cores[number].transit.inbox);
        // They have left several cores, not in the order of their arrival here.
        let transits = &self.chains[chain].transits;
        inbox.sort_unstable_by_key(|&(here, transit)| (here, transits[transit as usize].unit));
        inbox.retain(|&(here, transit)| {
            if here > now {
                return true;
            }
            let owner = &mut self.chains[chain];
            let moving = owner.transits[transit as usize];
            owner.free.push(transit);
            let unit = moving.unit;
            match &mut owner.steering {
                Steering::Buckets(steering) => {
                    let section = &mut steering.sections[usize::from(section)];
                    section.holder[unit as usize] = number as u16;
                    section.transit[unit as usize] = 0;
                    section.moving -= 1;
                }
                Steering::Flows(steering) => {
                    let flow = &mut steering.flows[unit as usize];
                    (flow.holder, flow.transit) = (number as u16, 0);
                }
            }
            let took = here - moving.since;
            owner.decisions.longest_move_ns = owner.decisions.longest_move_ns.max(took);
            let by_bucket = matches!(owner.steering, Steering::Buckets(_));
            let transit = &mut self.cores[number].transit;
            transit.awaited -= 1;
            let is_its = |waiting: &mut Waiting| match by_bucket {
                true => waiting.packet.bucket() == unit as usize,
                false => waiting.packet.flow == unit,
            };
            let before = transit.next.len();
            let arrived = transit.buffered.extract_if(.., is_its);
            transit.next.extend(arrived.map(|waiting| Waiting {
                at: here,
                buffered: true,
                ..waiting
            }));
            self.resumed += transit.next.len() - before;
            self.moving -= 1;
            false
        });
        self.cores[number].transit.inbox = inbox;
    }

    /// Makes cores without any work give their queues back.
    pub(super) fn retire_all(&mut self) {
        for (number, time) in std::mem::take(&mut self.retiring) {
            self.retire(usize::from(number), time);
        }
    }

    pub(super) fn retire(&mut self, number: usize, time: u64) {
        let core = &self.cores[number];
        let Some((chain, section)) = core.dedicated else {
            return self.forget_stopped(number);
        };
        let (chain, section) = (usize::from(chain), usize::from(section));
        let by_flows = matches!(self.chains[chain].steering, Steering::Flows(_));
        let transit = &core.transit;
        let moving = transit.leaving + transit.awaited > 0;
        if core.owned > 0 || moving || by_flows && !core.reclaim {
            return;
        }
        if !core.fifo.is_empty() || core.dispatch.as_ref().is_some_and(|d| !d.is_empty()) {
            // There are packets that no table refers to: the core stays until they are done.
            return;
        }
        if let Some(mut dispatch) = self.cores[number].dispatch.take() {
            self.release_all(number, chain, &mut dispatch, time);
            self.dispatchers -= 1;
        }
        let core = &mut self.cores[number];
        core.dedicated = None;
        let (since, server) = (core.since, usize::from(core.server));
        self.servers[server].claims += 1;
        self.chains[chain].cores -= 1;
        // It can continue as an auxiliary core.
        match &mut core.activation {
            Some(claim) => claim.since = time,
            None => self.usage.end(number, time),
        }
        let until = self.used_until(time);
        self.chains[chain].dedicated += until.saturating_sub(since);
        self.report_dedicated(chain, section, time);
        self.schedule(number);
    }

    /// Reports a server's number of cores to the ingress, after the delay of a call.
    fn report_dedicated(&mut self, chain: usize, section: usize, now: u64) {
        let Steering::Buckets(steering) = &self.chains[chain].steering else {
            return;
        };
        if steering.ingress.is_none() {
            return;
        }
        let cores = &steering.sections[section].cores;
        let has = |core: &&u16| {
            let dedicated = self.cores[usize::from(**core)].dedicated;
            dedicated.is_some_and(|d| usize::from(d.0) == chain)
        };
        let dedicated = cores.iter().filter(has).count() as u16;
        let at = Nanos(now + self.timing.rpc);
        self.at(at.0, super::Control::Reported(chain, section, dedicated));
    }
}
