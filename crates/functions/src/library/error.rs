//! Why a library cannot be used.

use std::io;
use tailwater_sdk::host::{WrongConfig, WrongFunction};

/// Why a library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The file cannot be read.
    #[error("cannot be read: {error}{}", advice(.0), error = .0)]
    Read(io::Error),
    /// It is no file.
    #[error("expected a shared library, found a folder or device")]
    NoFile,
    /// No child process can be had to try it in.
    #[error("cannot be tried out in a child process: {0}")]
    Child(io::Error),
    /// It ended the child process that it was tried in.
    #[error("{how} while {doing}{said}")]
    Crashed {
        /// What the library was asked to do.
        doing: &'static str,
        /// How the process ended, as in `crashed (SIGSEGV)`.
        how: String,
        /// What the library printed last, if anything, as in `; it said "..."`.
        said: String,
    },
    /// The dynamic linker refuses it.
    #[error("cannot be loaded: {0}")]
    Linker(String),
    /// It is a library, but not one for Tailwater.
    #[error("expected a library that exports tailwater_function (see tailwater_nf.h), found none of that name")]
    NoSymbol,
    /// It is one, but not for this version, or says what makes no sense.
    #[error(transparent)]
    Function(#[from] WrongFunction),
    /// It gives no instance.
    #[error("tailwater_function: start: expected an instance, found NULL")]
    NoInstance,
    /// It does not work in a process of its own.
    #[error("{0}")]
    Apart(String),
    /// It refuses its configuration.
    #[error("{message}")]
    Config {
        /// The field, such as `limits[2].rate`; empty for all of it.
        field: String,
        /// What the library says.
        message: String,
    },
}

/// What to do about a file that cannot be read.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; expected one that has been built",
        _ => "",
    }
}

impl From<WrongConfig> for LibraryError {
    fn from(WrongConfig { field, message }: WrongConfig) -> LibraryError {
        LibraryError::Config { field, message }
    }
}
