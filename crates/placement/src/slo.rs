//! What tenants ask for: a chain, how fast and how soon.

use crate::curve::{CacheCurve, LoadCurve};
use std::sync::Arc;
use tailwater_net::Nanos;

/// What of a rate is left by isolation that is not perfect: ResQ's discount of 3 % (§4.4, appendix A).
pub const ISOLATED: f64 = 0.97;

/// What was measured of a chain, with its configuration and traffic, on one kind of machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Curves {
    /// The machine.
    pub machine: String,
    /// Cores that one instance takes, all on one NUMA node.
    pub cores: u16,
    /// The throughput of an instance over its cache.
    pub cache: CacheCurve,
    /// Its latency over its load, as a part of its throughput: the same for any cache, near enough (§5.2).
    pub load: LoadCurve,
}

/// A chain with its configuration and traffic.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainProfile {
    /// Its name.
    pub name: String,
    /// The configuration that was measured, where it is told: whoever measures tells configurations apart by it.
    pub configuration: Option<String>,
    /// The name of the traffic that it was measured with, where it is told.
    pub traffic: Option<String>,
    /// The percentile of packets that its latencies are of, where it is told: above 0, below 100.
    pub percentile: Option<f64>,
    /// What was measured, on different machines, with the same traffic.
    pub curves: Vec<Curves>,
}

impl ChainProfile {
    /// What was measured on a machine.
    pub fn on(&self, machine: &str) -> Option<&Curves> {
        self.curves.iter().find(|curves| curves.machine == machine)
    }
}

/// What is promised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// So many packets per second, whatever else runs.
    Reserved {
        /// Packets per second.
        throughput: f64,
    },
    /// One instance to begin with; its server and the controller give it more as its load grows.
    OnDemand {
        /// No more instances than these.
        most: u16,
    },
}

/// A service-level objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Slo {
    /// Its name, different from all others'.
    pub name: String,
    /// The chain.
    pub chain: Arc<ChainProfile>,
    /// What is promised of its throughput.
    pub target: Target,
    /// The latency percentile of the chain's curve is no more than this.
    pub latency: Nanos,
    /// Packets per second beyond which its packets are dropped, and that it is not less than what is reserved.
    pub cap: Option<u64>,
    /// All instances are on different servers.
    pub spread: bool,
    /// No two SLOs of one group are on one server.
    pub apart: Option<String>,
}
