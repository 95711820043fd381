//! Signals that end a command, or reload the files of a run.

mod stop;

use crate::error::CliError;
use crate::memory;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tailwater_dataplane::reload_watcher;
use tailwater_files::stop_requested;

/// Interval between checks of the stop flag.
const PAUSE: Duration = Duration::from_millis(50);

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
/// second signal, 0.2 s later or more, kills the process. A signal that the parent made the process ignore, as shells
/// do with SIGINT for `command &` in a script, stays ignored.
///
/// # Errors
/// A signal handler cannot be registered.
pub fn stop_on_signals() -> Result<Arc<AtomicBool>, CliError> {
    static REGISTERED: OnceLock<()> = OnceLock::new();
    let stop = stop_requested();
    if REGISTERED.set(()).is_ok() {
        for signal in [SIGINT, SIGTERM].into_iter().filter(|signal| !is_ignored(*signal)) {
            stop::set_on(signal, stop).map_err(|source| CliError::System {
                what: "signals cannot be handled",
                source,
            })?;
        }
    }
    Ok(Arc::clone(stop))
}

/// Returns `true` if this process ignores the signal.
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut ignored = status.lines().filter_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored
        .next()
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Does work that cannot be stopped, on a thread of its own; `None` once a signal set `stop`. The thread is then
/// abandoned, and ends with the program.
pub fn unless_stopped<T: Send + 'static>(stop: &AtomicBool, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (work, done) = sending(work);
    wait(stop, Duration::ZERO, std::thread::spawn(work), &done)
}

/// Executes a command that does not read the stop flag, or not always, on a thread of its own. After a signal it has
/// `time` to end by itself; then the thread is abandoned, and ends with the program.
///
/// # Errors
/// Those of the command, a signal ended it, or there is no thread.
pub fn until_stopped(
    time: Duration,
    command: impl FnOnce() -> Result<ExitCode, CliError> + Send + 'static,
) -> Result<ExitCode, CliError> {
    /// Size of the stack in bytes, as that of the first thread.
    const STACK: usize = 8 << 20;
    let stop = stop_on_signals()?;
    let (command, done) = sending(command);
    let thread = std::thread::Builder::new().name("main".to_owned()).stack_size(STACK);
    let thread = thread.spawn(command).map_err(|error| {
        let limits = "out of memory, or a limit of this user's processes (ulimit -v, -u)";
        CliError::Exhausted(format!("the command's thread cannot be started: {limits}: {error}"))
    })?;
    wait(&stop, time, thread, &done).unwrap_or_else(|| {
        // The command may have left a question or its progress on the line.
        if io::stderr().is_terminal() {
            let _ = writeln!(io::stderr());
        }
        let message = "interrupted before the result was complete";
        Err(CliError::Stopped(message.to_owned()))
    })
}

/// Returns work that sends its result, and the receiver.
fn sending<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> (impl FnOnce() + Send + 'static, Receiver<T>) {
    let (sender, done) = channel();
    let work = move || {
        // The receiver may be gone.
        let _ = sender.send(work());
    };
    (work, done)
}

/// Waits for a worker's result; `None` if it has sent none within `time` after a signal.
fn wait<T>(stop: &AtomicBool, time: Duration, worker: JoinHandle<()>, done: &Receiver<T>) -> Option<T> {
    let mut stopped: Option<Instant> = None;
    loop {
        match done.recv_timeout(PAUSE) {
            Ok(result) => return Some(result),
            // Short memory sets the flag, too, so that the command goes on with what it has.
            Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) && !memory::is_short() => {
                if stopped.get_or_insert_with(Instant::now).elapsed() >= time {
                    return None;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => match worker.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => unreachable!("it sends its result"),
            },
        }
    }
}
