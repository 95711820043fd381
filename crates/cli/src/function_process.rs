//! `tailwater function-process`: one function of a chain, for the `tailwater run` or `serve` that started this process.

use crate::error::{BAD_INPUT, CliError};
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;
use tailwater_isolation::program::{ProgramError, run_function, run_library};

/// Arguments of `tailwater function-process`.
#[derive(Debug, Args)]
pub struct FunctionProcessArgs {
    /// The chain spec
    pub chain: PathBuf,
    /// Index of a built-in function in the chain
    #[arg(required_unless_present = "library")]
    pub place: Option<usize>,
    /// Folder that files named in the spec are relative to [default: that of the spec]
    #[arg(long, value_name = "FOLDER")]
    pub base_dir: Option<PathBuf>,
    /// Shared library that contains the function instead
    #[arg(long, value_name = "FILE", conflicts_with = "place")]
    pub library: Option<PathBuf>,
}

/// Runs one function of a chain for the `tailwater run` or `serve` that started it.
///
/// # Errors
/// There is no server, or it disconnects.
pub fn function_process(args: &FunctionProcessArgs) -> Result<ExitCode, CliError> {
    let ran = match (&args.library, args.place) {
        (Some(library), _) => run_library(library),
        (None, place) => run_function(&args.chain, args.base_dir.as_deref(), place.unwrap_or_default()),
    };
    match ran {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // The parent process has received the reason and prints it.
        Err(ProgramError::Refused(_)) => Ok(ExitCode::from(BAD_INPUT)),
        Err(error) => Err(CliError::Input(error.to_string())),
    }
}
