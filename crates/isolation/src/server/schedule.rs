//! CPU affinity, real-time priority and processor time of functions' processes.
//!
//! One of the few modules with `unsafe` code: system calls.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::time::Duration;

/// Real-time priority of workers with isolated functions, and of these functions: above auxiliary cores' threads.
pub const PRIORITY: u8 = 3;
/// Real-time priority of the watchdog thread.
pub const WATCH_PRIORITY: u8 = 4;

/// Sets the priority of a process and queues it behind all others of that priority on its core.
fn set_priority(process: u32, priority: u8) -> io::Result<()> {
    // Its children have ordinary priority.
    set_policy(process, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, priority)
}

/// Gives a process ordinary priority again.
pub(super) fn make_ordinary(process: u32) -> io::Result<()> {
    set_policy(process, libc::SCHED_OTHER, 0)
}

/// Returns a core of the calling thread other than `core`, if there is one.
pub(super) fn another_core(core: usize) -> Option<usize> {
    let cores = sched_getaffinity(None).ok()?;
    (0..CpuSet::MAX_CPU).find(|other| *other != core && cores.is_set(*other))
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

/// Runs the calling thread on a core for a moment: waits until the core runs, and everything of higher priority lets
/// it. Does nothing if the core is not one of the thread's.
pub(super) fn visit(core: usize) {
    let Ok(cores) = sched_getaffinity(None) else {
        return;
    };
    if core < CpuSet::MAX_CPU && cores.is_set(core) {
        let mut only = CpuSet::new();
        only.set(core);
        // The call returns on the core.
        if sched_setaffinity(None, &only).is_ok() {
            let _ = sched_setaffinity(None, &cores);
        }
    }
}

/// Queues these processes on their core, in this order, behind all others of [`PRIORITY`]. Returns `false` if that is
/// not permitted; the processes then stay ordinary ones.
pub(super) fn queue(processes: impl Iterator<Item = u32>) -> io::Result<bool> {
    // Without a change of priority, a process would keep its position in the queue.
    set_all(processes, |process| {
        set_priority(process, PRIORITY - 1).and_then(|()| set_priority(process, PRIORITY))
    })
}

/// Moves these processes to a priority below [`PRIORITY`]. Returns `false` if that is not permitted; they then stay
/// ordinary ones.
pub(super) fn hold(processes: impl Iterator<Item = u32>) -> io::Result<bool> {
    set_all(processes, |process| set_priority(process, PRIORITY - 1))
}

/// Lets new processes [rest](give_core_back) until they are queued. Returns `false` if real-time priority is not
/// permitted; they then stay ordinary ones.
pub(super) fn rest(processes: impl Iterator<Item = u32>) -> io::Result<bool> {
    set_all(processes, |process| {
        set_priority(process, PRIORITY - 1).and_then(|()| set_policy(process, libc::SCHED_IDLE, 0))
    })
}

/// Gives the core of a process back to ordinary programs: it gets the core only while none of them wants it, even if it
/// never sleeps. None if it is 0.
pub(super) fn give_core_back(process: u32) {
    if process != 0 {
        // It may have ended, which the watchdog will detect.
        let _ = set_policy(process, libc::SCHED_IDLE, 0);
    }
}

/// Changes the priority of these processes by `set`. Returns `false` if that is not permitted.
fn set_all(processes: impl Iterator<Item = u32>, set: impl Fn(u32) -> io::Result<()>) -> io::Result<bool> {
    for process in processes {
        match set(process) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => return Ok(false),
            // It has just ended, which the watchdog will detect.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Moves a process to a priority below [`PRIORITY`]; none if it is 0.
pub(super) fn set_back(process: u32) {
    if process != 0 {
        // It may have ended, which the watchdog will detect.
        let _ = set_priority(process, PRIORITY - 1);
    }
}

/// Returns `true` if the calling thread takes turns with functions on `core`: it is pinned there, and has their
/// priority.
pub(super) fn takes_turns_on(core: usize) -> bool {
    let Ok(cores) = sched_getaffinity(None) else {
        return false;
    };
    let mut parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the calls concern this thread; the second writes the parameters.
    let (policy, read) = unsafe {
        (
            libc::sched_getscheduler(0),
            libc::sched_getparam(0, &raw mut parameters),
        )
    };
    let is_pinned = cores.count() == 1 && core < CpuSet::MAX_CPU && cores.is_set(core);
    let policy = policy & !libc::SCHED_RESET_ON_FORK;
    is_pinned && (policy, read, parameters.sched_priority) == (libc::SCHED_FIFO, 0, PRIORITY.into())
}

/// Returns how often the calling thread has slept: its voluntary context switches. A yield is none.
#[inline]
pub(super) fn sleeps() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the call writes the structure, in which all bytes are valid.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_nvcsw as u64
}

/// Returns how often the main thread of a process has slept; 0 if it has ended.
pub(super) fn sleeps_of(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mut lines = status.lines();
    let sleeps = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    sleeps.and_then(|sleeps| sleeps.trim().parse().ok()).unwrap_or(0)
}

/// Returns the processor time of a process by the kernel's clock; `None` if it has ended.
pub(super) fn processor_time(process: u32) -> Option<Duration> {
    // `MAKE_PROCESS_CPUCLOCK` with `CPUCLOCK_SCHED`.
    time_of(!(process as libc::clockid_t) << 3 | 2)
}

/// Returns the number of the calling thread.
pub(super) fn this_thread() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// Returns the processor time of a thread of this process; `None` if it has ended.
pub(super) fn thread_time(thread: u32) -> Option<Duration> {
    // `MAKE_THREAD_CPUCLOCK` with `CPUCLOCK_SCHED`.
    time_of(!(thread as libc::clockid_t) << 3 | 4 | 2)
}

fn time_of(clock: libc::clockid_t) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the time.
    match unsafe { libc::clock_gettime(clock, &raw mut time) } {
        0 => Some(Duration::new(time.tv_sec as u64, time.tv_nsec as u32)),
        _ => None,
    }
}

/// State of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessState {
    /// It has a core or is queued for one.
    Runnable,
    /// It waits for something else.
    Idle,
    /// It waits for the kernel: for memory or a disk.
    Blocked,
    /// It was stopped by a signal.
    Stopped,
    /// It is exiting or has ended.
    Ended,
    /// There is no such process.
    Unknown,
}

