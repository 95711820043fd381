//! Core brokers of the servers, and the state of cores and chains that they see.

use super::tree::NEVER;
use std::ops::Range;
use tailwater_policy::broker::{
    BrokerConfig, BrokerCore, ChainLoad, ChainNumber, CoreBroker, Lease, LeastSlackBroker, LendPlan, QueueBacklog,
    RateAverages,
};

/// Part of a core's state that the broker of its server sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brokered {
    /// Packets in its ring, in its own queue and on auxiliary cores, and the arrival of the oldest that waits.
    pub packets: u64,
    pub oldest: u64,
    /// Its lease on an auxiliary core, which can be activated or not.
    pub lease: Option<Lease>,
    /// As a dispatcher: auxiliary cores activated, first end of their leases, and time of the next urgent request.
    pub helpers: u32,
    pub until: u64,
    pub again: u64,
}

impl Default for Brokered {
    fn default() -> Self {
        Brokered {
            packets: 0,
            oldest: NEVER,
            lease: None,
            helpers: 0,
            until: NEVER,
            again: 0,
        }
    }
}

/// Broker of a server.
pub(crate) struct ServerBroker {
    pub broker: Box<dyn CoreBroker>,
    /// Its cores and chains. The broker numbers both from 0.
    pub cores: Range<usize>,
    pub chains: Vec<usize>,
    pub loads: Vec<ChainLoad>,
    pub uses: Vec<BrokerCore>,
    pub queues: Vec<QueueBacklog>,
    pub plan: LendPlan,
}

/// Brokers of all servers.
#[derive(Default)]
pub(crate) struct Brokers {
    pub servers: Vec<ServerBroker>,
    pub rates: Vec<RateAverages>,
    pub measured: u64,
}

impl ServerBroker {
    /// Returns the broker's number of a chain.
    pub fn chain(&self, chain: u16) -> ChainNumber {
        let at = self.chains.iter().position(|own| *own == usize::from(chain));
        at.unwrap_or(0) as ChainNumber
    }
}

impl Brokers {
    /// Creates a broker for each server with these cores and chains.
    pub fn new(servers: impl Iterator<Item = (Range<usize>, Vec<usize>)>) -> Brokers {
        // Chains that take turns on a core are not modelled.
        let config = BrokerConfig {
            light: (-1.0, 0.0),
            ..BrokerConfig::default()
        };
        let server = |(cores, chains)| ServerBroker {
            broker: Box::new(LeastSlackBroker::new(config)) as Box<dyn CoreBroker>,
            cores,
            chains,
            loads: Vec::new(),
            uses: Vec::new(),
            queues: Vec::new(),
            plan: LendPlan::default(),
        };
        Brokers {
            servers: servers.map(server).collect(),
            ..Brokers::default()
        }
    }

    /// Returns `true` if there is none: cores are then used on a first come, first served basis.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.servers.is_empty()
    }
}
