//! Periodic and delayed events: ends of windows, decisions of mappers and controllers, changes of tables.

use super::chain_state::{ChainState, FlowSteering, NO_CORE, Snapshot, Steering, SteeringDomain};
use super::{Control, Engine};
use crate::report::Decisions;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::BUCKETS;
use tailwater_policy::flows::{CoreSignals, FlowLoad, FlowPlan, FlowView};
use tailwater_policy::server::{BucketLoad, CoreLoad, Move, ServerView};

/// Number of late packets below which none counts for a server mapper, as live.
const FEW_LATE: u64 = 64;

/// Interval in nanoseconds for checking that bucket moves are complete, before a mapper runs again.
const LOOK: u64 = 100_000;

impl Engine<'_> {
    /// Executes a due control event.
    pub(super) fn control(&mut self, control: Control, now: u64) {
        match control {
            Control::Window => {
                let start = now - self.window;
                for chain in &mut self.chains {
                    chain.meter.roll(start);
                    if let Some(last) = chain.meter.windows.last_mut() {
                        last.dedicated = chain.cores;
                    }
                }
                if now == self.warm_up {
                    self.begin_report(now);
                }
                self.at(now + self.window, Control::Window);
            }
            Control::Remap(chain, section) => self.remap(chain, section, now),
            Control::Moves(chain, section, moves) => self.enforce(chain, section, &moves, now),
            Control::Reported(chain, server, cores) => {
                if let Some(ingress) = self.chains[chain].steering.ingress() {
                    ingress.reported[server] = cores;
                }
            }
            Control::Row(chain, row) => self.row_written(chain, row, now),
            Control::Counters(chain) => self.report_counters(chain, now),
            Control::Rebalance(chain, counters) => self.rebalance(chain, &counters, now),
            Control::RowsWritten(chain) => self.rows_written(chain, now),
            Control::RowMoves(chain) => self.look_for_moved(chain, now),
            Control::RowMoved(chain, row) => self.row_moved(chain, row, now),
            Control::Deactivate(chain, server) => self.deactivate(chain, server, now),
            Control::ServerFails(server) => self.server_fails(server, now),
            Control::Observe(chain) => self.observe(chain, now),
            Control::DecideFlows(chain) => self.decide_flows(chain, now),
            Control::EnforceFlows(chain) => self.enforce_flows(chain, now),
            // Observation changes no state.
            Control::Watch => return self.sample(now),
        }
        self.retire_all();
    }

    /// Ends the warm-up and resets all counters. Packets in the system count as if they had just arrived.
    fn begin_report(&mut self, now: u64) {
        for chain in &mut self.chains {
            let offered = chain.meter.inside();
            chain.meter.restart(offered);
            chain.decisions = Decisions::default();
            (chain.dedicated, chain.auxiliary, chain.worked) = (0, 0, 0);
        }
        for core in &mut self.cores {
            core.since = now;
            if let Some(claim) = &mut core.activation {
                // One with a queue does not count as an auxiliary core, whatever it does for others.
                claim.since = claim.since.max(now);
            }
        }
        self.restart_sampling(now);
    }

    /// Gives a steering domain its first cores, if it has none.
    pub(super) fn activate(&mut self, chain: usize, number: usize, now: u64) {
        let Steering::Buckets(steering) = &mut self.chains[chain].steering else {
            return;
        };
        let section = &mut steering.sections[number];
        if std::mem::replace(&mut section.active, true) {
            return;
        }
        let count = usize::from(section.start_cores).clamp(1, section.cores.len());
        let cores: Vec<u16> = section.cores[..count].to_vec();
        *section.table = std::array::from_fn(|bucket| cores[bucket % count]);
        *section.holder = *section.table;
        section.asked = now;
        // A run can still be due from before it was emptied.
        let mapper = section.mapper.as_ref().filter(|_| !section.planned);
        let period = mapper.map(|mapper| mapper.period().0);
        if let Some(ingress) = &mut steering.ingress {
            // The ingress sees the new cores at once.
            ingress.reported[number] = count as u16;
        }
        for bucket in 0..BUCKETS {
            self.cores[usize::from(cores[bucket % count])].owned += 1;
        }
        for core in cores {
            self.dedicate(usize::from(core), chain, number, now);
        }
        if let Some(period) = period {
            self.plan_remap(chain, number, now, period);
        }
    }

    /// Schedules the next check of a steering domain's mapper.
    fn plan_remap(&mut self, chain: usize, number: usize, now: u64, period: u64) {
        let Steering::Buckets(steering) = &self.chains[chain].steering else {
            return;
        };
        let section = &steering.sections[number];
        let epoch = ChainState::epoch(self.chains[chain].meter.slo);
        let lasting = section
            .mapper
            .as_deref()
            .and_then(|mapper| mapper.on_backlog_of(Nanos(epoch)));
        let watched = lasting.is_some();
        let at = match watched {
            // The backlog is checked in each epoch.
            true => (section.asked + period).min(now + epoch),
            false => section.asked + period,
        };
        self.plan_remap_at(chain, number, at.max(now + 1));
    }

    fn plan_remap_at(&mut self, chain: usize, number: usize, at: u64) {
        if let Some(section) = self.section(chain, number) {
            section.planned = true;
            self.at(at, Control::Remap(chain, number));
        }
    }

    fn section(&mut self, chain: usize, number: usize) -> Option<&mut SteeringDomain> {
        match &mut self.chains[chain].steering {
            Steering::Buckets(steering) => steering.sections.get_mut(number),
            Steering::Flows(_) => None,
        }
    }

    /// Runs a server mapper, if it is due.
    fn remap(&mut self, chain: usize, number: usize, now: u64) {
        let epoch = ChainState::epoch(self.chains[chain].meter.slo);
        let has_failed = self.has_failed(chain, number);
        let Some(section) = self.section(chain, number) else {
            return;
        };
        section.planned = false;
        if has_failed || !section.active {
            return;
        }
        let Some(mapper) = &section.mapper else {
            return;
        };
        let (period, lasting) = (mapper.period().0, mapper.on_backlog_of(Nanos(epoch)));
        let (due, settled) = (section.asked + period, section.is_settled());
        let asked = section.asked;
        if !settled && now >= due {
            self.plan_remap_at(chain, number, now + LOOK);
            return;
        }
        // A backlog counts if it began after the last call.
        let lasting = lasting.filter(|lasting| settled && now >= asked + lasting.0);
        let is_behind = |lasting: Nanos| self.has_backlog(chain, number, now, lasting.0);
        if now < due && !lasting.is_some_and(is_behind) {
            self.plan_remap(chain, number, now, period);
            return;
        }
        let buckets = self.bucket_loads(chain, number, now);
        let (cores, late) = self.core_loads(chain, number, now);
        let Some(section) = self.section(chain, number) else {
            return;
        };
        section.asked = now;
        let fixed = section.delay;
        let Some(mapper) = &mut section.mapper else {
            return;
        };
        let view = ServerView {
            now: Nanos(now),
            buckets: &buckets,
            cores: &cores,
            late,
        };
        let mut moves = Vec::new();
        mapper.remap(&view, &mut moves);
        let (delay, period) = (mapper.enforcement_delay().0 + fixed, mapper.period().0);
        if !moves.is_empty() {
            section.decided += 1;
            self.at(now + delay, Control::Moves(chain, number, moves));
        }
        self.chains[chain].decisions.remaps += 1;
        self.plan_remap(chain, number, now, period);
    }

    /// Returns `true` if a core of a steering domain has had a backlog for at least `lasting`.
    fn has_backlog(&self, chain: usize, number: usize, now: u64, lasting: u64) -> bool {
        let behind = |core: &super::core::Core| {
            let mine = core.dedicated == Some((chain as u16, number as u16));
            let waits = core.fifo.first().is_some_and(|first| first.at < now)
                || core.dispatch.as_ref().is_some_and(|d| d.has_work());
            mine && waits && now.saturating_sub(core.through) >= lasting
        };
        self.cores.iter().any(behind)
    }

    /// Returns the load of a steering domain's buckets since its mapper last ran.
    fn bucket_loads(&mut self, chain: usize, number: usize, now: u64) -> Vec<BucketLoad> {
        let Some(section) = self.section(chain, number) else {
            return Vec::new();
        };
        let elapsed = now - section.asked;
        section.account.close(now);
        let loads = (0..BUCKETS).map(|bucket| {
            let (flows, rate) = section.account.take(bucket, elapsed);
            let core = section.table[bucket];
            let core = section.cores.iter().position(|c| *c == core);
            BucketLoad {
                flows,
                rate,
                core: core.unwrap_or(0) as u16,
            }
        });
        loads.collect()
    }

    /// Returns the load of a steering domain's cores over the same time, and the share of their packets that were late
    /// or lost for a cause that more cores can remedy.
    fn core_loads(&mut self, chain: usize, number: usize, now: u64) -> (Vec<CoreLoad>, f64) {
        let Some(section) = self.section(chain, number) else {
            return (Vec::new(), 0.0);
        };
        let (elapsed, cores) = (now - section.asked, section.cores.clone());
        let (mut packets, mut late) = (0, 0);
        let is_brokered = !self.brokers.is_empty();
        let load = |number: &u16| {
            let core = &mut self.cores[usize::from(*number)];
            if is_brokered && core.dedicated.is_none_or(|(owner, _)| usize::from(owner) != chain) {
                // It can become this chain's, and counts for another one now.
                return CoreLoad::default();
            }
            let load = CoreLoad {
                dedicated: core.is_dedicated(),
                busy: (core.stats.busy as f64 / elapsed.max(1) as f64).min(1.0),
                lost: core.stats.lost,
                batch_p99: core.stats.batch_p99(),
                longest_queue: core.stats.longest_queue,
                worst_delay: Nanos(core.stats.worst_delay),
            };
            packets += core.stats.processed + core.stats.lost;
            late += core.stats.late + core.stats.lost;
            core.stats.clear();
            load
        };
        let loads = cores.iter().map(load).collect();
        let share = if late < FEW_LATE {
            0.0
        } else {
            late as f64 / packets as f64
        };
        (loads, share)
    }

    /// Applies moves to a bucket table.
    fn enforce(&mut self, chain: usize, number: usize, moves: &[Move], now: u64) {
        let Some(section) = self.section(chain, number) else {
            return;
        };
        section.decided -= 1;
        for &Move { bucket, to } in moves {
            let Some(to) = self.granted(chain, number, to, now) else {
                continue;
            };
            self.move_bucket(chain, number, usize::from(bucket), to, now);
        }
        self.count_leaving(chain, now);
    }

    fn flow_steering(&mut self, chain: usize) -> Option<&mut FlowSteering> {
        match &mut self.chains[chain].steering {
            Steering::Flows(steering) => Some(steering),
            Steering::Buckets(_) => None,
        }
    }

    /// Ends a controller's period and records its input.
    fn observe(&mut self, chain: usize, now: u64) {
        self.forget_flows(chain, now);
        let Some(steering) = self.flow_steering(chain) else {
            return;
        };
        let control_loop = steering.mapper.control_loop();
        let elapsed = (now - steering.asked).max(1) as f64;
        steering.asked = now;
        let flows = std::mem::take(&mut steering.known);
        let loads = flows.iter().map(|flow| {
            let known = &mut steering.flows[*flow as usize];
            FlowLoad {
                core: known.core,
                shard: known.shard,
                rate: f64::from(std::mem::take(&mut known.packets)) * 1e9 / elapsed,
            }
        });
        let loads = loads.collect();
        let (shards, cores) = (steering.shards.to_vec(), steering.cores.clone());
        steering.known.clone_from(&flows);
        let signals = |number: &u16| {
            let core = &mut self.cores[usize::from(*number)];
            let signals = CoreSignals {
                active: core.is_dedicated(),
                rate: core.stats.processed as f64 * 1e9 / elapsed,
                busy: (core.stats.busy as f64 / elapsed).min(1.0),
                lost: core.stats.lost,
                batch_p99: core.stats.batch_p99(),
                worst_delay: Nanos(core.stats.worst_delay),
            };
            core.stats.clear();
            signals
        };
        let cores = cores.iter().map(signals).collect();
        if let Some(steering) = self.flow_steering(chain) {
            steering.snapshot = Some(Snapshot {
                flows,
                loads,
                cores,
                shards,
            });
        }
        self.at(now + control_loop.report_delay.0, Control::DecideFlows(chain));
        let period = control_loop.period.0.max(1);
        self.at(now + period, Control::Observe(chain));
    }

    /// Removes flows from the controller's state that have been silent and have no packet in the system.
    fn forget_flows(&mut self, chain: usize, now: u64) {
        let oldest = self.oldest();
        let oldest = (oldest >> super::chain_state::SEEN) as u32;
        let Some(steering) = self.flow_steering(chain) else {
            return;
        };
        let tick = (now >> super::chain_state::SEEN) as u32;
        let FlowSteering {
            flows,
            known,
            memory,
            cores,
            ..
        } = steering;
        let mut gone = Vec::new();
        known.retain(|flow| {
            let steered = &mut flows[*flow as usize];
            let silent = tick.saturating_sub(steered.seen) > *memory && steered.seen < oldest;
            if silent && steered.transit == 0 {
                gone.push(cores[usize::from(steered.core)]);
                (steered.core, steered.holder) = (NO_CORE, NO_CORE);
                return false;
            }
            true
        });
        for core in gone {
            let core = usize::from(core);
            self.cores[core].owned -= 1;
            if self.cores[core].owned == 0 && self.cores[core].reclaim {
                self.retiring.push((core as u16, now));
            }
        }
    }

    fn decide_flows(&mut self, chain: usize, now: u64) {
        let Some(steering) = self.flow_steering(chain) else {
            return;
        };
        let Some(snapshot) = steering.snapshot.take() else {
            return;
        };
        let view = FlowView {
            now: Nanos(now),
            flows: &snapshot.loads,
            shards: &snapshot.shards,
            cores: &snapshot.cores,
        };
        let mut plan = FlowPlan::default();
        steering.mapper.decide(&view, &mut plan);
        let delay = steering.mapper.control_loop().enforcement_delay.0;
        let changes = !plan.is_empty();
        if changes {
            steering.plans.push_back((snapshot.flows, plan));
        }
        self.chains[chain].decisions.remaps += 1;
        if changes {
            self.at(now + delay, Control::EnforceFlows(chain));
        }
    }

    fn enforce_flows(&mut self, chain: usize, now: u64) {
        let Some(steering) = self.flow_steering(chain) else {
            return;
        };
        let Some((flows, plan)) = steering.plans.pop_front() else {
            return;
        };
        let mut along = Vec::new();
        for &Move { bucket, to } in &plan.moves {
            let from = std::mem::replace(&mut steering.shards[usize::from(bucket)], to);
            let home = |flow: &&u32| {
                let known = steering.flows[**flow as usize];
                known.shard == bucket && known.core == from
            };
            along.extend(steering.known.iter().filter(home).map(|flow| (*flow, to)));
        }
        let owners: Vec<u16> = plan.moves.iter().map(|m| steering.cores[usize::from(m.to)]).collect();
        self.chains[chain].decisions.buckets_moved += plan.moves.len() as u64;
        for owner in owners {
            // A core that owns shards is active, even before its first flow.
            self.dedicate(usize::from(owner), chain, 0, now);
        }
        for (flow, to) in along {
            self.move_flow(chain, flow, to, now);
        }
        for migration in &plan.migrations {
            self.move_flow(chain, flows[migration.flow as usize], migration.to, now);
        }
        self.count_leaving(chain, now);
        let Some(steering) = self.flow_steering(chain) else {
            return;
        };
        let cores: Vec<u16> = plan
            .reclaim
            .iter()
            .map(|core| steering.cores[usize::from(*core)])
            .collect();
        for core in cores {
            let core = usize::from(core);
            // A core that got a flow in the meantime stays.
            if self.cores[core].owned == 0 {
                self.cores[core].reclaim = true;
                self.retiring.push((core as u16, now));
            }
        }
    }
}
