//! Core broker: which of a server's cores work for which of its chains.
//!
//! A server's cores are *dedicated* to a chain (they poll a queue of it), *auxiliary* (they sleep until they are lent
//! to a dedicated core with a backlog), or *reserved* for the operating system. A broker has two loops:
//!
//! - [`CoreBroker::lend`], in microseconds: leases of auxiliary cores, each to one dedicated core at a time. A
//!   [`Lease`] ends by itself unless it is extended.
//! - [`CoreBroker::resize`], about every second: dedicated cores of each chain, and light chains that take turns on one
//!   core.
//!
//! The broker decides *who* gets a core. The chain's own [core mapper](crate::core::CoreMapper) decides what the core
//! gets to do, and its [server mapper](crate::server::ServerMapper) which RSS buckets a dedicated core owns. The caller
//! enacts the plans: a lease is an auxiliary core that is usable for one dispatcher, the end of a lease one that is
//! withdrawn from it. A withdrawn core completes the packets that it has, in order, and gets no new ones.
//!
//! [`LeastSlackBroker`] is Tailwater's broker. Quadrant's scaling signals are in `tailwater-baselines`.

mod choice;
mod config;
mod least_slack;
mod lending;
mod requests;
mod sizing;
mod turns;

pub use crate::server::CoreNumber;
pub use config::BrokerConfig;
pub use least_slack::LeastSlackBroker;
pub use requests::{MEASURE_INTERVAL, REQUEST_INTERVAL, RateAverages, is_urgent};
pub use turns::{TurnChain, turn_length};

use tailwater_net::Nanos;

/// Chain of the server, as an index in [`LendView::chains`] and [`ResizeView::chains`].
pub type ChainNumber = u16;

/// Auxiliary core lent to a dedicated one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Auxiliary core.
    pub core: CoreNumber,
    /// Chain that it works for.
    pub chain: ChainNumber,
    /// Dedicated core of the chain that offloads packets to it.
    pub dispatcher: CoreNumber,
    /// Time at which it ends, unless it is extended.
    pub until: Nanos,
}

/// Use of a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CoreUse {
    /// Auxiliary core without a lease.
    #[default]
    Free,
    /// Auxiliary core with a lease. A lease with an end in the past is still held, until a plan ends or extends it.
    Lent(Lease),
    /// Dedicated to a chain.
    Dedicated(ChainNumber),
    /// Light chains take turns on it.
    Turns,
    /// Belongs to the operating system.
    Reserved,
}

/// Core of the server. A core's number is its index in the view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrokerCore {
    /// NUMA node.
    pub node: u16,
    /// Current use.
    pub usage: CoreUse,
}

/// Load and rights of a chain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChainLoad {
    /// Latency objective.
    pub objective: Nanos,
    /// Weight in the division of cores. At least 1.
    pub weight: u32,
    /// Load that the chain was admitted with, in cores, or 0 if it was not: its share of the cores by weight counts
    /// then.
    pub planned: f64,
    /// Offered load in cores (packets per second times the time of one), over about 100 ms.
    pub short: f64,
    /// The same over about a second.
    pub long: f64,
}

impl Default for ChainLoad {
    /// Returns an idle chain with an objective of a millisecond and weight 1.
    fn default() -> Self {
        ChainLoad {
            objective: Nanos::from_millis(1),
            weight: 1,
            planned: 0.0,
            short: 0.0,
            long: 0.0,
        }
    }
}

/// Backlog of a dedicated core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueBacklog {
    /// The dedicated core.
    pub core: CoreNumber,
    /// Its chain.
    pub chain: ChainNumber,
    /// Time that its packets take on the cores that work for it now, by measured costs.
    pub drain: Nanos,
    /// Time left until the oldest packet's deadline: its arrival, plus the objective, less the current time. 0 if that
    /// has passed.
    pub deadline: Nanos,
    /// Time until a core lent now processes its first packet: wake-up and transfer, as measured.
    pub wake: Nanos,
    /// Additional auxiliary cores that it can use.
    pub wants: u16,
    /// The auxiliary core that it would use next, if it has already selected one.
    pub preferred: Option<CoreNumber>,
}

/// State of a server for [`CoreBroker::lend`].
#[derive(Clone, Copy, Debug)]
pub struct LendView<'a> {
    /// Current time.
    pub now: Nanos,
    /// All cores of the server.
    pub cores: &'a [BrokerCore],
    /// All chains.
    pub chains: &'a [ChainLoad],
    /// Dedicated cores with a backlog or leases. Others can be omitted.
    pub queues: &'a [QueueBacklog],
}

