//! Processes of functions, from start to attachment. Those that join by themselves: see [`joined`](super::joined).
//!
//! One of the few modules with `unsafe` code: a step between `fork` and `exec`.

use super::error::IsolationError;
use super::joined::{JoinSocket, JoinedProcess, Joins};
use super::schedule;
use super::standard_error::StandardError;
use crate::layout::VERSION;
use crate::message::{DecodeError, Description, FromProgram, FromServer};
use crate::program::configuration;
use crate::socket::{Socket, pair, receive_within};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tailwater_confine::{Confinement, ContainerRuntime, End, Status, Stopped};
use tailwater_functions::build::Requirements;
use tailwater_functions::classifier::ClassifierConfig;
use tailwater_functions::external::ExternalConfig;
use tailwater_functions::kind::AnyConfig;
use tailwater_functions::library::Code;
use tailwater_functions::spec::{ChainSpec, OnFailure};
use tailwater_sdk::program::ProcessPart;

/// Time a program has to send its first message, even on a loaded machine. It reads its configuration later.
const HELLO: Duration = Duration::from_secs(5);
/// Interval at which the end of the run is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time a program has to exit after it has closed its socket.
const ENDING: Duration = Duration::from_secs(2);

/// The first step of a program, for error messages.
const FIRST_STEP: &str = "send its protocol version, as libtailwater_nf does";

/// Disables glibc's rseq registration. With it, the kernel records the thread's core at each context switch, for
/// per-core data. A function stays on one core, and the record costs a tenth of a switch.
const NO_RSEQ: (&str, &str) = ("GLIBC_TUNABLES", "glibc.pthread.rseq=0");

/// Command that starts a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// The executable.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// Argument that precedes a library's file.
const LIBRARY: &str = "--library";

impl Launch {
    fn with(&self, arguments: impl IntoIterator<Item = OsString>) -> Launch {
        let mut launch = self.clone();
        launch.arguments.extend(arguments);
        launch
    }
}

/// Confinement of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confined {
    /// Defences around the program. The files it reads for its configuration must be in its root.
    pub confinement: Confinement,
    /// Container runtime; without one the program is a plain process.
    pub container: Option<ContainerRuntime>,
}

/// The program of one function of a chain.
#[derive(Clone, Debug)]
pub struct Program {
    /// The function's name in the chain.
    pub function: String,
    /// Command that starts it.
    pub launch: Launch,
    /// Its configuration, as JSON.
    pub config: String,
    /// `true` if only one process may run at a time, since it writes a file. There is no standby process then.
    pub single_instance: bool,
    /// Confinement; `None` for a trusted program with this process's rights.
    pub confined: Option<Confined>,
    /// The function's requirements, from the spec.
    pub demands: Requirements,
    /// Treatment of packets while it has no process.
    pub on_failure: OnFailure,
    /// Socket by which its processes join, in the place of being started.
    pub joins: Option<Joins>,
}

impl Program {
    /// Returns the functions of a chain, each as a program. `own` is this program. It starts built-in functions with
    /// the function's index in the chain as another argument and [`run_function`](crate::program::run_function) as main
    /// part. It starts a library's functions with `--library` and the file, and
    /// [`run_library`](crate::program::run_library). External functions and classifiers are skipped; the latter choose
    /// branches of the run's chain.
    pub fn of_chain(spec: &ChainSpec, own: &Launch) -> Vec<Program> {
        let capacity = spec.flows.capacity as usize;
        let functions = spec.functions.iter().enumerate();
        let none = |config: &AnyConfig| config.is::<ExternalConfig>() || config.is::<ClassifierConfig>();
        let functions = functions.filter(|(_, it)| !none(&it.config));
        let programs = functions.map(|(place, function)| {
            if let Some((code, foreign)) = function.config.third_party() {
                return Program {
                    on_failure: function.on_failure,
                    demands: function.config.requirements(capacity),
                    joins: foreign.joins.map(|user| Joins::by(&foreign.file, user)),
                    ..Program::of_code(&function.name, &code, &foreign.config, own)
                };
            }
            let demands = function.config.requirements(capacity);
            Program {
                function: function.name.clone(),
                launch: own.with([place.to_string().into()]),
                config: configuration(function, capacity),
                confined: None,
                single_instance: function.config.exports() && demands.host.is_none(),
                demands,
                on_failure: function.on_failure,
                joins: None,
            }
        });
        programs.collect()
    }

    /// Returns the program of a third-party function with this configuration, as JSON.
    pub fn of_code(function: &str, code: &Code<'_>, config: &str, own: &Launch) -> Program {
        Program {
            function: function.to_owned(),
            launch: match code {
                Code::Library(file) => own.with([LIBRARY.into(), file.into()]),
                Code::Program(file) | Code::Socket(file) => Launch {
                    program: file.into(),
                    arguments: Vec::new(),
                },
            },
            config: config.to_owned(),
            confined: None,
            single_instance: false,
            demands: Requirements::default(),
            on_failure: OnFailure::default(),
            joins: None,
        }
    }

