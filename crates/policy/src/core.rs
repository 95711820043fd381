//! Interface between a core that dispatches packets and the policy that selects their destination.
//!
//! A dispatching core has its own queue, and can offload whole flows to *auxiliary cores* (`auxiliaries` in names),
//! numbered from 0 as that core sees them. All packets of a flow that are in the system go to one [`Destination`]. The
//! place changes only when no packet of the flow has left the core's own queue: either all packets in the system still
//! wait there, or there are none. Packets on an auxiliary core cannot be recalled. When an auxiliary core is
//! overloaded, the dispatching core [relieves](Plan::relieve) it: it parks later packets until the flow can move. So
//! auxiliary cores shed flows to each other by decisions of the one core that has the state of all of them. Another
//! dedicated core can be an auxiliary core for a while, if it has few packets of its own.

use std::sync::Arc;
use tailwater_net::Nanos;

/// Maximum number of auxiliary cores per dispatching core.
pub const MAX_AUXILIARY_CORES: usize = 62;

/// Number of queues that share a dispatcher's buffers: its own, and those of two auxiliary cores. Each has at most its
/// part of them.
pub const QUEUES: u32 = 3;

/// Unit in which a dispatching core offloads packets. The rules for flows in this module apply to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Flows. The dispatching core looks up the flow of every packet.
    #[default]
    Flow,
    /// RSS buckets (*bucket leases*). The core that processes a packet also looks up its flow, and opens it if it is
    /// new. The dispatching core reads nothing but the RSS hash, and no flow is [bound](QueuedFlow::bound) to it.
    Bucket,
}

/// Core that processes a flow's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination(u8);

impl Destination {
    /// The deciding core itself.
    pub const OWN_CORE: Destination = Destination(0);

    /// Returns the place of auxiliary core `auxiliary`.
    ///
    /// # Panics
    /// If the number is [`MAX_AUXILIARY_CORES`] or more.
    #[inline]
    pub const fn auxiliary(auxiliary: usize) -> Destination {
        assert!(auxiliary < MAX_AUXILIARY_CORES, "there are at most MAX_AUXILIARY_CORES");
        Destination(auxiliary as u8 + 1)
    }

    /// Returns the auxiliary core's number, or `None` for [`Destination::OWN_CORE`].
    #[inline]
    pub const fn as_auxiliary(self) -> Option<usize> {
        match self.0 {
            0 => None,
            place => Some(place as usize - 1),
        }
    }

    /// Returns an index for tables: 0 is [`Destination::OWN_CORE`], auxiliary core `i` is `i + 1`.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Amount of work: flows, and their packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Flows with at least one packet.
    pub flows: u32,
    /// Their packets.
    pub packets: u32,
}

/// State of an auxiliary core as the dispatching core sees it. Its load counts offloaded packets that have not been
/// reported done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuxiliaryCore {
    /// `true` if the auxiliary core is activated for this core. Otherwise placing a flow there activates it, unless it
    /// is [`taken`](AuxiliaryCore::taken).
    pub active: bool,
    /// `true` if nothing can be placed there: another core has activated it, or it has a queue of its own now and is
    /// released as soon as it is done.
    pub taken: bool,
    /// `true` if it is another dedicated core, with few packets of its own (or, if it is `taken`, with more by now). It
    /// polls, so it need not be woken, and it is released as soon as it is done. Packets placed there delay its own.
    pub dedicated: bool,
    /// Offloaded and not yet done. For split flows, the packets that have passed the first functions.
    pub load: Load,
    /// Time of its last completion report. If the load is zero, it has been idle since then.
    pub last_done: Nanos,
}

/// Flow with packets in the deciding core's own queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuedFlow {
    /// Number of its queued packets. At least 1.
    pub packets: u32,
    /// `true` if the flow cannot move. Either this core must open it (its chain has functions that change the flow
    /// table), or it is [split](Split) and has packets on an auxiliary core.
    pub bound: bool,
}

/// State of a core at a mapper's decision.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Current time.
    pub now: Nanos,
    /// Arrival of the first packet in the own queue, which is the oldest there, except for packets of flows that were
    /// [parked](View::parked). Equals `now` if the queue is empty.
    pub oldest: Nanos,
    /// Flows in the own queue, in the order of their first packets there.
    pub queued: &'a [QueuedFlow],
    /// Total of their packets.
    pub packets: u32,
    /// Packets parked until their flows leave auxiliary cores that are [relieved](Plan::relieve). They are neither in
    /// the own queue nor on an auxiliary core.
    pub parked: Load,
    /// Auxiliary cores. Their number does not change during a run.
    pub auxiliaries: &'a [AuxiliaryCore],
}

