//! The processes of a chain's functions, where each is isolated.
//!
//! Functions that follow each other go round together. Where there are external functions, the chain is cut there; some
//! functions may stay in the worker's process, as classifiers do; and those of a branch go round by themselves, with its
//! packets. Each such row has rounds of its own, among processes of its own, all of them on the worker's core: between them
//! the worker sends packets out and receives what comes back, or runs what stayed.

use tailwater_chain::chain::Chain;
use tailwater_chain::function::NetworkFunction;
use tailwater_functions::build::{BuildError, ChainBuilder};
use tailwater_functions::spec::{ChainSpec, FunctionSpec};
use tailwater_isolation::server::{Isolation, IsolationConfig, IsolationError, IsolationReport};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::RssHasher;

/// The processes of all parts of a chain.
pub(crate) struct Isolated {
    /// Of each part, those that go round together.
    parts: Vec<Vec<Isolation>>,
    capacity: usize,
}

impl Isolated {
    /// Starts the programs of these parts' functions for workers on these cores, and waits until they are configured.
    ///
    /// # Errors
    /// As [`Isolation::start`].
    pub(crate) fn start(
        config: &IsolationConfig,
        parts: &[ChainSpec],
        cores: &[usize],
    ) -> Result<Isolated, IsolationError> {
        let program = |function: &FunctionSpec| {
            let mut programs = config.programs.iter();
            programs.find(|program| program.function == function.name)
        };
        let together = |part: &ChainSpec| -> Vec<IsolationConfig> {
            let functions = part.functions.iter();
            let mut configs = functions.map(|function| &function.config);
            let connections = configs.any(|config| config.tracks_connections());
            let rows = part.rows(|function| program(function).is_none());
            let rows = rows.into_iter().map(|row| IsolationConfig {
                programs: row.functions.iter().filter_map(program).cloned().collect(),
                connections,
                followed: row.followed,
                passed_by: row.passed_by,
                ..config.clone()
            });
            rows.collect()
        };
        let capacity = parts.first().map_or(0, |part| part.flows.capacity as usize);
        let mut parts: Vec<Vec<_>> = parts.iter().map(together).collect();
        // Each packet waits in the batches of all.
        let all = parts.iter().map(Vec::len).sum::<usize>().max(1) as u64;
        let configs = parts.iter_mut().flatten();
        configs.for_each(|it| it.batch.objective = Nanos(config.batch.objective.0 / all));
        Ok(Isolated {
            parts: parts
                .into_iter()
                .map(|configs| {
                    let configs = configs.into_iter();
                    let started = configs.map(|config| Isolation::start(config, cores));
                    started.collect()
                })
                .collect::<Result<_, _>>()?,
            capacity,
        })
    }

    /// What is shared by the workers' chains of a part.
    ///
    /// # Errors
    /// As [`ChainBuilder::with_others`].
    pub(crate) fn builder(
        &self,
        part: usize,
        spec: &ChainSpec,
        rss: &RssHasher,
        seed: u64,
    ) -> Result<ChainBuilder, BuildError> {
        let likenesses = self.parts[part].iter().flat_map(Isolation::likenesses);
        ChainBuilder::with_others(spec, rss, seed, likenesses.collect())
    }

    /// Gives the processes of a part their memory, for buffers of so many bytes; from now on, processes that fail are
    /// replaced.
    ///
    /// # Errors
    /// As [`Isolation::attach`].
    pub(crate) fn attach(
        &mut self,
        part: usize,
        builder: &ChainBuilder,
        buffer_bytes: usize,
    ) -> Result<(), IsolationError> {
        let flows = builder.has_flows().then_some(self.capacity);
        self.parts[part]
            .iter_mut()
            .try_for_each(|together| together.attach(buffer_bytes, flows, builder.origin()))
    }

    /// A worker's chain of a part, once it is attached, with the RSS buckets for which `owns` says so.
    pub(crate) fn chain(
        &self,
        part: usize,
        builder: &mut ChainBuilder,
        worker: u16,
        owns: impl Fn(u16) -> bool,
    ) -> Chain {
        builder.instance_of(self.functions(part, worker), owns)
    }

    fn functions(&self, part: usize, worker: u16) -> Vec<(String, Box<dyn NetworkFunction>)> {
        let together = self.parts[part].iter();
        let functions = together.flat_map(|together| together.functions(worker.into()));
        functions.collect()
    }

    /// Ends all processes, after their chains have been finished, and tells what they did.
    pub(crate) fn finish(self) -> IsolationReport {
        let reports = self.parts.into_iter().flatten().map(Isolation::finish);
        reports.reduce(IsolationReport::and).unwrap_or_default()
    }
}
