//! Start modes of a hostile program (process, container), and the outcome of its attack.

use std::fmt;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use tailwater_confine::{Child, Confinement, ContainerRuntime, Error, Program, Status, Stopped};

use crate::cases::{Case, Layer};
use crate::scene::Scene;

pub(crate) enum StartMode {
    Process,
    Container(ContainerRuntime),
}

/// Returns what the machine lacks for a mode.
pub(crate) fn missing(way: &StartMode) -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let user = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    if !user.split_whitespace().all(|id| id == "0") {
        return Some("confining programs needs root".into());
    }
    // Root of a container, for example, has fewer rights: starting a program that does nothing shows it. Any other
    // error is a failure.
    let start = match way {
        StartMode::Process => Confinement::full().spawn(&hostile("nothing")),
        StartMode::Container(runtime) => Confinement::full().spawn_in(runtime, &hostile("nothing")),
    };
    let error = start.err()?;
    let denied = match &error {
        Error::Clone { error } | Error::Step { error, .. } | Error::File { error, .. } => is_denied(error),
        Error::NoController { .. } => true,
        _ => false,
    };
    assert!(denied, "{error}");
    Some(error.to_string())
}

fn is_denied(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem)
}

impl StartMode {
    pub(crate) fn container() -> Result<StartMode, String> {
        let runtime = ContainerRuntime::find().ok_or("no crun (apt-get install crun)")?;
        let way = StartMode::Container(runtime);
        match missing(&way) {
            Some(why) => Err(why),
            None => Ok(way),
        }
    }

    /// Returns `true` if a defence can be switched on and off in this mode.
    pub(crate) fn has(&self, layer: Layer) -> bool {
        match self {
            StartMode::Process => true,
            StartMode::Container(_) => !matches!(layer, Layer::Users | Layer::FileSizeLimit),
        }
    }

    pub(crate) fn spawn(&self, confinement: &Confinement, program: &Program) -> Child {
        let child = match self {
            StartMode::Process => confinement.spawn(program),
            StartMode::Container(runtime) => confinement.spawn_in(runtime, program),
        };
        child.unwrap_or_else(|error| panic!("{:?} {:?}: {error}", program.arguments, confinement))
    }
}

impl fmt::Display for StartMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StartMode::Process => "a process",
            StartMode::Container(_) => "a container",
        })
    }
}

/// Outcome of an attack.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done(String),
    Refused(i32),
    Stopped(Stopped),
    /// The program ended without a report.
    Ended(Status),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Done(loot) => write!(f, "done `{loot}`"),
            Outcome::Refused(errno) => {
                let error = std::io::Error::from_raw_os_error(*errno);
                write!(f, "refused by the kernel: {error}")
            }
            Outcome::Stopped(stopped) => write!(f, "stopped: {stopped}"),
            Outcome::Ended(status) => write!(f, "ended with {status}"),
        }
    }
}

pub(crate) fn hostile<'a>(attack: &str) -> Program<'a> {
    Program::new(Path::new(env!("CARGO_BIN_EXE_tailwater-hostile"))).argument(attack)
}

/// Time limit of an attack on a busy machine, after which the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Hostile program that has started, and its socket.
pub(crate) struct Attacker {
    pub child: Child,
    pub socket: UnixStream,
}

/// Starts an attacker and waits until it has loaded. It attacks when it receives a byte.
pub(crate) fn start(way: &StartMode, confinement: &Confinement, program: &Program) -> Attacker {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    let program = program.clone().descriptor(theirs.as_fd());
    let child = way.spawn(confinement, &program);
    drop(theirs);
    let mut ready = [0u8; 1];
    ours.read_exact(&mut ready).expect("it loads");
    Attacker { child, socket: ours }
}

impl Attacker {
    pub(crate) fn let_go(&mut self) {
        self.socket.write_all(b"g").unwrap();
    }

    /// Waits for the outcome.
    pub(crate) fn outcome(mut self) -> Outcome {
        let mut said = String::new();
        self.socket.read_to_string(&mut said).expect("it ends");
        let end = self.child.wait_for(PATIENCE).expect("it ends");
        if let Some(stopped) = end.stopped {
            return Outcome::Stopped(stopped);
        }
        match said.split_once(": ") {
            Some(("done", loot)) => Outcome::Done(loot.to_owned()),
            Some(("refused", errno)) => Outcome::Refused(errno.parse().unwrap()),
            _ => Outcome::Ended(end.status),
        }
    }
}

/// Starts an attacker, seals it when it has loaded, triggers the attack, and returns the outcome.
pub(crate) fn run(way: &StartMode, confinement: &Confinement, scene: &Scene, case: &Case) -> Outcome {
    let mut program = hostile(case.name);
    program.core = Some(scene.core);
    for argument in (case.arguments)(scene) {
        program = program.argument(argument);
    }
    let mut attacker = start(way, confinement, &program);
    attacker.child.seal();
    if case.lent {
        attacker.child.grant_priority(10).unwrap();
    }
    attacker.let_go();
    attacker.outcome()
}

/// Returns the modes available on this machine. Prints the skipped ones, and why.
pub(crate) fn ways() -> Vec<StartMode> {
    let process = match missing(&StartMode::Process) {
        None => Ok(StartMode::Process),
        Some(why) => Err(why),
    };
    let container = match &process {
        Ok(_) => StartMode::container(),
        Err(why) => Err(why.clone()),
    };
    let mut ways = Vec::new();
    for (name, way) in [("a process", process), ("a container", container)] {
        match way {
            Ok(way) => ways.push(way),
            Err(why) => println!("skipped in {name}: {why}"),
        }
    }
    ways
}

/// Returns a number from a file of the process in `/proc`.
pub(crate) fn status(pid: i32, name: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{name} in {status}")).trim().to_owned()
}

/// Returns the scheduling policy and real-time priority of a process, from its `stat` (see proc(5)).
pub(crate) fn schedule(pid: i32) -> (u32, u32) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    // The state, field 3, comes first in `fields`.
    (fields[41 - 3].parse().unwrap(), fields[40 - 3].parse().unwrap())
}
