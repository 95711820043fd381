//! Functions in processes or containers of their own: `tailwater run --isolation`.

use crate::error::CliError;
use crate::output::complain;
use crate::run::args::{Defence, Isolated, RunArgs};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{self, Path, PathBuf};
use std::time::Duration;
use tailwater_confine::{Confinement, ContainerRuntime, DEFAULT_MEMORY, Groups, Limits, Namespaces};
use tailwater_files::InputFile;
use tailwater_functions::classifier::ClassifierConfig;
use tailwater_functions::external::ExternalConfig;
use tailwater_functions::library::{Code, CodeExaminer, LibraryError};
use tailwater_functions::spec::{ChainSpec, FunctionSpec};
use tailwater_isolation::message::MOST_STATE;
use tailwater_isolation::server::{Confined, IsolationConfig, IsolationError, Launch, Program};

/// Upper bound of the memory for a flow's state, bytes. No function may declare more.
const FLOW_BYTES: u64 = MOST_STATE as u64;

/// Time that a third-party function has to read its configuration.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns an absolute path, valid in any working directory.
fn absolute(chain: &Path) -> Result<PathBuf, CliError> {
    path::absolute(chain).map_err(|source| CliError::System {
        what: "the current directory cannot be found",
        source,
    })
}

/// Reads a chain's spec, and finds the programs of its functions, both built-in and third-party ones, confined
/// according to the arguments. Returns no programs if functions are not isolated.
///
/// # Errors
/// The spec is invalid, flags contradict each other, a function cannot be isolated, or this machine cannot confine
/// programs.
pub fn read(args: &RunArgs) -> Result<(ChainSpec, Option<IsolationConfig>), CliError> {
    let mode = match args.isolation {
        Isolated::None => {
            check_without_isolation(args)?;
            return Ok((ChainSpec::read(&args.chain)?, None));
        }
        Isolated::Process => "--isolation process",
        Isolated::Container => "--isolation container",
    };
    // Isolated functions read it from another working directory.
    let chain = absolute(&args.chain)?;
    let isolating = Isolating {
        own: Launch {
            program: own_program()?.into(),
            arguments: vec!["function-process".into(), chain.clone().into()],
        },
        confined: confined(args, mode)?,
    };
    let spec = ChainSpec::read_apart(&chain, &isolating)?;
    if !fs::metadata(&chain).is_ok_and(|file| file.is_file()) {
        return wrong(format!(
            "{mode}: expected the chain in a regular file, which each function process reads, found {}",
            args.chain.display()
        ));
    }
    check_what_stays(&args.isolation_except, &spec, mode)?;
    check_exports(args, &spec, mode, isolating.confined.is_some())?;
    let programs = isolating.programs(args, &spec, &chain, mode)?;
    let mut config = IsolationConfig::new(programs, spec.slo.budget());
    // Trusted functions have the rights of this process anyway.
    config.limits_server = isolating.confined.is_some() && !args.isolation_without.contains(&Defence::Server);
    if let Some(overhead) = args.isolation_overhead {
        config.batch.overhead = overhead;
    }
    Ok((spec, Some(config)))
}

/// Rejects options of isolation in a run without it.
fn check_without_isolation(args: &RunArgs) -> Result<(), CliError> {
    let given = [
        ("--isolation-overhead", args.isolation_overhead.is_some()),
        ("--isolation-without", !args.isolation_without.is_empty()),
        ("--isolation-except", !args.isolation_except.is_empty()),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((option, _)) => wrong(format!("{option} requires --isolation process or container")),
        None => Ok(()),
    }
}

/// Rejects exports of confined functions.
fn check_exports(args: &RunArgs, spec: &ChainSpec, mode: &str, confined: bool) -> Result<(), CliError> {
    let exports = |function: &&FunctionSpec| function.config.exports() && !stays(args, &function.name);
    match spec.functions.iter().find(exports) {
        Some(writer) if confined => wrong(format!(
            "{mode}: {name}: export requires access to files or the network, which confined functions lack: remove \
             it, or trust the function with --isolation-except {name}",
            name = writer.name
        )),
        _ => Ok(()),
    }
}

/// Returns `true` if a function is excepted from isolation.
fn stays(args: &RunArgs, function: &str) -> bool {
    args.isolation_except.iter().any(|name| name == function)
}

