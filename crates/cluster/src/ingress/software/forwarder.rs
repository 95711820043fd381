//! Data path of one core: receives from all ports, finds each packet's rule, and sends by the rules' ports.
//!
//! A batch is sent as a whole under the rules with which it began. Then the core takes new rules, and says so: packets
//! that arrive after that go by them. A flow is received by one core only, so its packets to the old server leave
//! before those to the new one.

use super::bridge::{Bridge, Way};
use super::counters::{DropCounters, Reason};
use super::flow_cache::FlowCache;
use super::key::PacketKey;
use super::table::{FlowTable, NONE, PortSet, Target};
use crate::ingress::openflow::PacketIn;
use crate::ingress::rule::PortNumber;
use crate::ingress::switch::SwitchEvent;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;
use tailwater_chain::batch::Batch;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::live::{Live, Version};
use tailwater_dataplane::clock::Clock;
use tailwater_dataplane::port::PortQueue;
use tailwater_net::Nanos;
use tokio::sync::mpsc;

/// Packets of a batch.
pub(super) const BATCH: usize = 64;
/// Buffers of a core and port: a batch, copies of it for another port, and some to spare.
pub(super) const BUFFERS: u32 = 4 * BATCH as u32;

/// State that a core shares with the control thread.
#[derive(Debug, Default)]
pub(super) struct CoreState {
    /// Version of the rules that the core uses.
    pub version: AtomicU32,
    pub drops: DropCounters,
}

/// State that all cores share.
#[derive(Debug)]
pub(super) struct Shared {
    pub rules: Live<FlowTable>,
    pub bridge: Bridge,
    pub cores: Vec<CoreState>,
    pub is_ending: AtomicBool,
    pub clock: Clock,
    /// Idle time after which a core sleeps, and the time it sleeps.
    pub nap: Option<Nanos>,
}

/// Packet of the ingress that is to be sent by a target.
pub(super) type Injected = (Target, Vec<u8>);

/// Receive side of a port.
struct Input {
    pool: BufferPool,
    batch: Batch,
    /// Packets for one of several ports.
    part: Batch,
}

/// Data path of one core.
pub(super) struct Forwarder {
    number: usize,
    shared: Arc<Shared>,
    rules: Arc<Version<FlowTable>>,
    cache: FlowCache,
    queues: Vec<Box<dyn PortQueue>>,
    inputs: Vec<Input>,
    /// Of the packets of a batch: key, its hash, and ports to send by.
    keys: Vec<(PacketKey, u64)>,
    ways: Vec<PortSet>,
    /// Packets for the ingress. Only these are copied into memory of their own, and a limited number of them waits.
    events: mpsc::Sender<SwitchEvent>,
    injected: Option<Receiver<Injected>>,
}

impl Forwarder {
    /// Data path of a core with its queue and pool of each port.
    pub fn new(
        (number, shared): (usize, &Arc<Shared>),
        ports: Vec<(Box<dyn PortQueue>, BufferPool)>,
        events: mpsc::Sender<SwitchEvent>,
        injected: Option<Receiver<Injected>>,
    ) -> Forwarder {
        let (mut queues, mut inputs) = (Vec::new(), Vec::new());
        for (mut queue, pool) in ports {
            queue.leave_out_hashes();
            queues.push(queue);
            inputs.push(Input {
                batch: Batch::new(&pool, BATCH),
                part: Batch::new(&pool, BATCH),
                pool,
            });
        }
        Forwarder {
            number,
            rules: shared.rules.current(),
            shared: Arc::clone(shared),
            cache: FlowCache::new(),
            queues,
            inputs,
            keys: Vec::with_capacity(BATCH),
            ways: Vec::with_capacity(BATCH),
            events,
            injected,
        }
    }

