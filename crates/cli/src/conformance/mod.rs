//! `tailwater test-function`: conformance checks for authors of functions.
//!
//! Each check runs in a process of its own, so that one that crashes or hangs fails alone. In it the chain runs without
//! ports and threads, in virtual time: its results are the same on every machine. One check starts real runs.

mod checks;
mod compare;
mod explain;
mod frames;
mod isolation;
mod outcome;
mod processes;
mod reload;
mod rig;
mod subject;

use crate::error::CliError;
use crate::output::print;
use checks::{CHECKS, Check, REPEATABLE};
use clap::Args;
use outcome::Outcome;
use processes::{ended, read_in_thread};
use signal_hook::low_level::signal_name;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use subject::Subject;
use tailwater_api::SpecError;
use tailwater_functions::spec::ChainSpec;

/// Help text of `tailwater test-function`.
pub const TEST_FUNCTION_EXAMPLES: &str = "\
Examples:
  tailwater test-function chain.yaml
      Checks the functions of a chain, usually one of your own.
  tailwater test-function limit.so --config '{\"packets\": 100}'
      Checks a library, or a WebAssembly module (limit.wasm), without a spec.

Exit codes: 0 no check failed, 1 a check failed, 2 wrong input.";

/// Longest time of a check.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Longest result of a check, in bytes.
const MOST_BYTES: u64 = 64 << 10;
/// Beginning of the line with a check's result.
const MARK: &str = "tailwater-check:";

/// Arguments of `tailwater test-function`.
#[derive(Debug, Args)]
pub struct TestFunctionArgs {
    /// Chain spec (`.yaml`, `.yml`), or a function's shared library or WebAssembly module (`.wasm`)
    pub file: PathBuf,
    /// Configuration of the library or module, in JSON
    #[arg(long, value_name = "JSON")]
    pub config: Option<String>,
    /// Run one check in this process; started by this program
    #[arg(long, hide = true)]
    pub check: Option<String>,
}

