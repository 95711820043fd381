//! Cores and real-time priority of functions' processes.
//!
//! One of the few modules with `unsafe` code: a system call.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::time::Duration;

/// The real-time priority of workers whose functions are isolated, and of these functions: above helpers.
pub const PRIORITY: u8 = 3;
/// The real-time priority of the thread that ends what does not yield.
pub const WATCH_PRIORITY: u8 = 4;

/// Queues a process behind all others of this priority on its core.
fn set_priority(process: u32, priority: u8) -> io::Result<()> {
    set_policy(process, libc::SCHED_FIFO, priority)
}

/// Makes this process an ordinary one.
pub(super) fn be_ordinary() -> io::Result<()> {
    set_policy(0, libc::SCHED_OTHER, 0)
}

fn set_policy(process: u32, policy: libc::c_int, priority: u8) -> io::Result<()> {
    let parameters = libc::sched_param {
        sched_priority: priority.into(),
    };
    // SAFETY: plain numbers, and a pointer that is only read, during the call.
    let set = unsafe { libc::sched_setscheduler(process as libc::pid_t, policy, &raw const parameters) };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Puts a process on a core, for good.
pub(super) fn put_on(process: u32, core: usize) -> io::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    Ok(sched_setaffinity(Pid::from_raw(process as i32), &cores)?)
}

/// Lets a process run soon, whatever its worker does: on the cores of who asks, or else before the worker.
pub(super) fn let_run(process: u32) {
    // What is refused makes it slower only; it may also have ended.
    if let Ok(cores) = sched_getaffinity(None) {
        let _ = sched_setaffinity(Pid::from_raw(process as i32), &cores);
    }
    let _ = set_priority(process, WATCH_PRIORITY);
}

/// Queues these processes on their core, in this order, behind all others of [`PRIORITY`]. Whether that is
/// permitted: without it they go on as ordinary ones.
pub(super) fn queue(processes: impl Iterator<Item = u32>) -> io::Result<bool> {
    for process in processes {
        // A process that has this priority already would stay where it is in the queue.
        let queued = set_priority(process, PRIORITY - 1).and_then(|()| set_priority(process, PRIORITY));
        match queued {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => return Ok(false),
            // It has just ended, which the watch will see.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Keeps these processes from their core as long as others of [`PRIORITY`] want it.
pub(super) fn set_back(processes: impl Iterator<Item = u32>) {
    for process in processes {
        // It may have ended, which the watch will see.
        let _ = set_priority(process, PRIORITY - 1);
    }
}

/// What a process does, as the kernel says: `R` for one that could run, `X` for one that is about to have ended; and the
/// time it has had on cores.
pub(super) fn state(process: u32) -> (char, Duration) {
    let read = |what: &str| std::fs::read_to_string(format!("/proc/{process}/{what}"));
    let stat = read("stat").unwrap_or_default();
    // The name before it may hold anything.
    let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let state = fields.next().and_then(|state| state.chars().next());
    // Leaving its namespaces takes the kernel a while, in which it sleeps.
    const EXITING: u64 = 4;
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok());
    let state = match flags {
        Some(flags) if flags & EXITING != 0 => Some('X'),
        _ => state,
    };
    let schedule = read("schedstat").unwrap_or_default();
    let on_core = schedule.split_whitespace().next();
    let on_core = on_core.and_then(|nanos| nanos.parse().ok()).unwrap_or(0);
    (state.unwrap_or('?'), Duration::from_nanos(on_core))
}
