//! CPU affinity and real-time priority of functions' processes.
//!
//! One of the few modules with `unsafe` code: a system call.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::time::Duration;

/// Real-time priority of workers with isolated functions, and of these functions: above auxiliary cores' threads.
pub const PRIORITY: u8 = 3;
/// Real-time priority of the watchdog thread.
pub const WATCH_PRIORITY: u8 = 4;

/// Sets the priority of a process and queues it behind all others of that priority on its core.
fn set_priority(process: u32, priority: u8) -> io::Result<()> {
    set_policy(process, libc::SCHED_FIFO, priority)
}

/// Sets the calling thread's scheduling policy to `SCHED_OTHER`.
pub(super) fn set_ordinary_priority() -> io::Result<()> {
    set_policy(0, libc::SCHED_OTHER, 0)
}

fn set_policy(process: u32, policy: libc::c_int, priority: u8) -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority.into(),
    };
    // SAFETY: the arguments are plain numbers, and a pointer that is only read during the call.
    let set = unsafe { libc::sched_setscheduler(process as libc::pid_t, policy, &raw const parameters) };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Pins a process to a core.
pub(super) fn put_on(process: u32, core: usize) -> io::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(Pid::from_raw(process as i32), &cores)?)
}

/// Lets a process run soon, even if its worker never yields: on the caller's cores if possible, or else at a priority
/// above the worker.
pub(super) fn let_run(process: u32) {
    // A refusal only makes it slower; the process may also have ended.
    if let Ok(cores) = sched_getaffinity(None) {
        let _ = sched_setaffinity(Pid::from_raw(process as i32), &cores);
    }
    let _ = set_priority(process, WATCH_PRIORITY);
}

/// Queues these processes on their core, in this order, behind all others of [`PRIORITY`]. Returns `false` if that is
/// not permitted; the processes then stay ordinary ones.
pub(super) fn queue(processes: impl Iterator<Item = u32>) -> io::Result<bool> {
    for process in processes {
        // Without a change of priority, a process would keep its position in the queue.
        let queued = set_priority(process, PRIORITY - 1).and_then(|()| set_priority(process, PRIORITY));
        match queued {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => return Ok(false),
            // It has just ended, which the watchdog will detect.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Moves these processes to a priority below [`PRIORITY`].
pub(super) fn set_back(processes: impl Iterator<Item = u32>) {
    for process in processes {
        // It may have ended, which the watchdog will detect.
        let _ = set_priority(process, PRIORITY - 1);
    }
}

/// State of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessState {
    /// It has a core or is queued for one.
    Runnable,
    /// It waits for something else.
    Idle,
    /// It was stopped by a signal.
    Stopped,
    /// It is exiting or has ended.
    Ended,
    /// There is no such process.
    Unknown,
}

/// Returns a process's state and CPU time from `/proc`.
pub(super) fn state(process: u32) -> (ProcessState, Duration) {
    let read = |what: &str| std::fs::read_to_string(format!("/proc/{process}/{what}"));
    let stat = read("stat").unwrap_or_default();
    // The command name before it may contain any characters.
    let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let state = fields.next().and_then(|state| state.chars().next());
    // The kernel takes a while to tear down namespaces, during which the process sleeps.
    const EXITING: u64 = 4;
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok());
    let state = match flags {
        Some(flags) if flags & EXITING != 0 => ProcessState::Ended,
        _ => match state {
            Some('R') => ProcessState::Runnable,
            Some('T') => ProcessState::Stopped,
            Some('Z' | 'X') => ProcessState::Ended,
            Some(_) => ProcessState::Idle,
            None => ProcessState::Unknown,
        },
    };
    let schedule = read("schedstat").unwrap_or_default();
    let on_core = schedule.split_whitespace().next();
    let on_core = on_core.and_then(|nanos| nanos.parse().ok()).unwrap_or(0);
    (state, Duration::from_nanos(on_core))
}
