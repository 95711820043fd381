//! Starts a function's program so that it can do its work and nothing else.
//!
//! A tenant's function is untrusted: it may read what it should not, spin, fork, crash or lie. This crate starts it
//! with the defences of a [`Confinement`], each of which can be switched off on its own. The program runs as a process
//! ([`Confinement::spawn`]) or in an OCI container ([`Confinement::spawn_in`]). The caller protects memory that it
//! shares with the program, and decides when the program may run. This crate does the rest, and reports which defence
//! [stopped](Stopped) a program.
//!
//! ```no_run
//! use std::os::fd::AsFd;
//! use std::os::unix::net::UnixStream;
//! use tailwater_confine::{Confinement, Program, Stopped};
//!
//! let (agent, functions) = UnixStream::pair()?;
//! let program = Program::new("/opt/functions/dns-filter").descriptor(functions.as_fd());
//! let child = Confinement::full().spawn(&program)?;
//! // It loads, and reports over `agent`. Then:
//! child.seal();
//! child.pin(3)?;
//! child.grant_priority(10)?;
//! # let late = true;
//! if late {
//!     child.kill(Stopped::Scheduler);
//! }
//! println!("{:?}", child.wait());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # A start, in two phases
//!
//! A program must load its libraries and read its configuration before it can work, and must not be able to afterwards.
//! It cannot be trusted to give up that right by itself. So one filter applies from its first instruction on. The
//! kernel allows the calls of a working function by itself, and reports all others to a thread of the agent, the
//! supervisor (`SECCOMP_RET_USER_NOTIF`). The supervisor allows what a loader needs until the agent
//! [seals](Child::seal) the program. From then on it kills the program for any reported call, and names the call. Calls
//! that no loader needs are killed at any time. The program needs no code for this. A reported call is never made
//! unless the supervisor allows it, even if the agent is gone.
//!
//! Give a program no core time and no priority before it is sealed. Pass it all memory to map before sealing. It has no
//! channel to any process to which it could pass that memory on.
//!
//! # System calls
//!
//! Always: `sched_yield`; `clock_gettime`, `gettimeofday`; `brk`, `mmap` and `mprotect` without `PROT_EXEC`, `munmap`,
//! `mremap`, `madvise`; `futex` to wait and wake; `getrandom`, `getpid`, `gettid`, `rt_sigreturn`, `rt_sigprocmask`,
//! `restart_syscall`, `exit`, `exit_group`, `tgkill` with `SIGABRT`; `close`; `write` and `writev` on 1 and 2;
//! `recvmsg`, `sendmsg`, `recvfrom` and `sendto` without an address, `read` and `write` on the [descriptors passed to
//! it](Program::descriptors).
//!
//! Until sealed, additionally: opening files for reading, reading and querying them, mapping their code (never memory
//! that is writable and executable), and querying limits, cores and identities. A filter refuses 32-bit and x32 calls
//! by killing.
//!
//! # Requirements
//!
//! Linux 5.12, x86-64, root (or the capabilities that the errors name), `/run`. Control groups of version 1, version 2
//! or both. Containers need `crun` with seccomp. A defence missing on a machine is never left out silently: the start
//! fails and names it, and the caller switches it off if that is acceptable.
//!
//! # Clean-up
//!
//! A program and everything it started end with the agent, for any reason (`PR_SET_PDEATHSIG`, and a process namespace
//! whose first process it is). Namespaces end with their processes. Directories and control groups are removed when the
//! program ends. Those of a killed agent are removed by the next start, or by [`sweep`].
//!
//! `docs/explanation/confinement.md` lists what is *not* protected: side channels, kernel bugs, shared caches.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("the system call filter is for Linux on x86-64");

mod agent;
mod cgroup;
mod child;
mod confinement;
mod container;
mod error;
mod filter;
mod instance;
mod limits;
mod root;
mod schedule;
mod shared;
mod spawn;
mod stopped;
mod supervisor;
mod sys;

pub use agent::{ThreadRole, keep_capabilities, limit_process, limit_worker};
pub use child::Step;
pub use confinement::{Confinement, DEFAULT_MEMORY, Groups, Limits, Namespaces, Program, Root};
pub use container::ContainerRuntime;
pub use error::Error;
pub use filter::Syscall;
pub use instance::{FIRST_USER, sweep};
pub use schedule::join_priority_group;
pub use spawn::Child;
pub use stopped::{End, Limit, Status, Stopped};
