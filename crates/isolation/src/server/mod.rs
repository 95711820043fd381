//! Server side: processes of functions, their turns, and the handling of failed ones.
//!
//! Each worker has a *group*: one process per function of the chain, on the worker's core, and one detached standby
//! process per function. The worker's chain contains a proxy [`NetworkFunction`] for each. The first proxy runs the
//! round of all processes, and each proxy reports its own process's verdicts. A watchdog ends failed processes and
//! attaches the standby ones.
//!
//! Responses are copied before they are validated. A response is invalid if
//! - a slot does not belong to this round, or its frame exceeds its buffer,
//! - a packet is forwarded or dropped that a function in front has dropped, or is missing without a drop,
//! - a function requests a companion flow without having declared that it opens any.

mod area;
mod chain_file;
mod config;
mod error;
mod group;
mod guard;
mod joined;
mod lifetimes;
mod outage;
mod process;
mod proxy;
mod report;
mod restart;
mod round;
mod run_queue;
mod schedule;
mod shared_core;
mod slot;
mod standard_error;
mod starter;
mod status;
mod transfer;
mod turn_watch;
mod watchdog;

pub use chain_file::ChainFile;
pub use config::IsolationConfig;
pub use error::IsolationError;
pub use joined::Joins;
pub use process::{Confined, Launch, Program};
pub use proxy::FAILED;
pub use report::{FunctionReport, IsolationReport, Restarts, StandardErrorReport};
pub use schedule::{PRIORITY, WATCH_PRIORITY};
pub use shared_core::{SharedCore, WorkerCore};

use crate::memory::filled;
use area::{Area, Flows, TableShape};
use group::Group;
use process::{Detached, NEVER, SharedByProcesses, Starting, join_socket};
use round::{Round, RoundConfig};
use slot::FunctionSlot;
use standard_error::StandardError;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tailwater_chain::function::NetworkFunction;
use tailwater_chain::shared_counters::SharedCounters;
use tailwater_functions::build::{BuildError, check_apart};
use tailwater_functions::kind::HostServices;
use tailwater_net::Nanos;
use tailwater_sdk::program::ProcessPart;
use watchdog::Watchdog;

/// Processes of a chain's functions, for all workers. Kills them when dropped.
pub struct Isolation {
    config: Arc<IsolationConfig>,
    groups: Vec<Group>,
    /// Present after [`attach`](Isolation::attach).
    watch: Option<Watchdog>,
    /// Parts of functions in this process, with the functions' names.
    hosts: Vec<Host>,
}

impl Isolation {
    /// Starts the functions' programs for workers on `cores`, dedicated ones first, and waits until they are
    /// configured.
    ///
    /// # Errors
    /// A program cannot be started, rejects its configuration, or describes itself differently than another process of
    /// it.
    pub fn start(config: IsolationConfig, cores: &[WorkerCore]) -> Result<Isolation, IsolationError> {
        let config = Arc::new(config);
        let of = cores.len() as u16;
        let until = Instant::now() + config.patience;
        // All at once, with one standby process per function.
        let shared = config.programs.iter().map(|program| shared_by_processes(program, of));
        let shared: Vec<_> = shared.collect::<Result<_, _>>()?;
        let (shared, hosts): (Vec<_>, Vec<_>) = shared.into_iter().unzip();
        let launch = |index| {
            let part = ProcessPart { index, of };
            let programs = config.programs.iter().zip(&shared);
            let launched = programs.map(move |(program, shared)| {
                let launch = || Starting::launch(program, part, shared, (until, &NEVER));
                let first = launch()?;
                let spare = (!program.single_instance).then(launch);
                Ok((first, spare.transpose()?))
            });
            launched.collect::<Result<Vec<_>, IsolationError>>()
        };
        let starting = (0..of).map(launch).collect::<Result<Vec<_>, _>>()?;
        let mut groups = Vec::new();
        for (index, (starting, core)) in starting.into_iter().zip(cores).enumerate() {
            let mut seats = Vec::new();
            let programs = config.programs.iter().zip(&shared);
            for ((first, spare), (program, shared)) in starting.into_iter().zip(programs) {
                let first = first.wait(until)?;
                let spare = spare.map(|spare| spare.wait(until)).transpose()?;
                let same = |spare: &Detached| spare.description == first.description;
                if !spare.as_ref().is_none_or(same) {
                    return Err(IsolationError::DescriptionMismatch);
                }
                seats.push(FunctionSlot::new(program.clone(), shared.clone(), first, spare));
            }
            let part = ProcessPart {
                index: index as u16,
                of,
            };
            groups.push(Group::new(core.clone(), part, seats, config.limits_server));
        }
        // All processes of a function run one program, so their descriptions must be equal.
        let of_first = groups.first().map(Group::descriptions);
        for group in &groups {
            if of_first.as_ref() != Some(&group.descriptions()) {
                return Err(IsolationError::DescriptionMismatch);
            }
        }
        let seats = groups.first().map_or(&[][..], |group| &group.slots);
        check_apart(seats.iter().map(|seat| {
            let has_state = seat.description.state_bytes > 0;
            (&*seat.program.function, [seat.program.demands.mixes_flows, has_state])
        }))?;
        Ok(Isolation {
            config,
            groups,
            watch: None,
            hosts: hosts.into_iter().flatten().collect(),
        })
    }

