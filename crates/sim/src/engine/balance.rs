//! Tailwater's ingress: rows of the switch's table whose flows move between servers.
//!
//! A move takes these steps:
//!
//! 1. Servers' counters reach the mapper, one call late, and it decides. A server that had nothing takes as many cores
//!    into use at once as the moving load takes.
//! 2. After the time to write a row, the rows are in force: packets of the moving flows go to the new server. It holds
//!    them, in order, in the packet buffers of its dedicated cores. Packets beyond are lost.
//! 3. The old server processes what it has of these flows, and then sends their state: one call, and a time for each
//!    flow.
//! 4. The new server processes the held packets, before any that arrives later.
//!
//! So no two servers ever have packets of one flow, and none overtakes another.

use super::chain_state::{BucketSteering, Steering, SteeringDomain};
use super::waiting::Waiting;
use super::{Control, Engine};
use crate::report::Loss;
use crate::traffic::Packet;
use std::collections::HashMap;
use std::net::IpAddr;
use tailwater_net::Nanos;
use tailwater_policy::server::{
    ClassLoad, FlowClass, IngressBalancer, IngressConfig, RowMatch, RowMove, ServerCounters, ServerNumber,
};

/// Interval in nanoseconds for checking that the packets of moving flows are processed.
const LOOK: u64 = 100_000;

/// Reports after which classes' counters are halved, so that they count about the last half second.
const HALVED: u32 = 250;

/// Such times after which the numbers of flows are halved, so that they count the last ten seconds: silent flows are
/// forgotten.
const FLOWS_HALVED: u32 = 20;

/// Class that does not move.
const STAYS: u16 = u16::MAX;

/// Flows that a row can single out.
struct ClassState {
    class: FlowClass,
    server: ServerNumber,
    /// Number of its move, or [`STAYS`].
    moving: u16,
    /// Packets and flows that opened, not long ago.
    packets: u32,
    flows: u32,
}

/// Row whose flows move.
struct Moving {
    row: RowMatch,
    from: ServerNumber,
    to: ServerNumber,
    /// Time at which the row was in force.
    since: u64,
    /// The old server has sent the flows' state.
    sent: bool,
    /// Packets at the new server.
    held: Vec<Packet>,
}

/// Ingress whose rows move. See the [module](self).
pub(crate) struct Balanced {
    pub mapper: IngressBalancer,
    /// By flow: the number of its class.
    pub class_of: Vec<u32>,
    classes: Vec<ClassState>,
    numbers: HashMap<FlowClass, u32>,
    /// By server: packets steered to it, packets held there, and the number that may be.
    offered: Vec<u64>,
    held: Vec<usize>,
    room: Vec<usize>,
    reports: u32,
    /// Rows that are being written, then moves that are not complete.
    planned: Vec<RowMove>,
    moving: Vec<Moving>,
}

impl Balanced {
    pub fn new(config: IngressConfig, cores: impl ExactSizeIterator<Item = u16>) -> Balanced {
        let servers = cores.len();
        Balanced {
            mapper: IngressBalancer::new(config, cores),
            class_of: Vec::new(),
            classes: Vec::new(),
            numbers: HashMap::new(),
            offered: vec![0; servers],
            held: vec![0; servers],
            room: vec![0; servers],
            reports: 0,
            planned: Vec::new(),
            moving: Vec::new(),
        }
    }

    /// Opens a flow and returns its server.
    pub fn open(&mut self, packet: &Packet, destination: IpAddr) -> ServerNumber {
        let class = FlowClass::new(destination, packet.bucket() as u16);
        let number = *self.numbers.entry(class).or_insert_with(|| {
            // No server has state of its flows yet: the row in force applies at once.
            self.classes.push(ClassState {
                class,
                server: self.mapper.steer(class).1,
                moving: STAYS,
                packets: 0,
                flows: 0,
            });
            self.classes.len() as u32 - 1
        });
        let flow = packet.flow as usize;
        if self.class_of.len() <= flow {
            self.class_of.resize(flow + 1, 0);
        }
        self.class_of[flow] = number;
        let class = &mut self.classes[number as usize];
        class.flows += 1;
        class.server
    }

    /// Counts a packet and returns its server, or `None` if it is to be held there.
    #[inline]
    pub fn steer(&mut self, packet: &Packet) -> Option<ServerNumber> {
        let class = &mut self.classes[self.class_of[packet.flow as usize] as usize];
        class.packets = class.packets.saturating_add(1);
        self.offered[usize::from(class.server)] += 1;
        (class.moving == STAYS).then_some(class.server)
    }