/// Checks that functions excepted from isolation are built-in ones that share or write something that prevents
/// isolation, on several cores or when confined. All others are isolated.
fn check_what_stays(names: &[String], spec: &ChainSpec, mode: &str) -> Result<(), CliError> {
    for name in names {
        let mut functions = spec.functions.iter();
        let Some(function) = functions.find(|function| function.name == *name) else {
            return wrong(format!(
                "--isolation-except: expected a function of the chain, found {name}"
            ));
        };
        if function.config.is::<ExternalConfig>() {
            return wrong(format!(
                "--isolation-except: expected a function that this program runs, found external function {name}"
            ));
        }
        if function.config.is::<ClassifierConfig>() {
            return wrong(format!(
                "--isolation-except: {name} is a classifier, which is never isolated: remove it"
            ));
        }
        if function.config.in_process_only_reason().is_none() && !function.config.exports() {
            return wrong(format!(
                "--isolation-except: expected a function with shared state or an export, which prevents isolation, \
                 found {name}"
            ));
        }
    }
    if let (Some(name), Some(_)) = (names.first(), &spec.state) {
        return wrong(format!(
            "{mode}: flow state in Redis requires all functions to be isolated (--isolation-except {name})"
        ));
    }
    if !names.is_empty() {
        let text = format!(
            "{} trusted, not isolated (--isolation-except)",
            match names {
                [one] => format!("function {one} is"),
                several => format!("functions {} are", several.join(", ")),
            }
        );
        complain("warning", &text);
    }
    Ok(())
}

fn own_program() -> Result<PathBuf, CliError> {
    std::env::current_exe().map_err(|source| CliError::System {
        what: "cannot find this program's file",
        source,
    })
}

/// Configuration for isolating functions.
struct Isolating {
    /// Command that starts this program as a function's.
    own: Launch,
    /// `None` for trusted functions.
    confined: Option<Confined>,
}

impl Isolating {
    /// Returns the confined programs of the functions that are isolated.
    fn programs(&self, args: &RunArgs, spec: &ChainSpec, chain: &Path, mode: &str) -> Result<Vec<Program>, CliError> {
        // Each direction of a connection may have its own state.
        let flows = 2 * u64::from(spec.flows.capacity) * FLOW_BYTES;
        let mut programs = Program::of_chain(spec, &self.own);
        programs.retain(|program| !stays(args, &program.function));
        if programs.is_empty() && (!args.isolation_except.is_empty() || !spec.branches.is_empty()) {
            return wrong(format!(
                "{mode}: expected at least one function to isolate, found none: remove it"
            ));
        }
        for program in &mut programs {
            let mut functions = spec.functions.iter();
            let Some(function) = functions.find(|function| function.name == program.function) else {
                continue;
            };
            let memory = flows + program.demands.shared_bytes as u64;
            self.confine(program, files(chain, function), memory);
        }
        Ok(programs)
    }

    /// Confines a program that reads these files and receives `given` bytes of shared memory.
    fn confine(&self, program: &mut Program, files: Vec<PathBuf>, given: u64) {
        program.confined = self.confined.clone();
        let confinement = program.confined.as_mut().map(|it| &mut it.confinement);
        if let Some(confinement) = confinement {
            if let Some(memory) = &mut confinement.groups.memory {
                *memory += given;
            }
            if let Some(root) = &mut confinement.root {
                root.files = files;
            }
        }
    }
}

/// Third-party functions are tried out with the same confinement as in the run, so they never have more rights.
impl CodeExaminer for Isolating {
    fn read_name(&self, code: &Code<'_>, config: &str) -> Result<String, LibraryError> {
        check_file(code)?;
        let mut program = Program::of_code("", code, config, &self.own);
        self.confine(&mut program, files_of(code), 0);
        match program.try_out(PATIENCE) {
            Ok(description) => Ok(description.name),
            Err(IsolationError::Refused { field, message, .. }) => Err(LibraryError::Config { field, message }),
            Err(IsolationError::NotAFunction { message, .. }) => Err(LibraryError::Apart(message)),
            Err(IsolationError::ProtocolViolation { due, reason, .. }) => Err(LibraryError::Apart(format!(
                "is not a function: expected it to {due}, but {reason}"
            ))),
            Err(IsolationError::Launch { source, .. }) => {
                Err(LibraryError::Apart(format!("cannot be started: {source}")))
            }
            Err(error) => Err(LibraryError::Apart(error.to_string())),
        }
    }
}

