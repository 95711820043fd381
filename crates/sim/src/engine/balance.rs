//! Moves of flows between servers, by rows of the switch's table.
//!
//! A move takes these steps:
//!
//! 1. Servers' counters reach the mapper, one call late, and it decides. A server that had nothing takes as many cores
//!    into use at once as the moving load fills to its limit.
//! 2. After the time to write a row, the rows are in force: packets of the moving flows go to the new server. It holds
//!    them, in order, in the packet buffers of its dedicated cores. Packets beyond are lost.
//! 3. The old server processes what it has of these flows, and then sends their state: one call, and a time for each
//!    flow.
//! 4. The new server processes the held packets, before any that arrives later.
//!
//! So no two servers ever have packets of one flow, and none overtakes another.
//!
//! If the old server fails, there is no state to wait for. Once the mapper knows, the new server goes on, and the flows
//! open anew. If the new one fails, what it holds is lost.

use super::chain_state::{BucketSteering, Steering, SteeringDomain};
use super::row_steering::{ClassState, Moving, STAYS};
use super::waiting::Waiting;
use super::{Control, Engine};
use crate::report::Loss;
use crate::traffic::Packet;
use tailwater_net::Nanos;
use tailwater_policy::server::{ClassLoad, RowMatch, RowMove, ServerCounters};

/// Interval in nanoseconds for checking that the packets of moving flows are processed.
const LOOK: u64 = 100_000;

impl SteeringDomain {
    /// Returns the number of dedicated cores, which own buckets.
    fn owners(&self) -> usize {
        let owns = |core: &&u16| self.table.contains(core);
        self.cores.iter().filter(owns).count()
    }
}

