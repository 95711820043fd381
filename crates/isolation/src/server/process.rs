//! Processes of functions, from their start until they are attached.
//!
//! One of the few modules with `unsafe` code: a step between `fork` and `exec`.

use super::error::IsolationError;
use super::schedule;
use crate::layout::VERSION;
use crate::message::{Description, FromProgram, FromServer, NoMessage};
use crate::program::fingerprint;
use crate::socket::Socket;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tailwater_confine::{Confinement, ContainerRuntime, End, Status, Stopped};
use tailwater_nf::spec::{ChainSpec, FunctionConfig};

/// How a program is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The file.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// How a program is kept to its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confined {
    /// The defences around it. What it reads to configure itself must be in its root.
    pub confinement: Confinement,
    /// In a container by this runtime, rather than as a process.
    pub container: Option<ContainerRuntime>,
}

/// The program of one function of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The function's name in the chain.
    pub function: String,
    /// How it is started.
    pub launch: Launch,
    /// Its configuration, as JSON.
    pub config: String,
    /// Whether only one process at a time can be there, since it writes a file: none waits for it to fail.
    pub alone: bool,
    /// How it is kept to its work; none: it is trusted, and has this process's rights.
    pub confined: Option<Confined>,
}

impl Program {
    /// The functions of a chain, each as a program that [`run_function`](crate::program::run_function) is the main
    /// part of: `launch` starts it, with the function's place in the chain as another argument.
    pub fn of_chain(spec: &ChainSpec, launch: &Launch) -> Vec<Program> {
        let functions = spec.functions.iter().enumerate();
        let programs = functions.map(|(place, function)| {
            let mut launch = launch.clone();
            launch.arguments.push(place.to_string().into());
            Program {
                function: function.name.clone(),
                launch,
                config: fingerprint(function),
                confined: None,
                alone: match &function.config {
                    FunctionConfig::Accounting(accounting) => accounting.export.is_some(),
                    _ => false,
                },
            }
        });
        programs.collect()
    }

    /// Which defences are left out: as [`Confinement::without`] says; `all` for a program that is trusted.
    pub fn without(&self) -> Vec<&'static str> {
        match &self.confined {
            None => vec!["all"],
            Some(confined) => confined.confinement.without(),
        }
    }
}

/// A process that runs, or has run.
#[derive(Debug)]
enum Running {
    Trusted(Child),
    Confined(tailwater_confine::Child),
}

/// A process. When it is dropped it is killed, and the system has nothing left of it.
#[derive(Debug)]
pub(super) struct Process {
    running: Running,
    pub(super) socket: Socket,
    function: String,
}

impl Process {
    pub(super) fn id(&self) -> u32 {
        match &self.running {
            Running::Trusted(child) => child.id(),
            Running::Confined(child) => child.pid() as u32,
        }
    }