/// Checks that a file is of the expected type before a process is started for it.
fn check_file(code: &Code<'_>) -> Result<(), LibraryError> {
    let data = code.file().metadata().map_err(LibraryError::Read)?;
    let apart = |message: &str| Err(LibraryError::Apart(message.to_owned()));
    if !data.is_file() {
        return match code {
            Code::Library(_) => Err(LibraryError::NoFile),
            Code::Program(_) => apart("expected an executable, found a folder or device"),
        };
    }
    let Code::Program(_) = code else {
        return Ok(());
    };
    const EXECUTABLE: u32 = 0o111;
    if data.mode() & EXECUTABLE == 0 {
        return apart("expected an executable, found a file that may not be executed (chmod +x)");
    }
    // Scripts are refused: a confined function's root has no interpreter.
    let mut magic = [0; 4];
    let file = InputFile::open(code.file());
    match file.map_err(LibraryError::Read)?.read_exact(&mut magic) {
        Ok(()) if magic == *b"\x7fELF" => Ok(()),
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(LibraryError::Read(error)),
        _ => apart("expected an executable (ELF), found a script or something else"),
    }
}

/// Checks that the functions can be isolated on these cores.
///
/// # Errors
/// A function that writes a file would run on several cores.
pub fn check_cores(config: &IsolationConfig, cores: &[usize]) -> Result<(), CliError> {
    match config.programs.iter().find(|program| program.single_instance) {
        Some(writer) if cores.len() > 1 => wrong(format!(
            "--isolation: {}: export requires a single process: remove it, or run on one core",
            writer.function
        )),
        _ => Ok(()),
    }
}

/// Returns the defences around each function; `None` if functions are trusted.
fn confined(args: &RunArgs, mode: &str) -> Result<Option<Confined>, CliError> {
    let without = &args.isolation_without;
    let container = match args.isolation {
        Isolated::Container if without.contains(&Defence::All) => {
            return wrong(format!(
                "{mode}: container defences cannot be disabled: expected --isolation process with \
                 --isolation-without all"
            ));
        }
        Isolated::Container => Some(ContainerRuntime::find().ok_or_else(|| {
            CliError::Input(format!(
                "{mode} requires crun, which is not in the system's program directories: install it (apt-get \
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
            "{mode}: confining functions requires root: run with sudo, or trust the functions with --isolation \
             process --isolation-without all"
        ));
    }
    let mut confinement = Confinement::full();
    confinement.groups.memory = Some(DEFAULT_MEMORY);
    for defence in without {
        leave_out(*defence, &mut confinement);
    }
    let mut left_out = confinement.without();
    left_out.extend(without.contains(&Defence::Server).then_some("server"));
    if !left_out.is_empty() {
        let text = format!(
            "functions are confined without {} (--isolation-without)",
            left_out.join(", ")
        );
        complain("warning", &text);
    }
    Ok(Some(Confined { confinement, container }))
}

fn leave_out(defence: Defence, from: &mut Confinement) {
    match defence {
        // A program without any defence is trusted, and started without a confinement.
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
        // A defence of this process, not of a program.
        Defence::Server => {}
        Defence::User => {
            from.own_user = false;
            // The limit counts a user's processes, and would include other programs of this user.
            from.limits.processes = None;
        }
    }
}

/// Returns the files that a function reads for its configuration. A built-in one reads the spec, too.
fn files(chain: &Path, function: &FunctionSpec) -> Vec<PathBuf> {
    match function.config.third_party() {
        Some((code, _)) => files_of(&code),
        None => {
            let own = function.files.iter().cloned();
            [chain.to_owned()].into_iter().chain(own).collect()
        }
    }
}

/// Returns the files that must exist beside the program.
fn files_of(code: &Code<'_>) -> Vec<PathBuf> {
    match code {
        Code::Library(file) => vec![file.to_path_buf()],
        Code::Program(_) => Vec::new(),
    }
}

fn wrong<T>(message: impl Into<String>) -> Result<T, CliError> {
    Err(CliError::Input(message.into()))
}