    /// Returns the functions of a chain whose processes join by themselves, whatever becomes of the others.
    pub fn joining(spec: &ChainSpec) -> Vec<Program> {
        let none = Launch {
            program: OsString::new(),
            arguments: Vec::new(),
        };
        let mut programs = Program::of_chain(spec, &none);
        programs.retain(|program| program.joins.is_some());
        programs
    }

    /// Starts the program, configures it, ends it, and returns the description of its function.
    ///
    /// # Errors
    /// The program cannot be started, is not a function, or rejects its configuration.
    pub fn try_out(&self, patience: Duration) -> Result<Description, IsolationError> {
        let until = Instant::now() + patience;
        let errors = StandardError::new(&self.function).map_err(IsolationError::StandardError)?;
        let shared = SharedByProcesses {
            counters: None,
            errors: Arc::new(errors),
            socket: join_socket(self)?,
        };
        let starting = Starting::launch(self, ProcessPart { index: 0, of: 1 }, &shared, (until, &NEVER))?;
        let detached = starting.wait(until)?;
        Ok(detached.description)
    }

    /// Returns the defences that are left out, as [`Confinement::without`] does; `all` for a trusted program.
    pub fn without(&self) -> Vec<&'static str> {
        match &self.confined {
            None if self.joins.is_some() => Vec::new(),
            None => vec!["all"],
            Some(confined) => confined.confinement.without(),
        }
    }
}

/// Descriptors that all processes of a function share.
#[derive(Clone, Debug)]
pub(super) struct SharedByProcesses {
    /// Memory of the function's shared counters, if it has any.
    pub(super) counters: Option<Arc<File>>,
    /// Their standard error.
    pub(super) errors: Arc<StandardError>,
    /// Socket by which they join, if they do.
    pub(super) socket: Option<Arc<JoinSocket>>,
}

/// Opens the socket by which a program's processes join, if they do.
pub(super) fn join_socket(program: &Program) -> Result<Option<Arc<JoinSocket>>, IsolationError> {
    let socket = program.joins.as_ref().map(JoinSocket::open).transpose();
    socket.map_err(|source| IsolationError::Launch {
        function: program.function.clone(),
        program: program.launch.program.display().to_string(),
        source,
    })
}

/// A flag that is never set.
pub(super) static NEVER: AtomicBool = AtomicBool::new(false);

/// A process that is running or has ended.
#[derive(Debug)]
enum Running {
    Trusted(Child),
    Confined(tailwater_confine::Child),
    Joined(JoinedProcess),
}

/// A process. Kills and reaps it when dropped.
#[derive(Debug)]
pub(super) struct Process {
    running: Running,
    pub(super) socket: Socket,
    function: String,
    /// Set once it has been killed by this server.
    killed: bool,
}

/// Exit of a process.
#[derive(Debug)]
pub(super) struct Ended {
    /// Description for messages.
    pub(super) how: String,
    /// `true` if it was [killed](Process::kill), rather than exiting or being stopped by a defence.
    pub(super) killed: bool,
}

impl Process {
    pub(super) fn id(&self) -> u32 {
        match &self.running {
            Running::Trusted(child) => child.id(),
            Running::Confined(child) => child.pid() as u32,
            Running::Joined(process) => process.id(),
        }
    }

    /// Starts the work phase: pins the process to its worker's core and permits it real-time priority. A confined
    /// program can no longer load code from now on.
    pub(super) fn put_to_work(&self, core: usize) -> io::Result<()> {
        match &self.running {
            Running::Trusted(child) => schedule::put_on(child.id(), core),
            Running::Joined(process) => process.put_to_work(core),
            Running::Confined(child) => {
                child.seal();
                child.pin(core).map_err(io::Error::other)?;
                // A missing permission shows when the process is queued.
                let _ = child.grant_priority(schedule::PRIORITY);
                Ok(())
            }
        }
    }

    /// Ends the turns with the worker: moves the process to another core, at ordinary priority.
    pub(super) fn leave_core(&self, core: usize) -> io::Result<()> {
        match &self.running {
            Running::Trusted(child) => {
                schedule::make_ordinary(child.id()).and_then(|()| schedule::put_on(child.id(), core))
            }
            Running::Joined(process) => {
                schedule::make_ordinary(process.id()).and_then(|()| schedule::put_on(process.id(), core))
            }
            Running::Confined(child) => {
                child.grant_priority(0).map_err(io::Error::other)?;
                child.pin(core).map_err(io::Error::other)
            }
        }
    }

