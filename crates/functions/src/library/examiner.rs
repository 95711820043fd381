//! Third-party functions that do not run in this process.

use super::error::LibraryError;
use std::path::Path;

/// Code of a third-party function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code<'a> {
    /// A shared library.
    Library(&'a Path),
    /// An executable.
    Program(&'a Path),
    /// A socket by which processes of the function join.
    Socket(&'a Path),
}

impl<'a> Code<'a> {
    /// File that holds the code, or the socket.
    pub fn file(&self) -> &'a Path {
        match self {
            Code::Library(file) | Code::Program(file) | Code::Socket(file) => file,
        }
    }
}

/// Examines third-party functions in processes of their own.
pub trait CodeExaminer {
    /// Makes a function read its configuration, a JSON object. Returns the name that it reports.
    ///
    /// # Errors
    /// If the code or its configuration is invalid.
    fn read_name(&self, code: &Code<'_>, config: &str) -> Result<String, LibraryError>;
}

/// Process in which third-party functions run.
#[derive(Clone, Copy)]
pub enum ExecutionMode<'a> {
    /// This process.
    InProcess,
    /// Processes of their own.
    Isolated(&'a dyn CodeExaminer),
}
