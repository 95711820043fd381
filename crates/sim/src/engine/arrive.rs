//! Path of packets from the switch to the cores' rings.

use super::chain_state::{BucketSteering, HELD, Ingress, NO_CORE, PendingRow, SEEN, SteeredFlow, Steering};
use super::fifo::Arrived;
use super::meter::flow_hash;
use super::row_steering::Steered;
use super::{Control, Engine};
use crate::report::Loss;
use crate::traffic::{FlowStart, NO_FLOW_INDEX, Packet};
use tailwater_policy::core::Unit;
use tailwater_policy::flows::NewFlow;
use tailwater_policy::server::Steering as Destination;

/// Bytes that a frame takes on the wire in addition to its own: check sequence, preamble, gap.
const WIRE: u64 = 24;

/// Flows prefetched at a time, so that as many memory loads overlap.
const AHEAD: usize = 16;

impl Engine<'_> {
    /// Lets packets arrive at the switch, in order, up to the next control, which a packet can bring forward. `starts`
    /// has the flows that they open. Returns the number of arrived packets.
    pub(super) fn arrive(&mut self, packets: &[Packet], starts: &mut std::slice::Iter<'_, FlowStart>) -> usize {
        self.control_at = self.next_control();
        let mut arrived = 0;
        for packets in packets.chunks(AHEAD) {
            self.touch(packets);
            for packet in packets {
                if packet.arrival >= self.control_at {
                    return arrived;
                }
                let start = match packet.is_first() {
                    true => starts.next(),
                    false => None,
                };
                self.arrive_one(packet, start);
                arrived += 1;
            }
        }
        arrived
    }

    /// Prefetches the state of the packets' flows.
    #[inline]
    fn touch(&self, packets: &[Packet]) {
        let mut sum = 0_u32;
        for packet in packets {
            let flow = packet.flow as usize;
            let chain = &self.chains[packet.chain()];
            if let Some(slot) = chain.slots.get(flow) {
                sum = sum.wrapping_add(u32::from(*slot));
            }
            match &chain.steering {
                Steering::Flows(steering) => {
                    if let Some(flow) = steering.flows.get(flow) {
                        sum = sum.wrapping_add(u32::from(flow.core));
                    }
                }
                Steering::Buckets(BucketSteering { ingress, balanced, .. }) => {
                    let known = ingress.as_ref().and_then(|i| i.server_of.get(flow));
                    sum = sum.wrapping_add(known.map_or(0, |server| u32::from(*server)));
                    let known = balanced.as_ref().map(|balanced| balanced.touch(flow));
                    sum = sum.wrapping_add(known.unwrap_or(0));
                }
            }
        }
        std::hint::black_box(sum);
    }

    #[inline]
    fn arrive_one(&mut self, packet: &Packet, start: Option<&FlowStart>) {
        let (mut packet, reopened) = (packet, packet.opening());
        let number = packet.chain();
        let chain = &mut self.chains[number];
        chain.meter.window.offered += 1;
        self.last_arrival = packet.arrival;
        if packet.flow == NO_FLOW_INDEX {
            chain.meter.lost(Loss::FlowTableFull);
            return;
        }
        if let Some(start) = start {
            self.open(number, packet, start);
        }
        let chain = &mut self.chains[number];
        let core = match &mut chain.steering {
            Steering::Buckets(steering) => {
                let section = match (&mut steering.ingress, &mut steering.balanced) {
                    (None, None) => 0,
                    (None, Some(balanced)) => match balanced.steer(packet) {
                        Steered::To(server) => usize::from(server),
                        Steered::Reopened(server) => {
                            chain.decisions.flows_reopened += 1;
                            packet = &reopened;
                            usize::from(server)
                        }
                        Steered::Held => return self.hold_moving(number, packet),
                    },
                    (Some(ingress), _) => match ingress.server_of[packet.flow as usize] {
                        HELD => {
                            match ingress.hold(packet) {
                                true => chain.decisions.waited_for_rule += 1,
                                false => chain.meter.lost(Loss::Table),
                            }
                            return;
                        }
                        server => usize::from(server),
                    },
                };
                let section = &mut steering.sections[section];
                let bucket = packet.bucket();
                if section.mapper.is_some() {
                    let hash = flow_hash(packet.flow);
                    section.account.packet(packet.arrival, bucket, hash);
                }
                section.table[bucket]
            }
            Steering::Flows(steering) => {
                let flow = &mut steering.flows[packet.flow as usize];
                if flow.core == NO_CORE {
                    self.place_flow(number, packet);
                    return self.send_placed(number, packet);
                }
                flow.packets += 1;
                flow.seen = (packet.arrival >> SEEN) as u32;
                steering.cores[usize::from(flow.core)]
            }
        };
        self.send(number, usize::from(core), packet, packet.arrival);
    }

    /// Sends a packet over the link of a core's server, and to the core.
    #[inline]
    pub(super) fn send(&mut self, chain: usize, core: usize, packet: &Packet, time: u64) {
        let at = match self.cross(core, packet, time) {
            Some(at) => at,
            None => return self.lost_in_front(chain, core),
        };
        let waiting = &mut self.cores[core];
        let was_empty = waiting.fifo.is_empty();
        waiting.fifo.push(Arrived { at, packet: *packet });
        if was_empty && self.scheduled {
            self.schedule(core);
        }
    }

    /// Counts a packet that does not reach a core's server.
    #[cold]
    fn lost_in_front(&mut self, chain: usize, core: usize) {
        let loss = match self.is_stopped(core) {
            true => Loss::ServerLost,
            false => Loss::Link,
        };
        self.chains[chain].meter.lost(loss);
    }

    /// Returns the time at which a packet has crossed the link to a core's server, or `None` if the link's buffer is
    /// full or the server has failed.
    #[inline]
    fn cross(&mut self, core: usize, packet: &Packet, time: u64) -> Option<u64> {
        let server = &mut self.servers[usize::from(self.cores[core].server)];
        if server.failed_at.is_some() {
            return None;
        }
        if server.byte_picos == 0 {
            return Some(time);
        }
        let now = time * 1000;
        let begins = server.link_free.max(now);
        let ends = begins + (u64::from(packet.bytes) + WIRE) * server.byte_picos;
        if ends - now > server.link_buffer {
            return None;
        }
        server.link_free = ends;
        Some(ends.div_ceil(1000))
    }

    /// Opens a flow.
    fn open(&mut self, number: usize, packet: &Packet, start: &FlowStart) {
        let flow = packet.flow as usize;
        let chain = &mut self.chains[number];
        chain.meter.window.new += 1;
        let by_flow = chain.make.is_some() && chain.costs.unit == Unit::Flow;
        if by_flow && chain.slots.len() <= flow {
            chain.slots.resize(flow + 1, super::waiting::NONE);
        }
        if let Some(check) = &mut chain.check {
            check.opened(packet.flow);
        }
        match &mut chain.steering {
            Steering::Flows(steering) => {
                if steering.flows.len() <= flow {
                    steering.flows.resize(flow + 1, SteeredFlow::NEW);
                }
                let known = &mut steering.flows[flow];
                // The controller may still store a flow that every other part has removed.
                if known.core == NO_CORE {
                    *known = SteeredFlow::NEW;
                }
                known.shard = packet.bucket() as u16;
            }
            Steering::Buckets(BucketSteering {
                ingress: Some(ingress), ..
            }) => {
                let steered = ingress.mapper.steer(start.destination, &ingress.reported);
                let latency = ingress.rule_latency;
                if ingress.server_of.len() <= flow {
                    ingress.server_of.resize(flow + 1, 0);
                }
                ingress.server_of[flow] = steered.server();
                if let Destination::Install { prefix, server } = steered {
                    chain.decisions.rules += 1;
                    if latency > 0 {
                        let row = ingress.begin_row(prefix, server);
                        self.at(packet.arrival + latency, Control::Row(number, row));
                    }
                }
                self.activate(number, usize::from(steered.server()), packet.arrival);
                if let Steering::Buckets(BucketSteering {
                    ingress: Some(ingress), ..
                }) = &mut self.chains[number].steering
                {
                    ingress.hold_flow(packet.flow, start.destination);
                }
            }
            Steering::Buckets(BucketSteering {
                balanced: Some(balanced),
                ..
            }) => {
                let server = balanced.open(packet, start.destination);
                self.activate(number, usize::from(server), packet.arrival);
            }
            Steering::Buckets(_) => {}
        }
    }

    /// Completes a row of the table: packets that waited for it continue.
    pub(super) fn row_written(&mut self, number: usize, row: u32, now: u64) {
        let Steering::Buckets(steering) = &mut self.chains[number].steering else {
            return;
        };
        let Some(ingress) = &mut steering.ingress else {
            return;
        };
        let Some(place) = ingress.pending.iter().position(|p| p.number == row) else {
            return;
        };
        let pending = ingress.pending.remove(place);
        for flow in &pending.flows {
            ingress.server_of[*flow as usize] = pending.server;
            ingress.row_of.remove(flow);
        }
        for packet in &pending.packets {
            let Steering::Buckets(steering) = &mut self.chains[number].steering else {
                return;
            };
            let section = &mut steering.sections[usize::from(pending.server)];
            let hash = flow_hash(packet.flow);
            section.account.packet(now, packet.bucket(), hash);
            let core = section.table[packet.bucket()];
            self.send(number, usize::from(core), packet, now);
        }
    }

    /// Lets the controller place a flow.
    #[cold]
    fn place_flow(&mut self, number: usize, packet: &Packet) {
        let Steering::Flows(steering) = &mut self.chains[number].steering else {
            return;
        };
        let shard = packet.bucket() as u16;
        let core = steering.mapper.place(NewFlow::in_shard(shard));
        let target = steering.cores[usize::from(core)];
        let flow = &mut steering.flows[packet.flow as usize];
        (flow.core, flow.holder) = (core, target);
        steering.known.push(packet.flow);
        self.cores[usize::from(target)].owned += 1;
        self.dedicate(usize::from(target), number, 0, packet.arrival);
    }

    fn send_placed(&mut self, number: usize, packet: &Packet) {
        let Steering::Flows(steering) = &mut self.chains[number].steering else {
            return;
        };
        let flow = &mut steering.flows[packet.flow as usize];
        flow.packets += 1;
        flow.seen = (packet.arrival >> SEEN) as u32;
        let core = usize::from(steering.cores[usize::from(flow.core)]);
        self.send(number, core, packet, packet.arrival);
    }
}