    /// Returns the exit once the process has ended and is fully reaped.
    pub(super) fn ended(&mut self) -> Option<Ended> {
        match &mut self.running {
            Running::Trusted(child) => {
                let status = child.try_wait().ok().flatten()?;
                Some(Ended {
                    killed: self.killed && status.signal() == Some(Signal::KILL.as_raw()),
                    how: told(status),
                })
            }
            Running::Joined(process) => process.has_ended().then(|| Ended {
                killed: self.killed,
                how: "it ended".to_owned(),
            }),
            Running::Confined(child) => {
                let end = child.ended()?;
                Some(Ended {
                    killed: end.stopped == Some(Stopped::Scheduler),
                    how: told_of_confined(end),
                })
            }
        }
    }

    /// Like `ended`, but waits up to `bound`.
    fn ended_within(&mut self, bound: Duration) -> Option<Ended> {
        let until = Instant::now() + bound;
        loop {
            let ended = self.ended();
            if ended.is_some() || Instant::now() >= until {
                return ended;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills the process if it runs, since it did not yield. Does not wait for its exit.
    pub(super) fn kill(&mut self) {
        if self.killed || self.ended().is_some() {
            return;
        }
        match &mut self.running {
            // It may be exiting at the same time.
            Running::Trusted(child) => drop(child.kill()),
            Running::Confined(child) => child.kill(Stopped::Scheduler),
            Running::Joined(process) => process.kill(),
        }
        self.killed = true;
        // It has to be scheduled once more to exit, but its worker may never yield the core to it.
        schedule::let_run(self.id());
    }

    /// Returns the reason for this socket error: the process's exit, if that is known within `bound`.
    pub(super) fn why_silent(&mut self, error: &io::Error, bound: Duration) -> String {
        match (self.ended_within(bound), error.kind()) {
            (Some(ended), _) => ended.how,
            (None, io::ErrorKind::UnexpectedEof) => "it closed its socket".to_owned(),
            (None, _) => error.to_string(),
        }
    }

    pub(super) fn silent(&self, due: &'static str, reason: impl ToString) -> IsolationError {
        IsolationError::ProtocolViolation {
            function: self.function.clone(),
            due,
            reason: reason.to_string(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        match &mut self.running {
            Running::Trusted(child) => drop(child.wait()),
            Running::Confined(child) => drop(child.wait()),
            // It is another one's child.
            Running::Joined(process) => process.await_end(ENDING),
        }
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
        None if end.status == Status::Unknown => "it ended with unknown status".to_owned(),
        None => format!("it ended with {}", end.status),
    }
}

/// A configured process that waits to be attached.
#[derive(Debug)]
pub(super) struct Detached {
    pub(super) process: Process,
    pub(super) description: Description,
    /// Time from its start until it was configured.
    pub(super) took: Duration,
}

/// A process that is being configured.
#[derive(Debug)]
pub(super) struct Starting {
    process: Process,
    began: Instant,
    /// Configuration message, sent after the first message, with the file that the function's processes share.
    configure: Option<(Vec<u8>, Option<Arc<File>>)>,
}

impl Starting {
    pub(super) fn launch(
        program: &Program,
        part: ProcessPart,
        shared: &SharedByProcesses,
        (until, over): (Instant, &AtomicBool),
    ) -> Result<Starting, IsolationError> {
        let refused = |source| IsolationError::Launch {
            function: program.function.clone(),
            program: program.launch.program.display().to_string(),
            source,
        };
        let (began, running, socket);
        if let Some(joins) = &shared.socket {
            let (process, joined) = joins.accept(until, over).map_err(refused)?;
            (began, running, socket) = (Instant::now(), Running::Joined(process), joined);
        } else {
            let (own, theirs) = pair().map_err(refused)?;
            let errors = shared.errors.duplicate().map_err(refused)?;
            began = Instant::now();
            let started = match &program.confined {
                None => trusted(&program.launch, theirs, errors).map(Running::Trusted),
                Some(confined) => confine(&program.launch, confined, &theirs, &errors).map(Running::Confined),
            };
            (running, socket) = (started.map_err(refused)?, own);
        }
        let configure = FromServer::Configure {
            version: VERSION,
            part: part.index,
            of: part.of,
            config: program.config.clone(),
        };
        let mut starting = Starting {
            process: Process {
                running,
                socket,
                function: program.function.clone(),
                killed: false,
            },
            began,
            configure: Some((configure.encode(), shared.counters.clone())),
        };
        // Another one joins once this one has its configuration.
        while shared.socket.is_some() && starting.configure.is_some() {
            starting.step(POLL_INTERVAL)?;
            if starting.until_hello().is_some_and(|left| left.is_zero()) {
                return Err(starting.too_late());
            }
        }
        Ok(starting)
    }

    /// Advances the start for up to `bound`. Returns the description once the process is ready.
    fn step(&mut self, bound: Duration) -> Result<Option<Description>, IsolationError> {
        let process = &mut self.process;
        let due = match self.configure {
            Some(_) => FIRST_STEP,
            None => "describe itself",
        };
        let message = match receive_within(&process.socket, bound) {
            Ok((message, _)) => FromProgram::decode(&message),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => {
                // An exiting process closes the socket first.
                let reason = process.why_silent(&error, ENDING);
                return Err(process.silent(due, reason));
            }
        };
        match (message, self.configure.take()) {
            (Ok(FromProgram::Hello { version }), Some((configure, shared_counters))) if version >= VERSION => {
                let files: Vec<&File> = shared_counters.as_deref().into_iter().collect();
                let sent = process.socket.send(&configure, &files);
                sent.map_err(|error| process.silent("receive its configuration", error))?;
                Ok(None)
            }
            (Ok(FromProgram::Describe(description)), None) => Ok(Some(description)),
            (Ok(FromProgram::Refuse { field, message }), None) => Err(IsolationError::Refused {
                function: process.function.clone(),
                field,
                message,
            }),
            (Ok(FromProgram::Unfit { message }), None) => Err(IsolationError::NotAFunction {
                function: process.function.clone(),
                message,
            }),
            (Ok(FromProgram::Hello { version }), _) => {
                let spoken = format!("expected protocol version {VERSION}, found {version}");
                Err(process.silent(due, spoken))
            }
            (Ok(_), _) => Err(process.silent(due, "it sent another message")),
            (Err(DecodeError { .. }), _) => Err(process.silent(due, "it sent an invalid message")),
        }
    }

    /// Waits until the process is ready.
    pub(super) fn wait(self, until: Instant) -> Result<Detached, IsolationError> {
        self.wait_unless(until, &NEVER)
    }

    /// Like [`wait`](Starting::wait), but gives up soon after the end of the run.
    pub(super) fn wait_unless(mut self, until: Instant, over: &AtomicBool) -> Result<Detached, IsolationError> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = match self.until_hello() {
                Some(hello) => left.min(hello),
                None => left,
            };
            if let Some(description) = self.step(left.min(POLL_INTERVAL))? {
                return Ok(self.detached(description));
            }
            if left.is_zero() || over.load(Ordering::Relaxed) {
                return Err(self.too_late());
            }
        }
    }

    /// Returns the time left for the first message, or `None` if it has arrived.
    fn until_hello(&self) -> Option<Duration> {
        let left = HELLO.saturating_sub(self.began.elapsed());
        self.configure.as_ref().map(|_| left)
    }

    fn too_late(&self) -> IsolationError {
        match self.configure {
            Some(_) => {
                let reason = format!("no message within {} s", HELLO.as_secs());
                self.process.silent(FIRST_STEP, reason)
            }
            None => self.process.silent("be ready", "timeout"),
        }
    }

    fn detached(self, description: Description) -> Detached {
        // It has loaded its code. The next thing that it gets is memory that it may write.
        if let Running::Confined(child) = &self.process.running {
            child.refuse_code();
        }
        Detached {
            process: self.process,
            description,
            took: self.began.elapsed(),
        }
    }
}

/// Starts a program with this process's rights and the socket as its standard input.
fn trusted(launch: &Launch, socket: Socket, errors: OwnedFd) -> io::Result<Child> {
    let mut command = Command::new(&launch.program);
    command
        .args(&launch.arguments)
        .env(NO_RSEQ.0, NO_RSEQ.1)
        .stdin(Stdio::from(socket.0))
        .stdout(Stdio::null())
        .stderr(Stdio::from(errors))
        // An interrupt from the terminal goes to the run only, which ends its functions after their work.
        .process_group(0);
    // SAFETY: two system calls, which neither allocate nor lock.
    unsafe {
        command.pre_exec(|| {
            // The calling thread may have a high priority.
            schedule::set_ordinary_priority()?;
            // The kernel kills the process when this one exits.
            Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
        });
    }
    command.spawn()
}

/// Starts a confined program in its load phase.
fn confine(
    launch: &Launch,
    confined: &Confined,
    socket: &Socket,
    errors: &OwnedFd,
) -> io::Result<tailwater_confine::Child> {
    let mut program = tailwater_confine::Program::new(&launch.program);
    program.arguments.clone_from(&launch.arguments);
    let (name, value) = NO_RSEQ;
    program.environment = vec![(name.into(), value.into())];
    program.input = Some(socket.0.as_fd());
    program.errors = Some(errors.as_fd());
    let started = match &confined.container {
        None => confined.confinement.spawn(&program),
        Some(runtime) => confined.confinement.spawn_in(runtime, &program),
    };
    started.map_err(io::Error::other)
}
