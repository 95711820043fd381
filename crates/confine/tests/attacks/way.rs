//! How a hostile program is started, and what comes of it.

use std::fmt;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use tailwater_confine::{Child, Confinement, ContainerRuntime, Program, Status, Stopped};

use crate::cases::{Case, Layer};
use crate::scene::Scene;

pub(crate) enum Way {
    Process,
    Container(ContainerRuntime),
}

/// What the machine lacks for a way.
pub(crate) fn missing(way: &Way) -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let user = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    if !user.split_whitespace().all(|id| id == "0") {
        return Some("confining programs needs root".into());
    }
    // What is wrong with this machine is told by a program that does nothing.
    let start = match way {
        Way::Process => Confinement::full().spawn(&hostile("nothing")),
        Way::Container(runtime) => Confinement::full().spawn_in(runtime, &hostile("nothing")),
    };
    match start {
        // In a container of a build farm, say: no namespaces, no control groups.
        Err(error) if std::env::var_os("CI_MUST_CONFINE").is_none() => Some(error.to_string()),
        Err(error) => panic!("{error}"),
        Ok(_) => None,
    }
}

impl Way {
    pub(crate) fn container() -> Result<Way, String> {
        let runtime = ContainerRuntime::find().ok_or("no crun (apt-get install crun)")?;
        let way = Way::Container(runtime);
        match missing(&way) {
            Some(why) => Err(why),
            None => Ok(way),
        }
    }

    /// Whether a defence can be switched on and off there.
    pub(crate) fn has(&self, layer: Layer) -> bool {
        match self {
            Way::Process => true,
            Way::Container(_) => !matches!(layer, Layer::Users | Layer::FileSizeLimit),
        }
    }

    pub(crate) fn spawn(&self, confinement: &Confinement, program: &Program) -> Child {
        let child = match self {
            Way::Process => confinement.spawn(program),
            Way::Container(runtime) => confinement.spawn_in(runtime, program),
        };
        child.unwrap_or_else(|error| panic!("{:?} {:?}: {error}", program.arguments, confinement))
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Process => "a process",
            Way::Container(_) => "a container",
        })
    }
}

/// What came of an attack.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done(String),
    Refused(i32),
    Stopped(Stopped),
    /// It ended without a word.
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

/// How long an attack may take on a busy machine before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts the attack, seals it when it has loaded, lets it go, and hears what it says.
pub(crate) fn run(way: &Way, confinement: &Confinement, scene: &Scene, case: &Case) -> Outcome {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut program = hostile(case.name).descriptor(theirs.as_fd());
    program.core = Some(scene.core);
    for argument in (case.arguments)(scene) {
        program = program.argument(argument);
    }
    let child = way.spawn(confinement, &program);
    drop(theirs);
    let mut ready = [0u8; 1];
    if ours.read_exact(&mut ready).is_ok() {
        child.seal();
        if case.lent {
            child.lend(10).unwrap();
        }
        ours.write_all(b"g").unwrap();
    }
    let mut said = String::new();
    ours.read_to_string(&mut said).expect("it ends");
    let end = child.wait_for(PATIENCE).expect("it ends");
    if let Some(stopped) = end.stopped {
        return Outcome::Stopped(stopped);
    }
    match said.split_once(": ") {
        Some(("done", loot)) => Outcome::Done(loot.to_owned()),
        Some(("refused", errno)) => Outcome::Refused(errno.parse().unwrap()),
        _ => Outcome::Ended(end.status),
    }
}
