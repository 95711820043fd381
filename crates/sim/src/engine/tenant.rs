//! One chain in the rack: its costs, its packets' fate, and how they are steered.

use super::account::Account;
use super::check::Checker;
use super::machine::Speed;
use super::meter::Meter;
use crate::chain::Costs;
use crate::report::Decisions;
use crate::traffic::Packet;
use std::collections::HashMap;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::BUCKETS;
use tailwater_policy::core::MakeMapper;
use tailwater_policy::flows::{FlowMapper, FlowPlan};
use tailwater_policy::server::{IngressMapper, ServerMapper};

/// No transit, no core, no server.
pub(crate) const NOBODY: u16 = u16::MAX;

/// A chain.
pub(crate) struct Tenant {
    pub costs: Costs,
    /// How fast machines are over time, if anything is known of that.
    pub speed: Option<Speed>,
    pub seed: u64,
    pub meter: Meter,
    pub check: Option<Checker>,
    pub decisions: Decisions,
    /// Makes a core mapper for each core that gets a queue.
    pub make: Option<MakeMapper>,
    /// By flow: its number at the core that dispatches it. Only with core mappers.
    pub slots: Vec<u16>,
    /// Where it matters which flows are in the caches.
    pub warmth: Option<Warmth>,
    pub steering: Steering,
    /// Buckets or flows that are on their way, by number; those that are over are free.
    pub transits: Vec<Moving>,
    pub free: Vec<u32>,
    /// Nanoseconds of cores with a queue, and of helpers.
    pub dedicated: u64,
    pub auxiliary: u64,
    /// Cores with a queue now.
    pub cores: u32,
    /// Nanoseconds that cores worked for it.
    pub worked: u64,
}

/// Which flows are in the caches: those whose last packet is not long ago, counted in packets.
#[derive(Debug)]
pub(crate) struct Warmth {
    after: u32,
    packets: u32,
    /// By flow: how many packets had been processed when its last one was.
    seen: Vec<u32>,
}

impl Warmth {
    /// None that a chain's model knows of if `after` is 0.
    pub fn new(after: u32) -> Option<Warmth> {
        (after > 0).then_some(Warmth {
            after,
            packets: 0,
            seen: Vec::new(),
        })
    }

    /// Whether a packet that is processed now is cold.
    #[inline]
    pub fn is_cold(&mut self, packet: &Packet) -> bool {
        let flow = packet.flow as usize;
        if self.seen.len() <= flow {
            self.seen.resize(flow + 1, 0);
        }
        self.packets = self.packets.wrapping_add(1);
        let before = std::mem::replace(&mut self.seen[flow], self.packets);
        packet.is_first() || self.packets.wrapping_sub(before) > self.after
    }
}

/// A bucket or flow on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moving {
    /// The bucket's number in its section, or the flow.
    pub unit: u32,
    pub from: u16,
    pub to: u16,
    /// Packets that its old core has yet to be done with.
    pub outstanding: u32,
    pub since: u64,
}

/// How a chain's packets find their cores.
pub(crate) enum Steering {
    /// By RSS bucket.
    Buckets(BucketSteering),
    /// Flow by flow.
    Flows(FlowSteering),
}

/// A transit's number plus one; 0 for none.
type TransitNumber = u32;

/// A set of cores with a bucket table: a server, or a whole rack.
pub(crate) struct Section {
    /// Cores that may have a queue, by their numbers for the mapper.
    pub cores: Vec<u16>,
    /// Where arrivals go, and who holds each bucket, by core of the rack.
    pub table: Box<[u16; BUCKETS]>,
    pub holder: Box<[u16; BUCKETS]>,
    pub transit: Box<[TransitNumber; BUCKETS]>,
    /// Buckets on their way.
    pub moving: u32,
    /// Moves that have been decided and are not in force.
    pub decided: u32,
    pub mapper: Option<Box<dyn ServerMapper>>,
    pub account: Account,
    /// From a decision until it is in force, beside the mapper's own.
    pub delay: u64,
    /// It is in use.
    pub active: bool,
    /// Cores at the start.
    pub start_cores: u16,
    /// When the mapper was last asked, and is next.
    pub asked: u64,
}

/// By RSS bucket, in one section or, with an ingress, in one for each server.
pub(crate) struct BucketSteering {
    pub sections: Vec<Section>,
    pub ingress: Option<Ingress>,
}

