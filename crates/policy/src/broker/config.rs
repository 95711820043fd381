//! Parameters of Tailwater's broker.

use tailwater_net::Nanos;

/// Parameters of a [`LeastSlackBroker`](super::LeastSlackBroker).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BrokerConfig {
    /// Length of a lease, as a part of the chain's objective in percent.
    pub lease_percent: u32,
    /// Slack below which a backlog is urgent, in percent of the objective.
    pub urgent_percent: u32,
    /// Auxiliary cores that chains in overload leave to the others, in percent: at least one, and what the others
    /// needed at one time in the last two periods.
    pub spare_percent: u32,
    /// Time between two decisions about dedicated cores.
    pub period: Nanos,
    /// Share of their capacity to which dedicated cores are filled by the mean load.
    pub fill: f64,
    /// Periods in a row that need fewer cores before one is given back, or that are light before chains take turns.
    pub patience: u32,
    /// Load in cores up to which a chain is light, and from which on it is not any more.
    pub light: (f64, f64),
    /// Load in cores up to which a shared core is filled, and from which on a chain leaves it.
    pub shared_fill: (f64, f64),
    /// Part of the tightest objective in which each chain of a shared core gets a turn, in percent.
    pub round_percent: u32,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        BrokerConfig {
            lease_percent: 200,
            urgent_percent: 25,
            spare_percent: 25,
            period: Nanos::from_secs(1),
            fill: 0.9,
            patience: 8,
            light: (0.15, 0.3),
            shared_fill: (0.5, 0.75),
            round_percent: 25,
        }
    }
}
