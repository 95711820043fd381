//! Functions in processes or containers of their own, as the flags of `tailwater run` or a chain's `spec.isolation`
//! request them.

use crate::error::CliError;
use crate::output::complain;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{self, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tailwater_api::{Defence, IsolationMode, IsolationSpec};
use tailwater_confine::{Confinement, ContainerRuntime, DEFAULT_MEMORY, Groups, Limits, Namespaces};
use tailwater_dataplane::cores::available;
use tailwater_files::InputFile;
use tailwater_functions::classifier::ClassifierConfig;
use tailwater_functions::external::ExternalConfig;
use tailwater_functions::library::{Code, CodeExaminer, LibraryError};
use tailwater_functions::spec::{ChainSpec, FunctionSpec};
use tailwater_isolation::message::MOST_STATE;
use tailwater_isolation::server::{ChainFile, Confined, IsolationConfig, IsolationError, Launch, Program};

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

/// Requested isolation, with the words of the user that messages repeat.
#[derive(Clone, Debug)]
pub struct Request {
    /// Mode, which is not [`IsolationMode::None`], and settings.
    pub spec: IsolationSpec,
    /// `true`: the mode is that of the chain's spec, and not of a flag.
    pub mode_of_spec: bool,
    /// `true`: so are the defences left out.
    pub without_of_spec: bool,
    /// `true`: so are the functions that stay.
    pub except_of_spec: bool,
}

impl Request {
    /// Request of a chain's spec.
    pub fn of_spec(spec: IsolationSpec) -> Request {
        Request {
            spec,
            mode_of_spec: true,
            without_of_spec: true,
            except_of_spec: true,
        }
    }

    fn mode(&self) -> String {
        let name = self.spec.mode.name();
        match self.mode_of_spec {
            true => format!("spec.isolation {name}"),
            false => format!("--isolation {name}"),
        }
    }

    /// Words for processes instead of containers.
    fn processes(&self) -> &'static str {
        match self.mode_of_spec {
            true => "spec.isolation process",
            false => "--isolation process",
        }
    }

    fn without(&self) -> &'static str {
        match self.without_of_spec {
            true => "spec.isolation.without",
            false => "--isolation-without",
        }
    }

    fn except(&self) -> &'static str {
        match self.except_of_spec {
            true => "spec.isolation.except",
            false => "--isolation-except",
        }
    }

    fn leaves_out(&self, defence: Defence) -> bool {
        self.spec.without.contains(&defence)
    }

    /// Returns `true` if a function is excepted from isolation.
    fn excepts(&self, function: &str) -> bool {
        self.spec.except.iter().any(|name| name == function)
    }
}

/// Reads the spec of a chain in a regular file, and finds the programs of its functions, both built-in and third-party
/// ones, confined according to the request.
///
/// # Errors
/// The spec is invalid, a function cannot be isolated, or this machine cannot confine programs.
pub fn read_file(path: &Path, request: &Request) -> Result<(ChainSpec, IsolationConfig), CliError> {
    // Isolated functions read it from another working directory.
    let chain = absolute(path)?;
    let isolating = Isolating::new(request, vec![chain.clone().into()])?;
    let spec = ChainSpec::read_apart(&chain, &isolating)?;
    if !fs::metadata(&chain).is_ok_and(|file| file.is_file()) {
        return Err(not_in_a_file(path, request));
    }
    let config = isolating.config(request, &spec, &chain)?;
    Ok((spec, config))
}

/// Error of a chain that its functions' processes could not read.
pub fn not_in_a_file(path: &Path, request: &Request) -> CliError {
    CliError::Input(format!(
        "{}: expected the chain in a regular file, which each function process reads, found {}",
        request.mode(),
        path.display()
    ))
}

/// Same as [`read_file`], for a chain of a server: its text, the name of its source in messages, and the folder that
/// its files are relative to. `file` is a new file for the processes.
///
/// # Errors
/// Same as [`read_file`]; also if the file cannot be written.
pub fn read_text(
    (text, name, base_dir): (&str, &str, &Path),
    file: PathBuf,
    request: &Request,
) -> Result<(ChainSpec, IsolationConfig), CliError> {
    let arguments = vec![file.clone().into(), "--base-dir".into(), base_dir.into()];
    let isolating = Isolating::new(request, arguments)?;
    let spec = ChainSpec::parse_apart(text, name, base_dir, &isolating)?;
    let file = ChainFile::create(file, text).map_err(|source| CliError::System {
        what: "the chain cannot be written for its functions' processes",
        source,
    })?;
    let mut config = isolating.config(request, &spec, file.path())?;
    config.chain_file = Some(Arc::new(file));
    Ok((spec, config))
}

/// Rejects exports of confined functions.
fn check_exports(request: &Request, spec: &ChainSpec, confined: bool) -> Result<(), CliError> {
    let exports = |function: &&FunctionSpec| {
        let config = &function.config;
        config.exports() && config.requirements(0).host.is_none() && !request.excepts(&function.name)
    };
    match spec.functions.iter().find(exports) {
        Some(writer) if confined => wrong(format!(
            "{}: {name}: export requires access to files or the network, which confined functions lack: remove it, \
             or trust the function with {} {name}",
            request.mode(),
            request.except(),
            name = writer.name
        )),
        _ => Ok(()),
    }
}

