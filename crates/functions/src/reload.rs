//! Reload of files while a chain runs.
//!
//! Configuration that can be [replaced](tailwater_chain::live::Live) while workers run comes from files. The program
//! that runs the chain watches these on a thread off the data path, and reloads them.

use std::path::PathBuf;

/// Configuration that can be reloaded from its files.
pub trait Reload: Send + Sync {
    /// Returns the files, which a reload can change.
    fn files(&self) -> Vec<PathBuf>;

    /// Reloads the files and applies the changes. Returns the changes as lines for a user; empty if nothing changed.
    ///
    /// # Errors
    /// If a file is invalid: one line for each problem. The current configuration then stays in force as a whole.
    fn reload(&self) -> Result<Vec<String>, Vec<String>>;
}

impl<R: Reload + ?Sized> Reload for std::sync::Arc<R> {
    fn files(&self) -> Vec<PathBuf> {
        (**self).files()
    }

    fn reload(&self) -> Result<Vec<String>, Vec<String>> {
        (**self).reload()
    }
}
