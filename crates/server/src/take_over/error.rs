//! Errors of a take-over.

use std::io;
use std::path::PathBuf;

/// Reason for which no take-over takes place: the running server goes on.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// No server runs.
    #[error("{path}: no server to take over from: {source}; without --take-over, this one starts by itself")]
    NoServer {
        /// Socket of take-overs.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// One of both refuses.
    #[error("take-over refused, the running server goes on: {0}")]
    Refused(String),
    /// The running server refuses for now: repeating the same may help.
    #[error("take-over refused, the running server goes on: {0}")]
    RefusedForNow(String),
    /// It did not succeed.
    #[error("take-over failed, the running server goes on: {0}")]
    Failed(String),
    /// The running server ended before it had handed anything over.
    #[error("take-over failed, the running server has ended: {0}; start this one without --take-over")]
    Ended(String),
}

impl From<io::Error> for TakeOverError {
    fn from(error: io::Error) -> TakeOverError {
        TakeOverError::Failed(error.to_string())
    }
}
