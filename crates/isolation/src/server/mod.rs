//! The server's side: processes of functions, their turns, and what becomes of those that fail.
//!
//! For each worker there is a *group*: one process for each function of the chain, on the worker's core, and a spare one
//! of each that waits, detached. The worker has a [`NetworkFunction`] for each in its
//! chain, which stand for them: the first has the processes take their turns, and all of them report what theirs
//! did. A watch ends processes that fail, and puts the spare ones in their places.
//!
//! What a process says is copied and then checked. It is a lie if
//! - a place is none of this round's, or its frame reaches beyond its buffer,
//! - a packet goes on, or is dropped, that a function in front had dropped, or is gone that had not been,
//! - a function wishes for a companion of a flow that had not said that it opens any.

mod area;
mod error;
mod group;
mod order;
mod process;
mod report;
mod round;
mod schedule;
mod shown;
mod starter;
mod status;
mod substitute;
mod watch;

pub use error::IsolationError;
pub use process::{Confined, Launch, Program};
pub use report::{FunctionReport, IsolationReport, Restarts};
pub use schedule::{PRIORITY, WATCH_PRIORITY};
pub use substitute::FAILED;

use crate::memory::filled;
use area::{Area, Flows};
use group::{Group, Seat};
use process::{Detached, Starting};
use round::Round;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tailwater_chain::batch::MAX_BATCH;
use tailwater_chain::function::NetworkFunction;
use tailwater_functions::build::check_apart;
use tailwater_net::Nanos;
use tailwater_policy::isolation::BatchBounds;
use watch::Watch;

/// How functions are isolated.
#[derive(Clone, Debug)]
pub struct IsolationConfig {
    /// The programs, in the chain's order.
    pub programs: Vec<Program>,
    /// Whether flows are connections, since a function of the chain tracks them.
    pub connections: bool,
    /// Whether functions follow in the chain, in this process or in other rounds.
    pub followed: bool,
    /// Whether other packets of the chain pass them by, since there are branches. They have no say in how many packets batches
    /// have that bring them none.
    pub passed_by: bool,
    /// How long a turn may take, in time on the core; or in any case ten times as long.
    pub deadline: Duration,
    /// How long a program may take to be ready.
    pub patience: Duration,
    /// What bounds the size of batches.
    pub batch: BatchBounds,
}

impl IsolationConfig {
    /// Usual bounds, for these programs and this latency objective.
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
        }
    }
}

/// The processes of a chain's functions, of all workers. When it is dropped they are killed.
pub struct Isolation {
    config: Arc<IsolationConfig>,
    groups: Vec<Group>,
    /// From [`attach`](Isolation::attach) on.
    watch: Option<Watch>,
}

