//! Configuration of function isolation.

use super::chain_file::ChainFile;
use super::error::IsolationError;
use super::process::Program;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tailwater_chain::batch::MAX_BATCH;
use tailwater_functions::spec::ChainSpec;
use tailwater_net::Nanos;
use tailwater_policy::isolation::BatchBounds;

/// Configuration of function isolation.
#[derive(Clone, Debug)]
pub struct IsolationConfig {
    /// The programs, in chain order.
    pub programs: Vec<Program>,
    /// `true` if flows are connections, since a function of the chain tracks them.
    pub connections: bool,
    /// `true` if functions follow in the chain, in this process or in other rounds.
    pub followed: bool,
    /// `true` if other packets of the chain bypass these functions through branches. The functions then do not limit
    /// the size of batches that bring them no packets.
    pub passed_by: bool,
    /// Maximum CPU time of a turn; ten times that is the maximum elapsed time.
    pub deadline: Duration,
    /// Maximum time until a program is ready.
    pub patience: Duration,
    /// Bounds of the batch size.
    pub batch: BatchBounds,
    /// `true` if the threads of this process give up the rights that they do not need: those started here, and workers
    /// by [`limit_worker`](super::limit_worker).
    pub limits_server: bool,
    /// File with the chain's spec, which exists as long as this does.
    pub chain_file: Option<Arc<ChainFile>>,
}

impl IsolationConfig {
    /// Returns the default bounds for these programs and this latency objective.
    pub fn new(programs: Vec<Program>, objective: Nanos) -> IsolationConfig {
        IsolationConfig {
            programs,
            connections: false,
            followed: false,
            passed_by: false,
            deadline: Duration::from_millis(10),
            patience: Duration::from_secs(30),
            batch: BatchBounds {
                overhead: 0.03,
                objective,
                most: MAX_BATCH,
            },
            limits_server: false,
            chain_file: None,
        }
    }

    /// Returns `true` if processes of a function join by a socket.
    pub fn has_joining(&self) -> bool {
        self.programs.iter().any(|program| program.joins.is_some())
    }

    /// Returns the first isolated function of the chain that cannot run on several cores, and the reason. Auxiliary
    /// cores are further ones.
    pub fn bound_to_one_core(&self, spec: &ChainSpec) -> Option<(&str, &'static str)> {
        let config = |program: &Program| {
            let mut functions = spec.functions.iter();
            let function = functions.find(|function| function.name == program.function)?;
            function.config.in_process_only_reason()
        };
        self.programs.iter().find_map(|program| {
            let reason = match program {
                Program { joins: Some(_), .. } => Some("its processes join, and somebody else starts them"),
                Program {
                    single_instance: true, ..
                } => Some("it exports from a single process"),
                program => config(program),
            };
            Some((&*program.function, reason?))
        })
    }

    /// Starts each program, and ends it once it is configured.
    ///
    /// # Errors
    /// A program cannot be started, is not a function, or rejects its configuration: that of the first such function.
    pub fn try_out(&self) -> Result<(), IsolationError> {
        let patience = self.patience;
        // The kernel ends a process with the thread that started it, so each thread waits for its own.
        thread::scope(|scope| {
            // Processes that join do so when the chain starts.
            let programs = self.programs.iter().filter(|program| program.joins.is_none());
            let tried: Vec<_> = programs
                .map(|program| scope.spawn(move || program.try_out(patience).map(drop)))
                .collect();
            tried
                .into_iter()
                .try_for_each(|tried| tried.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }
}
