//! Service-level objectives: a chain, its throughput and its latency.

use crate::curve::{CacheCurve, LoadCurve};
use std::sync::Arc;
use tailwater_net::Nanos;

/// Remaining share of a rate under imperfect isolation: ResQ's discount of 3 % (§4.4, appendix A).
pub const ISOLATED: f64 = 0.97;

/// Curves of a chain, with its configuration and traffic, on one kind of machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Curves {
    /// Machine.
    pub machine: String,
    /// Cores of one instance, all on one NUMA node.
    pub cores: u16,
    /// Throughput of an instance by cache size.
    pub cache: CacheCurve,
    /// Its latency by load, as a share of its throughput. It is approximately the same for any cache size (§5.2).
    pub load: LoadCurve,
}

/// Profile of a chain with its configuration and traffic.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainProfile {
    /// Name.
    pub name: String,
    /// Fingerprint of the measured configuration, if known. The profiler distinguishes configurations by it.
    pub configuration: Option<String>,
    /// Name of the traffic that it was measured with, if known.
    pub traffic: Option<String>,
    /// Percentile of its latencies, if known: above 0, below 100.
    pub percentile: Option<f64>,
    /// Curves on different machines, with the same traffic.
    pub curves: Vec<Curves>,
}

impl ChainProfile {
    /// Returns the curves on a machine.
    pub fn on(&self, machine: &str) -> Option<&Curves> {
        self.curves.iter().find(|curves| curves.machine == machine)
    }
}

/// Throughput target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// Guaranteed packets per second, independent of other load.
    Reserved {
        /// Packets per second.
        throughput: f64,
    },
    /// One instance initially. Its server and the controller provide more as its load grows.
    OnDemand {
        /// Maximum number of instances.
        most: u16,
    },
}

/// Service-level objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Slo {
    /// Unique name.
    pub name: String,
    /// Profile of its chain.
    pub chain: Arc<ChainProfile>,
    /// Throughput target.
    pub target: Target,
    /// Upper limit of the latency percentile of the chain's curve.
    pub latency: Nanos,
    /// Packets per second beyond which its packets are dropped. At least the reserved throughput.
    pub cap: Option<u64>,
    /// `true` if all instances must be on different servers.
    pub spread: bool,
    /// Anti-affinity group: no two SLOs of a group share a server.
    pub apart: Option<String>,
}
