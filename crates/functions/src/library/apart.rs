//! Functions whose code this process does not run.

use super::error::LibraryError;
use std::path::Path;

/// The code of a function of somebody else's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code<'a> {
    /// A shared library.
    Library(&'a Path),
    /// An executable.
    Program(&'a Path),
}

impl<'a> Code<'a> {
    /// The file that it is in.
    pub fn file(&self) -> &'a Path {
        match self {
            Code::Library(file) | Code::Program(file) => file,
        }
    }
}

/// Finds out about functions of others in processes of their own.
pub trait Apart {
    /// Has a function read its configuration, a JSON object. The name that it gives itself.
    ///
    /// # Errors
    /// What is wrong with the code, or its configuration.
    fn learn(&self, code: &Code<'_>, config: &str) -> Result<String, LibraryError>;
}

/// Where functions of others are to run.
#[derive(Clone, Copy)]
pub enum Runs<'a> {
    /// In this process.
    Here,
    /// In processes of their own.
    Apart(&'a dyn Apart),
}
