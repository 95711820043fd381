//! Chain of a run, or the parts that external functions cut it into: state shared by the workers, and their instances.

use crate::external::attachment::Attached;
use crate::isolated::Isolated;
use crate::port::Reta;
use crate::report::FlowReport;
use crate::run::error::RunError;
use crate::run::plan::RunConfig;
use tailwater_chain::buffer::BufferPool;
use tailwater_chain::chain::{Chain, Cuts, DurableFunction};
use tailwater_chain::flow_table::{FlowCounters, FlowTableMemory};
use tailwater_functions::accounting::ExportError;
use tailwater_functions::build::{ChainBuilder, KeptFunction, Reconfigure};
use tailwater_functions::spec::ChainSpec;
use tailwater_isolation::server::{IsolationReport, WorkerCore};
use tailwater_net::Nanos;

/// Factory of the instances.
pub(super) struct ChainFactory {
    /// Builder of the part before the first external function, or of the whole chain.
    front: ChainBuilder,
    /// Builders of the parts behind each external function.
    behind: Vec<ChainBuilder>,
    /// Processes of the functions, if they are isolated.
    isolation: Option<Isolated>,
}

/// Instances of the chain.
pub(super) struct Instances {
    /// For each worker, the part before the first external function, or the whole chain.
    pub(super) chains: Vec<Chain>,
    /// For each worker, the parts behind each external function.
    pub(super) behind: Vec<Vec<Chain>>,
}

impl ChainFactory {
    /// Starts the processes of isolated functions on these cores, dedicated ones first. `origin` is the start of the
    /// run's clock, in wall-clock time.
    pub(super) fn new(
        spec: &ChainSpec,
        (config, cores): (&RunConfig, &[WorkerCore]),
        cuts: Cuts,
        origin: Nanos,
        kept: &[KeptFunction],
    ) -> Result<ChainFactory, RunError> {
        let parts = spec.parts();
        let isolation = config.isolation.as_ref();
        let isolation = isolation.map(|isolation| Isolated::start(isolation, &parts, cores));
        let isolation = isolation.transpose()?;
        let rss = spec.rss();
        let makers = parts.iter().enumerate().map(|(number, part)| match &isolation {
            None => ChainBuilder::succeeding(part, &rss, config.seed, cuts, kept),
            Some(isolation) => isolation.builder(number, part, &rss, config.seed),
        });
        let mut makers = makers.collect::<Result<Vec<_>, _>>()?.into_iter();
        let mut front = makers.next().unwrap_or_else(|| unreachable!("a chain has a part"));
        front.set_origin(origin);
        Ok(ChainFactory {
            front,
            behind: makers.collect(),
            isolation,
        })
    }

    /// Moves the processes of isolated functions off cores whose threads go on with other chains. The workers have
    /// ended.
    pub(super) fn leave_cores(&self) {
        if let Some(isolation) = &self.isolation {
            isolation.leave_cores();
        }
    }

    /// Returns `true` if functions run in processes of their own.
    pub(super) fn isolated(&self) -> bool {
        self.isolation.is_some()
    }

    /// Functions with external state, and the length of a row in bytes, or `None` if there are none.
    pub(super) fn durable_functions(&self) -> Option<(Vec<DurableFunction>, usize)> {
        self.front.durable_functions()
    }

    /// Handle to reload the configuration during the run, if possible.
    pub(super) fn reconfigure(&self) -> Option<Reconfigure> {
        Reconfigure::of(self.all())
    }

