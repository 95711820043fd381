//! Chains on the cores of a server, and what they are promised.

use crate::policing::{Policed, burst};
use crate::slo::Curves;
use std::sync::Arc;
use tailwater_net::Nanos;

/// Promise to a chain: its throughput within its latency objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// Packets per second, above 0.
    pub throughput: f64,
    /// Latency objective on this server, at the percentile of the curves.
    pub latency: Nanos,
    /// Curves of the chain on this machine.
    pub curves: Arc<Curves>,
}

impl Claim {
    /// Cap at the promised throughput.
    pub fn cap(&self) -> Policed {
        let rate = (self.throughput.ceil() as u64).max(1);
        Policed {
            rate,
            burst: burst(rate, self.latency),
        }
    }
}

/// Chain on one core or several, of which each gets the same part of its packets.
#[derive(Clone, Debug, PartialEq)]
pub struct Occupant {
    /// Name, unique on the server.
    pub name: String,
    /// Numbers of its cores.
    pub cores: Vec<u32>,
    /// Promise, if it has one.
    pub claim: Option<Arc<Claim>>,
}