    /// Holds a packet of a moving flow. Returns `false` if there is no room.
    fn hold(&mut self, packet: &Packet) -> bool {
        let class = &self.classes[self.class_of[packet.flow as usize] as usize];
        let moving = &mut self.moving[usize::from(class.moving)];
        let to = usize::from(moving.to);
        if self.held[to] >= self.room[to] {
            return false;
        }
        self.held[to] += 1;
        moving.held.push(*packet);
        true
    }

    /// Returns the arrival time of the oldest held packet.
    pub fn oldest(&self) -> Option<u64> {
        let first = self.moving.iter().filter_map(|moving| moving.held.first());
        first.map(|packet| packet.arrival).min()
    }

    fn halve(&mut self) {
        self.reports += 1;
        if !self.reports.is_multiple_of(HALVED) {
            return;
        }
        let forgets = self.reports.is_multiple_of(HALVED * FLOWS_HALVED);
        for class in &mut self.classes {
            class.packets /= 2;
            if forgets {
                class.flows /= 2;
            }
        }
    }
}

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
        let of_section = |(section, offered): (&SteeringDomain, &u64)| {
            let mut sum = ServerCounters {
                offered: *offered,
                ..ServerCounters::default()
            };
            if section.active {
                for core in &section.cores {
                    let totals = self.cores[usize::from(*core)].stats.totals();
                    sum.processed += totals.processed;
                    sum.busy += totals.busy;
                    sum.late += totals.late;
                }
            }
            sum
        };
        let counters = sections.iter().zip(&balanced.offered).map(of_section).collect();
        let interval = balanced.mapper.report_interval().0;
        self.at(now + self.timing.rpc, Control::Rebalance(number, counters));
        self.at(now + interval, Control::Counters(number));
    }

    /// Lets the mapper decide, and has its rows written.
    pub(super) fn rebalance(&mut self, number: usize, counters: &[ServerCounters], now: u64) {
        let Some(balanced) = self.chains[number].steering.balanced() else {
            return;
        };
        let sampled = Nanos(now - self.timing.rpc);
        if !balanced.mapper.report(sampled, counters) {
            return;
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
                let load: f64 = moves
                    .iter()
                    .filter(|other| other.to == planned.to)
                    .map(|m| m.load)
                    .sum();
                steering.sections[to].start_cores = (load.ceil() as u16).max(1);
            }
            // A server in use keeps its cores.
            self.activate(number, to, now);
        }
        self.at(now + self.rack.switch.rule_latency.0, Control::RowsWritten(number));
    }

    /// Begins the moves of flows whose rows are in force.
    pub(super) fn rows_written(&mut self, number: usize, now: u64) {
        let Steering::Buckets(BucketSteering {
            sections,
            balanced: Some(balanced),
            ..
        }) = &mut self.chains[number].steering
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
            held: Vec::new(),
        };
        balanced.moving = planned.iter().map(begin).collect();
        for planned in &planned {
            let to = usize::from(planned.to);
            balanced.room[to] = self.rack.servers[to].buffers as usize * sections[to].owners();
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
        self.look_for_moved(number, now);
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
            if state.sent {
                continue;
            }
            let class = |flow: u32| &balanced.classes[balanced.class_of[flow as usize] as usize];
            let leaves = |flow: u32| usize::from(class(flow).moving) == moving;
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
        for &(moving, _, _) in &done {
            balanced.moving[moving].sent = true;
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
        let Some(moving) = balanced.moving.iter().position(|moving| moving.row == row) else {
            return;
        };
        for class in &mut balanced.classes {
            if usize::from(class.moving) == moving {
                class.moving = STAYS;
            }
        }
        balanced.mapper.moved(row);
        let state = &mut balanced.moving[moving];
        let (held, to) = (std::mem::take(&mut state.held), usize::from(state.to));
        balanced.held[to] -= held.len();
        let longest = &mut chain.decisions.longest_row_move_ns;
        *longest = (*longest).max(now - state.since);
        let section = &mut sections[to];
        let mut touched = Vec::new();
        for packet in held {
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
        for core in touched {
            // An idle core continues now, not at the end of its last work.
            let ready = &mut self.cores[usize::from(core)].ready;
            *ready = (*ready).max(now);
            self.schedule(usize::from(core));
        }
    }
}
