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

/// Flag of a flow in [`Balanced::class_of`] whose state was lost with a server: its next packet opens it anew.
const REOPENS: u32 = 1 << 31;

/// Destination of a packet.
pub(super) enum Steered {
    /// This server.
    To(ServerNumber),
    /// This server, which does not have its flow's state any more.
    Reopened(ServerNumber),
    /// Held at the new server of its flow.
    Held,
}

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
    /// The old server has sent the flows' state, or was lost with it, and the time at which the move is complete.
    pub sent: bool,
    pub due: u64,
    /// `true` if it was lost with it.
    pub reopens: bool,
    /// It is complete.
    pub done: bool,
    /// Packets at the new server.
    pub held: Vec<Packet>,
}

/// Ingress whose rows move.
pub(crate) struct Balanced {
    pub mapper: IngressBalancer,
    /// By flow: the number of its class, and [`REOPENS`].
    class_of: Vec<u32>,
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

    /// Counts a packet and returns where it goes.
    #[inline]
    pub fn steer(&mut self, packet: &Packet) -> Steered {
        let entry = &mut self.class_of[packet.flow as usize];
        let class = &mut self.classes[(*entry & !REOPENS) as usize];
        class.packets = class.packets.saturating_add(1);
        self.offered[usize::from(class.server)] += 1;
        if class.moving != STAYS {
            return Steered::Held;
        }
        match *entry & REOPENS {
            0 => Steered::To(class.server),
            _ => {
                *entry &= !REOPENS;
                Steered::Reopened(class.server)
            }
        }
    }

    /// Returns the class of a flow.
    pub fn class(&self, flow: u32) -> &ClassState {
        &self.classes[(self.class_of[flow as usize] & !REOPENS) as usize]
    }

    /// Reads a flow's entry, if there is one.
    #[inline]
    pub fn touch(&self, flow: usize) -> u32 {
        self.class_of.get(flow).copied().unwrap_or(0)
    }

    /// Records that the state of all flows of a move was lost. They open anew.
    pub fn reopen_all(&mut self, moving: usize) {
        for entry in &mut self.class_of {
            let class = &self.classes[(*entry & !REOPENS) as usize];
            if usize::from(class.moving) == moving {
                *entry |= REOPENS;
            }
        }
    }

    /// Returns a held packet, which opens its flow if the flow's state was lost, and `true` if it opens it anew.
    pub fn resume(&mut self, packet: Packet) -> (Packet, bool) {
        let entry = &mut self.class_of[packet.flow as usize];
        if *entry & REOPENS == 0 {
            return (packet, false);
        }
        *entry &= !REOPENS;
        (packet.opening(), !packet.is_first())
    }

    /// Records the failure of a server. Returns the number of packets that it held.
    pub fn server_fails(&mut self, server: ServerNumber) -> usize {
        let mut lost = 0;
        for moving in &mut self.moving {
            if moving.to == server {
                lost += std::mem::take(&mut moving.held).len();
            }
            if moving.from == server && !moving.done {
                // Whether the state was on its way is not known before the loss is noticed.
                (moving.sent, moving.due) = (false, 0);
            }
        }
        self.held[usize::from(server)] -= lost;
        lost
    }

    /// Holds a packet of a moving flow. Returns `false` if there is no room.
    pub fn hold(&mut self, packet: &Packet) -> bool {
        let moving = usize::from(self.class(packet.flow).moving);
        let moving = &mut self.moving[moving];
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
