//! One chain in the rack: its costs, the outcome of its packets, and their steering.

use super::account::Account;
use super::check::Checker;
use super::machine::Speed;
use super::meter::Meter;
use super::row_steering::Balanced;
use crate::chain::Costs;
use crate::report::Decisions;
use crate::traffic::Packet;
use std::collections::HashMap;
use tailwater_net::Nanos;
use tailwater_net::toeplitz::BUCKETS;
use tailwater_policy::core::MakeMapper;
use tailwater_policy::flows::{FlowMapper, FlowPlan};
use tailwater_policy::server::{IngressMapper, ServerMapper};

/// Marks the absence of a transit, core or server.
pub(crate) const NO_CORE: u16 = u16::MAX;

/// State of a chain.
pub(crate) struct ChainState {
    pub costs: Costs,
    /// Speed of machines over time, if known.
    pub speed: Option<Speed>,
    pub seed: u64,
    pub meter: Meter,
    pub check: Option<Checker>,
    pub decisions: Decisions,
    /// Creates a core mapper for each core that gets a queue.
    pub make: Option<MakeMapper>,
    /// By flow: its slot at the core that dispatches it. Only used with core mappers that offload flows.
    pub slots: Vec<u16>,
    /// Cache state of flows, if the model distinguishes cold packets.
    pub warmth: Option<CacheResidency>,
    pub steering: Steering,
    /// Cores that can serve it as auxiliary cores, if these are not all of a server.
    pub auxiliaries: Option<Vec<u16>>,
    /// Buckets or flows in migration, by number. Completed entries are free.
    pub transits: Vec<Moving>,
    pub free: Vec<u32>,
    /// Nanoseconds of cores with a queue, and of auxiliary cores.
    pub dedicated: u64,
    pub auxiliary: u64,
    /// Number of cores with a queue now.
    pub cores: u32,
    /// Nanoseconds that cores worked for it.
    pub worked: u64,
}

/// Cache state of flows: a flow is warm if the core that processed its last packet has processed few others since.
///
/// Each core counts its own packets, so that the result does not depend on the order in which the engine lets cores
/// work.
#[derive(Debug)]
pub(crate) struct CacheResidency {
    after: u32,
    /// By core: packets processed.
    packets: Vec<u32>,
    /// By flow: the core that processed its last packet, and the packets that it had processed by then.
    seen: Vec<(u16, u32)>,
}

impl CacheResidency {
    /// Returns the state for a chain model's limit and a rack's cores, or `None` if `after` is 0.
    pub fn new(after: u32, cores: usize) -> Option<CacheResidency> {
        (after > 0).then(|| CacheResidency {
            after,
            packets: vec![0; cores],
            seen: Vec::new(),
        })
    }

    /// Returns `true` if a packet that `core` processes now is cold.
    #[inline]
    pub fn is_cold(&mut self, core: usize, packet: &Packet) -> bool {
        let flow = packet.flow as usize;
        if self.seen.len() <= flow {
            self.seen.resize(flow + 1, (0, 0));
        }
        self.packets[core] = self.packets[core].wrapping_add(1);
        let (last, before) = std::mem::replace(&mut self.seen[flow], (core as u16, self.packets[core]));
        packet.is_first() || self.packets[usize::from(last)].wrapping_sub(before) > self.after
    }
}

/// Bucket or flow in migration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moving {
    /// Number of the bucket in its steering domain, or of the flow.
    pub unit: u32,
    pub from: u16,
    pub to: u16,
    /// Packets that its old core has yet to complete.
    pub outstanding: u32,
    pub since: u64,
}

/// Steering of a chain's packets to cores.
pub(crate) enum Steering {
    /// By RSS bucket.
    Buckets(BucketSteering),
    /// Flow by flow.
    Flows(FlowSteering),
}

/// Number of a transit plus one, or 0 for none.
type TransitNumber = u32;

/// Steering domain: a set of cores with one bucket table, either a server or a whole rack.
pub(crate) struct SteeringDomain {
    /// Cores that can have a queue, by their numbers for the mapper.
    pub cores: Vec<u16>,
    /// Destination of arrivals, and owner, of each bucket, by core of the rack.
    pub table: Box<[u16; BUCKETS]>,
    pub holder: Box<[u16; BUCKETS]>,
    pub transit: Box<[TransitNumber; BUCKETS]>,
    /// Number of buckets in migration.
    pub moving: u32,
    /// Number of move sets that are decided but not in force.
    pub decided: u32,
    pub mapper: Option<Box<dyn ServerMapper>>,
    pub account: Account,
    /// Delay from a decision until it is in force, in addition to the mapper's own.
    pub delay: u64,
    /// `true` if it is in use, and if a run of its mapper is due.
    pub active: bool,
    pub planned: bool,
    /// Initial number of cores.
    pub start_cores: u16,
    /// Last run of the mapper.
    pub asked: u64,
}

/// Steering by RSS bucket, in one domain or, with an ingress, in one per server.
pub(crate) struct BucketSteering {
    pub sections: Vec<SteeringDomain>,
    pub ingress: Option<Ingress>,
    /// Tailwater's, instead of `ingress`.
    pub balanced: Option<Box<Balanced>>,
}

