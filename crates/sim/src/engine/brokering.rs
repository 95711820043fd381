//! Cores of a server under a core broker: which dispatcher may use which auxiliary core, and which chain gets another
//! dedicated core.
//!
//! A dispatcher requests a lease when its mapper selects an auxiliary core, when a lease ends, and when its backlog is
//! urgent while no core is free. A core whose lease has ended is withdrawn: its dispatcher sends it nothing new, and
//! releases it once it has completed its packets. Only then can the next lease's dispatcher use it.

use super::Engine;
use super::brokered::ServerBroker;
use super::chain_state::Steering;
use super::core::Core;
use super::dispatch::Dispatch;
use super::tree::NEVER;
use std::ops::Range;
use tailwater_net::Nanos;
use tailwater_policy::broker::{
    BrokerCore, ChainCores, ChainLoad, ChainNumber, CoreNumber, CorePlan, CoreUse, Lease, LendView, MEASURE_INTERVAL,
    QueueBacklog, REQUEST_INTERVAL, RateAverages, ResizeView, is_urgent,
};

/// Delivered packets from which on the measured time per packet is used instead of the model's.
const ENOUGH: u64 = 1_000;

impl Engine<'_> {
    /// Updates what the broker sees of a dispatcher, extends its leases, and requests a core for an urgent backlog.
    pub(super) fn update_brokered(&mut self, number: usize, chain: usize, dispatch: &Dispatch, now: u64) {
        let core = &mut self.cores[number];
        let ring = core.fifo.waiting(now).min(core.ring);
        let first = core.fifo.first().map_or(NEVER, |first| first.packet.arrival);
        let oldest = dispatch.lists.oldest().map_or(NEVER, |oldest| oldest.0);
        core.brokered.packets = (ring + dispatch.used()) as u64;
        core.brokered.oldest = first.min(oldest);
        core.brokered.helpers = dispatch.links.active.count_ones();
        if now >= core.brokered.until {
            core.brokered.until = NEVER;
            self.request(number, 0, None, now);
        }
        let core = &self.cores[number];
        let waited = now.saturating_sub(core.brokered.oldest.min(now));
        if is_urgent(Nanos(waited), self.chains[chain].meter.slo)
            && now >= core.brokered.again
            && !self.has_free(number)
        {
            self.cores[number].brokered.again = now + REQUEST_INTERVAL.0;
            self.request(number, 1, None, now);
        }
    }

    /// Returns `true` if an auxiliary core of a core's server is neither lent nor activated.
    fn has_free(&self, number: usize) -> bool {
        let server = usize::from(self.cores[number].server);
        let is_free =
            |core: &Core| core.activation.is_none() && core.dedicated.is_none() && core.brokered.lease.is_none();
        let range = self.brokers.servers[server].cores.clone();
        self.cores[range].iter().any(is_free)
    }

    /// Returns `true` if a dispatcher may activate an auxiliary core that is free now: it has a lease on it, or gets
    /// one.
    pub(super) fn may_activate(&mut self, number: usize, auxiliary: usize, now: u64) -> bool {
        if self.brokers.is_empty() || self.cores[auxiliary].dedicated.is_some() {
            return true;
        }
        if !self.is_leased(number, auxiliary, now) {
            self.request(number, 1, Some(auxiliary), now);
        }
        self.is_leased(number, auxiliary, now)
    }

    fn is_leased(&self, number: usize, auxiliary: usize, now: u64) -> bool {
        let lease = self.cores[auxiliary].brokered.lease;
        let local = self.local(number);
        lease.is_some_and(|lease| lease.dispatcher == local && lease.until.0 > now)
    }

    /// Returns a core's number on its server.
    fn local(&self, number: usize) -> CoreNumber {
        let server = usize::from(self.cores[number].server);
        (number - self.brokers.servers[server].cores.start) as CoreNumber
    }

    /// Returns `true` if a dispatcher may use an auxiliary core as far as leases are concerned: one that it has
    /// activated, until the lease ends, or one that nobody else has a lease on.
    pub(super) fn may_use(&self, number: usize, auxiliary: usize, is_active: bool) -> bool {
        if self.brokers.is_empty() || self.cores[auxiliary].dedicated.is_some() {
            return true;
        }
        match self.cores[auxiliary].brokered.lease {
            Some(lease) => lease.dispatcher == self.local(number),
            None => !is_active,
        }
    }

    /// Gives a released core's lease back.
    pub(super) fn end_lease(&mut self, number: usize, auxiliary: usize) {
        if self.brokers.is_empty() {
            return;
        }
        let local = self.local(number);
        let lease = &mut self.cores[auxiliary].brokered.lease;
        if lease.is_some_and(|lease| lease.dispatcher == local) {
            *lease = None;
        }
    }

    /// Lets the broker of a dispatcher's server decide, if the dispatcher can use `wants` further cores.
    fn request(&mut self, number: usize, wants: u16, preferred: Option<usize>, now: u64) {
        self.measure_loads(now);
        let server = usize::from(self.cores[number].server);
        let mut brokers = std::mem::take(&mut self.brokers);
        let own = &mut brokers.servers[server];
        self.see(own, &brokers.rates, now);
        let local = (number - own.cores.start) as CoreNumber;
        if let Some(queue) = own.queues.iter_mut().find(|queue| queue.core == local) {
            queue.wants = wants;
            queue.preferred = preferred.map(|core| (core - own.cores.start) as CoreNumber);
        }
        let view = LendView {
            now: Nanos(now),
            cores: &own.uses,
            chains: &own.loads,
            queues: &own.queues,
        };
        own.plan.clear();
        own.broker.lend(&view, &mut own.plan);
        let start = own.cores.start;
        for lease in &own.plan.end {
            let held = &mut self.cores[start + usize::from(lease.core)].brokered.lease;
            // A core that is being withdrawn has none any more.
            if held.is_some_and(|held| held.dispatcher == lease.dispatcher) {
                *held = None;
            }
        }
        for lease in &own.plan.lend {
            self.cores[start + usize::from(lease.core)].brokered.lease = Some(*lease);
            let until = &mut self.cores[start + usize::from(lease.dispatcher)].brokered.until;
            *until = lease.until.0.min(*until);
        }
        if !own.plan.end.is_empty() || !own.plan.lend.is_empty() {
            self.servers[server].claims += 1;
        }
        self.brokers = brokers;
    }

    /// Fills in the broker's view of a server.
    fn see(&self, own: &mut ServerBroker, rates: &[RateAverages], now: u64) {
        let start = own.cores.start;
        own.loads.clear();
        own.loads
            .extend(own.chains.iter().map(|chain| self.load(*chain, rates)));
        let mut uses = std::mem::take(&mut own.uses);
        uses.clear();
        uses.extend(own.cores.clone().map(|core| BrokerCore {
            node: self.cores[core].node,
            usage: self.usage_of(core, own),
        }));
        own.uses = uses;
        own.queues.clear();
        for number in own.cores.clone() {
            let core = &self.cores[number];
            let Some((chain, _)) = core.dedicated else { continue };
            let seen = &core.brokered;
            if seen.packets == 0 && seen.helpers == 0 {
                continue;
            }
            let chain_state = &self.chains[usize::from(chain)];
            let oldest = seen.oldest.min(now);
            own.queues.push(QueueBacklog {
                core: (number - start) as CoreNumber,
                chain: own.chain(chain),
                drain: Nanos(seen.packets * self.packet_time(usize::from(chain)) / u64::from(1 + seen.helpers)),
                deadline: Nanos((oldest + chain_state.meter.slo.0).saturating_sub(now)),
                wake: Nanos(self.timing.wake + self.timing.hand_over),
                wants: 0,
                preferred: None,
            });
        }
    }

    /// Returns the use of a core, as the broker sees it. A withdrawn one is lent until it is released.
    fn usage_of(&self, number: usize, own: &ServerBroker) -> CoreUse {
        let (core, start) = (&self.cores[number], own.cores.start);
        if let Some((chain, _)) = core.dedicated {
            return CoreUse::Dedicated(own.chain(chain));
        }
        if self.is_stopped(number) {
            return CoreUse::Reserved;
        }
        match (core.brokered.lease, core.activation) {
            (Some(lease), _) => CoreUse::Lent(lease),
            (None, None) => CoreUse::Free,
            (None, Some(activation)) => {
                let dispatcher = usize::from(activation.dispatcher);
                let chain = self.cores[dispatcher].dedicated.map_or(0, |(chain, _)| chain);
                CoreUse::Lent(Lease {
                    core: (number - start) as CoreNumber,
                    chain: own.chain(chain),
                    dispatcher: (dispatcher - start) as CoreNumber,
                    until: Nanos(NEVER),
                })
            }
        }
    }

    /// Returns the time of a packet on a core, in nanoseconds: measured, or by the model at first.
    fn packet_time(&self, chain: usize) -> u64 {
        let chain = &self.chains[chain];
        let delivered = chain.meter.total.delivered + chain.meter.window.delivered;
        let nanos = match delivered >= ENOUGH {
            true => chain.worked / delivered,
            false => chain.costs.packet_nanos(),
        };
        nanos.max(1)
    }

    fn load(&self, chain: usize, rates: &[RateAverages]) -> ChainLoad {
        let measured = rates.get(chain).copied().unwrap_or_default();
        let cores = self.packet_time(chain) as f64 / 1e9;
        ChainLoad {
            objective: self.chains[chain].meter.slo,
            weight: 1,
            planned: self.chains[chain].costs.planned_rate * cores,
            short: measured.short * cores,
            long: measured.long * cores,
        }
    }

    /// Updates the averages of the chains' packet rates.
    fn measure_loads(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.brokers.measured);
        if elapsed < MEASURE_INTERVAL.0 {
            return;
        }
        self.brokers.measured = now;
        self.brokers.rates.resize(self.chains.len(), RateAverages::default());
        for (rates, chain) in self.brokers.rates.iter_mut().zip(&self.chains) {
            // Counters begin again after the warm-up.
            let offered = chain.meter.total.offered + chain.meter.window.offered;
            rates.add(offered, Nanos(elapsed), Nanos(now));
        }
    }

    /// Returns the core of a steering domain that stands for `to`, which is its number for the chain's server mapper:
    /// if it is not dedicated to the chain, the broker selects one. `None` if it grants none.
    pub(super) fn granted(&mut self, chain: usize, section: usize, to: u16, now: u64) -> Option<u16> {
        let Steering::Buckets(steering) = &self.chains[chain].steering else {
            return None;
        };
        let target = steering.sections[section].cores[usize::from(to)];
        let is_mine = |core: &Core| core.dedicated.is_some_and(|(owner, _)| usize::from(owner) == chain);
        if self.brokers.is_empty() || self.chains[chain].make.is_none() || is_mine(&self.cores[usize::from(target)]) {
            return Some(target);
        }
        let added = self.dedicate_one(chain, usize::from(target), now)?;
        if let Steering::Buckets(steering) = &mut self.chains[chain].steering {
            let cores = &mut steering.sections[section].cores;
            let at = cores.iter().position(|core| usize::from(*core) == added)?;
            cores.swap(at, usize::from(to));
        }
        Some(added as u16)
    }

    /// Requests one more dedicated core for a chain on the server of a core.
    fn dedicate_one(&mut self, chain: usize, near: usize, now: u64) -> Option<usize> {
        self.measure_loads(now);
        let server = usize::from(self.cores[near].server);
        let mut brokers = std::mem::take(&mut self.brokers);
        let own = &mut brokers.servers[server];
        self.see(own, &brokers.rates, now);
        let dedicated = |chain: usize| {
            let is_its = |core: &&BrokerCore| core.usage == CoreUse::Dedicated(chain as ChainNumber);
            own.uses.iter().filter(is_its).count() as u16
        };
        let local = usize::from(own.chain(chain as u16));
        let chains = own.loads.iter().enumerate().map(|(number, load)| {
            let has = dedicated(number);
            ChainCores {
                load: *load,
                node: self.node_of(own.chains[number], own.cores.clone()),
                wanted: Some(has + u16::from(number == local)),
                ..ChainCores::default()
            }
        });
        let chains: Vec<ChainCores> = chains.collect();
        let view = ResizeView {
            now: Nanos(now),
            cores: &own.uses,
            chains: &chains,
        };
        let mut plan = CorePlan::default();
        own.broker.resize(&view, &mut plan);
        // Cores are given back by the chain's own mapper, which empties them, so that none of these is free yet.
        let is_auxiliary =
            |core: CoreNumber| matches!(own.uses[usize::from(core)].usage, CoreUse::Free | CoreUse::Lent(_));
        let its = plan
            .add
            .iter()
            .find(|change| usize::from(change.chain) == local && is_auxiliary(change.core));
        let added = its.map(|change| own.cores.start + usize::from(change.core));
        self.brokers = brokers;
        added
    }

    /// Returns the node of a chain's first dedicated core of a server.
    fn node_of(&self, chain: usize, mut cores: Range<usize>) -> u16 {
        let is_its = |core: &usize| {
            self.cores[*core]
                .dedicated
                .is_some_and(|(owner, _)| usize::from(owner) == chain)
        };
        cores.find(is_its).map_or(0, |core| self.cores[core].node)
    }
}
