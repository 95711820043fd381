//! Context in which a function's configuration is read.

use crate::library::ExecutionMode;
use std::cell::RefCell;
use std::path::{Path, PathBuf};

/// Context for reading a function's configuration, in addition to its YAML.
pub struct Context<'a> {
    /// Folder that file names in the spec are relative to.
    base_dir: &'a Path,
    /// Process in which third-party functions run.
    runs: ExecutionMode<'a>,
    /// Files named since this was last taken.
    named: RefCell<Vec<PathBuf>>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(base_dir: &'a Path, runs: ExecutionMode<'a>) -> Context<'a> {
        Context {
            base_dir,
            runs,
            named: RefCell::new(Vec::new()),
        }
    }

    /// Resolves the path of a file that a function names, and records it.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        let path = self.base_dir.join(name);
        self.named.borrow_mut().push(path.clone());
        path
    }

    /// Process in which third-party functions run.
    pub(crate) fn runs(&self) -> ExecutionMode<'a> {
        self.runs
    }

    /// Returns `true` if functions run in processes of their own.
    pub(crate) fn is_apart(&self) -> bool {
        matches!(self.runs, ExecutionMode::Isolated(_))
    }

    /// Takes the files named since the last call.
    pub(crate) fn take_named(&self) -> Vec<PathBuf> {
        self.named.take()
    }
}
