//! Tailwater's broker: auxiliary cores go to the backlog with the least slack.
//!
//! **Lending.** The *slack* of a backlog is the time until its oldest packet's deadline, less the time until it is
//! drained. A core is lent only if the backlog is drained sooner with it, wake-up included. Each further core of the
//! same backlog gains less, so that it comes after other backlogs that are as urgent. Among chains with an urgent
//! backlog (a slack below a quarter of the objective), none gets more than its share of the auxiliary cores by weight.
//!
//! **Overload.** A chain to which more is offered than it was admitted with, or than its share of the server by weight,
//! gets what nobody else requests, less a [spare](BrokerConfig::spare_percent) for the bursts of the others. If that is
//! not enough, an urgent backlog of another chain takes cores from it at once.
//!
//! **Leases.** A lease lasts [twice the objective](BrokerConfig::lease_percent). After that, the holder competes for
//! the core like all others. So a dispatcher that has stopped does not keep its cores.
//!
//! **Dedicated cores** hold the mean load, as in [Tailwater's server mapper](crate::server::TailwaterServerMapper).
//! They are added at once, and given back only after [several](BrokerConfig::patience) periods that would have needed
//! fewer. As many auxiliary cores remain as chains without overload needed at one time in these periods, up to half of
//! the cores.
//!
//! **Turns.** Chains that have been light for as long take [turns](super::turn_length) on one core. One that is no
//! longer light gets a core of its own at once.

use super::config::BrokerConfig;
use super::lending::Lending;
use super::sizing::Sizing;
use super::{CoreBroker, CorePlan, LendPlan, LendView, ResizeView};
use tailwater_net::Nanos;

/// Tailwater's broker. See the module.
#[derive(Debug)]
pub struct LeastSlackBroker {
    config: BrokerConfig,
    lending: Lending,
    sizing: Sizing,
}

impl LeastSlackBroker {
    /// Creates a broker for a server.
    ///
    /// # Panics
    /// If the fill is not above zero, or a limit for leaving is below that for joining.
    pub fn new(config: BrokerConfig) -> LeastSlackBroker {
        assert!(config.fill > 0.0, "cores have room for load");
        let (light, shared) = (config.light, config.shared_fill);
        assert!(light.0 <= light.1 && shared.0 <= shared.1, "limits have hysteresis");
        LeastSlackBroker {
            config,
            lending: Lending::default(),
            sizing: Sizing::default(),
        }
    }
}

impl Default for LeastSlackBroker {
    fn default() -> Self {
        LeastSlackBroker::new(BrokerConfig::default())
    }
}

impl CoreBroker for LeastSlackBroker {
    fn lend(&mut self, view: &LendView<'_>, plan: &mut LendPlan) {
        let lent = self.lending.lend(&self.config, view, plan);
        self.sizing.lent(lent);
    }

    fn period(&self) -> Nanos {
        self.config.period
    }

    fn resize(&mut self, view: &ResizeView<'_>, plan: &mut CorePlan) {
        self.sizing.resize(&self.config, view, plan);
    }
}
