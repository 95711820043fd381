//! State of a dispatching core. Its state machine is that of the live data plane.
//!
//! The unit that is offloaded is the flow or the RSS bucket ([`Unit`]). *Flow* in names of the state machine stands for
//! either.

use super::meter::flow_hash;
use super::packet_lists::PacketLists;
use super::tree::NEVER;
use super::waiting::{NONE, Waiting};
use crate::chain::Work;
use crate::traffic::Packet;
use tailwater_dispatch::{Backlog, Dispatcher, Flow, Iteration};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::BUCKETS;
use tailwater_policy::core::{CoreMapper, Unit};

/// Reference to a flow with packets in the system, or to a bucket. `flow` of a bucket is that of the packet that opened
/// its slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlowReference {
    /// Arrival of the packet that opened its slot.
    since: u64,
    pub flow: u32,
    pub bucket: u16,
}

const _: () = assert!(size_of::<Flow<FlowReference>>() == 32, "two slots share a cache line");

impl FlowReference {
    #[inline]
    pub fn new(packet: &Packet) -> FlowReference {
        FlowReference {
            since: packet.arrival,
            flow: packet.flow,
            bucket: packet.bucket() as u16,
        }
    }
}

/// Returns the hash that tells the packets of flows in one unit of offloading apart.
#[inline]
pub(super) fn hash_of(unit: Unit, packet: &Packet) -> u32 {
    match unit {
        Unit::Flow => 0,
        Unit::Bucket => flow_hash(packet.flow),
    }
}

/// Unfinished iteration of the core's loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopIteration {
    pub began: u64,
    pub progress: Iteration,
}

/// Cores that serve a dispatching core as auxiliary cores.
#[derive(Debug)]
pub(crate) struct AuxiliaryLinks {
    /// Numbers of the cores, by auxiliary core.
    pub cores: Vec<u16>,
    /// Activated ones, as a bit map.
    pub active: u64,
}

/// Dispatching part of a core.
#[derive(Debug)]
pub(crate) struct Dispatch {
    /// Flows or buckets with packets in the system, by slot, and the mapper.
    pub machine: Dispatcher<FlowReference, Waiting>,
    /// Slots by bucket, or empty if flows are offloaded. Those of flows are in
    /// [`ChainState::slots`](super::chain_state::ChainState::slots).
    pub slots: Vec<u16>,
    pub lists: PacketLists,
    pub links: AuxiliaryLinks,
    /// Maximum batch size set by the mapper.
    pub batch: usize,
    pub iteration: Option<LoopIteration>,
    /// Value of the server's claim counter at the last check.
    pub seen_claims: u64,
    /// Auxiliary cores were of no benefit then.
    pub was_pause: bool,
}

impl Dispatch {
    /// Creates the state for auxiliary cores on these cores.
    pub fn new(mapper: Box<dyn CoreMapper>, unit: Unit, cores: Vec<u16>, buffers: usize) -> Dispatch {
        Dispatch {
            slots: match unit {
                Unit::Flow => Vec::new(),
                Unit::Bucket => vec![NONE; BUCKETS],
            },
            batch: mapper.batch(),
            machine: Dispatcher::new(mapper, Backlog::new(cores.len(), buffers)),
            lists: PacketLists::new(cores.len()),
            links: AuxiliaryLinks { cores, active: 0 },
            iteration: None,
            seen_claims: u64::MAX,
            was_pause: false,
        }
    }

    /// Reports a batch that was processed straight from the ring in `took` nanoseconds, while others waited.
    pub fn learn(&mut self, done: Option<(Work, bool)>, took: u64) {
        if let Some((work, true)) = done
            && work.packets > 0
        {
            let (packets, new) = (work.packets as u32, work.new as u32);
            self.machine.completed_straight(packets, new, Nanos(took));
        }
    }

    /// Returns the number of packet buffers in use.
    #[inline]
    pub fn used(&self) -> usize {
        let backlog = &self.machine.backlog;
        (backlog.waiting() + self.lists.away + backlog.parked().packets) as usize
    }

    /// Returns `true` if the core continues immediately when it is ready.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.iteration.is_some() || !self.lists.is_empty()
    }

    /// Returns `true` if no packet is in the system.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.machine.backlog.is_empty()
    }

    /// Returns the number of packets that have neither left nor been lost.
    pub fn unfinished(&self) -> usize {
        self.lists.unfinished() + self.machine.backlog.parked().packets as usize
    }

    /// Returns a time before which no packet in the system arrived.
    pub fn oldest_active(&self) -> u64 {
        if !self.slots.is_empty() && self.machine.backlog.parked().packets == 0 {
            // A bucket's slot can stay open for long.
            return self
                .lists
                .all()
                .map(|waiting| waiting.packet.arrival)
                .min()
                .unwrap_or(NEVER);
        }
        let since = self.machine.backlog.flows().map(|flow| flow.key().since);
        since.min().unwrap_or(NEVER)
    }

    /// Returns all packets in the system, including completed ones without a receipt.
    pub fn packets(&self) -> impl Iterator<Item = &Packet> {
        let lists = self.lists.all().chain(self.machine.backlog.parked_packets());
        lists.map(|waiting| &waiting.packet)
    }

    /// Returns each flow's or bucket's packets in the own queue, on auxiliary cores and parked.
    pub fn inside(&self) -> impl Iterator<Item = (u16, u32, u32)> {
        let flows = self.machine.backlog.flows();
        flows.map(|flow| (flow.key().bucket, flow.key().flow, flow.packets()))
    }
}