/// Steers destination prefixes to servers.
pub(crate) struct Ingress {
    pub mapper: IngressMapper,
    /// By flow: its server, or [`HELD`] while its prefix has no row.
    pub server_of: Vec<u16>,
    /// Dedicated cores of each server, as reported.
    pub reported: Vec<u16>,
    /// Prefixes whose row is being written and whose packets wait for it.
    pub pending: Vec<PendingRow>,
    /// The pending row of a flow that is held.
    pub row_of: HashMap<u32, u32>,
    /// Numbers rows.
    pub rows: u32,
    pub rule_latency: u64,
    pub held: usize,
}

/// The flow waits for a row.
pub(crate) const HELD: u16 = u16::MAX;

/// A row that is being written.
pub(crate) struct PendingRow {
    pub number: u32,
    pub prefix: ipnet::IpNet,
    pub server: u16,
    pub flows: Vec<u32>,
    pub packets: Vec<Packet>,
}

/// What is known of a flow that a controller places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SteeredFlow {
    /// Where its packets go, as a number of the mapper; [`NOBODY`] if nobody remembers it.
    pub core: u16,
    /// Who may process them.
    pub holder: u16,
    pub shard: u16,
    /// Packets in the period.
    pub packets: u32,
    pub transit: TransitNumber,
    /// When its last packet came, in milliseconds, rounded down to a power of two nanoseconds.
    pub seen: u32,
    /// It has come from another core, and no packet has been processed there yet.
    pub stranger: bool,
}

impl SteeredFlow {
    pub const NEW: SteeredFlow = SteeredFlow {
        core: NOBODY,
        holder: NOBODY,
        shard: 0,
        packets: 0,
        transit: 0,
        seen: 0,
        stranger: false,
    };
}

/// What a controller saw, and when it is to decide.
pub(crate) struct Snapshot {
    pub flows: Vec<u32>,
    pub loads: Vec<tailwater_policy::flows::FlowLoad>,
    pub cores: Vec<tailwater_policy::flows::CoreSignals>,
    pub shards: Vec<u16>,
}

/// Flow by flow, as a controller says.
pub(crate) struct FlowSteering {
    pub mapper: Box<dyn FlowMapper>,
    /// Cores that may be used, by their numbers for the mapper.
    pub cores: Vec<u16>,
    /// Each shard's owner, as a number of the mapper.
    pub shards: Box<[u16; BUCKETS]>,
    pub flows: Vec<SteeredFlow>,
    /// Flows that are remembered.
    pub known: Vec<u32>,
    /// For how long a silent flow is remembered, in the unit of [`SteeredFlow::seen`].
    pub memory: u32,
    /// The snapshot that is being decided about, and plans that are not in force.
    pub snapshot: Option<Snapshot>,
    pub plans: std::collections::VecDeque<(Vec<u32>, FlowPlan)>,
    pub asked: u64,
}

/// `log2` of the nanoseconds in which silence is counted: about a millisecond.
pub(crate) const SEEN: u32 = 20;

impl Steering {
    /// Whether a core may process a packet.
    #[inline]
    pub fn holds(&self, core: usize, packet: &Packet) -> bool {
        let holder = match self {
            Steering::Buckets(steering) => {
                // A core is of one section only.
                return steering
                    .sections
                    .iter()
                    .any(|section| usize::from(section.holder[packet.bucket()]) == core);
            }
            Steering::Flows(steering) => steering.flows[packet.flow as usize].holder,
        };
        usize::from(holder) == core
    }

    /// What steers prefixes to servers, if anything does.
    pub fn ingress(&mut self) -> Option<&mut Ingress> {
        match self {
            Steering::Buckets(steering) => steering.ingress.as_mut(),
            Steering::Flows(_) => None,
        }
    }

    /// A packet is processed that was kept back. Whether it is the first of a flow that came from
    /// another core.
    pub fn greet(&mut self, packet: &Packet) -> bool {
        match self {
            // Of a bucket nobody knows which flows have been greeted: each packet kept back counts.
            Steering::Buckets(_) => true,
            Steering::Flows(steering) => std::mem::take(&mut steering.flows[packet.flow as usize].stranger),
        }
    }
}

impl Section {
    /// Whether nothing is on its way, and nothing about to be.
    pub fn is_settled(&self) -> bool {
        self.moving == 0 && self.decided == 0
    }
}

impl Tenant {
    /// Notes that a bucket or flow is on its way.
    pub fn transit(&mut self, moving: Moving) -> TransitNumber {
        match self.free.pop() {
            Some(number) => {
                self.transits[number as usize] = moving;
                number + 1
            }
            None => {
                self.transits.push(moving);
                self.transits.len() as TransitNumber
            }
        }
    }

    /// The epoch in which flows are counted: half the objective, but no more than a millisecond.
    pub fn epoch(slo: Nanos) -> u64 {
        (slo.0 / 2).clamp(1, 1_000_000)
    }
}
