//! Signals that end a command, or reload the files of a run.

use crate::error::CliError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tailwater_dataplane::reload_watcher;

/// Makes SIGHUP request a reload of files.
///
/// # Errors
/// The signal handler cannot be registered.
pub fn reload_on_signal() -> Result<(), CliError> {
    let registered = signal_hook::flag::register(SIGHUP, Arc::clone(reload_watcher::reload_requested()));
    registered.map(drop).map_err(|source| CliError::System {
        what: "signals cannot be handled",
        source,
    })
}

/// Returns a flag that SIGINT and SIGTERM set. A second signal kills the process.
///
/// # Errors
/// A signal handler cannot be registered.
pub fn stop_on_signals() -> Result<Arc<AtomicBool>, CliError> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order, so that the first signal finds the flag unset.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|source| CliError::System {
                what: "signals cannot be handled",
                source,
            })?;
    }
    Ok(stop)
}
