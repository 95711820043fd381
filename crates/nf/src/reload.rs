//! Files that functions read again while they run.
//!
//! A function whose rules are in a file, and can be [replaced](crate::live::Live) under the workers, says so by a
//! [`Reload`]; whoever runs the chain watches the file, on a thread off the data path, and has it read again.

use std::path::Path;
use std::sync::Arc;

/// A file that can be read again.
pub trait Reload: Send + Sync {
    /// The file.
    fn file(&self) -> &Path;

    /// Reads it again and puts what is in it in force. Returns what is new, in lines for a user.
    ///
    /// # Errors
    /// Everything that is wrong, a line each. What was in force stays.
    fn reload(&self) -> Result<Vec<String>, Vec<String>>;
}

/// Files of a chain, each with the name of its function.
pub type Reloads = Vec<(String, Arc<dyn Reload>)>;
