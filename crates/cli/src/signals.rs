//! Signals that end a command, or reload the files of a run.

use crate::error::CliError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use tailwater_dataplane::reload_watcher;
use tailwater_files::stop_requested;

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

/// Lets the kernel end this process when the thread that started it ends.
///
/// # Errors
/// The kernel refuses.
pub fn end_with_parent() -> Result<(), CliError> {
    let set = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    set.map_err(|error| CliError::System {
        what: "the end of the parent process cannot be followed",
        source: error.into(),
    })
}

/// Makes a write beyond the largest size of files (`ulimit -f`) an error, which by default kills the process.
///
/// # Errors
/// The signal handler cannot be registered.
pub fn survive_file_limit() -> Result<(), CliError> {
    const SIGXFSZ: i32 = 25;
    let registered = signal_hook::flag::register(SIGXFSZ, Arc::default());
    registered.map(drop).map_err(|source| CliError::System {
        what: "signals cannot be handled",
        source,
    })
}

/// Returns the flag that SIGINT and SIGTERM set, which also [ends](stop_requested) reading and writing of pipes. A
/// second signal kills the process.
///
/// # Errors
/// A signal handler cannot be registered.
pub fn stop_on_signals() -> Result<Arc<AtomicBool>, CliError> {
    static REGISTERED: OnceLock<()> = OnceLock::new();
    let stop = stop_requested();
    if REGISTERED.set(()).is_ok() {
        for signal in [SIGINT, SIGTERM] {
            // In this order, so that the first signal finds the flag unset.
            let registered = signal_hook::flag::register_conditional_default(signal, Arc::clone(stop))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(stop)));
            registered.map_err(|source: io::Error| CliError::System {
                what: "signals cannot be handled",
                source,
            })?;
        }
    }
    Ok(Arc::clone(stop))
}