impl Isolation {
    /// Starts the functions' programs for workers on these cores, and waits until they are configured.
    ///
    /// # Errors
    /// One cannot be started, or refuses its configuration.
    pub fn start(config: IsolationConfig, cores: &[usize]) -> Result<Isolation, IsolationError> {
        let config = Arc::new(config);
        let of = cores.len() as u16;
        // All at once, with one of each to wait until it is needed.
        let commons = |program: &Program| match program.demands.shared_bytes {
            0 => Ok(None),
            bytes => filled("tailwater-commons", bytes).map(|file| Some(Arc::new(file))),
        };
        let commons = config.programs.iter().map(commons);
        let commons: Vec<_> = commons.collect::<io::Result<_>>().map_err(IsolationError::Memory)?;
        let launch = |part| {
            let programs = config.programs.iter().zip(&commons);
            let launched = programs.map(move |(program, commons)| {
                let launch = || Starting::launch(program, [part, of], commons.clone());
                let first = launch()?;
                let spare = (!program.alone).then(launch);
                Ok((first, spare.transpose()?))
            });
            launched.collect::<Result<Vec<_>, IsolationError>>()
        };
        let starting = (0..of).map(launch).collect::<Result<Vec<_>, _>>()?;
        let until = Instant::now() + config.patience;
        let mut groups = Vec::new();
        for (part, (starting, &core)) in starting.into_iter().zip(cores).enumerate() {
            let mut seats = Vec::new();
            let programs = config.programs.iter().zip(&commons);
            for ((first, spare), (program, commons)) in starting.into_iter().zip(programs) {
                let first = first.wait(until)?;
                let spare = spare.map(|spare| spare.wait(until)).transpose()?;
                let same = |spare: &Detached| spare.description == first.description;
                if !spare.as_ref().is_none_or(same) {
                    return Err(IsolationError::Differ);
                }
                seats.push(Seat::new((program.clone(), commons.clone()), first, spare));
            }
            groups.push(Group::new(core, [part as u16, of], seats));
        }
        // All of a function's processes are of one program: they say the same of it.
        let of_first = groups.first().map(Group::descriptions);
        for group in &groups {
            if of_first.as_ref() != Some(&group.descriptions()) {
                return Err(IsolationError::Differ);
            }
        }
        let seats = groups.first().map_or(&[][..], |group| &group.seats);
        check_apart(seats.iter().map(|seat| {
            let has_state = seat.description.state_bytes > 0;
            (&*seat.program.function, [seat.program.demands.mixes_flows, has_state])
        }))?;
        Ok(Isolation {
            config,
            groups,
            watch: None,
        })
    }

    /// Functions like those that workers are [given](Isolation::functions).
    pub fn likenesses(&self) -> Vec<(String, Box<dyn NetworkFunction>)> {
        let seats = self.groups.first().map_or(&[][..], |group| &group.seats);
        substitute::all((seats, self.config.connections), &Arc::new(Mutex::new(None)))
    }

    /// Gives all processes their memory, and the real-time priority at which they take turns. Batches are of buffers
    /// with so many bytes, and the flow table for so many flows, if there is one. If flow state is kept outside, `origin`
    /// is the run's start, on the clock of the world. From now on processes that fail
    /// are replaced.
    ///
    /// # Errors
    /// There is no memory, or a process does not take it.
    pub fn attach(
        &mut self,
        buffer_bytes: usize,
        flows: Option<usize>,
        origin: Option<Nanos>,
    ) -> Result<(), IsolationError> {
        let descriptions = self.groups.first().map(Group::descriptions);
        let demands = self.config.programs.iter().map(|program| program.demands.clone());
        let functions: Vec<_> = descriptions.unwrap_or_default().into_iter().zip(demands).collect();
        let flows = Flows::create(&functions, (flows.unwrap_or(0), self.config.connections), origin)?;
        for group in &mut self.groups {
            let area = Area::create(group.seats.len(), buffer_bytes, &flows)?;
            group.attach(Arc::new(area), self.config.patience)?;
        }
        let groups = std::mem::take(&mut self.groups);
        self.watch = Some(Watch::start(groups, Arc::clone(&self.config))?);
        Ok(())
    }

    /// The functions of one worker's chain, by the worker's number, once.
    ///
    /// # Panics
    /// Before [`attach`](Isolation::attach), or if there is no such worker.
    pub fn functions(&self, worker: usize) -> Vec<(String, Box<dyn NetworkFunction>)> {
        let watch = self.watch.as_ref();
        let watch = watch.unwrap_or_else(|| panic!("processes that are attached"));
        watch.with_group(worker, |group| {
            let round = Round::new(
                group,
                worker as u16,
                (self.config.batch, self.config.followed, self.config.passed_by),
            );
            substitute::all((&group.seats, self.config.connections), &Arc::new(Mutex::new(round)))
        })
    }

    /// Whether the processes have real-time priority. Without it, everything works, slower.
    pub fn is_real_time(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::is_real_time)
    }

    /// Ends all processes, after their chains have been finished, and tells what they did.
    pub fn finish(mut self) -> IsolationReport {
        let watch = self.watch.take();
        watch.map_or_else(IsolationReport::default, Watch::finish)
    }
}