    /// It has loaded: from now on a confined program may only work. Puts it on its worker's core, for good, and lets it
    /// have real-time priority.
    pub(super) fn put_to_work(&self, core: usize) -> io::Result<()> {
        match &self.running {
            Running::Trusted(child) => schedule::put_on(child.id(), core),
            Running::Confined(child) => {
                child.seal();
                child.pin(core).map_err(io::Error::other)?;
                // Whether it is permitted is seen when the process is queued.
                let _ = child.lend(schedule::PRIORITY);
                Ok(())
            }
        }
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Option<String> {
        match &mut self.running {
            Running::Trusted(child) => child.try_wait().ok().flatten().map(told),
            Running::Confined(child) => child.wait_for(Duration::ZERO).map(told_of_confined),
        }
    }

    /// Ends it now, if it runs, since it did not yield; or else tells how it had ended by itself, or been stopped.
    pub(super) fn end(&mut self) -> Option<String> {
        if self.ended().is_none() {
            match &mut self.running {
                // It may end by itself just now.
                Running::Trusted(child) => drop(child.kill()),
                Running::Confined(child) => child.kill(Stopped::Scheduler),
            }
            // To end it has to run once more, and its worker may never leave the core to it.
            schedule::let_run(self.id());
        }
        match &mut self.running {
            Running::Trusted(child) => {
                let status = child.wait().ok()?;
                let by_us = status.signal() == Some(Signal::KILL.as_raw());
                (!by_us).then(|| told(status))
            }
            Running::Confined(child) => {
                let end = child.wait();
                let by_us = end.stopped == Some(Stopped::Scheduler);
                (!by_us).then(|| told_of_confined(end))
            }
        }
    }

    pub(super) fn silent(&self, due: &'static str, reason: impl ToString) -> IsolationError {
        IsolationError::Silent {
            function: self.function.clone(),
            due,
            reason: reason.to_string(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

fn told(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("it was ended by signal {signal}"),
        None => format!("it ended with exit code {}", status.code().unwrap_or(0)),
    }
}

fn told_of_confined(end: End) -> String {
    match end.stopped {
        Some(stopped) => stopped.to_string(),
        None if end.status == Status::Unknown => "it ended, nobody knows how".to_owned(),
        None => format!("it ended with {}", end.status),
    }
}

/// A process that is configured and waits to be attached.
#[derive(Debug)]
pub(super) struct Detached {
    pub(super) process: Process,
    pub(super) description: Description,
    /// How long it took from its start until now.
    pub(super) took: Duration,
}

/// A process that is being configured.
#[derive(Debug)]
pub(super) struct Starting {
    process: Process,
    began: Instant,
    configure: Option<Vec<u8>>,
}

impl Starting {
    pub(super) fn launch(
        program: &Program,
        [part, of]: [u16; 2],
    ) -> Result<Starting, IsolationError> {
        let refused = |source| IsolationError::Launch {
            function: program.function.clone(),
            program: program.launch.program.display().to_string(),
            source,
        };
        let (socket, theirs) = Socket::pair().map_err(refused)?;
        let began = Instant::now();
        let running = match &program.confined {
            None => trusted(&program.launch, theirs).map(Running::Trusted),
            Some(confined) => confine(&program.launch, confined, &theirs).map(Running::Confined),
        };
        let running = running.map_err(refused)?;
        let configure = FromServer::Configure {
            version: VERSION,
            part,
            of,
            config: program.config.clone(),
        };
        Ok(Starting {
            process: Process {
                running,
                socket,
                function: program.function.clone(),
            },
            began,
            configure: Some(configure.encode()),
        })
    }

    /// Goes on as far as that takes at most `bound`. Whether the process is ready.
    fn step(&mut self, bound: Duration) -> Result<Option<Description>, IsolationError> {
        let process = &mut self.process;
        let due = match self.configure {
            Some(_) => "say what it speaks",
            None => "describe itself",
        };
        // 0 would be for ever.
        let bounded = process
            .socket
            .wait_at_most(bound.max(Duration::from_micros(1)));
        let received = bounded.and_then(|()| process.socket.receive());
        let message = match received {
            Ok((message, _)) => FromProgram::decode(&message),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => {
                let reason = process.ended().unwrap_or_else(|| error.to_string());
                return Err(process.silent(due, reason));
            }
        };
        match (message, self.configure.take()) {
            (Ok(FromProgram::Hello { version }), Some(configure)) if version >= VERSION => {
                let sent = process.socket.send(&configure, &[]);
                sent.map_err(|error| process.silent("take its configuration", error))?;
                Ok(None)
            }
            (Ok(FromProgram::Describe(description)), None) => Ok(Some(description)),
            (Ok(FromProgram::Refuse { field, message }), None) => Err(IsolationError::Refused {
                function: process.function.clone(),
                field,
                message,
            }),
            (Ok(FromProgram::Hello { version }), _) => {
                let spoken = format!("it speaks version {version} of the protocol, not {VERSION}");
                Err(process.silent(due, spoken))
            }
            (Ok(_), _) => Err(process.silent(due, "it said something else")),
            (Err(NoMessage { .. }), _) => Err(process.silent(due, "it sent what is no message")),
        }
    }

    /// Waits until it is ready.
    pub(super) fn wait(mut self, until: Instant) -> Result<Detached, IsolationError> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if let Some(description) = self.step(left)? {
                return Ok(self.detached(description));
            }
            if left.is_zero() {
                return Err(self.process.silent("be ready", "it takes too long"));
            }
        }
    }

    /// Whether it is ready by now.
    pub(super) fn poll(mut self) -> Result<Result<Detached, Starting>, IsolationError> {
        Ok(match self.step(Duration::ZERO)? {
            Some(description) => Ok(self.detached(description)),
            None => Err(self),
        })
    }

    pub(super) fn began(&self) -> Instant {
        self.began
    }

    fn detached(self, description: Description) -> Detached {
        Detached {
            process: self.process,
            description,
            took: self.began.elapsed(),
        }
    }
}

/// Starts a program with this process's rights, the socket as its standard input.
fn trusted(launch: &Launch, socket: Socket) -> io::Result<Child> {
    let mut command = Command::new(&launch.program);
    command
        .args(&launch.arguments)
        .stdin(Stdio::from(socket.0))
        .stdout(Stdio::null());
    // SAFETY: two system calls, which neither allocate nor lock.
    unsafe {
        command.pre_exec(|| {
            // The watch starts processes, too, and has a high priority.
            schedule::be_ordinary()?;
            // The process is not to outlive this one, whatever the program does.
            Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
        });
    }
    command.spawn()
}

/// Starts a program that may load, and no more.
fn confine(
    launch: &Launch,
    confined: &Confined,
    socket: &Socket,
) -> io::Result<tailwater_confine::Child> {
    let errors = io::stderr();
    let mut program = tailwater_confine::Program::new(&launch.program);
    program.arguments.clone_from(&launch.arguments);
    program.input = Some(socket.0.as_fd());
    program.errors = Some(errors.as_fd());
    let started = match &confined.container {
        None => confined.confinement.spawn(&program),
        Some(runtime) => confined.confinement.spawn_in(runtime, &program),
    };
    started.map_err(io::Error::other)
}