/// Changes of leases. A core is in [`lend`](LendPlan::lend) at most once. The vectors keep their capacity, so that a
/// reused plan does not allocate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LendPlan {
    /// Leases that end now: they have expired, or another chain needs the core.
    pub end: Vec<Lease>,
    /// New leases, and extended ones: the same core and dispatcher, with a later end. The core of a new lease was free,
    /// or its former lease is in [`end`](LendPlan::end): then it is usable as soon as its current batch is done.
    pub lend: Vec<Lease>,
}

impl LendPlan {
    /// Resets the plan to no change.
    pub fn clear(&mut self) {
        self.end.clear();
        self.lend.clear();
    }
}

/// Chain for [`CoreBroker::resize`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChainCores {
    /// Load and rights.
    pub load: ChainLoad,
    /// NUMA node that its port and buffers are on.
    pub node: u16,
    /// Dedicated cores that its server mapper requests, or `None` to derive them from the load. At most one and a half
    /// times the cores that the load takes are granted: for bursts there are auxiliary cores.
    pub wanted: Option<u16>,
    /// Core on which it takes turns with others, if it does. It has no dedicated core then.
    pub turns_on: Option<CoreNumber>,
    /// Longest time of its smallest unit of work, a batch: a turn is not shorter.
    pub batch: Nanos,
    /// Time of a turn in which no packet waits.
    pub idle_turn: Nanos,
    /// Latency signals of its dedicated cores, which only some brokers use.
    pub signals: ChainSignals,
}

/// Latency signals of a chain's dedicated cores, worst core first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChainSignals {
    /// Highest 99th percentile of batch times over its cores.
    pub batch_p99: Nanos,
    /// Longest delay of a packet.
    pub worst_delay: Nanos,
    /// Packets per second of the core with that percentile.
    pub rate: f64,
    /// Highest rate of a core, in packets per second.
    pub max_rate: f64,
    /// Packets per second of all its cores.
    pub total_rate: f64,
    /// Number of its dedicated cores without packets.
    pub idle_cores: u16,
}

/// State of a server for [`CoreBroker::resize`].
#[derive(Clone, Copy, Debug)]
pub struct ResizeView<'a> {
    /// Current time.
    pub now: Nanos,
    /// All cores of the server.
    pub cores: &'a [BrokerCore],
    /// All chains.
    pub chains: &'a [ChainCores],
}

/// Dedicated core that a chain gets or gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreChange {
    /// Chain.
    pub chain: ChainNumber,
    /// Core.
    pub core: CoreNumber,
}

/// Core on which light chains take turns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedCore {
    /// The core.
    pub core: CoreNumber,
    /// Its chains, in the order of their turns.
    pub chains: Vec<ChainNumber>,
    /// Length of a turn. A chain without packets gives its turn up at once.
    pub turn: Nanos,
}

/// Changes of dedicated cores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorePlan {
    /// Cores to dedicate. They are free, or lent: then the lease ends first.
    pub add: Vec<CoreChange>,
    /// Cores to give back: their RSS buckets move to the chain's other cores, or to its shared one.
    pub remove: Vec<CoreChange>,
    /// All cores on which chains take turns from now on. A chain in none of them has dedicated cores.
    pub shared: Vec<SharedCore>,
    /// Instances to keep ready without a core: started and detached, by chain. Empty without such a pool.
    pub ready: Vec<u16>,
}

impl CorePlan {
    /// Resets the plan.
    pub fn clear(&mut self) {
        self.add.clear();
        self.remove.clear();
        self.shared.clear();
        self.ready.clear();
    }
}

/// Decides which of a server's cores work for which chain.
pub trait CoreBroker: Send {
    /// Decides about auxiliary cores. Called when a dedicated core can use one more, and when a lease ends.
    /// `plan` has been [cleared](LendPlan::clear). No implementation allocates in steady state.
    ///
    /// # Panics
    /// If a queue's chain is no index in [`LendView::chains`].
    fn lend(&mut self, view: &LendView<'_>, plan: &mut LendPlan);

    /// Returns the time between two calls of [`resize`](CoreBroker::resize).
    fn period(&self) -> Nanos;

    /// Decides about dedicated cores. Can also be called within a period, when a server mapper requests a core. `plan`
    /// has been [cleared](CorePlan::clear).
    fn resize(&mut self, view: &ResizeView<'_>, plan: &mut CorePlan);
}
