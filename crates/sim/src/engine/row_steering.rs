//! Tailwater's ingress: the mapper, the classes of flows that its rows can single out, and moves in progress.

use crate::traffic::Packet;
use std::collections::HashMap;
use std::net::IpAddr;
use tailwater_policy::server::{FlowClass, IngressBalancer, IngressConfig, RowMatch, RowMove, ServerNumber};

/// Reports after which classes' counters are halved, so that they count about the last half second.
const HALVED: u32 = 250;

/// Such times after which the numbers of flows are halved, so that they count the last ten seconds: silent flows are
/// forgotten.
const FLOWS_HALVED: u32 = 20;

/// Class that does not move.
pub(super) const STAYS: u16 = u16::MAX;

/// Flows that a row can single out.
pub(super) struct ClassState {
    pub class: FlowClass,
    pub server: ServerNumber,
    /// Number of its move, or [`STAYS`].
    pub moving: u16,
    /// Packets and flows that opened, not long ago.
    pub packets: u32,
    pub flows: u32,
}

/// Row whose flows move.
pub(super) struct Moving {
    pub row: RowMatch,
    pub from: ServerNumber,
    pub to: ServerNumber,
    /// Time at which the row was in force.
    pub since: u64,
    /// The old server has sent the flows' state.
    pub sent: bool,
    /// Packets at the new server.
    pub held: Vec<Packet>,
}

/// Ingress whose rows move.
pub(crate) struct Balanced {
    pub mapper: IngressBalancer,
    /// By flow: the number of its class.
    pub class_of: Vec<u32>,
    pub classes: Vec<ClassState>,
    pub numbers: HashMap<FlowClass, u32>,
    /// By server: packets steered to it, packets held there, and the number that may be.
    pub offered: Vec<u64>,
    pub held: Vec<usize>,
    pub room: Vec<usize>,
    pub reports: u32,
    /// Rows that are being written, then moves that are not complete.
    pub planned: Vec<RowMove>,
    pub moving: Vec<Moving>,
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
    pub fn hold(&mut self, packet: &Packet) -> bool {
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

    pub fn halve(&mut self) {
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