/// Runs all checks and prints their results, or one check for the process that runs all.
///
/// # Errors
/// The spec or the library is invalid, or the result cannot be printed.
pub fn test_function(args: &TestFunctionArgs) -> Result<ExitCode, CliError> {
    let subject = subject(args)?;
    let spec = &subject.spec;
    if let Some(external) = spec.externals().next() {
        return Err(CliError::Input(format!(
            "{}: expected functions of this program or libraries, found the external function {}",
            args.file.display(),
            external.0
        )));
    }
    if let Some(name) = &args.check {
        let check = CHECKS.iter().find(|check| check.name == name);
        let check = check.ok_or_else(|| CliError::Input(format!("--check: no check is called {name:?}")))?;
        let outcome = (check.run)(&subject);
        let (verdict, text) = outcome.parts();
        print(&format!("\n{MARK} {verdict} {text}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let names: Vec<&str> = spec.functions.iter().map(|function| function.name.as_str()).collect();
    print(&format!("functions   {}\n\n", names.join(", ")))?;
    let (mut counts, mut is_repeatable) = ([0; 3], true);
    for check in CHECKS {
        let outcome = match check.compares && !is_repeatable {
            true => Outcome::Skipped("packets differ also without it: see repeatable".to_owned()),
            false => in_process(args, check)?,
        };
        is_repeatable &= check.name != REPEATABLE || !matches!(outcome, Outcome::Failed(_));
        let (verdict, text) = outcome.parts();
        counts[match outcome {
            Outcome::Passed(_) => 0,
            Outcome::Failed(_) => 1,
            Outcome::Skipped(_) => 2,
        }] += 1;
        print(&format!("{:<11} {verdict:<8} {text}\n", check.name))?;
    }
    let [passed, failed, skipped] = counts;
    print(&format!("\n{passed} passed, {failed} failed, {skipped} skipped\n"))?;
    Ok(match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// The chain of the spec, or one of the library or module alone.
fn subject(args: &TestFunctionArgs) -> Result<Subject, CliError> {
    let is_spec = args
        .file
        .extension()
        .is_some_and(|extension| extension == "yaml" || extension == "yml");
    let (spec, text) = match (is_spec, &args.config) {
        (true, None) => (ChainSpec::read(&args.file)?, None),
        (true, Some(_)) => return Err(CliError::Input("--config: the spec has the configuration".to_owned())),
        (false, config) => {
            let path = fs::canonicalize(&args.file).map_err(|error| {
                CliError::of_file(format!("{}: cannot be read: {error}", args.file.display()), &error)
            })?;
            let kind = match path.extension() {
                Some(extension) if extension == "wasm" => "wasm",
                _ => "library",
            };
            let mut function = format!("file: {}", json_text(&path.to_string_lossy()));
            if let Some(config) = config {
                let config: serde_json::Value = serde_json::from_str(config)
                    .map_err(|error| CliError::Input(format!("--config: expected JSON: {error}")))?;
                // JSON is YAML; a map of several lines would change the places in messages.
                let _ = write!(function, ", config: {config}");
            }
            let text = format!(
                "apiVersion: tailwater.dev/v1alpha1\nkind: Chain\nmetadata: {{name: test}}\nspec:\n  functions:\n    - \
                 {kind}: {{{function}}}\n  slo: {{latency: 100ms}}\n"
            );
            let spec = ChainSpec::parse(&text, UNWRITTEN, Path::new("/"));
            (spec.map_err(|error| of_library(error, &args.file, &path))?, Some(text))
        }
    };
    Ok(Subject {
        spec,
        file: args.file.clone(),
        text,
    })
}

/// Name of the spec of a library, in errors that the user does not see.
const UNWRITTEN: &str = "test";

/// Error of the spec of a library, without places in that spec, which the user has not written.
fn of_library(error: SpecError, file: &Path, path: &Path) -> SpecError {
    let path = path.display().to_string();
    let errors = error.each().map(|error| {
        let mut error = SpecError {
            next: None,
            ..error.clone()
        };
        if error.file == UNWRITTEN {
            let kinds = ["library", "wasm"].map(|kind| format!("spec.functions[0].{kind}"));
            let field = kinds.iter().find_map(|kind| error.path.strip_prefix(kind.as_str()));
            let field = field.unwrap_or_default().trim_start_matches('.');
            (error.file, error.path) = match field.strip_prefix("config") {
                Some(field) => ("--config".to_owned(), field.trim_start_matches('.').to_owned()),
                None => (file.display().to_string(), String::new()),
            };
            (error.line, error.column) = (0, 0);
            // Messages about the file begin with its full path.
            if let Some(message) = error.message.strip_prefix(&path) {
                error.message = message.trim_start_matches([' ', ':']).to_owned();
            }
        }
        error
    });
    SpecError::all(errors.collect()).unwrap_or(error)
}

/// A text in quotes, as JSON and YAML have it.
fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Runs a check in a process.
fn in_process(args: &TestFunctionArgs, check: &Check) -> Result<Outcome, CliError> {
    let system = |source| CliError::System {
        what: "a check cannot be started",
        source,
    };
    let mut command = Command::new("/proc/self/exe");
    command
        .arg("test-function")
        .arg(&args.file)
        .args(["--check", check.name]);
    if let Some(config) = &args.config {
        command.arg("--config").arg(config);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(system)?;
    let output = child.stdout.take().map(|pipe| read_in_thread(pipe, MOST_BYTES));
    let errors = child.stderr.take().map(|pipe| read_in_thread(pipe, MOST_BYTES));
    let status = ended(&mut child, TIMEOUT).map_err(system)?;
    let text = |reader: Option<std::thread::JoinHandle<String>>| {
        let text = reader.map(std::thread::JoinHandle::join);
        text.and_then(Result::ok).unwrap_or_default()
    };
    let Some(status) = status else {
        return Ok(Outcome::Failed(format!("no end within {} s", TIMEOUT.as_secs())));
    };
    let (output, errors) = (text(output), text(errors));
    // The function may have written to standard output, too.
    let line = output.lines().rev().find_map(|line| line.strip_prefix(MARK));
    let result = line
        .filter(|_| status.success())
        .and_then(|line| Outcome::parse(line.trim()));
    Ok(result.unwrap_or_else(|| {
        let last = errors
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty())
            .unwrap_or_default();
        let last: String = last.chars().filter(|c| !c.is_control()).take(200).collect();
        let end = match (status.signal(), status.code()) {
            (Some(signal), _) => match signal_name(signal) {
                Some(name) => format!("crashed ({name})"),
                None => format!("crashed (signal {signal})"),
            },
            (None, Some(code)) => format!("ended with exit code {code}"),
            (None, None) => "ended".to_owned(),
        };
        Outcome::Failed(match &*last {
            "" => end,
            last => format!("{end}: {last}"),
        })
    }))
}