    /// Returns prototypes of the functions that workers [get](Isolation::functions).
    pub fn prototypes(&self) -> Vec<(String, Box<dyn NetworkFunction>)> {
        let seats = self.groups.first().map_or(&[][..], |group| &group.slots);
        proxy::all(seats, self.config.connections, &Arc::new(Mutex::new(None)))
    }

    /// Gives all processes their memory, and the real-time priority of their turns. Failed processes are replaced from
    /// now on.
    ///
    /// `buffer_bytes` is the size of a packet buffer, `flows` the capacity of the flow table, if there is one. `origin`
    /// is the wall-clock time of the run's start, if flow state is stored externally.
    ///
    /// # Errors
    /// There is not enough memory, a process does not map it, or the watchdog cannot be started.
    pub fn attach(
        &mut self,
        buffer_bytes: usize,
        flows: Option<usize>,
        origin: Option<Nanos>,
    ) -> Result<(), IsolationError> {
        let slots = self.groups.first().map_or(&[][..], |group| &group.slots);
        let functions = slots.iter().map(|slot| {
            let counters = slot.shared.counters.clone();
            (slot.description.clone(), slot.program.demands.clone(), counters)
        });
        let functions: Vec<_> = functions.collect();
        let table = TableShape {
            capacity: flows.unwrap_or(0),
            connections: self.config.connections,
        };
        let flows = Flows::create(&functions, table, origin)?;
        for group in &mut self.groups {
            let area = Area::create(group.slots.len(), buffer_bytes, &flows)?;
            group.attach(Arc::new(area), self.config.patience)?;
        }
        let groups = std::mem::take(&mut self.groups);
        self.watch = Some(Watchdog::start(groups, Arc::clone(&self.config))?);
        Ok(())
    }

    /// Returns the functions of one worker's chain. May be called once per worker.
    ///
    /// # Panics
    /// Before [`attach`](Isolation::attach), or if there is no such worker.
    pub fn functions(&self, worker: usize) -> Vec<(String, Box<dyn NetworkFunction>)> {
        let watch = self.watch.as_ref();
        let watch = watch.unwrap_or_else(|| panic!("processes that are attached"));
        watch.with_group(worker, |group| {
            let config = RoundConfig {
                batch: self.config.batch,
                followed: self.config.followed,
                passed_by: self.config.passed_by,
            };
            let round = Round::new(group, worker as u16, config);
            proxy::all(&group.slots, self.config.connections, &Arc::new(Mutex::new(round)))
        })
    }

    /// Moves the processes off their workers' cores, at ordinary priority, once the workers have ended: the threads of
    /// these cores go on with other chains, and would never let the processes take their last turns. No effect without
    /// real-time priority, or if the calling thread has no other core.
    pub fn leave_cores(&self) {
        if let Some(watch) = &self.watch {
            watch.leave_cores();
        }
    }

    /// Returns `true` if the processes have real-time priority. Without it, everything works but is slower.
    pub fn is_real_time(&self) -> bool {
        self.watch.as_ref().is_some_and(Watchdog::is_real_time)
    }

    /// Ends all processes after their chains have been drained, and returns their report.
    pub fn finish(mut self) -> IsolationReport {
        let watch = self.watch.take();
        let mut report = watch.map_or_else(IsolationReport::default, Watchdog::finish);
        for (function, host) in std::mem::take(&mut self.hosts) {
            if let Err(error) = host.finish() {
                report.failures.push(format!("{function}: {error}"));
            }
        }
        // With trusted functions there is nothing to defend this process against.
        if !self.config.limits_server && !report.without.contains(&"all") {
            report.without.push("server");
            report.without.sort_unstable();
        }
        report
    }
}

/// Part of a function in this process, with the function's name.
type Host = (String, Arc<dyn HostServices>);

/// Creates the descriptors that all `of` processes of a function share, and starts its part in this process, if it has
/// one.
fn shared_by_processes(program: &Program, of: u16) -> Result<(SharedByProcesses, Option<Host>), IsolationError> {
    let demands = &program.demands;
    let counters = match demands.shared_bytes + usize::from(of) * demands.shared_bytes_of_process {
        0 => Ok(None),
        bytes => filled("tailwater-commons", bytes).map(|file| Some(Arc::new(file))),
    };
    let counters = counters.map_err(IsolationError::Memory)?;
    let host = match (&demands.host, &counters) {
        (Some(host), Some(file)) => {
            let counters = SharedCounters::in_file(file).map_err(IsolationError::Memory)?;
            let function = program.function.clone();
            let started = host.start(&counters, of).map_err(|source| BuildError::Function {
                function: function.clone(),
                source,
            })?;
            Some((function, started))
        }
        _ => None,
    };
    let errors = StandardError::new(&program.function).map_err(IsolationError::StandardError)?;
    let shared = SharedByProcesses {
        counters,
        errors: Arc::new(errors),
        socket: join_socket(program)?,
    };
    Ok((shared, host))
}

/// Gives up the rights that this process does not need once a run is set up, in all of its threads and for all programs
/// that it starts; see [`limit_process`](tailwater_confine::limit_process).
///
/// # Errors
/// The kernel does not install the filter.
pub fn limit_server() -> Result<(), IsolationError> {
    Ok(tailwater_confine::limit_process()?)
}

/// Gives up the rights that the calling thread, a worker, does not need; see
/// [`limit_worker`](tailwater_confine::limit_worker).
///
/// # Errors
/// The kernel does not install the filter.
pub fn limit_worker() -> Result<(), IsolationError> {
    Ok(tailwater_confine::limit_worker()?)
}
