//! Functions in processes of their own: `tailwater run --isolation process`.

use crate::args::FunctionProcessArgs;
use crate::error::CliError;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use tailwater_isolation::program::run_function;
use tailwater_isolation::server::{IsolationConfig, Launch, Program};
use tailwater_nf::spec::ChainSpec;

/// Runs one function of a chain for the `tailwater run` that started it.
pub fn function_process(args: &FunctionProcessArgs) -> Result<ExitCode, CliError> {
    run_function(&args.chain, args.place).map_err(|error| CliError::Input(error.to_string()))?;
    Ok(ExitCode::SUCCESS)
}

/// Processes of this program for the functions of a chain.
pub fn processes(
    chain: &Path,
    spec: &ChainSpec,
    cores: &[usize],
) -> Result<IsolationConfig, CliError> {
    let wrong = |message: String| Err(CliError::Input(message));
    if !fs::metadata(chain).is_ok_and(|file| file.is_file()) {
        return wrong(format!(
            "--isolation process: expected the chain in a file, which every function reads for itself, found {}",
            chain.display()
        ));
    }
    let program = std::env::current_exe().map_err(|source| CliError::System {
        what: "this program's file cannot be found",
        source,
    })?;
    let launch = Launch {
        program: program.into(),
        // By the same name: so relative names of files in it mean the same.
        arguments: [
            OsStr::new("function-process"),
            OsStr::new("--"),
            chain.as_ref(),
        ]
        .map(OsString::from)
        .into(),
    };
    let programs = Program::of_chain(spec, &launch);
    if let Some(writer) = programs.iter().find(|program| program.alone)
        && cores.len() > 1
    {
        return wrong(format!(
            "--isolation process: {}: export.file can be written by one process only: leave it out, or run on \
             one core",
            writer.function
        ));
    }
    Ok(IsolationConfig::new(programs, spec.slo.budget()))
}
