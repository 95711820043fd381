//! The chain of a run, or the parts of it that external functions cut it into: what workers share of them, and their
//! instances.

use super::{RunConfig, RunError};
use crate::external::Attached;
use crate::isolated::Isolated;
use crate::port::Reta;
use crate::report::FlowReport;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, Cuts, KeptFunction};
use tailwater_chain::flow_table::FlowCounters;
use tailwater_functions::accounting::ExportError;
use tailwater_functions::build::{ChainBuilder, Reconfigure};
use tailwater_functions::spec::ChainSpec;
use tailwater_isolation::server::IsolationReport;
use tailwater_net::Nanos;

/// What makes the instances.
pub(super) struct Makers {
    /// Of what is in front of the first external function, or of all of the chain.
    front: ChainBuilder,
    /// Of what is behind each external function.
    behind: Vec<ChainBuilder>,
    /// The functions' processes, if each has its own.
    isolation: Option<Isolated>,
}

/// Instances of the chain.
pub(super) struct Instances {
    /// Of each worker: what is in front of the first external function, or all of the chain.
    pub(super) chains: Vec<Chain>,
    /// What is behind each external function, of the only worker.
    pub(super) behind: Vec<Chain>,
}

impl Makers {
    /// Starts the processes of functions that are isolated. `origin` is when the run's clock began, on the clock of the
    /// world.
    pub(super) fn new(spec: &ChainSpec, config: &RunConfig, cuts: Cuts, origin: Nanos) -> Result<Makers, RunError> {
        let parts = spec.parts();
        let isolation = config.isolation.as_ref();
        let isolation = isolation.map(|isolation| Isolated::start(isolation, &parts, &config.cores));
        let isolation = isolation.transpose()?;
        let rss = spec.rss();
        let makers = parts.iter().enumerate().map(|(number, part)| match &isolation {
            None => ChainBuilder::with_cuts(part, &rss, config.seed, cuts),
            Some(isolation) => isolation.builder(number, part, &rss, config.seed),
        });
        let mut makers = makers.collect::<Result<Vec<_>, _>>()?.into_iter();
        let mut front = makers.next().unwrap_or_else(|| unreachable!("a chain has a part"));
        front.set_origin(origin);
        Ok(Makers {
            front,
            behind: makers.collect(),
            isolation,
        })
    }

    /// Whether functions are in processes of their own.
    pub(super) fn isolated(&self) -> bool {
        self.isolation.is_some()
    }

    /// The functions whose state is kept outside, and the bytes of a row; `None` if none is.
    pub(super) fn kept_functions(&self) -> Option<(Vec<KeptFunction>, usize)> {
        self.front.kept_functions()
    }

    /// What can be read again while the run lasts.
    pub(super) fn reconfigure(&self) -> Option<Reconfigure> {
        Reconfigure::of(self.all())
    }

    /// The chains of the workers that own the `pools`, each with the RSS buckets that `reta` gives it. Isolated functions
    /// are given the packets' memory.
    pub(super) fn instances(
        &mut self,
        reta: &Reta,
        pools: &[BufferPool],
        attached: Option<&Attached>,
    ) -> Result<Instances, RunError> {
        let owns = |queue: u16| move |bucket: u16| reta[usize::from(bucket)] == queue;
        let queues = 0..pools.len() as u16;
        let Some(isolation) = &mut self.isolation else {
            let behind = self.behind.iter_mut();
            return Ok(Instances {
                chains: queues.map(|queue| self.front.instance(owns(queue))).collect(),
                behind: behind.map(|maker| maker.instance(|_| true)).collect(),
            });
        };
        let bytes = |pool: &BufferPool| pool.memory().buffer_bytes();
        isolation.attach(0, &self.front, pools.first().map_or(0, bytes))?;
        let chain = |queue| isolation.chain(0, &mut self.front, queue, owns(queue));
        let chains = queues.map(chain).collect();
        // What comes from external functions is in buffers of their own.
        let pool = attached.map(|attached| &attached.pool).or(pools.first());
        let mut behind = Vec::new();
        for (maker, part) in self.behind.iter_mut().zip(1..) {
            isolation.attach(part, maker, pool.map_or(0, bytes))?;
            behind.push(isolation.chain(part, maker, 0, |_| true));
        }
        Ok(Instances { chains, behind })
    }

    /// An instance for a helper.
    ///
    /// # Safety
    /// As [`ChainBuilder::helper_instance`].
    pub(super) unsafe fn helper_instance(&self) -> Chain {
        // SAFETY: the caller's word.
        unsafe { self.front.helper_instance() }
    }

    /// What became of the flows of all workers' chains.
    pub(super) fn flow_report(&self, chains: &[Chain]) -> Option<FlowReport> {
        let counters: Vec<FlowCounters> = chains.iter().filter_map(Chain::flow_counters).collect();
        let sum = |count: fn(&FlowCounters) -> u64| counters.iter().map(count).sum();
        let memory: usize = self.all().map(ChainBuilder::flow_memory_bytes).sum();
        (!counters.is_empty()).then(|| FlowReport {
            active: chains.iter().map(|chain| chain.flows() as u64).sum(),
            opened: sum(|c| c.opened),
            expired: sum(|c| c.expired),
            evicted: sum(|c| c.evicted),
            refused: sum(|c| c.refused),
            memory_bytes: memory as u64,
        })
    }

    /// Ends the functions' processes, and what writes files for functions, once all instances have been finished.
    pub(super) fn finish(mut self) -> (Option<IsolationReport>, Result<(), ExportError>) {
        let isolation = self.isolation.take().map(Isolated::finish);
        // All of them, also after an error: no thread stays behind.
        let exported: Vec<_> = self.all().map(ChainBuilder::finish_exports).collect();
        let exported: Result<Vec<_>, _> = exported.into_iter().collect();
        (isolation, exported.map(drop))
    }

    fn all(&self) -> impl Iterator<Item = &ChainBuilder> {
        std::iter::once(&self.front).chain(&self.behind)
    }
}