    /// Chains of the workers that own the `pools`, each with the RSS buckets that `reta` assigns to it. Isolated
    /// functions get access to the packets' memory.
    pub(super) fn instances(
        &mut self,
        reta: &Reta,
        pools: &[BufferPool],
        attached: &[Attached],
    ) -> Result<Instances, RunError> {
        let owns = |queue: u16| move |bucket: u16| reta[usize::from(bucket)] == queue;
        let queues = 0..pools.len() as u16;
        let Some(isolation) = &mut self.isolation else {
            let behind = queues.clone().map(|queue| {
                let behind = self.behind.iter_mut();
                behind.map(|maker| maker.instance(owns(queue))).collect()
            });
            return Ok(Instances {
                behind: behind.collect(),
                chains: queues.map(|queue| self.front.instance(owns(queue))).collect(),
            });
        };
        let bytes = |pool: &BufferPool| pool.memory().buffer_bytes();
        isolation.attach(0, &self.front, pools.first().map_or(0, bytes))?;
        let chain = |queue| isolation.chain(0, &mut self.front, queue, owns(queue));
        let chains = queues.clone().map(chain).collect();
        // Packets from external functions are in buffers of their own pool.
        let pool = attached.first().map(|attached| &attached.pool).or(pools.first());
        let mut behind: Vec<_> = queues.map(|_| Vec::new()).collect();
        for (maker, part) in self.behind.iter_mut().zip(1..) {
            isolation.attach(part, maker, pool.map_or(0, bytes))?;
            for (of_worker, queue) in behind.iter_mut().zip(0..) {
                of_worker.push(isolation.chain(part, maker, queue, owns(queue)));
            }
        }
        Ok(Instances { chains, behind })
    }

    /// Creates an instance for the auxiliary core of this index, after those of the workers.
    ///
    /// # Safety
    /// See [`ChainBuilder::auxiliary_instance`].
    pub(super) unsafe fn auxiliary_instance(&self, index: usize, lent_buckets: bool) -> Chain {
        let isolation = self.isolation.as_ref();
        let others = isolation.map(|isolation| isolation.auxiliary_functions(index));
        // SAFETY: guaranteed by the caller.
        unsafe {
            self.front
                .auxiliary_instance_of(others.unwrap_or_default(), lent_buckets)
        }
    }

    /// Flow table counters of all workers' chains, and of those `left` to successors.
    pub(super) fn flow_report(&self, chains: &[Vec<Chain>], left: Vec<FlowCounters>) -> Option<FlowReport> {
        let chains = || chains.iter().flatten();
        let counters: Vec<FlowCounters> = chains().filter_map(Chain::flow_counters).chain(left).collect();
        let sum = |count: fn(&FlowCounters) -> u64| counters.iter().map(count).sum();
        // Of several parts, each has a table.
        let tables: Vec<_> = self.all().filter_map(ChainBuilder::flow_memory).collect();
        let total = |bytes: fn(&FlowTableMemory) -> usize| tables.iter().map(bytes).sum::<usize>() as u64;
        let capacity = tables.first().map_or(0, |table| table.capacity as u64);
        let memory_bytes = total(|table| table.bytes);
        (!counters.is_empty()).then(|| FlowReport {
            active: chains().map(|chain| chain.flows() as u64).sum(),
            opened: sum(|c| c.opened),
            expired: sum(|c| c.expired),
            evicted: sum(|c| c.evicted),
            refused: sum(|c| c.refused),
            memory_bytes,
            capacity,
            bytes_per_flow: memory_bytes as f64 / capacity.max(1) as f64,
            content_bytes: total(|table| table.content_bytes),
            state_bytes: total(|table| table.state_bytes),
        })
    }

    /// Ends the functions' processes and file writers, once all instances have been finished, but for those of
    /// functions that a successor has `kept`.
    pub(super) fn finish(mut self, kept: &[String]) -> (Option<IsolationReport>, Result<(), ExportError>) {
        let isolation = self.isolation.take().map(Isolated::finish);
        // All of them, also after an error, so no thread is left behind.
        let exported: Vec<_> = self.all().map(|maker| maker.finish_exports(kept)).collect();
        let exported: Result<Vec<_>, _> = exported.into_iter().collect();
        (isolation, exported.map(drop))
    }

    fn all(&self) -> impl Iterator<Item = &ChainBuilder> {
        std::iter::once(&self.front).chain(&self.behind)
    }
}
