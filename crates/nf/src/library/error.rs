//! Why a library cannot be used.

use std::io;

/// Why a library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
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
    #[error(
        "expected a library that exports tailwater_function (see tailwater_nf.h), found none of that name"
    )]
    NoSymbol,
    /// It was built for another version of the header.
    #[error(
        "expected a library built with version {expected} of tailwater_nf.h, found version {found}: \
         build it again with this program's"
    )]
    Version {
        /// This program's version.
        expected: u32,
        /// The library's.
        found: u32,
    },
    /// What it says of itself makes no sense.
    #[error("tailwater_function: {0}")]
    Description(String),
    /// It refuses its configuration.
    #[error("{message}")]
    Config {
        /// The field, such as `limits[2].rate`; empty for all of it.
        field: String,
        /// What the library says.
        message: String,
    },
}
