//! Tests of the core broker: tables, and properties on random servers.

mod lending;
mod properties;
mod sizing;
mod turns;

use tailwater_net::Nanos;
use tailwater_policy::broker::{
    BrokerCore, ChainLoad, ChainNumber, CoreBroker, CoreNumber, CoreUse, Lease, LeastSlackBroker, LendPlan, LendView,
    QueueBacklog,
};

pub(crate) const OBJECTIVE: Nanos = Nanos::from_micros(200);

pub(crate) fn us(micros: u64) -> Nanos {
    Nanos::from_micros(micros)
}

/// Server that enacts plans at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server {
    pub now: Nanos,
    pub cores: Vec<BrokerCore>,
    pub chains: Vec<ChainLoad>,
    pub queues: Vec<QueueBacklog>,
}

impl Server {
    /// Creates a server with these chains, one dedicated core each from the lowest number up, `pool` auxiliary cores
    /// behind them, and one node.
    pub fn new(chains: usize, pool: usize) -> Server {
        let dedicated = (0..chains).map(|chain| CoreUse::Dedicated(chain as ChainNumber));
        let uses = dedicated.chain(std::iter::repeat_n(CoreUse::Free, pool));
        let load = ChainLoad {
            objective: OBJECTIVE,
            planned: 2.0,
            short: 0.5,
            long: 0.5,
            ..ChainLoad::default()
        };
        Server {
            now: us(1_000),
            cores: uses.map(|usage| BrokerCore { node: 0, usage }).collect(),
            chains: vec![load; chains],
            queues: Vec::new(),
        }
    }

    /// Sets the backlog of a chain's first core: drained after `drain`, with a deadline in `deadline`.
    pub fn backlog(&mut self, chain: ChainNumber, drain: u64, deadline: u64, wants: u16) -> &mut QueueBacklog {
        let is_its = |core: &BrokerCore| core.usage == CoreUse::Dedicated(chain);
        let core = self.cores.iter().position(is_its).unwrap() as CoreNumber;
        self.queues.retain(|queue| queue.core != core);
        self.queues.push(QueueBacklog {
            core,
            chain,
            drain: us(drain),
            deadline: us(deadline),
            wake: us(20),
            wants,
            preferred: None,
        });
        self.queues.last_mut().unwrap()
    }

    pub fn overload(&mut self, chain: usize) {
        self.chains[chain].short = 10.0;
    }

    /// Decides, and enacts the plan.
    pub fn lend(&mut self, broker: &mut impl CoreBroker) -> LendPlan {
        let mut plan = LendPlan::default();
        let view = LendView {
            now: self.now,
            cores: &self.cores,
            chains: &self.chains,
            queues: &self.queues,
        };
        broker.lend(&view, &mut plan);
        for lease in &plan.end {
            let core = &mut self.cores[usize::from(lease.core)];
            assert_eq!(core.usage, CoreUse::Lent(*lease), "a lease ends that is not held");
            core.usage = CoreUse::Free;
        }
        for lease in &plan.lend {
            let core = &mut self.cores[usize::from(lease.core)];
            let extends = |before: Lease| (before.chain, before.dispatcher) == (lease.chain, lease.dispatcher);
            match core.usage {
                CoreUse::Free => {}
                CoreUse::Lent(before) if before.until <= self.now && extends(before) => {}
                usage => panic!("core {} is lent while it is {usage:?}", lease.core),
            }
            core.usage = CoreUse::Lent(*lease);
        }
        plan
    }

    /// Returns the chain that each auxiliary core is lent to.
    pub fn lent(&self) -> Vec<Option<ChainNumber>> {
        let lent = |core: &BrokerCore| match core.usage {
            CoreUse::Lent(lease) => Some(Some(lease.chain)),
            CoreUse::Free => Some(None),
            _ => None,
        };
        self.cores.iter().filter_map(lent).collect()
    }

    pub fn held(&self, chain: ChainNumber) -> usize {
        self.lent().iter().filter(|holder| **holder == Some(chain)).count()
    }
}

pub(crate) fn broker() -> LeastSlackBroker {
    LeastSlackBroker::default()
}