/// Steers destination prefixes to servers, as NetBlaze does.
pub(crate) struct Ingress {
    pub mapper: IngressMapper,
    /// By flow: its server, or [`HELD`] while its prefix has no row.
    pub server_of: Vec<u16>,
    /// Dedicated cores of each server, as reported.
    pub reported: Vec<u16>,
    /// Prefixes whose row is being written while packets wait for it.
    pub pending: Vec<PendingRow>,
    /// Pending row of each waiting flow.
    pub row_of: HashMap<u32, u32>,
    /// Number of the next row.
    pub rows: u32,
    pub rule_latency: u64,
    pub max_buffered: usize,
}

/// Marks a flow that waits for a row.
pub(crate) const HELD: u16 = u16::MAX;

/// Row that is being written.
pub(crate) struct PendingRow {
    pub number: u32,
    pub prefix: ipnet::IpNet,
    pub server: u16,
    pub flows: Vec<u32>,
    pub packets: Vec<Packet>,
}

/// State of a flow that a controller places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SteeredFlow {
    /// Destination of its packets, as a number of the mapper, or [`NO_CORE`] if the flow is not stored.
    pub core: u16,
    /// Core that can process them.
    pub holder: u16,
    pub shard: u16,
    /// Packets in the period.
    pub packets: u32,
    pub transit: TransitNumber,
    /// Time of its last packet, in units of about a millisecond (a power of two nanoseconds), rounded down.
    pub seen: u32,
    /// `true` if it migrated from another core, and no packet has been processed here yet.
    pub stranger: bool,
}

impl SteeredFlow {
    pub const NEW: SteeredFlow = SteeredFlow {
        core: NO_CORE,
        holder: NO_CORE,
        shard: 0,
        packets: 0,
        transit: 0,
        seen: 0,
        stranger: false,
    };
}

/// Input of a controller, and the time of its decision.
pub(crate) struct Snapshot {
    pub flows: Vec<u32>,
    pub loads: Vec<tailwater_policy::flows::FlowLoad>,
    pub cores: Vec<tailwater_policy::flows::CoreSignals>,
    pub shards: Vec<u16>,
}

/// Steering flow by flow, by a controller.
pub(crate) struct FlowSteering {
    pub mapper: Box<dyn FlowMapper>,
    /// Cores that can be used, by their numbers for the mapper.
    pub cores: Vec<u16>,
    /// Owner of each shard, as a number of the mapper.
    pub shards: Box<[u16; BUCKETS]>,
    pub flows: Vec<SteeredFlow>,
    /// Stored flows.
    pub known: Vec<u32>,
    /// Time for which a silent flow is stored, in the unit of [`SteeredFlow::seen`].
    pub memory: u32,
    /// Input of the pending decision, and plans that are not in force.
    pub snapshot: Option<Snapshot>,
    pub plans: std::collections::VecDeque<(Vec<u32>, FlowPlan)>,
    pub asked: u64,
}

/// `log2` of the unit in nanoseconds in which silence is measured: about a millisecond.
pub(crate) const SEEN: u32 = 20;

impl Steering {
    /// Returns `true` if a core can process a packet.
    #[inline]
    pub fn holds(&self, core: usize, packet: &Packet) -> bool {
        let holder = match self {
            Steering::Buckets(steering) => {
                // A core belongs to one domain only.
                return steering
                    .sections
                    .iter()
                    .any(|section| usize::from(section.holder[packet.bucket()]) == core);
            }
            Steering::Flows(steering) => steering.flows[packet.flow as usize].holder,
        };
        usize::from(holder) == core
    }

    /// Returns the state of NetBlaze's ingress, if any.
    pub fn ingress(&mut self) -> Option<&mut Ingress> {
        match self {
            Steering::Buckets(steering) => steering.ingress.as_mut(),
            Steering::Flows(_) => None,
        }
    }

    /// Returns the state of Tailwater's ingress, if any.
    pub fn balanced(&mut self) -> Option<&mut Balanced> {
        match self {
            Steering::Buckets(steering) => steering.balanced.as_deref_mut(),
            Steering::Flows(_) => None,
        }
    }

    /// Records the processing of a buffered packet. Returns `true` if it is the first of a flow that migrated from
    /// another core.
    pub fn is_first_after_migration(&mut self, packet: &Packet) -> bool {
        match self {
            // The flows of a bucket are not tracked: each buffered packet counts.
            Steering::Buckets(_) => true,
            Steering::Flows(steering) => std::mem::take(&mut steering.flows[packet.flow as usize].stranger),
        }
    }
}

impl SteeringDomain {
    /// Returns `true` if no migration is in progress or pending.
    pub fn is_settled(&self) -> bool {
        self.moving == 0 && self.decided == 0
    }
}

impl ChainState {
    /// Records that a bucket or flow is in migration.
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

    /// Returns the epoch in which flows are counted: half the objective, but at most a millisecond.
    pub fn epoch(slo: Nanos) -> u64 {
        (slo.0 / 2).clamp(1, 1_000_000)
    }
}