impl Engine<'_> {
    /// Holds a packet at the new server of its flow.
    #[cold]
    pub(super) fn hold_moving(&mut self, number: usize, packet: &Packet) {
        let chain = &mut self.chains[number];
        let Some(balanced) = chain.steering.balanced() else {
            return;
        };
        let to = usize::from(balanced.class(packet.flow).server);
        if self.servers[to].failed_at.is_some() {
            return chain.meter.lost(Loss::ServerLost);
        }
        match balanced.hold(packet) {
            true => chain.decisions.held_for_move += 1,
            false => chain.meter.lost(Loss::RingFull),
        }
    }

    /// Samples the servers' counters. The ingress gets them a call later.
    pub(super) fn report_counters(&mut self, number: usize, now: u64) {
        let Steering::Buckets(BucketSteering {
            sections,
            balanced: Some(balanced),
            ..
        }) = &mut self.chains[number].steering
        else {
            return;
        };
        balanced.halve();
        let of_section = |((section, offered), server): ((&SteeringDomain, &u64), &super::ServerState)| {
            if server.failed_at.is_some() {
                return None;
            }
            let mut sum = ServerCounters {
                offered: *offered,
                ..ServerCounters::default()
            };
            // A server that was never used has processed nothing.
            if section.active || *offered > 0 {
                for core in &section.cores {
                    let totals = self.cores[usize::from(*core)].stats.totals();
                    sum.processed += totals.processed;
                    sum.busy += totals.busy;
                    sum.late += totals.late;
                }
            }
            Some(sum)
        };
        let counters = sections.iter().zip(&balanced.offered).zip(&self.servers);
        let counters = counters.map(of_section).collect();
        let interval = balanced.mapper.report_interval().0;
        self.at(now + self.timing.rpc, Control::Rebalance(number, counters));
        self.at(now + interval, Control::Counters(number));
    }

    /// Lets the mapper decide, and has its rows written.
    pub(super) fn rebalance(&mut self, number: usize, counters: &[Option<ServerCounters>], now: u64) {
        let Some(balanced) = self.chains[number].steering.balanced() else {
            return;
        };
        let sampled = Nanos(now - self.timing.rpc);
        if !balanced.mapper.report(sampled, counters) {
            return self.end_moves_of_lost(number, now);
        }
        let classes = balanced.classes.iter().map(|state| ClassLoad {
            class: state.class,
            packets: state.packets,
        });
        let classes: Vec<ClassLoad> = classes.collect();
        let mut moves = Vec::new();
        balanced.mapper.plan(&classes, &mut moves);
        if moves.is_empty() {
            return;
        }
        balanced.planned.clone_from(&moves);
        let decisions = &mut self.chains[number].decisions;
        decisions.rules += moves.len() as u64;
        decisions.rows_moved += moves.len() as u64;
        for planned in &moves {
            let to = usize::from(planned.to);
            if let Steering::Buckets(steering) = &mut self.chains[number].steering {
                let same = moves.iter().filter(|other| other.to == planned.to);
                let load: f64 = same.map(|other| other.load).sum();
                let balanced = steering.balanced.as_ref();
                let limit = balanced.map_or(1.0, |balanced| balanced.mapper.limit(planned.to));
                steering.sections[to].start_cores = ((load / limit).ceil() as u16).max(1);
            }
            // A server in use keeps its cores.
            self.activate(number, to, now);
        }
        self.at(now + self.rack.switch.rule_latency.0, Control::RowsWritten(number));
    }

    /// Begins the moves of flows whose rows are in force.
    pub(super) fn rows_written(&mut self, number: usize, now: u64) {
        let chain = &mut self.chains[number];
        let Steering::Buckets(BucketSteering {
            sections,
            balanced: Some(balanced),
            ..
        }) = &mut chain.steering
        else {
            return;
        };
        balanced.mapper.rows_written();
        let planned = std::mem::take(&mut balanced.planned);
        let begin = |planned: &RowMove| Moving {
            row: planned.row,
            from: planned.from,
            to: planned.to,
            since: now,
            sent: false,
            due: 0,
            reopens: false,
            done: false,
            held: Vec::new(),
        };
        balanced.moving = planned.iter().map(begin).collect();
        for planned in &planned {
            let to = usize::from(planned.to);
            balanced.room[to] = self.rack.servers[to].buffers as usize * sections[to].owners();
            if let Some(failed) = self.servers[usize::from(planned.from)].failed_at
                && balanced.mapper.is_lost(planned.from)
            {
                let reaction = &mut chain.decisions.loss_reaction_ns;
                *reaction = (*reaction).max(now - failed);
            }
        }
        for state in &mut balanced.classes {
            let server = balanced.mapper.steer(state.class).1;
            if server == state.server {
                continue;
            }
            // A row that is now redundant is not in the table, so the move is found by its match.
            let matching = balanced.moving.iter().enumerate();
            let mut matching = matching.filter(|(_, moving)| {
                (moving.from, moving.to) == (state.server, server) && moving.row.matches(state.class)
            });
            let Some((moving, _)) = matching.next_back() else {
                unreachable!("a class changes its server by a move only")
            };
            (state.server, state.moving) = (server, moving as u16);
        }
        self.end_moves_of_lost(number, now);
        self.look_for_moved(number, now);
    }

    /// Ends the moves from servers that the mapper knows to be lost: there is no state to wait for.
    fn end_moves_of_lost(&mut self, number: usize, now: u64) {
        let Steering::Buckets(BucketSteering {
            sections,
            balanced: Some(balanced),
            ..
        }) = &mut self.chains[number].steering
        else {
            return;
        };
        let mut ends = Vec::new();
        for moving in &mut balanced.moving {
            if moving.sent || !balanced.mapper.is_lost(moving.from) {
                continue;
            }
            // Batches in progress at the failure count as processed.
            let cores = sections[usize::from(moving.from)].cores.iter();
            let ready = cores.map(|core| self.cores[usize::from(*core)].ready).max();
            (moving.sent, moving.reopens, moving.due) = (true, true, now.max(ready.unwrap_or(0)));
            ends.push((moving.due, moving.row));
        }
        for (due, row) in ends {
            self.at(due, Control::RowMoved(number, row));
        }
    }

    /// Lets servers send the state of flows of which they have no packet any more.
    pub(super) fn look_for_moved(&mut self, number: usize, now: u64) {
        let Steering::Buckets(BucketSteering {
            sections,
            balanced: Some(balanced),
            ..
        }) = &mut self.chains[number].steering
        else {
            return;
        };
        let mut done = Vec::new();
        let mut waits = false;
        for (moving, state) in balanced.moving.iter().enumerate() {
            if state.sent || self.servers[usize::from(state.from)].failed_at.is_some() {
                continue;
            }
            let leaves = |flow: u32| usize::from(balanced.class(flow).moving) == moving;
            let cores = || sections[usize::from(state.from)].cores.iter();
            if cores().any(|core| self.cores[usize::from(*core)].has_any(leaves)) {
                waits = true;
                continue;
            }
            // Batches in progress may have the last packets.
            let ready = cores().map(|core| self.cores[usize::from(*core)].ready).max();
            let moves = |class: &&ClassState| usize::from(class.moving) == moving;
            let flows: u64 = balanced.classes.iter().filter(moves).map(|c| u64::from(c.flows)).sum();
            let time = self.timing.rpc + flows * self.timing.flow_transfer;
            done.push((moving, state.row, now.max(ready.unwrap_or(0)) + time));
        }
        for &(moving, _, due) in &done {
            (balanced.moving[moving].sent, balanced.moving[moving].due) = (true, due);
        }
        for (_, row, time) in done {
            self.at(time, Control::RowMoved(number, row));
        }
        if waits {
            self.at(now + LOOK, Control::RowMoves(number));
        }
    }

    /// Completes a move: the new server processes the held packets.
    pub(super) fn row_moved(&mut self, number: usize, row: RowMatch, now: u64) {
        let chain = &mut self.chains[number];
        let Steering::Buckets(BucketSteering {
            sections,
            balanced: Some(balanced),
            ..
        }) = &mut chain.steering
        else {
            return;
        };
        // A server that failed in the meantime has not sent the state after all.
        let is_due = |moving: &Moving| moving.row == row && moving.sent && moving.due == now && !moving.done;
        let Some(moving) = balanced.moving.iter().position(is_due) else {
            return;
        };
        if balanced.moving[moving].reopens {
            balanced.reopen_all(moving);
        }
        for class in &mut balanced.classes {
            if usize::from(class.moving) == moving {
                class.moving = STAYS;
            }
        }
        balanced.mapper.moved(row);
        let state = &mut balanced.moving[moving];
        state.done = true;
        let (held, from, to) = (std::mem::take(&mut state.held), state.from, usize::from(state.to));
        balanced.held[to] -= held.len();
        let longest = &mut chain.decisions.longest_row_move_ns;
        *longest = (*longest).max(now - state.since);
        let section = &mut sections[to];
        let mut touched = Vec::new();
        for packet in held {
            let (packet, reopened) = balanced.resume(packet);
            chain.decisions.flows_reopened += u64::from(reopened);
            let bucket = packet.bucket();
            if section.mapper.is_some() {
                let hash = super::meter::flow_hash(packet.flow);
                section.account.packet(now, bucket, hash);
            }
            let core = section.table[bucket];
            let waiting = Waiting {
                packet,
                at: now,
                slot: super::waiting::NONE,
                last_functions: 0,
                left: 0,
                buffered: true,
            };
            let transit = &mut self.cores[usize::from(core)].transit;
            if section.holder[bucket] == core {
                transit.next.push_back(waiting);
                self.resumed += 1;
            } else {
                // The bucket itself is on its way from another core of the server.
                transit.buffered.push(waiting);
            }
            touched.push(core);
        }
        touched.sort_unstable();
        touched.dedup();
        let is_empty = !balanced.mapper.is_used(from);
        if is_empty && self.servers[usize::from(from)].failed_at.is_none() {
            chain.decisions.servers_emptied += 1;
            self.deactivate(number, usize::from(from), now);
        }
        for core in touched {
            // An idle core continues now, not at the end of its last work.
            let ready = &mut self.cores[usize::from(core)].ready;
            *ready = (*ready).max(now);
            self.schedule(usize::from(core));
        }
    }
}
