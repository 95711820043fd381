//! The `tailwater` command.

mod args;
mod baseline;
#[cfg(feature = "cluster")]
mod cluster;
mod conformance;
pub(crate) mod contention;
mod control;
mod curves;
mod dates;
pub(crate) mod demo;
mod diff;
mod doctor;
mod error;
mod explain;
mod export_sources;
mod files;
mod function_process;
mod headings;
mod html;
mod init;
mod input;
mod isolation;
mod matching;
mod memory;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "no_metrics.rs"]
mod metrics;
mod new_function;
mod output;
mod packets;
mod place;
mod predict;
mod profile;
mod progress;
pub(crate) mod run;
mod serve;
mod shell;
mod signals;
mod simulate;
mod specs;
mod systemd;
pub(crate) mod table;
#[cfg(feature = "metrics")]
mod telemetry;
#[cfg(not(feature = "metrics"))]
#[path = "no_telemetry.rs"]
mod telemetry;
mod text;
mod timed;
mod top;
mod trace;
mod values;
mod version;

use args::{Cli, Command, ProfileCommand};
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser};
use curves::CurveSelection;
use error::CliError;
use output::complain;
use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use tailwater_dataplane::clock::Clock;
use tailwater_functions::library;
use trace::TraceCommand;

/// Longest argument in bytes: four times the longest path.
const LONGEST_ARGUMENT: usize = 16 << 10;

fn main() -> ExitCode {
    Clock::prepare();
    if let Err(error) = check_lengths(std::env::args_os()) {
        complain("error", &error);
        return ExitCode::from(error::BAD_INPUT);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(error),
    };
    // A function's process handles no signals.
    if !matches!(cli.command, Command::FunctionProcess(_) | Command::TryLibrary(_))
        && let Err(error) = prepare()
    {
        complain("error", &error.to_string());
        return error.exit_code();
    }
    // Independent of the file's name: it may be replaced while the program runs.
    library::try_by("/proc/self/exe", args::TRY_LIBRARY);
    let outcome = match cli.command.time_to_stop() {
        None => execute(cli.command),
        Some(time) => signals::until_stopped(time, || execute(cli.command)),
    };
    match outcome {
        Ok(_) if memory::is_short() => {
            complain("error", "out of memory: stopped early, and the results are partial");
            ExitCode::FAILURE
        }
        Ok(code) => code,
        Err(error) => {
            match &error {
                // All errors, one line each.
                error::CliError::Spec(errors) => errors.each().for_each(|error| complain("error", &error.to_line())),
                error::CliError::Server { message, .. } => message.lines().for_each(|line| complain("error", line)),
                error => complain("error", &error.to_string()),
            }
            error.exit_code()
        }
    }
}