/// Flow that can go to any core: its only packets in the system are the one that just arrived, or those that were
/// [parked](Plan::relieve).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flowlet {
    /// Arrival time of the first of these packets.
    pub arrival: Nanos,
    /// `true` if the flow is new. Its state is yet to be created, which costs more. Not known of
    /// [buckets](Unit::Bucket).
    pub new: bool,
    /// Number of packets. At least 1, and more only if they were parked.
    pub packets: u32,
    /// `true` if the packets were parked.
    pub parked: bool,
}

/// Distribution of packets at the time a [`Flowlet`] is placed.
#[derive(Clone, Copy, Debug)]
pub struct Loads<'a> {
    /// Current time.
    pub now: Nanos,
    /// Load of the core's own queue, without flows that have so many packets that they wait behind all others.
    pub here: Load,
    /// Auxiliary cores.
    pub auxiliaries: &'a [AuxiliaryCore],
}

/// Condition for the operator. The data plane counts these and reports them at intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A single flow exceeds the capacity of a core, and no split of the chain suffices.
    WhaleBeyondSplit {
        /// Queued packets of the flow.
        packets: u32,
    },
    /// The work exceeds the capacity of all usable cores.
    OutOfCores {
        /// Queued packets beyond that capacity.
        packets: u32,
    },
}

/// Whale whose chain is split: its packets pass the first functions here, the others on an auxiliary core.
///
/// The split applies to queued and later packets. It ends when none of the flow's packets is in the system, or when a
/// plan moves or splits the flow again. Meanwhile a [review](CoreMapper::review) can divide its parts and join them.
/// The auxiliary cores are not released meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Flow, as its index in [`View::queued`].
    pub flow: usize,
    /// Number of functions, counted from the chain's end, that move to the auxiliary core.
    pub last_functions: usize,
    /// Auxiliary core.
    pub auxiliary: usize,
}

/// Part of the chain that an auxiliary core runs on a split flow's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SplitPart {
    /// Number of functions, counted from the chain's end, that begin with this part. The next part has fewer.
    pub last_functions: usize,
    /// Auxiliary core.
    pub auxiliary: usize,
    /// Packets of the flow there.
    pub packets: u32,
}

/// State of a [split](Split) flow at a mapper's [review](CoreMapper::review).
#[derive(Clone, Copy, Debug)]
pub struct SplitFlow<'a> {
    /// Current time.
    pub now: Nanos,
    /// Number of the flow, unique among the flows that are split now.
    pub number: u16,
    /// Its packets in the own queue, which this core runs through the functions in front of the first part.
    pub queued: u32,
    /// Parts on auxiliary cores, in the chain's order. At least one.
    pub parts: &'a [SplitPart],
    /// Time of the last change of the parts.
    pub since: Nanos,
    /// Packets since the flow was split that have passed this core's part.
    pub passed: u64,
    /// Auxiliary cores.
    pub auxiliaries: &'a [AuxiliaryCore],
}

/// Decision about a split flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Review {
    /// The parts stay.
    #[default]
    Keep,
    /// The part with this function is divided: the functions from there on go to a core that has none of the flow's
    /// packets. Applies to later packets.
    Divide {
        /// Number of functions, counted from the chain's end, that begin with the new part.
        last_functions: usize,
        /// Auxiliary core for the new part.
        auxiliary: usize,
    },
    /// The last part is joined to the one in front of it, or, if it is the only one, the flow is no longer split.
    /// Applies once none of its packets is on its way: later ones are parked meanwhile. A flow that is no longer split
    /// is then [placed](CoreMapper::place).
    Join,
}

/// Decisions of a mapper. A plan is reused: [`clear`](Plan::clear) it first. Its vectors grow to the size needed and
/// never shrink, so no plan allocates in steady state.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Destination of each flow of [`View::queued`], with all its packets.
    pub destinations: Vec<Destination>,
    /// Auxiliary cores to release, as a bit map: those without work that nothing is placed on.
    pub release: u64,
    /// Overloaded auxiliary cores, as a bit map, valid until the next plan. Later packets of a flow there are parked,
    /// until the auxiliary core has processed the earlier ones. Then the flow is [placed](CoreMapper::place) again.
    /// Split flows stay.
    pub relieve: u64,
    /// Flows to split. Their place is [`Destination::OWN_CORE`].
    pub splits: Vec<Split>,
    /// *Boost mode*: from now on the core processes nothing itself and only offloads.
    pub boost: bool,
    /// Condition to report to the operator.
    pub notice: Option<Notice>,
}

