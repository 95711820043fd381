//! The rules, with the reason for each.

use super::rule::{Check, Rule};

/// The argument equals `value` in its lower 32 bits, which is what the kernel reads of descriptors and flags.
pub(super) fn descriptor(argument: u8, value: u32) -> Check {
    Check {
        argument,
        mask: 0xffff_ffff,
        value: value.into(),
    }
}

/// The argument has none of these bits set.
fn without(argument: u8, bits: u64) -> Check {
    Check {
        argument,
        mask: bits,
        value: 0,
    }
}

/// The flags of `mmap` map a file's pages for this process alone. Others' writes to a shared mapping of the same memory
/// could become code.
fn private_file(argument: u8) -> Check {
    const TYPE: u64 = 0x0f;
    Check {
        argument,
        mask: TYPE | libc::MAP_ANONYMOUS as u64,
        value: libc::MAP_PRIVATE as u64,
    }
}

/// The 64-bit argument is a null pointer.
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

/// Rules for a function that processes packets.
pub(super) fn always(descriptors: &[u32]) -> Vec<Rule> {
    let mut rules = vec![
        // Yields the core to the next function. By far the most frequent call, so it comes first.
        rule(libc::SYS_sched_yield, &[]),
        // Time, on machines whose vDSO does not provide it.
        rule(libc::SYS_clock_gettime, &[]),
        rule(libc::SYS_gettimeofday, &[]),
        // Private memory, never executable, so no code can be generated.
        rule(libc::SYS_brk, &[]),
        rule(libc::SYS_mmap, &[without(2, EXECUTABLE)]),
        rule(libc::SYS_mprotect, &[without(2, EXECUTABLE)]),
        rule(libc::SYS_munmap, &[]),
        rule(libc::SYS_mremap, &[]),
        rule(libc::SYS_madvise, &[]),
        // Exit, and return from a signal handler. `abort` blocks signals, gets its own IDs and signals itself.
        rule(libc::SYS_exit, &[]),
        rule(libc::SYS_exit_group, &[]),
        rule(libc::SYS_rt_sigreturn, &[]),
        rule(libc::SYS_restart_syscall, &[]),
        rule(libc::SYS_rt_sigprocmask, &[]),
        // Calls of Rust's runtime on exit and on a crash.
        rule(libc::SYS_sigaltstack, &[]),
        rule(libc::SYS_rt_sigaction, &[]),
        rule(libc::SYS_getpid, &[]),
        rule(libc::SYS_gettid, &[]),
        rule(libc::SYS_tgkill, &[descriptor(2, libc::SIGABRT as u32)]),
        // Seeds of hash tables and allocators.
        rule(libc::SYS_getrandom, &[]),
        // Closes a descriptor that came with a message.
        rule(libc::SYS_close, &[]),
    ];
    // Futex wait and wake only. Requeueing and priority inheritance have had more than their share of kernel bugs.
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
    // Standard output and standard error.
    for output in [1, 2] {
        rules.push(rule(libc::SYS_write, &[descriptor(0, output)]));
        rules.push(rule(libc::SYS_writev, &[descriptor(0, output)]));
    }
    // Messages on descriptors the agent passed, which are connected sockets. A destination address is refused, and
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

/// Additional rules until the program has loaded its libraries and its configuration.
pub(super) fn loading() -> Vec<Rule> {
    // Opens for reading only. The kernel ignores the upper half of the flags.
    let written = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND) as u64;
    let mut rules = vec![
        rule(libc::SYS_open, &[without(1, written)]),
        rule(libc::SYS_openat, &[without(2, written)]),
        // Code of libraries, mapped from existing files, never from writable memory. Refused once the agent passes
        // memory to the program: see `Child::refuse_code`.
        rule(libc::SYS_mmap, &[without(2, WRITABLE), private_file(3)]),
        // Reads limits without setting them.
        rule(libc::SYS_prlimit64, &[null(2)]),
        // Setting the parent-death signal to SIGKILL again; it cannot be cleared.
        rule(
            libc::SYS_prctl,
            &[
                descriptor(0, libc::PR_SET_PDEATHSIG as u32),
                descriptor(1, libc::SIGKILL as u32),
            ],
        ),
        // Test of standard output for a terminal.
        rule(libc::SYS_ioctl, &[descriptor(1, libc::TCGETS as u32)]),
        rule(libc::SYS_fcntl, &[descriptor(1, libc::F_GETFD as u32)]),
        rule(libc::SYS_fcntl, &[descriptor(1, libc::F_GETFL as u32)]),
        rule(libc::SYS_fcntl, &[descriptor(1, libc::F_SETFD as u32)]),
        rule(libc::SYS_fcntl, &[descriptor(1, libc::F_DUPFD_CLOEXEC as u32)]),
    ];
    // Queries, and calls that affect only the calling thread.
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
        // The constructor of libnuma, linked into DPDK programs, probes the thread's memory policy.
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
