//! A function from a library as a program.

use std::path::Path;
use tailwater_functions::library::load;
use tailwater_sdk::program::{ProgramError, Refusal, serve_function};

/// Runs the function in a shared library, for the server at the other end of standard input, until the chain ends. The
/// library is loaded after the server has connected.
///
/// # Errors
/// As [`run`](super::run).
pub fn run_library(file: &Path) -> Result<(), ProgramError> {
    serve_function(|| {
        load(file).map_err(|error| Refusal::Unfit {
            message: error.to_string(),
        })
    })
}
