//! The rules themselves, with the reason for each.

use super::{Check, Rule};

/// The argument, of 32 bits as the kernel reads descriptors and flags, is `value`.
pub(super) fn descriptor(argument: u8, value: u32) -> Check {
    Check {
        argument,
        mask: 0xffff_ffff,
        value: value.into(),
    }
}

/// The argument has none of these bits.
fn without(argument: u8, bits: u64) -> Check {
    Check {
        argument,
        mask: bits,
        value: 0,
    }
}

/// The argument, of 64 bits, is zero: a null pointer.
fn null(argument: u8) -> Check {
    without(argument, u64::MAX)
}

fn rule(call: libc::c_long, checks: &[Check]) -> Rule {
    Rule {
        call: call as u32,
        checks: checks.to_vec(),
    }
}

const EXECUTABLE: u64 = libc::PROT_EXEC as u64;
const WRITABLE: u64 = libc::PROT_WRITE as u64;

/// What a function needs while it works.
pub(super) fn always(descriptors: &[u32]) -> Vec<Rule> {
    let mut rules = vec![
        // Giving the core to the next function: the most frequent by far, so it comes first.
        rule(libc::SYS_sched_yield, &[]),
        // The time, on machines where the vDSO does not tell it.
        rule(libc::SYS_clock_gettime, &[]),
        rule(libc::SYS_gettimeofday, &[]),
        // Memory of its own; never executable, so that no code can be made.
        rule(libc::SYS_brk, &[]),
        rule(libc::SYS_mmap, &[without(2, EXECUTABLE)]),
        rule(libc::SYS_mprotect, &[without(2, EXECUTABLE)]),
        rule(libc::SYS_munmap, &[]),
        rule(libc::SYS_mremap, &[]),
        rule(libc::SYS_madvise, &[]),
        // The end, and returning from a handler. `abort` blocks signals, asks who it is and signals itself.
        rule(libc::SYS_exit, &[]),
        rule(libc::SYS_exit_group, &[]),
        rule(libc::SYS_rt_sigreturn, &[]),
        rule(libc::SYS_restart_syscall, &[]),
        rule(libc::SYS_rt_sigprocmask, &[]),
        // What Rust's runtime does when it ends, and when it crashes.
        rule(libc::SYS_sigaltstack, &[]),
        rule(libc::SYS_rt_sigaction, &[]),
        rule(libc::SYS_getpid, &[]),
        rule(libc::SYS_gettid, &[]),
        rule(libc::SYS_tgkill, &[descriptor(2, libc::SIGABRT as u32)]),
        // Seeds of hash tables and allocators.
        rule(libc::SYS_getrandom, &[]),
        // Giving back a descriptor that came with a message.
        rule(libc::SYS_close, &[]),
    ];
    // Locks that are waited for. No other operation: requeueing and priority inheritance have had more than their
    // share of the kernel's faults.
    for operation in [
        libc::FUTEX_WAIT,
        libc::FUTEX_WAKE,
        libc::FUTEX_WAIT_BITSET,
        libc::FUTEX_WAKE_BITSET,
    ] {
        let flags = (libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) as u64;
        rules.push(rule(
            libc::SYS_futex,
            &[Check {
                argument: 1,
                mask: 0xffff_ffff & !flags,
                value: operation as u64,
            }],
        ));
    }
    // What it says to people: standard output and standard error.
    for output in [1, 2] {
        rules.push(rule(libc::SYS_write, &[descriptor(0, output)]));
        rules.push(rule(libc::SYS_writev, &[descriptor(0, output)]));
    }
    // Messages on what the agent gave it, connected sockets: an address of another receiver is refused, and
    // there is no other socket.
    for &given in descriptors {
        for call in [libc::SYS_recvmsg, libc::SYS_sendmsg, libc::SYS_read, libc::SYS_write] {
            rules.push(rule(call, &[descriptor(0, given)]));
        }
        for call in [libc::SYS_recvfrom, libc::SYS_sendto] {
            rules.push(rule(call, &[descriptor(0, given), null(4)]));
        }
    }
    rules
}

/// What a program needs besides until it has loaded its libraries and its configuration.
pub(super) fn loading() -> Vec<Rule> {
    // Opening for reading only; the upper half of the flags is ignored by the kernel.
    let written = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND) as u64;
    let mut rules = vec![
        rule(libc::SYS_open, &[without(1, written)]),
        rule(libc::SYS_openat, &[without(2, written)]),
        // The code of libraries: mapped from files that are there, never from memory that was written.
        rule(libc::SYS_mmap, &[without(2, WRITABLE)]),
        // Which limits there are, without setting them.
        rule(libc::SYS_prlimit64, &[null(2)]),
        // Ending with the agent, once more: not taking that back.
        rule(
            libc::SYS_prctl,
            &[
                descriptor(0, libc::PR_SET_PDEATHSIG as u32),
                descriptor(1, libc::SIGKILL as u32),
            ],
        ),
        // Whether standard output is a terminal.
        rule(libc::SYS_ioctl, &[descriptor(1, libc::TCGETS as u32)]),
        rule(libc::SYS_fcntl, &[descriptor(1, libc::F_GETFD as u32)]),
        rule(libc::SYS_fcntl, &[descriptor(1, libc::F_GETFL as u32)]),
        rule(libc::SYS_fcntl, &[descriptor(1, libc::F_SETFD as u32)]),
        rule(libc::SYS_fcntl, &[descriptor(1, libc::F_DUPFD_CLOEXEC as u32)]),
    ];
    // Asks only, or changes nothing but the thread itself.
    for call in [
        libc::SYS_read,
        libc::SYS_pread64,
        libc::SYS_lseek,
        libc::SYS_access,
        libc::SYS_faccessat,
        libc::SYS_stat,
        libc::SYS_lstat,
        libc::SYS_fstat,
        libc::SYS_newfstatat,
        libc::SYS_statx,
        libc::SYS_statfs,
        libc::SYS_readlink,
        libc::SYS_readlinkat,
        libc::SYS_getcwd,
        libc::SYS_getdents64,
        libc::SYS_getuid,
        libc::SYS_geteuid,
        libc::SYS_getgid,
        libc::SYS_getegid,
        libc::SYS_uname,
        libc::SYS_sysinfo,
        libc::SYS_clock_getres,
        libc::SYS_poll,
        libc::SYS_ppoll,
        libc::SYS_sched_getaffinity,
        // The constructor of libnuma, which programs with DPDK have: it tries out where the thread's memory may come from.
        libc::SYS_get_mempolicy,
        libc::SYS_set_mempolicy,
        libc::SYS_arch_prctl,
        libc::SYS_set_tid_address,
        libc::SYS_set_robust_list,
        libc::SYS_rseq,
    ] {
        rules.push(rule(call, &[]));
    }
    rules
}
