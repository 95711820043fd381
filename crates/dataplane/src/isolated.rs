//! Processes of a chain's isolated functions.
//!
//! Consecutive functions share a round. The chain is cut at external functions, and at functions that stay in the
//! worker's process, such as classifiers. Packets of a branch make rounds of their own. Each such row of functions has
//! its own rounds and processes, all on the worker's core. Between the rows the worker sends packets out and receives
//! returned ones, or runs the functions that stayed.
//!
//! A worker on an auxiliary core has processes of its own there, which share the flows' state with those of the
//! dedicated cores, and rest while the worker sleeps.

use tailwater_chain::chain::Chain;
use tailwater_chain::function::NetworkFunction;
use tailwater_functions::build::{BuildError, ChainBuilder};
use tailwater_functions::spec::{ChainSpec, FunctionSpec};
use tailwater_isolation::server::{Isolation, IsolationConfig, IsolationError, IsolationReport, WorkerCore};
use tailwater_net::Nanos;
use tailwater_net::toeplitz::RssHasher;

/// Processes of all parts of a chain.
pub(crate) struct Isolated {
    /// For each part, its rows of functions that share a round.
    parts: Vec<Vec<Isolation>>,
    capacity: usize,
    /// Number of workers on dedicated cores. Those on auxiliary cores follow.
    dedicated: usize,
}

impl Isolated {
    /// Starts the programs of these parts' functions for workers on these cores, dedicated ones first, and waits until
    /// they are configured.
    ///
    /// # Errors
    /// See [`Isolation::start`].
    pub(crate) fn start(
        config: &IsolationConfig,
        parts: &[ChainSpec],
        cores: &[WorkerCore],
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
        // Each packet occupies a slot in the batches of all rows.
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
            dedicated: cores.iter().filter(|core| !core.is_auxiliary).count(),
        })
    }

    /// Creates the builder shared by the workers' chains of a part.
    ///
    /// # Errors
    /// See [`ChainBuilder::with_others`].
    pub(crate) fn builder(
        &self,
        part: usize,
        spec: &ChainSpec,
        rss: &RssHasher,
        seed: u64,
    ) -> Result<ChainBuilder, BuildError> {
        let prototypes = self.parts[part].iter().flat_map(Isolation::prototypes);
        ChainBuilder::with_others(spec, rss, seed, prototypes.collect())
    }

    /// Maps the packet memory into the processes of a part, for buffers of `buffer_bytes` bytes. From now on, failed
    /// processes are replaced.
    ///
    /// # Errors
    /// See [`Isolation::attach`].
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

    /// Builds a worker's chain of an attached part, with the RSS buckets for which `owns` returns `true`.
    pub(crate) fn chain(
        &self,
        part: usize,
        builder: &mut ChainBuilder,
        worker: u16,
        owns: impl Fn(u16) -> bool,
    ) -> Chain {
        builder.instance_of(self.functions(part, worker.into()), owns)
    }

    /// Functions of the chain of auxiliary core `auxiliary`, of an attached part that is the whole chain.
    pub(crate) fn auxiliary_functions(&self, auxiliary: usize) -> Vec<(String, Box<dyn NetworkFunction>)> {
        self.functions(0, self.dedicated + auxiliary)
    }

    fn functions(&self, part: usize, worker: usize) -> Vec<(String, Box<dyn NetworkFunction>)> {
        let together = self.parts[part].iter();
        let functions = together.flat_map(|together| together.functions(worker));
        functions.collect()
    }

    /// Moves the processes off the workers' cores: see [`Isolation::leave_cores`].
    pub(crate) fn leave_cores(&self) {
        self.parts.iter().flatten().for_each(Isolation::leave_cores);
    }

    /// Ends all processes, after their chains have been finished, and returns their report.
    pub(crate) fn finish(self) -> IsolationReport {
        let reports = self.parts.into_iter().flatten().map(Isolation::finish);
        reports.reduce(IsolationReport::and).unwrap_or_default()
    }
}