/// Executes a command.
///
/// # Errors
/// Those of the command.
fn execute(command: Command) -> Result<ExitCode, CliError> {
    match command {
        Command::Demo(args) => demo::demo(&args),
        Command::Init(args) => init::init(&args),
        Command::Run(args) => run::run(&args),
        Command::Serve(args) => serve::serve(&args),
        #[cfg(feature = "cluster")]
        Command::Controller(args) => cluster::controller(&args),
        #[cfg(feature = "cluster")]
        Command::Agent(args) => cluster::agent(&args),
        #[cfg(feature = "cluster")]
        Command::Ingress(args) => cluster::ingress(&args),
        #[cfg(feature = "cluster")]
        Command::Definitions => cluster::definitions(),
        Command::Profile(ProfileCommand::Capacity(args)) => profile::capacity(&args),
        Command::Profile(ProfileCommand::Latency(args)) => curves::measure(CurveSelection::Latency, &args),
        Command::Profile(ProfileCommand::Cache(args)) => curves::measure(CurveSelection::Cache, &args),
        Command::Profile(ProfileCommand::All(args)) => curves::measure(CurveSelection::All, &args),
        #[cfg(feature = "cluster")]
        Command::Profile(ProfileCommand::Publish(args)) => cluster::publish(&args),
        Command::Profile(ProfileCommand::Contention(args)) => contention::contention(&args),
        Command::Profile(ProfileCommand::Diff(args)) => curves::diff(&args),
        Command::Profile(ProfileCommand::Curves(args)) => curves::curves(&args),
        Command::Simulate(args) => simulate::simulate(&args),
        Command::Place(args) => place::place(&args),
        Command::Predict(args) => predict::predict(&args),
        Command::Explain(args) => explain::explain(&args),
        Command::Diff(args) => diff::diff(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Validate(args) => specs::validate(&args),
        Command::ExplainSpec(args) => specs::explain_spec(&args),
        Command::Schema(args) => specs::schema(&args),
        Command::Apply(args) => control::apply(&args),
        Command::Get(args) => control::get(&args),
        Command::Describe(args) => control::describe(&args),
        Command::Delete(args) => control::delete(&args),
        Command::Drain(args) => control::drain(&args),
        Command::Events(args) => control::events(&args),
        Command::Top(args) => top::top(&args),
        Command::Trace(TraceCommand::Info(args)) => trace::info(&args),
        Command::Trace(TraceCommand::Convert(args)) => trace::convert(&args),
        Command::Trace(TraceCommand::Synth(args)) => trace::synth(&args),
        Command::Trace(TraceCommand::Packets(args)) => packets::packets(&args),
        Command::Completions(args) => shell::completions(&args, Cli::command()),
        Command::ManPages(args) => shell::man_pages(&args, Cli::command()),
        Command::FunctionProcess(args) => function_process::function_process(&args),
        Command::TryLibrary(args) => Err(CliError::System {
            what: "the library cannot be tried out",
            source: library::try_out(&args.library),
        }),
        Command::NewFunction(args) => new_function::new_function(&args),
        Command::TestFunction(args) => conformance::test_function(&args),
    }
}

/// Prepares for signals, and for limits that the process may reach.
fn prepare() -> Result<(), CliError> {
    signals::stop_on_signals()?;
    signals::survive_file_limit()?;
    memory::prepare().map_err(|source| CliError::System {
        what: "signals cannot be handled",
        source,
    })
}

/// Checks that no argument is longer than any valid one. The parser compares an unknown option with all known ones,
/// which takes quadratic time.
fn check_lengths(arguments: impl Iterator<Item = OsString>) -> Result<(), String> {
    for (number, argument) in arguments.enumerate() {
        let length = argument.len();
        if length > LONGEST_ARGUMENT {
            let start: String = argument.to_string_lossy().chars().take(40).collect();
            return Err(format!(
                "argument {number}: expected at most {LONGEST_ARGUMENT} bytes, found {length}: \"{start}...\""
            ));
        }
    }
    Ok(())
}

/// Removes hidden commands from the suggestions of an error: this program starts them, not the user.
fn without_hidden_commands(error: &mut clap::Error) {
    let Some(ContextValue::Strings(names)) = error.remove(ContextKind::SuggestedSubcommand) else {
        return;
    };
    let command = Cli::command();
    let is_hidden = |name: &String| command.find_subcommand(name).is_some_and(clap::Command::is_hide_set);
    let names: Vec<String> = names.into_iter().filter(|name| !is_hidden(name)).collect();
    if !names.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
    }
}

/// Prints help or the version. A closed pipe is not an error.
fn help(message: &clap::Error) -> ExitCode {
    // On standard error if a command or an argument is missing.
    match message.print().and_then(|()| io::stdout().flush()) {
        Err(error) if !message.use_stderr() && error.kind() != ErrorKind::BrokenPipe => {
            let error = CliError::Output(error);
            complain("error", &error.to_string());
            error.exit_code()
        }
        _ => ExitCode::from(message.exit_code() as u8),
    }
}

/// Prints the argument parser's message: help and version in full, errors on one line.
fn usage(mut error: clap::Error) -> ExitCode {
    if error.exit_code() == 0 || error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return help(&error);
    }
    without_hidden_commands(&mut error);
    let rendered = error.render().to_string();
    let message: Vec<&str> = rendered
        .lines()
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"))
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let message = message
        .join(" ")
        .replace(" tip: ", "; ")
        .replace(" [possible", "; [possible");
    complain("error", message.trim_start_matches("error: "));
    ExitCode::from(error::BAD_INPUT)
}