/// Checks that functions excepted from isolation are built-in ones that share or write something that prevents
/// isolation, on several cores or when confined. All others are isolated.
fn check_what_stays(request: &Request, spec: &ChainSpec) -> Result<(), CliError> {
    let (names, except) = (&request.spec.except[..], request.except());
    for name in names {
        let mut functions = spec.functions.iter();
        let Some(function) = functions.find(|function| function.name == *name) else {
            return wrong(format!("{except}: expected a function of the chain, found {name}"));
        };
        if function.config.is::<ExternalConfig>() {
            return wrong(format!(
                "{except}: expected a function that this program runs, found external function {name}"
            ));
        }
        if function.config.is::<ClassifierConfig>() {
            return wrong(format!(
                "{except}: {name} is a classifier, which is never isolated: remove it"
            ));
        }
        if !function.config.may_stay() {
            return wrong(format!(
                "{except}: expected a function with shared state or an export, which prevents isolation, found {name}"
            ));
        }
    }
    if let (Some(name), Some(_)) = (names.first(), &spec.state) {
        return wrong(format!(
            "{}: flow state in Redis requires all functions to be isolated ({except} {name})",
            request.mode()
        ));
    }
    if !names.is_empty() {
        let text = format!(
            "{} trusted, not isolated ({except})",
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
    /// Isolation as requested, of functions whose processes find the chain by these arguments.
    fn new(request: &Request, arguments: Vec<OsString>) -> Result<Isolating, CliError> {
        let command = [OsString::from("function-process")].into_iter();
        Ok(Isolating {
            own: Launch {
                program: own_program()?.into(),
                arguments: command.chain(arguments).collect(),
            },
            confined: confined(request)?,
        })
    }

    /// Returns the isolation of a chain, whose spec is in the file `chain`.
    fn config(&self, request: &Request, spec: &ChainSpec, chain: &Path) -> Result<IsolationConfig, CliError> {
        check_what_stays(request, spec)?;
        check_exports(request, spec, self.confined.is_some())?;
        let programs = self.programs(request, spec, chain)?;
        let mut config = IsolationConfig::new(programs, spec.slo.budget());
        // Trusted functions have the rights of this process anyway.
        config.limits_server = self.confined.is_some() && !request.leaves_out(Defence::Server);
        if let Some(overhead) = request.spec.overhead {
            config.batch.overhead = overhead;
        }
        Ok(config)
    }

    /// Returns the confined programs of the functions that are isolated.
    fn programs(&self, request: &Request, spec: &ChainSpec, chain: &Path) -> Result<Vec<Program>, CliError> {
        // Each direction of a connection may have its own state.
        let flows = 2 * u64::from(spec.flows.capacity) * FLOW_BYTES;
        let mut programs = Program::of_chain(spec, &self.own);
        programs.retain(|program| !request.excepts(&program.function));
        if programs.is_empty() && (!request.spec.except.is_empty() || !spec.branches.is_empty()) {
            return wrong(format!(
                "{}: expected at least one function to isolate, found none: remove it",
                request.mode()
            ));
        }
        for program in &mut programs {
            let mut functions = spec.functions.iter();
            let Some(function) = functions.find(|function| function.name == program.function) else {
                continue;
            };
            // Their defences are those of what started them.
            if program.joins.is_some() {
                continue;
            }
            let demands = &program.demands;
            // Those of all processes, at most, which each of them maps.
            let shared = demands.shared_bytes + available().len() * demands.shared_bytes_of_process;
            let memory = flows + shared as u64 + demands.private_bytes;
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
            Code::Program(_) | Code::Socket(_) => apart("expected an executable, found a folder or device"),
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

/// Returns the defences around each function; `None` if functions are trusted.
fn confined(request: &Request) -> Result<Option<Confined>, CliError> {
    let (mode, without) = (request.mode(), request.without());
    let container = match request.spec.mode {
        IsolationMode::Container if request.leaves_out(Defence::All) => {
            return wrong(format!(
                "{mode}: container defences cannot be disabled: expected {} with {without} all",
                request.processes()
            ));
        }
        IsolationMode::Container => Some(ContainerRuntime::find().ok_or_else(|| {
            CliError::Input(format!(
                "{mode} requires crun, which is not in the system's program directories: install it (apt-get \
                 install crun), or use {}",
                request.processes()
            ))
        })?),
        _ => None,
    };
    if request.leaves_out(Defence::All) {
        let text = format!("functions are not confined: each has the rights of this program ({without} all)");
        complain("warning", &text);
        return Ok(None);
    }
    if !rustix::process::geteuid().is_root() {
        return wrong(format!(
            "{mode}: confining functions requires root: run with sudo, or trust the functions with {} {without} all",
            request.processes()
        ));
    }
    let mut confinement = Confinement::full();
    confinement.groups.memory = Some(DEFAULT_MEMORY);
    for defence in &request.spec.without {
        leave_out(*defence, &mut confinement);
    }
    let mut left_out = confinement.without();
    left_out.extend(request.leaves_out(Defence::Server).then_some("server"));
    if !left_out.is_empty() {
        let text = format!("functions are confined without {} ({without})", left_out.join(", "));
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
        Code::Program(_) | Code::Socket(_) => Vec::new(),
    }
}

fn wrong<T>(message: impl Into<String>) -> Result<T, CliError> {
    Err(CliError::Input(message.into()))
}
