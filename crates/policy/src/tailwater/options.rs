//! Options of the mapper.

use super::wake::measured;
use crate::capacity::{CapacityProfile, ServiceCosts};
use crate::core::Unit;
use tailwater_net::Nanos;

/// Maximum batch size.
pub(super) const BATCH: u64 = 32;

/// Options of a [`TailwaterMapper`](super::TailwaterMapper).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TailwaterOptions {
    /// The latency objective.
    pub slo: Nanos,
    /// Part of the objective reserved for the network, before and after this core.
    pub network_allowance: Nanos,
    /// Unit in which packets are offloaded.
    pub unit: Unit,
    /// Time from activating an auxiliary core until it processes packets, as long as none has been measured
    /// ([`CoreMapper::woke`](crate::core::CoreMapper::woke)).
    pub wake: Nanos,
    /// Measured costs of the chain on this machine. Without them, costs are learnt from defaults.
    pub costs: Option<ServiceCosts>,
    /// Number of packet buffers of this core, on auxiliary cores or in its own queue.
    pub buffers: u32,
    /// Expected delay of a packet above which an auxiliary core is activated, in percent of the budget (the objective
    /// less the network's allowance).
    pub activate_percent: u32,
    /// Expected delay of a packet above which it is offloaded while auxiliary cores are active, in percent of the
    /// budget. At most `activate_percent`.
    pub share_percent: u32,
    /// Time without work after which an auxiliary core is released, in percent of the budget, but at least `wake`.
    pub release_percent: u32,
    /// Wait of an auxiliary core above which it is relieved, in percent of the budget, or `None` for never.
    pub relieve_percent: Option<u32>,
    /// Number of decisions in a row with late dispatching after which boost mode begins, or `None` for never.
    pub boost_after: Option<u32>,
}

impl TailwaterOptions {
    /// Returns options for a latency objective: 40 µs for the network, as in NetBlaze, 20 µs to wake an auxiliary core,
    /// and default costs. The other values were the best in a simple model of queues. The table in
    /// `docs/explanation/scaling.md` has the percentages, which a test compares.
    pub const fn new(slo: Nanos) -> Self {
        TailwaterOptions {
            slo,
            network_allowance: Nanos::from_micros(40),
            unit: Unit::Bucket,
            wake: Nanos::from_micros(20),
            costs: None,
            buffers: 2048,
            activate_percent: 60,
            share_percent: 20,
            release_percent: 50,
            relieve_percent: Some(60),
            boost_after: Some(4),
        }
    }
}

impl TailwaterOptions {
    /// Returns options for a measured chain and a latency objective from which the network's share is already
    /// subtracted. The costs do not contain the length of packets. If the highest rate implies dearer packets than the
    /// costs do, the rate takes precedence.
    pub fn measured(slo: Nanos, profile: &CapacityProfile) -> Self {
        let at_most = match profile.rates.largest() {
            rate if rate > 0.0 => 1e9 / rate,
            _ => 0.0,
        };
        let costs = profile.costs.map(|costs| ServiceCosts {
            packet: costs.packet.max(at_most - costs.batch / BATCH as f64),
            ..costs
        });
        let default = TailwaterOptions::new(slo);
        TailwaterOptions {
            costs,
            network_allowance: Nanos::ZERO,
            wake: measured(profile).unwrap_or(default.wake),
            ..default
        }
    }
}

/// Reason why a [`TailwaterMapper`](super::TailwaterMapper) cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TailwaterError {
    /// The allowance leaves nothing of the objective.
    #[error("expected a latency objective above the network allowance of {allowance}, found {slo}")]
    NoBudget {
        /// Latency objective.
        slo: Nanos,
        /// Allowance for the network.
        allowance: Nanos,
    },
}
