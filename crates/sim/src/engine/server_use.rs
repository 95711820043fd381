//! Servers that fail, and servers that are emptied.
//!
//! When a server fails, its cores stop. All packets in its rings, queues and buffers are lost, and so are those that
//! are steered there from then on. Batches in progress count as processed. The switch does not notice: only a policy
//! that misses the server's reports can react, as Tailwater's [ingress](super::balance) does. Policies with one table
//! over all cores of the rack, and controllers that place flows, have no such signal. To them, its cores are idle ones.
//!
//! Migrations of buckets and flows between cores, of which one has stopped, end at once.

use super::account::Account;
use super::chain_state::{BucketSteering, ChainState, NO_CORE, Steering};
use super::tree::NEVER;
use super::waiting::NONE;
use super::{Control, Engine};
use crate::report::Loss;

/// Interval in nanoseconds for checking that an emptied server has no packet left.
const LOOK: u64 = 100_000;

impl Engine<'_> {
    /// Returns `true` if a core's server has failed.
    #[inline]
    pub(super) fn is_stopped(&self, core: usize) -> bool {
        let server = usize::from(self.cores[core].server);
        self.servers[server].failed_at.is_some()
    }

    /// Returns `true` if all servers of a steering domain have failed.
    pub(super) fn has_failed(&self, chain: usize, number: usize) -> bool {
        match &self.chains[chain].steering {
            Steering::Buckets(steering) => {
                let mut cores = steering.sections[number].cores.iter();
                cores.all(|core| self.is_stopped(usize::from(*core)))
            }
            Steering::Flows(_) => false,
        }
    }

    /// Stops a server. All that it has is lost.
    pub(super) fn server_fails(&mut self, server: usize, now: u64) {
        let is_its = |core: &usize| usize::from(self.cores[*core].server) == server;
        let cores: Vec<usize> = (0..self.cores.len()).filter(is_its).collect();
        for &core in &cores {
            // Packets that found a ring full were lost before.
            if let Some((chain, _)) = self.cores[core].dedicated {
                self.overflow(core, usize::from(chain), now);
            }
        }
        self.servers[server].failed_at = Some(now);
        self.servers[server].claims += 1;
        for &core in &cores {
            self.end_activation(core, now);
        }
        for &core in &cores {
            self.stop(core, now);
        }
        for chain in 0..self.chains.len() {
            self.end_migrations(chain, now);
            let chain = &mut self.chains[chain];
            if let Some(balanced) = chain.steering.balanced() {
                let lost = balanced.server_fails(server as u16);
                lose(chain, lost);
            }
        }
    }

    /// Ends a core's time as an auxiliary core.
    fn end_activation(&mut self, number: usize, now: u64) {
        let Some(activation) = self.cores[number].activation.take() else {
            return;
        };
        if let Some((chain, _)) = self.cores[usize::from(activation.dispatcher)].dedicated {
            self.chains[usize::from(chain)].auxiliary += now.saturating_sub(activation.since);
        }
    }

    /// Stops a core, with all packets that it has.
    fn stop(&mut self, number: usize, now: u64) {
        let core = &mut self.cores[number];
        let transit = &mut core.transit;
        let next = std::mem::take(&mut transit.next).len();
        let mut lost = std::mem::take(&mut transit.buffered).len() + next;
        let inbox = std::mem::take(&mut transit.inbox);
        lost += std::mem::take(&mut core.fifo).len();
        (core.offloaded_at, core.watch) = (NEVER, NEVER);
        let (dedicated, dispatch) = (core.dedicated.take(), core.dispatch.take());
        let since = core.since;
        core.stopped_for = dedicated.map(|(chain, _)| chain);
        self.resumed -= next;
        if let Some(dispatch) = &dispatch {
            self.dispatchers -= 1;
            lost += dispatch.unfinished();
        }
        if let Some((chain, _)) = dedicated {
            let owner = &mut self.chains[usize::from(chain)];
            if let Some(dispatch) = dispatch.filter(|dispatch| dispatch.slots.is_empty()) {
                for flow in dispatch.machine.backlog.flows() {
                    owner.slots[flow.key().flow as usize] = NONE;
                }
            }
            owner.cores -= 1;
            owner.dedicated += now.saturating_sub(since);
            lose(owner, lost);
            for (_, transit) in inbox {
                self.end_migration(usize::from(chain), transit);
            }
        }
        self.usage.end(number, now);
        self.schedule(number);
    }

    /// Records that a mapper does not use a core any more that has stopped.
    pub(super) fn forget_stopped(&mut self, number: usize) {
        let core = &mut self.cores[number];
        let Some(chain) = core.stopped_for else { return };
        let by_flows = matches!(self.chains[usize::from(chain)].steering, Steering::Flows(_));
        if core.owned == 0 && (core.reclaim || !by_flows) {
            core.stopped_for = None;
        }
    }

    /// Ends a chain's migrations from cores that have stopped: there is nothing to complete.
    fn end_migrations(&mut self, chain: usize, now: u64) {
        for transit in 0..self.chains[chain].transits.len() {
            let from = self.chains[chain].transits[transit].from;
            if from != NO_CORE && self.is_stopped(usize::from(from)) {
                let ready = self.cores[usize::from(from)].ready;
                self.transfer(chain, transit as u32, now.max(ready));
            }
        }
    }

    /// Ends a migration to a core that has stopped.
    pub(super) fn end_migration(&mut self, chain: usize, transit: u32) {
        let owner = &mut self.chains[chain];
        let moving = owner.transits[transit as usize];
        owner.free.push(transit);
        let unit = moving.unit as usize;
        match &mut owner.steering {
            Steering::Buckets(steering) => {
                let is_its = |core: &u16| *core == moving.to;
                let mut sections = steering.sections.iter_mut();
                if let Some(section) = sections.find(|section| section.cores.iter().any(is_its)) {
                    (section.holder[unit], section.transit[unit]) = (moving.to, 0);
                    section.moving -= 1;
                }
            }
            Steering::Flows(steering) => {
                let flow = &mut steering.flows[unit];
                (flow.holder, flow.transit) = (moving.to, 0);
            }
        }
        self.cores[usize::from(moving.to)].transit.awaited -= 1;
        self.moving -= 1;
    }

    /// Takes the cores of a server that the ingress has emptied, unless it has rows again.
    pub(super) fn deactivate(&mut self, chain: usize, server: usize, now: u64) {
        let epoch = ChainState::epoch(self.chains[chain].meter.slo);
        let Steering::Buckets(BucketSteering {
            sections,
            balanced: Some(balanced),
            ..
        }) = &mut self.chains[chain].steering
        else {
            return;
        };
        let section = &mut sections[server];
        if balanced.mapper.is_used(server as u16) || self.servers[server].failed_at.is_some() {
            return;
        }
        let is_settled = section.is_settled();
        if section.active && is_settled {
            section.active = false;
            section.account = Account::new(epoch);
            for owner in section.table.iter() {
                self.cores[usize::from(*owner)].owned -= 1;
            }
        }
        if is_settled {
            let cores = section.cores.clone();
            for core in &cores {
                self.retire(usize::from(*core), now);
            }
            if cores
                .iter()
                .all(|core| self.cores[usize::from(*core)].dedicated.is_none())
            {
                return;
            }
        }
        // Receipts of its last packets are on their way, or buckets between its cores.
        self.at(now + LOOK, Control::Deactivate(chain, server));
    }
}

/// Counts packets that were lost with a server.
fn lose(chain: &mut ChainState, packets: usize) {
    (0..packets).for_each(|_| chain.meter.lost(Loss::ServerLost));
}
