//! Files that are read again while a chain runs.
//!
//! What can be [replaced](tailwater_chain::live::Live) under the workers is said in files; whoever runs the chain watches these, on
//! a thread off the data path, and has them read again.

use std::path::PathBuf;

/// What files say, and can say anew.
pub trait Reload: Send + Sync {
    /// The files. They may be others after they were read again.
    fn files(&self) -> Vec<PathBuf>;

    /// Reads them again and puts what is new in force. Returns that, in lines for a user; none if nothing is.
    ///
    /// # Errors
    /// Everything that is wrong, a line each. What was in force stays, all of it.
    fn reload(&self) -> Result<Vec<String>, Vec<String>>;
}