impl Plan {
    /// Resets the plan to one that changes nothing, for `flows` queued flows.
    #[inline]
    pub fn clear(&mut self, flows: usize) {
        self.destinations.clear();
        self.destinations.resize(flows, Destination::OWN_CORE);
        self.release = 0;
        self.relieve = 0;
        self.splits.clear();
        self.boost = false;
        self.notice = None;
    }
}

/// Decides for one core which flows stay and which are offloaded to which auxiliary core.
///
/// Called on the data path: no implementation allocates in steady state.
pub trait CoreMapper: Send {
    /// Returns the points at which the mapper can [split](Plan::splits) the chain, or [divide](Review::Divide) it
    /// further, with this many auxiliary cores, as a bit map: bit `i` stands for the last `i` functions. Called once,
    /// before the first packet, because it determines the layout of flow state. Other splits are ignored.
    fn split_points(&mut self, auxiliaries: usize) -> u64 {
        let _ = auxiliaries;
        0
    }

    /// Returns the unit in which packets are offloaded. Called once, before the first packet.
    fn unit(&self) -> Unit {
        Unit::Flow
    }

    /// Returns the maximum batch size of a core, this one or an auxiliary one. Called once, before the first packet.
    /// Packets that arrive during a batch wait for all of it, and no packet of a batch leaves before the last is done.
    fn batch(&self) -> usize {
        usize::MAX
    }

    /// Returns `true` if packets pass the core's own queue even if no auxiliary core is usable: the mapper measures
    /// queues. Otherwise they are processed straight from the port then. Called once, before the first packet.
    fn measures_queues(&self) -> bool {
        false
    }

    /// Returns `true` if the core processes `packets` packets that wait in its port in time by itself. They need not
    /// pass its own queue then, which costs time, and nothing is placed elsewhere. Called while no packet is in the
    /// system; auxiliary cores that are active have no work.
    #[inline]
    fn is_in_time(&self, packets: u32) -> bool {
        let _ = packets;
        false
    }

    /// Returns `true` if this core, with `packets` packets of its own, may process buckets of other dedicated cores
    /// that are behind.
    #[inline]
    fn can_help(&self, packets: u32) -> bool {
        let _ = packets;
        false
    }

    /// Returns `true` if [`decide`](CoreMapper::decide) is due now, with `packets` in the own queue: at an epoch's end,
    /// or when the queue requires it. Called in every iteration of the core's loop.
    fn due(&self, now: Nanos, packets: u32) -> bool;

    /// Decides about the queue. `plan` has been [cleared](Plan::clear) for `view.queued`.
    fn decide(&mut self, view: &View<'_>, plan: &mut Plan);

    /// Decides about a split flow. Called for each of them after every [decision](CoreMapper::decide).
    fn review(&mut self, split: &SplitFlow<'_>) -> Review {
        let _ = split;
        Review::Keep
    }

    /// Returns the destination of a flow that has no packets in the system, or whose packets were all
    /// [parked](Plan::relieve). Auxiliary cores that are [taken](AuxiliaryCore::taken) must not be returned.
    #[inline]
    fn place(&mut self, flowlet: Flowlet, loads: &Loads<'_>) -> Destination {
        let _ = (flowlet, loads);
        Destination::OWN_CORE
    }

    /// Reports that the core itself processed a batch of `packets` packets of its queue, or of its port while others
    /// waited there, `new` of which opened a flow. `took` is the duration of the whole loop iteration, including
    /// receiving, offloading and deciding, since packets wait for these too.
    #[inline]
    fn completed(&mut self, packets: u32, new: u32, took: Nanos) {
        let _ = (packets, new, took);
    }

    /// Reports that the core spent `took` on receiving, placing and offloading packets. Called once per iteration in
    /// which it did.
    #[inline]
    fn dispatched(&mut self, took: Nanos) {
        let _ = took;
    }

    /// Reports that an auxiliary core that was asleep began to work `took` after packets were offloaded to it. Called
    /// after it has completed some, at most once for each time that it was asleep.
    #[inline]
    fn woke(&mut self, took: Nanos) {
        let _ = took;
    }
}

/// Makes a core mapper for each core that dispatches.
pub type MakeMapper = Arc<dyn Fn() -> Box<dyn CoreMapper> + Send + Sync>;
