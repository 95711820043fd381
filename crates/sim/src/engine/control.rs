//! Periodic and delayed events: ends of windows, decisions of mappers and controllers, changes of tables.

use super::tenant::{FlowSteering, NO_CORE, Snapshot, Steering, SteeringDomain};
use super::{Control, Engine};
use crate::report::Decisions;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::BUCKETS;
use tailwater_policy::flows::{CoreSignals, FlowLoad, FlowPlan, FlowView};
use tailwater_policy::server::{BucketLoad, CoreLoad, Move, ServerView};

/// Interval in nanoseconds for checking that bucket moves are complete, before a mapper runs again.
const LOOK: u64 = 100_000;

/// Number of epochs from which on a lasting backlog is an overload.
const OVERLOAD: u64 = 4;

impl Engine<'_> {
    /// Executes a due control event.
    pub(super) fn control(&mut self, control: Control, now: u64) {
        match control {
            Control::Window => {
                let start = now - self.window;
                for tenant in &mut self.tenants {
                    tenant.meter.roll(start);
                    if let Some(last) = tenant.meter.windows.last_mut() {
                        last.dedicated = tenant.cores;
                    }
                }
                if now == self.warm_up {
                    self.begin_report(now);
                }
                self.at(now + self.window, Control::Window);
            }
            Control::Remap(tenant, section) => self.remap(tenant, section, now),
            Control::Moves(tenant, section, moves) => self.enforce(tenant, section, &moves, now),
            Control::Reported(tenant, server, cores) => {
                if let Some(ingress) = self.tenants[tenant].steering.ingress() {
                    ingress.reported[server] = cores;
                }
                self.change_default_row(tenant, now);
            }
            Control::Row(tenant, row) => self.row_written(tenant, row, now),
            Control::RowBehind(tenant, waits) => {
                if let Some(ingress) = self.tenants[tenant].steering.ingress() {
                    ingress.mapper.row_written(waits);
                }
                self.change_default_row(tenant, now);
            }
            Control::DefaultRow(tenant) => {
                if let Some(ingress) = self.tenants[tenant].steering.ingress() {
                    ingress.mapper.default_written();
                }
                self.change_default_row(tenant, now);
            }
            Control::Observe(tenant) => self.observe(tenant, now),
            Control::DecideFlows(tenant) => self.decide_flows(tenant, now),
            Control::EnforceFlows(tenant) => self.enforce_flows(tenant, now),
            // Observation changes no state.
            Control::Watch => return self.look(now),
        }
        self.retire_all();
    }

    /// Ends the warm-up and resets all counters. Packets in the system count as if they had just arrived.
    fn begin_report(&mut self, now: u64) {
        for tenant in &mut self.tenants {
            let offered = tenant.meter.inside();
            tenant.meter.restart(offered);
            tenant.decisions = Decisions::default();
            (tenant.dedicated, tenant.auxiliary, tenant.worked) = (0, 0, 0);
        }
        for core in &mut self.cores {
            core.since = now;
            if let Some(claim) = &mut core.claim {
                claim.since = now;
            }
        }
        self.watch_anew(now);
    }

    /// Gives a steering domain its first cores, if it has none.
    pub(super) fn activate(&mut self, tenant: usize, number: usize, now: u64) {
        let Steering::Buckets(steering) = &mut self.tenants[tenant].steering else {
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
        let period = section.mapper.as_ref().map(|mapper| mapper.period().0);
        if let Some(ingress) = &mut steering.ingress {
            // The ingress sees the new cores at once.
            ingress.reported[number] = count as u16;
        }
        for bucket in 0..BUCKETS {
            self.cores[usize::from(cores[bucket % count])].owned += 1;
        }
        for core in cores {
            self.dedicate(usize::from(core), tenant, number, now);
        }
        if let Some(period) = period {
            self.plan_remap(tenant, number, now, period);
        }
    }

    /// Schedules the next check of a steering domain's mapper.
    fn plan_remap(&mut self, tenant: usize, number: usize, now: u64, period: u64) {
        let Steering::Buckets(steering) = &self.tenants[tenant].steering else {
            return;
        };
        let section = &steering.sections[number];
        let watched = section.mapper.as_ref().is_some_and(|m| m.on_overload());
        let epoch = super::Tenant::epoch(self.tenants[tenant].meter.slo);
        let at = match watched {
            // The backlog is checked in each epoch.
            true => (section.asked + period).min(now + epoch),
            false => section.asked + period,
        };
        self.at(at.max(now + 1), Control::Remap(tenant, number));
    }

    fn section(&mut self, tenant: usize, number: usize) -> Option<&mut SteeringDomain> {
        match &mut self.tenants[tenant].steering {
            Steering::Buckets(steering) => steering.sections.get_mut(number),
            Steering::Flows(_) => None,
        }
    }

    /// Runs a server mapper, if it is due.
    fn remap(&mut self, tenant: usize, number: usize, now: u64) {
        let epoch = super::Tenant::epoch(self.tenants[tenant].meter.slo);
        let Some(section) = self.section(tenant, number) else {
            return;
        };
        let Some(mapper) = &section.mapper else {
            return;
        };
        let (period, on_overload) = (mapper.period().0, mapper.on_overload());
        let (due, settled) = (section.asked + period, section.is_settled());
        let asked = section.asked;
        if !settled && now >= due {
            self.at(now + LOOK, Control::Remap(tenant, number));
            return;
        }
        let lasting = epoch * OVERLOAD;
        let overloaded = on_overload && settled && now >= asked + lasting;
        if now < due && !(overloaded && self.has_backlog(tenant, number, now, lasting)) {
            self.plan_remap(tenant, number, now, period);
            return;
        }
        let buckets = self.bucket_loads(tenant, number, now);
        let cores = self.core_loads(tenant, number, now);
        let Some(section) = self.section(tenant, number) else {
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
        };
        let mut moves = Vec::new();
        mapper.remap(&view, &mut moves);
        let (delay, period) = (mapper.enforcement_delay().0 + fixed, mapper.period().0);
        if !moves.is_empty() {
            section.decided += 1;
            self.at(now + delay, Control::Moves(tenant, number, moves));
        }
        self.tenants[tenant].decisions.remaps += 1;
        self.plan_remap(tenant, number, now, period);
    }

    /// Returns `true` if a core of a steering domain has had a backlog for at least `lasting`.
    fn has_backlog(&self, tenant: usize, number: usize, now: u64, lasting: u64) -> bool {
        let behind = |core: &super::core::Core| {
            let mine = core.dedicated == Some((tenant as u16, number as u16));
            let waits = core.fifo.first().is_some_and(|first| first.at < now)
                || core.dispatch.as_ref().is_some_and(|d| d.has_work());
            mine && waits && now.saturating_sub(core.through) >= lasting
        };
        self.cores.iter().any(behind)
    }

    /// Returns the load of a steering domain's buckets since its mapper last ran.
    fn bucket_loads(&mut self, tenant: usize, number: usize, now: u64) -> Vec<BucketLoad> {
        let Some(section) = self.section(tenant, number) else {
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

    /// Returns the load of a steering domain's cores over the same time.
    fn core_loads(&mut self, tenant: usize, number: usize, now: u64) -> Vec<CoreLoad> {
        let Some(section) = self.section(tenant, number) else {
            return Vec::new();
        };
        let (elapsed, cores) = (now - section.asked, section.cores.clone());
        let load = |number: &u16| {
            let core = &mut self.cores[usize::from(*number)];
            let load = CoreLoad {
                dedicated: core.dedicated.is_some(),
                busy: (core.stats.busy as f64 / elapsed.max(1) as f64).min(1.0),
                lost: core.stats.lost,
                batch_p99: core.stats.batch_p99(),
                longest_queue: core.stats.longest_queue,
            };
            core.stats.clear();
            load
        };
        cores.iter().map(load).collect()
    }

    /// Applies moves to a bucket table.
    fn enforce(&mut self, tenant: usize, number: usize, moves: &[Move], now: u64) {
        let Some(section) = self.section(tenant, number) else {
            return;
        };
        section.decided -= 1;
        let cores = section.cores.clone();
        for &Move { bucket, to } in moves {
            let to = cores[usize::from(to)];
            self.move_bucket(tenant, number, usize::from(bucket), to, now);
        }
        self.count_leaving(tenant, now);
    }

    fn flow_steering(&mut self, tenant: usize) -> Option<&mut FlowSteering> {
        match &mut self.tenants[tenant].steering {
            Steering::Flows(steering) => Some(steering),
            Steering::Buckets(_) => None,
        }
    }

    /// Ends a controller's period and records its input.
    fn observe(&mut self, tenant: usize, now: u64) {
        self.forget_flows(tenant, now);
        let Some(steering) = self.flow_steering(tenant) else {
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
                active: core.dedicated.is_some(),
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
        if let Some(steering) = self.flow_steering(tenant) {
            steering.snapshot = Some(Snapshot {
                flows,
                loads,
                cores,
                shards,
            });
        }
        self.at(now + control_loop.report_delay.0, Control::DecideFlows(tenant));
        let period = control_loop.period.0.max(1);
        self.at(now + period, Control::Observe(tenant));
    }

    /// Removes flows from the controller's state that have been silent and have no packet in the system.
    fn forget_flows(&mut self, tenant: usize, now: u64) {
        let oldest = self.oldest();
        let oldest = (oldest >> super::tenant::SEEN) as u32;
        let Some(steering) = self.flow_steering(tenant) else {
            return;
        };
        let tick = (now >> super::tenant::SEEN) as u32;
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

    fn decide_flows(&mut self, tenant: usize, now: u64) {
        let Some(steering) = self.flow_steering(tenant) else {
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
        self.tenants[tenant].decisions.remaps += 1;
        if changes {
            self.at(now + delay, Control::EnforceFlows(tenant));
        }
    }

    fn enforce_flows(&mut self, tenant: usize, now: u64) {
        let Some(steering) = self.flow_steering(tenant) else {
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
        self.tenants[tenant].decisions.buckets_moved += plan.moves.len() as u64;
        for owner in owners {
            // A core that owns shards is active, even before its first flow.
            self.dedicate(usize::from(owner), tenant, 0, now);
        }
        for (flow, to) in along {
            self.move_flow(tenant, flow, to, now);
        }
        for migration in &plan.migrations {
            self.move_flow(tenant, flows[migration.flow as usize], migration.to, now);
        }
        self.count_leaving(tenant, now);
        let Some(steering) = self.flow_steering(tenant) else {
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
