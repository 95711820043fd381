//! Observed state of a rack: servers, chains and instances.

use crate::core_shares::Claim;
use crate::slo::Curves;
use std::sync::Arc;
use tailwater_net::Nanos;

/// State of a rack at one time. Names are unique among servers, among chains and among instances.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RackView {
    /// Current time, since any fixed origin. It never goes back.
    pub now: Nanos,
    /// Servers. Of equally suitable ones the first is taken.
    pub servers: Vec<ServerView>,
    /// Chains.
    pub chains: Vec<ChainView>,
    /// All instances that earlier plans created and that are not yet deleted, also those that no server has reported.
    pub instances: Vec<InstanceView>,
}

/// A server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerView {
    /// Name.
    pub name: String,
    /// Machine of the profiles that apply to it.
    pub machine: String,
    /// State.
    pub state: ServerState,
    /// Numbers of the cores in its chain pool, in its order of preference.
    pub cores: Vec<u32>,
    /// Bytes of the cache that the pool shares.
    pub cache_bytes: u64,
    /// Part of each core that is not promised: 0 to below 1.
    pub headroom: f64,
    /// Names of the server pools that it belongs to, sorted.
    pub pools: Vec<String>,
}

/// Availability of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// It takes new instances.
    Ready,
    /// It is not ready yet, or an operator cordoned it: instances stay, none is added.
    Cordoned,
    /// It is to become empty: its instances move to other servers.
    Draining,
    /// It has not reported since this time.
    Lost {
        /// Time of the last report.
        since: Nanos,
    },
}

/// A chain that should run on the rack.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainView {
    /// Name.
    pub name: String,
    /// Promise, or `None` for a chain that gets the time that others leave.
    pub promise: Option<RackPromise>,
    /// Latency objective that measurements are compared with.
    pub objective: Option<Nanos>,
    /// Cores of an instance, at least 1.
    pub cores: u16,
    /// Least number of instances.
    pub least: u16,
    /// Largest number of instances, those that are starting included, replacements and draining ones not.
    pub most: u16,
    /// Servers that its instances are on, at least: 1 for no redundancy.
    pub redundancy: u16,
    /// Name of the server pool that it is limited to. Without one, it is limited to the servers that are in no pool.
    pub pool: Option<String>,
    /// Its flows leave part of their state behind when they go elsewhere: its instances do not move, but from lost
    /// servers.
    pub is_bound: bool,
    /// Demand.
    pub demand: ChainDemand,
}

/// Promise to a chain: packets per second within a latency objective.
#[derive(Clone, Debug, PartialEq)]
pub struct RackPromise {
    /// Throughput.
    pub throughput: RackThroughput,
    /// Latency objective on a server, at the percentile of the curves.
    pub latency: Nanos,
    /// Curves of the chain, of each machine that it was profiled on.
    pub curves: Vec<Arc<Curves>>,
}

/// Throughput of a promise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RackThroughput {
    /// Guaranteed packets per second of all instances together, independent of other load.
    Reserved(f64),
    /// As much as the chain is offered.
    OnDemand,
}

/// Packets per second that are offered to a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChainDemand {
    /// In the last period.
    pub offered: f64,
    /// Smoothed over some periods.
    pub smoothed: f64,
    /// Highest of the last periods.
    pub peak: f64,
}

/// An instance of a chain.
#[derive(Clone, Debug, PartialEq)]
pub struct InstanceView {
    /// Name, as the plan chose it.
    pub name: String,
    /// Name of its chain.
    pub chain: String,
    /// Name of its server.
    pub server: String,
    /// Phase.
    pub phase: InstancePhase,
    /// Its cores, or none while the server has not reported them.
    pub cores: Vec<u32>,
    /// Packets per second that it is promised, 0 without a promise.
    pub promised: f64,
    /// `true` if the plan [created](super::RackAction::Create) it with whole cores.
    pub exclusive: bool,
    /// Name of the instance whose place it takes, as in the plan.
    pub replaces: Option<String>,
    /// Measurements.
    pub load: InstanceLoad,
}

/// Phase of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstancePhase {
    /// Created, but not yet ready for packets.
    Starting,
    /// It processes packets.
    Ready,
    /// It gets no new flows.
    Draining,
    /// It has no flows any more and can be deleted.
    Drained,
    /// It failed and does not come back.
    Lost,
}

/// Measurements of an instance in the last period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct InstanceLoad {
    /// Packets per second that it was offered.
    pub offered: f64,
    /// 99th percentile of its packets' latency, if there were any.
    pub p99: Option<Nanos>,
    /// 99th percentile of its batches' time, 0 without batches.
    pub batch_p99: Nanos,
    /// Share of the time of its cores, as far as other chains leave it, that it spent on packets; `None` if unknown.
    pub busy: Option<f64>,
}

impl ServerView {
    /// Returns `true` if chains of a pool, or those without a pool, may have instances on it.
    pub fn is_for(&self, pool: Option<&str>) -> bool {
        is_for(&self.pools, pool)
    }
}

/// Returns `true` if a server of these pools may have instances of chains of a pool, or of those without one.
pub(super) fn is_for(pools: &[String], pool: Option<&str>) -> bool {
    match pool {
        Some(pool) => pools.iter().any(|name| name == pool),
        None => pools.is_empty(),
    }
}

impl RackPromise {
    /// Returns the curves on a machine.
    pub fn on(&self, machine: &str) -> Option<&Arc<Curves>> {
        self.curves.iter().find(|curves| curves.machine == machine)
    }

    /// Returns the claim of an instance with `rate` packets per second on a machine, or `None` without curves.
    pub fn claim(&self, machine: &str, rate: f64) -> Option<Claim> {
        self.on(machine).map(|curves| Claim {
            throughput: rate,
            latency: self.latency,
            curves: Arc::clone(curves),
        })
    }
}

impl InstanceView {
    /// Returns `true` if it processes packets, or will.
    pub fn is_active(&self) -> bool {
        matches!(self.phase, InstancePhase::Starting | InstancePhase::Ready)
    }
}
