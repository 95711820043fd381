//! Why functions cannot be isolated.

use std::io;
use tailwater_functions::build::BuildError;

/// Why functions cannot be isolated.
#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    /// A program cannot be started.
    #[error("function {function}: {program} cannot be started: {source}")]
    Launch {
        /// The function's name.
        function: String,
        /// The program.
        program: String,
        /// What the system says.
        source: io::Error,
    },
    /// A program refuses its configuration.
    #[error("function {function}: {}{message}", at(.field))]
    Refused {
        /// The function's name.
        function: String,
        /// The field of its configuration; empty for all of it.
        field: String,
        /// What is wrong with it.
        message: String,
    },
    /// A program is no function that could be run.
    #[error("function {function}: {message}")]
    Unfit {
        /// The function's name.
        function: String,
        /// What is wrong.
        message: String,
    },
    /// A program does not speak as it should.
    #[error("function {function}: its process was to {due}: {reason}")]
    Silent {
        /// The function's name.
        function: String,
        /// What it was to do.
        due: &'static str,
        /// What it did.
        reason: String,
    },
    /// The functions do not go together.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Processes of one function say different things.
    #[error("processes of one function describe it in different ways")]
    Differ,
    /// There is not enough memory.
    #[error("there is no memory for isolated functions: {0}")]
    Memory(io::Error),
    /// The watching thread cannot be started.
    #[error("the thread that watches isolated functions cannot be started: {0}")]
    Thread(io::Error),
}

fn at(field: &str) -> String {
    match field {
        "" => String::new(),
        field => format!("{field}: "),
    }
}
