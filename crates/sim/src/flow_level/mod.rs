//! Flow-level model: racks of a data centre for hours, with rates and backlogs instead of packets.
//!
//! | part | model |
//! |---|---|
//! | traffic | a preset's [statistics](TrafficStatistics): rates of RSS buckets that change as flows begin and end, fast trains and minnow bursts as events, everything else as dispersion |
//! | dedicated core | backlog as a fluid, linear between events; beyond ring and buffers packets are lost |
//! | core mapper | a model of it: auxiliary cores join where the backlog crosses the mapper's limits, after their wake-up, and are released by the mapper's rules (NetBlaze's: at the ends of epochs) |
//! | server mapper, ingress mapper | the same code as in the packet-level model and live |
//! | chains | each has its own servers, or a share of a server's cores; no core is shared |
//!
//! A step lasts a [millisecond](STEP): the rate without events varies from step to step as the trains of small packets
//! make it vary. Latencies follow from the backlog that packets find. Packets that find none wait as at a queue with
//! random arrivals. Results depend on the seed alone, not on the number of threads.
//!
//! Not modelled, beyond what the packet-level model leaves out: links, migration of buckets and flows, packets that wait
//! for rows, relief, splits, jitter, pauses, NUMA nodes, single flows of an auxiliary core. A flow that exceeds a core
//! by itself is shared like any other work, so whales beyond a core look better than they are. Late packets have one
//! cause, waiting behind others.
//!
//! Memory is that of the chains being simulated, one per thread, and the reports: see [`FlowLevelReport`]. The error
//! against the packet-level model: `docs/lab/simulator.md`.

mod chain;
mod meter;
mod model;
mod queue;
mod random;
mod run;
mod source;
#[cfg(test)]
mod tests;

pub use model::POLICIES;
pub use run::{FlowLevelChain, FlowLevelReport, simulate_flows};

/// Length of a step, in nanoseconds.
pub(crate) const STEP: f64 = 1e6;

/// Maximum number of servers and cores of a rack at flow level.
pub const MOST_SERVERS: usize = 20_000;
/// Maximum number of cores of a rack at flow level.
pub const MOST_CORES: usize = 1 << 20;
/// Maximum number of chains at flow level.
pub const MOST_CHAINS: usize = 10_000;
/// Maximum number of windows of all chains together.
pub const MOST_WINDOWS: usize = 2_000_000;

/// Reason why a run is impossible at flow level.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FlowLevelError {
    /// The model lacks the policy.
    #[error("policy \"{policy}\" places single flows, or is the bound: the flow-level model has {}", POLICIES.join(", "))]
    Policy {
        /// Name of the policy.
        policy: String,
    },
    /// The chains do not fit on the servers.
    #[error("chains: server {server} has {cores} cores for {chains} chains; at least one each is required")]
    Cores {
        /// Number of the server.
        server: usize,
        /// Its cores.
        cores: usize,
        /// Chains that are placed there.
        chains: usize,
    },
    /// Too many windows.
    #[error("window: {found} windows of all chains exceed {MOST_WINDOWS}; a longer window is required")]
    Windows {
        /// Number of windows.
        found: usize,
    },
    /// A setting is out of its range.
    #[error("{field}: expected {expected}")]
    Setting {
        /// Setting.
        field: &'static str,
        /// Expected value.
        expected: &'static str,
    },
    /// A chain is invalid.
    #[error("chain \"{name}\": {source}")]
    Chain {
        /// Name of the chain.
        name: String,
        /// Cause.
        source: crate::ChainError,
    },
}

/// A chain's part of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerShare {
    pub cores: usize,
    pub reta_delay: tailwater_net::Nanos,
}