    /// Forwards packets until the switch ends.
    pub fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut busy_at = shared.clock.now();
        while !shared.is_ending.load(Ordering::Relaxed) {
            let now = shared.clock.now();
            let packets = self.turn(now);
            if packets > 0 {
                busy_at = now;
            } else if let Some(nap) = shared.nap
                && now.saturating_sub(busy_at) >= nap
            {
                std::thread::sleep(Duration::from_nanos(nap.0));
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Takes new rules, and forwards a batch from each port. Returns the number of packets.
    #[inline]
    pub fn turn(&mut self, now: Nanos) -> usize {
        self.shared.rules.refresh(&mut self.rules);
        let own = &self.shared.cores[self.number];
        if own.version.load(Ordering::Relaxed) != self.rules.number {
            // Everything that came before has been sent.
            own.version.store(self.rules.number, Ordering::Release);
        }
        let mut packets = self.inject(now);
        for port in 0..self.queues.len() {
            packets += self.forward(port, now);
        }
        packets
    }

    /// Forwards a batch of packets that have arrived on a port. Returns their number.
    #[inline]
    fn forward(&mut self, port: usize, now: Nanos) -> usize {
        let Input { pool, batch, .. } = &mut self.inputs[port];
        let received = self.queues[port].receive(now, pool, batch);
        let (drops, packets) = (&self.shared.cores[self.number].drops, batch.len());
        let refused = received.refused.in_pieces + received.refused.damaged;
        if refused > 0 {
            drops.note(Reason::TooLong, refused as usize);
        }
        if packets == 0 {
            return refused as usize;
        }
        let in_port = port as PortNumber + 1;
        self.keys.clear();
        for at in 0..packets {
            let key = PacketKey::of(batch.frame(at), in_port);
            let hash = key.hash();
            self.cache.prefetch(hash);
            self.keys.push((key, hash));
        }
        let (rules, version) = (&self.rules.value, self.rules.number);
        self.ways.clear();
        let mut used = 0;
        for (at, (key, hash)) in self.keys.iter().enumerate() {
            let index = self.cache.rule(key, *hash, version, |key| rules.find(key));
            let (packet, frame) = batch.packet_mut(at);
            packet.set_number(at as u16);
            let way = match rules.rule(index) {
                Some(rule) => {
                    rule.counters.note(self.number, frame.len());
                    match rule.target {
                        Target::Controller => {
                            let packet = PacketIn {
                                cookie: rule.cookie,
                                in_port: Some(in_port),
                                frame: Vec::new(),
                            };
                            if !punt(&self.events, packet, frame) {
                                drops.note(Reason::IngressBusy, 1);
                            }
                            0
                        }
                        target => self
                            .shared
                            .apply(target, (port, self.queues.len()), frame, (drops, now)),
                    }
                }
                None => {
                    debug_assert!(index == NONE, "a rule of the table");
                    drops.note(Reason::NoRule, 1);
                    0
                }
            };
            used |= way;
            self.ways.push(way);
        }
        self.send(port, used);
        packets
    }

    /// Sends the batch of an input by each packet's ports, `used` in all, and frees its buffers.
    #[inline]
    fn send(&mut self, input: usize, used: PortSet) {
        let Input { pool, batch, part } = &mut self.inputs[input];
        let drops = &self.shared.cores[self.number].drops;
        let mut unsent = 0;
        if used != 0 && used.is_power_of_two() && self.ways.iter().all(|way| *way == used) {
            unsent += self.queues[used.trailing_zeros() as usize].transmit(batch);
            batch.release(pool);
        } else {
            let has_copies = self.ways.iter().any(|way| way.count_ones() > 1);
            for port in (0..self.queues.len()).filter(|port| used >> port & 1 != 0) {
                let bit = 1 << port;
                if has_copies {
                    // Before the packets that go by this port alone: hosts are learnt in the course of a batch.
                    for packet in 0..batch.len() {
                        let way = self.ways[usize::from(batch.packet(packet).number())];
                        let is_copied = way & bit != 0 && way != bit;
                        if is_copied && !part.push(pool, batch.frame(packet), Nanos::ZERO, 0) {
                            drops.note(Reason::NoBuffer, 1);
                        }
                    }
                    unsent += self.queues[port].transmit(part);
                    part.release(pool);
                }
                let ways = &self.ways;
                batch.divide(part, |packet| ways[usize::from(packet.number())] == bit);
                unsent += self.queues[port].transmit(part);
                part.release(pool);
            }
            batch.release(pool);
        }
        if unsent > 0 {
            drops.note(Reason::NotSent, unsent);
        }
    }

    /// Sends packets of the ingress. Returns their number.
    fn inject(&mut self, now: Nanos) -> usize {
        let Some(injected) = &self.injected else { return 0 };
        let Some(input) = self.inputs.first_mut() else { return 0 };
        let drops = &self.shared.cores[self.number].drops;
        self.ways.clear();
        let mut used = 0;
        while input.batch.room() > 0 {
            let Ok((target, mut frame)) = injected.try_recv() else {
                break;
            };
            // It has arrived on none of the ports.
            let nowhere = (usize::MAX, self.queues.len());
            let way = self.shared.apply(target, nowhere, &mut frame, (drops, now));
            if !input.batch.push(&mut input.pool, &frame, now, 0) {
                drops.note(Reason::NoBuffer, 1);
                break;
            }
            let (packet, _) = input.batch.packet_mut(self.ways.len());
            packet.set_number(self.ways.len() as u16);
            used |= way;
            self.ways.push(way);
        }
        let packets = self.ways.len();
        if packets > 0 {
            self.send(0, used);
        }
        packets
    }
}

impl Shared {
    /// Applies a target to a frame from a port of `ports` ports. Returns the ports to send it by.
    #[inline]
    fn apply(
        &self,
        target: Target,
        (port, ports): (usize, usize),
        frame: &mut [u8],
        (drops, now): (&DropCounters, Nanos),
    ) -> PortSet {
        let own = if port < ports { 1 << port } else { 0 };
        let wanted = match target {
            Target::Server(mac, way) => {
                if let Some(destination) = frame.first_chunk_mut() {
                    *destination = mac;
                }
                way
            }
            Target::Ports(ways) => ways,
            Target::Normal => self.normal(frame, (port, ports), now),
            Target::Drop | Target::Controller => {
                drops.note(Reason::Rule, 1);
                return 0;
            }
        };
        let way = wanted & !own;
        if way == 0 {
            let reason = if wanted == 0 { Reason::NoPort } else { Reason::SamePort };
            drops.note(reason, 1);
        }
        way
    }

    /// Returns the ports of normal forwarding, and learns the frame's source.
    fn normal(&self, frame: &[u8], (port, ports): (usize, usize), now: Nanos) -> PortSet {
        let Some(head) = frame.first_chunk::<12>() else {
            return 0;
        };
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5] = *head;
        if port < ports {
            self.bridge.learn([s0, s1, s2, s3, s4, s5], port, now);
        }
        let all = PortSet::MAX >> (PortSet::BITS as usize - ports);
        match self.bridge.way([d0, d1, d2, d3, d4, d5], now) {
            Way::Port(port) if port < ports => 1 << port,
            Way::Port(_) | Way::None => 0,
            // The port on which it has arrived is taken out by the caller.
            Way::All => all,
        }
    }
}

/// Passes a packet to the ingress. Returns `false` if too many wait there already.
#[cold]
fn punt(events: &mpsc::Sender<SwitchEvent>, packet: PacketIn, frame: &[u8]) -> bool {
    let Ok(slot) = events.try_reserve() else { return false };
    slot.send(SwitchEvent::PacketIn(PacketIn {
        frame: frame.to_vec(),
        ..packet
    }));
    true
}
