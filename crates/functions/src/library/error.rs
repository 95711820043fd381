//! Errors of loading and configuring a library.

use std::io;
use tailwater_sdk::host::{WrongConfig, WrongFunction};

/// Error of loading or configuring a library.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The file cannot be read.
    #[error("cannot be read: {error}{}", advice(.0), error = .0)]
    Read(io::Error),
    /// The path is not a file.
    #[error("expected a shared library, found a folder or device")]
    NoFile,
    /// No child process can be started for the trial.
    #[error("cannot be tested in a child process: {0}")]
    Child(io::Error),
    /// The child process of the trial ended early.
    #[error("{how} while {doing}{said}")]
    Crashed {
        /// Step that the library was executing.
        doing: &'static str,
        /// End of the process, as in `crashed (SIGSEGV)`.
        how: String,
        /// Last output of the library, if any, as in `; last output "..."`.
        said: String,
    },
    /// The dynamic linker rejects the library.
    #[error("cannot be loaded: {0}")]
    Linker(String),
    /// The file is a library, but not one for Tailwater.
    #[error("expected a library that exports tailwater_function (see tailwater_nf.h), found none of that name")]
    NoSymbol,
    /// The library is for another version of Tailwater, or its description is invalid.
    #[error(transparent)]
    Function(#[from] WrongFunction),
    /// The library does not create an instance.
    #[error("tailwater_function: start: expected an instance, found NULL")]
    NoInstance,
    /// The function does not work in a process of its own.
    #[error("{0}")]
    Apart(String),
    /// The library rejects its configuration.
    #[error("{message}")]
    Config {
        /// Field, such as `limits[2].rate`; empty for the whole configuration.
        field: String,
        /// Message of the library.
        message: String,
    },
}

/// Advice for a file that cannot be read.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; build it first",
        _ => "",
    }
}

impl From<WrongConfig> for LibraryError {
    fn from(WrongConfig { field, message }: WrongConfig) -> LibraryError {
        LibraryError::Config { field, message }
    }
}
