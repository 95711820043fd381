//! Errors of isolating functions.

use std::io;
use tailwater_functions::build::BuildError;

/// Reasons for which functions cannot be isolated.
#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    /// A program cannot be started.
    #[error("function {function}: {program} cannot be started: {source}")]
    Launch {
        /// The function's name.
        function: String,
        /// The program.
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// A program rejects its configuration.
    #[error("function {function}: {}{message}", at(.field))]
    Refused {
        /// The function's name.
        function: String,
        /// The rejected field of its configuration; empty for the whole.
        field: String,
        /// The program's reason.
        message: String,
    },
    /// A program is not a function that can be run.
    #[error("function {function}: {message}")]
    NotAFunction {
        /// The function's name.
        function: String,
        /// The reason.
        message: String,
    },
    /// A program violates the protocol or does not respond.
    #[error("function {function}: its process did not {due}: {reason}")]
    ProtocolViolation {
        /// The function's name.
        function: String,
        /// The step that was due.
        due: &'static str,
        /// The observed failure.
        reason: String,
    },
    /// The functions cannot be combined in a chain.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Processes of one function return different descriptions.
    #[error("processes of one function sent different descriptions of it")]
    DescriptionMismatch,
    /// There is not enough memory.
    #[error("out of memory for isolated functions: {0}")]
    Memory(io::Error),
    /// The pipe for a function's standard error, or its thread, cannot be created.
    #[error("the pipe for a function's standard error cannot be created: {0}")]
    StandardError(io::Error),
    /// This process's own defences are not available.
    #[error(transparent)]
    Server(#[from] tailwater_confine::Error),
    /// The watchdog thread cannot be started.
    #[error("the watchdog thread of isolated functions cannot be started: {0}")]
    Thread(io::Error),
}

fn at(field: &str) -> String {
    match field {
        "" => String::new(),
        field => format!("{field}: "),
    }
}
