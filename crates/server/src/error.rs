//! Errors of a server's start.

use crate::configuration::ControlError;
use std::io;
use std::path::PathBuf;
use tailwater_api::SpecError;

/// Reason for which a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Its specification or the files of its chains are wrong.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Its chains cannot run.
    #[error(transparent)]
    Chains(#[from] ControlError),
    /// Another server uses its socket or state.
    #[error("another server is running: it uses {0}")]
    Running(PathBuf),
    /// The group of `spec.control.readers` does not exist.
    #[error("spec.control.readers: there is no group \"{0}\"")]
    NoGroup(String),
    /// The state folder cannot be used.
    #[error("{path}: the state folder cannot be used: {source}{}", hint(.source))]
    State {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A running server cannot be taken over.
    #[error(transparent)]
    TakeOver(#[from] crate::take_over::TakeOverError),
    /// The control socket cannot be used.
    #[error("{path}: the control socket cannot be used: {source}")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Advice on an error of the state folder: its default belongs to root.
fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "; name another one in spec.stateDirectory, or set XDG_STATE_HOME",
        _ => "",
    }
}
