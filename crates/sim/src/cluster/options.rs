//! Options of a simulated rack.

use tailwater_baselines::QuadrantConfig;
use tailwater_net::Nanos;
use tailwater_placement::rack::{RackOptions, TailwaterScaling};

/// Scaling of the chains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ClusterPolicy {
    /// Tailwater's, with consolidation at intervals of this many seconds, or never if 0.
    Tailwater {
        /// Scaling.
        scaling: TailwaterScaling,
        /// Seconds between consolidations.
        consolidation: u64,
    },
    /// Quadrant's thresholds, with a core for each instance.
    Quadrant(QuadrantConfig),
    /// Each chain is reserved its peak of the whole time, known in advance. Same placement and failures.
    StaticPeak,
}

/// A rack, its load and its controller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClusterOptions {
    /// Number of servers.
    pub servers: usize,
    /// Cores of a server's chain pool.
    pub cores: u32,
    /// Bytes of its cache.
    pub cache_bytes: u64,
    /// Part of each core that is not promised.
    pub headroom: f64,
    /// Number of chains.
    pub chains: usize,
    /// Mean load of all chains together, in cores at full speed.
    pub load: f64,
    /// Seconds that are simulated.
    pub seconds: u64,
    /// Seconds at the beginning that are not part of the report.
    pub warm_up: u64,
    /// Seconds of a day's curve.
    pub day: u64,
    /// Seconds between decisions.
    pub period: u64,
    /// Seconds until an instance is ready.
    pub start: u64,
    /// Seconds until a drained instance has no flows.
    pub drain: u64,
    /// Second in which servers fail for good, and their share of those with instances; none at 0.
    pub failure: (u64, f64),
    /// Least number of servers of every `redundant`-th chain is 2; none at 0.
    pub redundant: usize,
    /// Limits of the controller.
    pub controller: RackOptions,
    /// Scaling.
    pub policy: ClusterPolicy,
    /// Seed of chains, load and failures. The load does not depend on the policy.
    pub seed: u64,
}

impl ClusterOptions {
    /// Returns an hour on a rack of this many servers of 16 cores with a chain for each, loaded by a third on average,
    /// that loses a tenth of the used servers after half an hour.
    pub fn new(servers: usize, policy: ClusterPolicy) -> Self {
        ClusterOptions {
            servers,
            cores: 16,
            cache_bytes: 32 << 20,
            headroom: 0.1,
            chains: servers,
            load: servers as f64 * 16.0 / 3.0,
            seconds: 3600,
            warm_up: 60,
            day: 3600,
            period: 1,
            start: 1,
            drain: 2,
            failure: (1800, 0.1),
            redundant: 4,
            controller: RackOptions {
                lost_after: Nanos::from_secs(2),
                ..RackOptions::default()
            },
            policy,
            seed: 1,
        }
    }
}
