//! System calls and invalid memory accesses of a hostile function.
//!
//! One of the few modules with `unsafe` code: these calls are the attack.

use std::ptr::{null, null_mut};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Sleeps on a futex that nobody wakes: for that long, or for ever.
pub(crate) fn futex_sleep(time: Option<Duration>) {
    let word = AtomicU32::new(0);
    let time = time.map(timespec);
    let time = time.as_ref().map_or(null(), |time| time as *const libc::timespec);
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word and the time outlive the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 0, time) };
}

/// Sleeps by a call that a function does not need.
pub(crate) fn nanosleep(time: Duration) {
    let time = timespec(time);
    // SAFETY: the time outlives the call.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, null::<libc::timespec>()) };
}

/// Waits for a signal.
pub(crate) fn pause() {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_pause) };
}

/// Sends a signal; 0 for its own process, -1 for all that it may reach.
pub(crate) fn kill(process: i32, signal: i32) {
    // SAFETY: plain numbers.
    unsafe {
        let process = match process {
            0 => libc::getpid(),
            other => other,
        };
        libc::kill(process, signal);
    }
}

/// Forks. Parent and child go on.
pub(crate) fn fork() {
    // SAFETY: the process has one thread.
    unsafe { libc::fork() };
}

/// Executes a shell.
pub(crate) fn exec() {
    let (program, no) = (c"/bin/sh", null::<libc::c_char>());
    let arguments = [program.as_ptr(), no];
    // SAFETY: the strings end with a zero, the lists with a null pointer.
    unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), [no].as_ptr()) };
}

/// Maps private memory and writes it.
pub(crate) fn map(bytes: usize, executable: bool) {
    let protection = libc::PROT_READ | libc::PROT_WRITE | if executable { libc::PROT_EXEC } else { 0 };
    // SAFETY: a new mapping, written within its bounds and unmapped.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let map = libc::mmap(null_mut(), bytes.max(1), protection, flags, -1, 0);
        if map != libc::MAP_FAILED {
            map.write_bytes(1, bytes);
            libc::munmap(map, bytes.max(1));
        }
    }
}

/// Makes these bytes read-only for this process, and writes the first.
pub(crate) fn protect(base: *mut u8, bytes: usize) {
    // SAFETY: none: the process crashes.
    unsafe {
        libc::mprotect(base.cast(), bytes, libc::PROT_READ);
        base.write_volatile(1);
    }
}

/// Unmaps these bytes, and reads the first.
pub(crate) fn unmap(base: *mut u8, bytes: usize) {
    // SAFETY: none: the process crashes.
    unsafe {
        libc::munmap(base.cast(), bytes);
        std::hint::black_box(base.read_volatile());
    }
}

/// Writes one byte at any address.
pub(crate) fn write(address: *mut u8) {
    // SAFETY: none: the process crashes.
    unsafe { address.write_volatile(1) };
}

/// Allows itself all cores.
pub(crate) fn affinity() {
    let cores = [u64::MAX; 16];
    // SAFETY: the mask outlives the call, which reads its size.
    unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(&cores), cores.as_ptr()) };
}

/// Requests a real-time priority.
pub(crate) fn priority(priority: i32) {
    let priority = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: the parameter outlives the call.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) };
}

/// Writes that many bytes to standard error.
pub(crate) fn write_errors(bytes: usize) {
    let line = [b'.'; 1024];
    for _ in 0..bytes.div_ceil(line.len()) {
        // SAFETY: the bytes outlive the call.
        unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
    }
}

/// Blocks all signals.
pub(crate) fn block_signals() {
    // SAFETY: a set of signals of this function, filled before it is read.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigfillset(&raw mut signals);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const signals, null_mut());
    }
}

/// Closes a descriptor.
pub(crate) fn close(descriptor: i32) {
    // SAFETY: a plain number; nothing uses the descriptor afterwards.
    unsafe { libc::close(descriptor) };
}
