//! Functions in processes or containers of their own: `tailwater run --isolation`.

use crate::args::{Defence, FunctionProcessArgs, Isolated, RunArgs};
use crate::complain;
use crate::error::{BAD_INPUT, CliError};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{self, Path, PathBuf};
use std::process::ExitCode;
use tailwater_confine::{
    Confinement, ContainerRuntime, DEFAULT_MEMORY, Groups, Limits, Namespaces,
};
use tailwater_isolation::program::{ProgramError, run_function};
use tailwater_isolation::server::{Confined, IsolationConfig, Launch, Program};
use tailwater_nf::spec::{ChainSpec, FunctionConfig, FunctionSpec};

/// State of one flow, and what the system needs to keep it: no function has more.
const FLOW_BYTES: u64 = 1024 + 64;

/// Runs one function of a chain for the `tailwater run` that started it.
pub fn function_process(args: &FunctionProcessArgs) -> Result<ExitCode, CliError> {
    match run_function(&args.chain, args.place) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // Who started it has been told, and tells it on.
        Err(ProgramError::Refused(_)) => Ok(ExitCode::from(BAD_INPUT)),
        Err(error) => Err(CliError::Input(error.to_string())),
    }
}

/// The same file, whatever directory a process is in.
pub fn absolute(chain: &Path) -> Result<PathBuf, CliError> {
    path::absolute(chain).map_err(|source| CliError::System {
        what: "the current directory cannot be found",
        source,
    })
}

/// The programs of a chain's functions, which are this one, confined as the arguments say; none where functions are
/// not isolated.
pub fn programs(args: &RunArgs, spec: &ChainSpec) -> Result<Option<IsolationConfig>, CliError> {
    let mode = match args.isolation {
        Isolated::None if args.isolation_without.is_empty() => return Ok(None),
        Isolated::None => {
            return wrong("--isolation-without is for --isolation process or container");
        }
        Isolated::Process => "--isolation process",
        Isolated::Container => "--isolation container",
    };
    let chain = absolute(&args.chain)?;
    if !fs::metadata(&chain).is_ok_and(|file| file.is_file()) {
        return wrong(format!(
            "{mode}: expected the chain in a file, which every function reads for itself, found {}",
            args.chain.display()
        ));
    }
    let program = std::env::current_exe().map_err(|source| CliError::System {
        what: "this program's file cannot be found",
        source,
    })?;
    let launch = Launch {
        program: program.into(),
        arguments: [
            OsStr::new("function-process"),
            OsStr::new("--"),
            chain.as_ref(),
        ]
        .map(OsString::from)
        .into(),
    };
    let mut programs = Program::of_chain(spec, &launch);
    if let Some(confined) = confined(args, spec, mode)? {
        for (program, function) in programs.iter_mut().zip(&spec.functions) {
            let mut confined = confined.clone();
            if let Some(root) = &mut confined.confinement.root {
                root.files = files(&chain, function);
            }
            program.confined = Some(confined);
        }
    }
    Ok(Some(IsolationConfig::new(programs, spec.slo.budget())))
}

/// What can be isolated on these cores.
pub fn on(config: IsolationConfig, cores: &[usize]) -> Result<IsolationConfig, CliError> {
    match config.programs.iter().find(|program| program.alone) {
        Some(writer) if cores.len() > 1 => wrong(format!(
            "--isolation: {}: export.file can be written by one process only: leave it out, or run on one core",
            writer.function
        )),
        _ => Ok(config),
    }
}

/// The defences around each function; none: it is trusted.
fn confined(args: &RunArgs, spec: &ChainSpec, mode: &str) -> Result<Option<Confined>, CliError> {
    let without = &args.isolation_without;
    let container = match args.isolation {
        Isolated::Container if without.contains(&Defence::All) => {
            return wrong(format!(
                "{mode} has defences of its own: expected --isolation process with --isolation-without all"
            ));
        }
        Isolated::Container => Some(ContainerRuntime::find().ok_or_else(|| {
            CliError::Input(format!(
                "{mode} needs crun, which is in none of the system's directories for programs: install it (apt-get \
                 install crun), or use --isolation process"
            ))
        })?),
        _ => None,
    };
    if without.contains(&Defence::All) {
        complain(
            "warning",
            "functions are not confined: each has the rights of this program (--isolation-without all)",
        );
        return Ok(None);
    }
    if !rustix::process::geteuid().is_root() {
        return wrong(format!(
            "{mode}: to confine functions this program must be root: run it by sudo, or trust the functions with \
             --isolation process --isolation-without all"
        ));
    }
    let exports = |function: &&FunctionSpec| matches!(&function.config, FunctionConfig::Accounting(accounting) if accounting.export.is_some());
    if let Some(writer) = spec.functions.iter().find(exports) {
        return wrong(format!(
            "{mode}: {}: export.file cannot be written by a function that may write no files: leave it out, or trust \
             the functions with --isolation process --isolation-without all",
            writer.name
        ));
    }
    let mut confinement = Confinement::full();
    let flows = u64::from(spec.flows.capacity) * FLOW_BYTES;
    confinement.groups.memory = Some(DEFAULT_MEMORY + flows);
    for defence in without {
        leave_out(*defence, &mut confinement);
    }
    let left_out = confinement.without();
    if !left_out.is_empty() {
        let text = format!(
            "functions are confined without {} (--isolation-without)",
            left_out.join(", ")
        );
        complain("warning", &text);
    }
    Ok(Some(Confined {
        confinement,
        container,
    }))
}

fn leave_out(defence: Defence, from: &mut Confinement) {
    match defence {
        // A program without any is trusted, and not started by a confinement.
        Defence::All => *from = Confinement::none(),
        Defence::Filter => from.filter = false,
        Defence::Groups => from.groups = Groups::default(),
        Defence::Limits => from.limits = Limits::default(),
        Defence::Namespaces => {
            from.namespaces = Namespaces {
                processes: false,
                network: false,
                ipc: false,
                host_name: false,
                users: false,
            }
        }
        Defence::Root => from.root = None,
        Defence::User => {
            from.own_user = false;
            // They are counted for a user, and this would be everybody's.
            from.limits.processes = None;
        }
    }
}

/// What a function reads to configure itself: its own files, and the spec.
fn files(chain: &Path, function: &FunctionSpec) -> Vec<PathBuf> {
    let own = function.files.iter().cloned();
    [chain.to_owned()].into_iter().chain(own).collect()
}

fn wrong<T>(message: impl Into<String>) -> Result<T, CliError> {
    Err(CliError::Input(message.into()))
}