impl Ingress {
    /// Starts to write a row and returns its number.
    fn begin_row(&mut self, prefix: ipnet::IpNet, server: u16) -> u32 {
        self.rows += 1;
        self.pending.push(PendingRow {
            number: self.rows,
            prefix,
            server,
            flows: Vec::new(),
            packets: Vec::new(),
        });
        self.rows
    }

    /// Lets a flow wait for its prefix's row, which is being written.
    fn hold_flow(&mut self, flow: u32, destination: std::net::IpAddr) {
        let to = |row: &&mut PendingRow| row.prefix.contains(&destination);
        if let Some(row) = self.pending.iter_mut().find(to) {
            row.flows.push(flow);
            self.row_of.insert(flow, row.number);
            self.server_of[flow as usize] = HELD;
        }
    }

    /// Parks a packet until its flow's row is written. Returns `true` if there is room.
    #[cold]
    fn hold(&mut self, packet: &Packet) -> bool {
        let buffered: usize = self.pending.iter().map(|row| row.packets.len()).sum();
        let row = self.row_of[&packet.flow];
        let row = self.pending.iter_mut().find(|p| p.number == row);
        match row {
            Some(row) if buffered < self.max_buffered => {
                row.packets.push(*packet);
                true
            }
            _ => false,
        }
    }
}