/// Reads the start of a file whose path has at most 64 bytes.
fn read<'a>(path: &mut [u8; 64], name: fmt::Arguments<'_>, text: &'a mut [u8]) -> Option<&'a str> {
    let mut rest = &mut path[..];
    rest.write_fmt(name).ok()?;
    let left = rest.len();
    let name = std::str::from_utf8(&path[..64 - left]).ok()?;
    let length = File::open(name).and_then(|mut file| file.read(text)).ok()?;
    std::str::from_utf8(&text[..length]).ok()
}

/// Returns a process's state from `/proc`. Does not allocate.
pub(super) fn state(process: u32) -> ProcessState {
    // One line, of about 300 bytes.
    let (mut text, mut path) = ([0; 1024], [0; 64]);
    let stat = read(&mut path, format_args!("/proc/{process}/stat"), &mut text).unwrap_or_default();
    // The command name before it may contain any characters.
    let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let state = fields.next().and_then(|state| state.chars().next());
    // The kernel takes a while to tear down namespaces, during which the process sleeps.
    const EXITING: u64 = 4;
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok());
    match flags {
        Some(flags) if flags & EXITING != 0 => ProcessState::Ended,
        _ => match state {
            Some('R') => ProcessState::Runnable,
            Some('D') => ProcessState::Blocked,
            Some('T') => ProcessState::Stopped,
            Some('Z' | 'X') => ProcessState::Ended,
            Some(_) => ProcessState::Idle,
            None => ProcessState::Unknown,
        },
    }
}

/// Returns `true` if a process is exiting, or will as soon as it gets a core, since it was killed.
pub(super) fn is_dying(process: u32) -> bool {
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let mut pending = status.lines().filter_map(|line| line.strip_prefix("SigPnd:"));
    let is_killed = pending.any(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & KILL != 0));
    is_killed || state(process) == ProcessState::Ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_accounts_for_this_process() {
        let own = std::process::id();
        let before = processor_time(own).unwrap();
        while processor_time(own).unwrap() == before {}
        // Of the main thread, which waits for the tests' threads.
        assert!(matches!(state(own), ProcessState::Idle | ProcessState::Runnable));
        let thread = this_thread();
        assert!(thread_time(thread).unwrap() <= processor_time(own).unwrap());
        assert_eq!(state(thread), ProcessState::Runnable);
        assert_eq!(
            (processor_time(0x3fff_fff0), state(0x3fff_fff0)),
            (None, ProcessState::Unknown)
        );
    }

    #[test]
    fn sleeps_are_counted_and_yields_are_not() {
        let before = sleeps();
        for _ in 0..100 {
            rustix::thread::sched_yield();
        }
        let after = sleeps();
        assert!(after < before + 100);
        std::thread::sleep(Duration::from_millis(1));
        assert!(sleeps() > after);
        // Of the main thread, which waits for the tests' threads.
        assert!(sleeps_of(std::process::id()) > 0);
        assert_eq!(sleeps_of(0x3fff_fff0), 0);
    }
}
