//! Defences around the agent itself: what its threads give up once everything is set up.
//!
//! The agent reads memory that untrusted programs write. If one of them ever finds a fault in it, the agent's threads
//! have few rights left to use. Threads of one process share their memory, so this is a second line, not a border.

use std::io;

use crate::error::Error;
use crate::filter::{process_refusals, thread_refusals};
use crate::sys::{self, Errno};

/// Task of a thread of the agent, which decides what it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadRole {
    /// Processes packets, and orders programs in their core's run queue.
    Worker,
    /// Ends programs, pins them and gives them their priority.
    Watchdog,
    /// Starts programs. It keeps what a confinement and a container runtime take, and mounts and executes.
    Starter,
    /// Supervises one program, which it has started.
    Supervisor,
    /// Forwards bytes between descriptors that are open.
    Forwarder,
    /// Sets up the run before, and writes its results afterwards.
    Main,
}

// Numbers of linux/capability.h.
const CHOWN: u32 = 0;
const DAC_OVERRIDE: u32 = 1;
const DAC_READ_SEARCH: u32 = 2;
const FOWNER: u32 = 3;
const FSETID: u32 = 4;
const KILL: u32 = 5;
const SETGID: u32 = 6;
const SETUID: u32 = 7;
const SETPCAP: u32 = 8;
const NET_BIND_SERVICE: u32 = 10;
const NET_ADMIN: u32 = 12;
const NET_RAW: u32 = 13;
const IPC_LOCK: u32 = 14;
const SYS_CHROOT: u32 = 18;
const SYS_ADMIN: u32 = 21;
const SYS_NICE: u32 = 23;
const SYS_RESOURCE: u32 = 24;
const MKNOD: u32 = 27;
const SETFCAP: u32 = 31;
const BPF: u32 = 39;

impl ThreadRole {
    /// Capabilities that the thread keeps, if it has them.
    fn kept(self) -> &'static [u32] {
        match self {
            // Priorities of programs, which have other users.
            ThreadRole::Worker => &[SYS_NICE, IPC_LOCK],
            ThreadRole::Watchdog => &[KILL, SYS_NICE],
            ThreadRole::Supervisor => &[KILL, DAC_OVERRIDE, FOWNER],
            ThreadRole::Forwarder => &[],
            ThreadRole::Starter => &[
                CHOWN,
                DAC_OVERRIDE,
                DAC_READ_SEARCH,
                FOWNER,
                FSETID,
                KILL,
                SETGID,
                SETUID,
                SETPCAP,
                NET_ADMIN,
                SYS_CHROOT,
                SYS_ADMIN,
                SYS_NICE,
                SYS_RESOURCE,
                MKNOD,
                SETFCAP,
                BPF,
            ],
            // Files of any user, ports that close, and whatever a port's driver does for them.
            ThreadRole::Main => &[
                CHOWN,
                DAC_OVERRIDE,
                DAC_READ_SEARCH,
                FOWNER,
                FSETID,
                KILL,
                NET_BIND_SERVICE,
                NET_ADMIN,
                NET_RAW,
                IPC_LOCK,
                SYS_ADMIN,
                SYS_NICE,
                SYS_RESOURCE,
            ],
        }
    }
}

/// Gives up what no thread of this process does once it is set up, nor a program that it starts: tracing, kernel
/// modules, the machine's clock and the like fail with `EPERM` from now on. Also drops the calling thread's
/// capabilities but those of [`ThreadRole::Main`].
///
/// # Errors
/// If the kernel does not install the filter.
pub fn limit_process() -> Result<(), Error> {
    refuse(&process_refusals(), true)?;
    keep_capabilities(ThreadRole::Main)
}

/// Gives up what a worker does not do, in the calling thread: drops capabilities, and refuses to mount, to enter
/// namespaces, to change the user and to execute programs. After [`limit_process`], which does not work with threads
/// that have filters of their own.
///
/// # Errors
/// If the kernel does not install the filter.
pub fn limit_worker() -> Result<(), Error> {
    refuse(&thread_refusals(), false)?;
    keep_capabilities(ThreadRole::Worker)
}

/// Drops the calling thread's capabilities that its role does not need. The programs that it starts get no others.
///
/// # Errors
/// None that are known: dropping is always permitted.
pub fn keep_capabilities(role: ThreadRole) -> Result<(), Error> {
    let kept = role.kept().iter().fold(0, |bits, capability| bits | 1u64 << capability);
    let dropped = sys::capabilities().and_then(|ours| sys::set_capabilities(ours & kept));
    dropped.map_err(failed)
}

fn refuse(filter: &[libc::sock_filter], all_threads: bool) -> Result<(), Error> {
    match sys::refusing_filter(filter, all_threads) {
        // Without root, a filter requires that no program regains rights by a set-user-ID bit.
        Err(libc::EACCES) => {
            sys::control(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(failed)?;
            sys::refusing_filter(filter, all_threads).map_err(failed)
        }
        other => other.map_err(failed),
    }
}

fn failed(errno: Errno) -> Error {
    Error::Agent(io::Error::from_raw_os_error(errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Returns a field of the calling thread's status.
    fn status(name: &str) -> String {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().trim().to_owned()
    }

    fn bits(name: &str) -> u64 {
        u64::from_str_radix(&status(name), 16).unwrap()
    }

    /// Workers kept all capabilities of root, and had no filter.
    #[test]
    fn a_worker_keeps_little_and_mounts_nothing() {
        let limited = std::thread::spawn(|| {
            let before = bits("CapPrm");
            limit_worker().unwrap();
            assert_eq!(status("Seccomp"), "2");
            let kept = 1 << SYS_NICE | 1 << IPC_LOCK;
            assert_eq!([bits("CapPrm"), bits("CapEff")], [before & kept; 2]);
            assert_eq!(
                sys::mount(c"none", c"/", c"", libc::MS_REC | libc::MS_PRIVATE),
                Err(libc::EPERM)
            );
            assert!(std::process::Command::new("/bin/true").status().is_err());
            // The calls that it works with are not affected.
            sys::schedule(0, libc::SCHED_OTHER, 0).unwrap();
            fs::read_to_string("/proc/self/stat").unwrap();
        });
        limited.join().unwrap();
        // Other threads go on as before.
        assert!(std::process::Command::new("/bin/true").status().unwrap().success());
    }

    #[test]
    fn a_starter_keeps_what_a_start_takes() {
        let limited = std::thread::spawn(|| {
            let before = bits("CapPrm");
            keep_capabilities(ThreadRole::Starter).unwrap();
            let modules = 1 << 16;
            assert_eq!(bits("CapEff") & modules, 0);
            assert_eq!(bits("CapEff") & 1 << SYS_ADMIN, before & 1 << SYS_ADMIN);
            assert!(std::process::Command::new("/bin/true").status().unwrap().success());
        });
        limited.join().unwrap();
    }
}
