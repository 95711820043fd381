//! Starts a function's program so that it can do its work and nothing else.
//!
//! A tenant's function is not to be trusted: it may read what it should not, spin, multiply, crash or lie. Here it is
//! started with the defences of a [`Confinement`], each of which can be switched off by itself, as a process
//! ([`Confinement::spawn`]) or in an OCI container ([`Confinement::spawn_in`]). What happens to memory that it shares
//! with others, and when it may run, is the business of whoever calls; this crate sees to everything else, and tells
//! which defence [stopped](Stopped) a program.
//!
//! ```no_run
//! use std::os::fd::AsFd;
//! use std::os::unix::net::UnixStream;
//! use tailwater_confine::{Confinement, Program, Stopped};
//!
//! let (agent, functions) = UnixStream::pair()?;
//! let program = Program::new("/opt/functions/dns-filter").descriptor(functions.as_fd());
//! let child = Confinement::full().spawn(&program)?;
//! // It loads, and says so over `agent`. Then:
//! child.seal();
//! child.pin(3)?;
//! child.lend(10)?;
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
//! A program has to load its libraries and read its configuration before it can work, and must not be able to after.
//! It cannot be trusted to give that up by itself. So one filter holds from its first instruction on: the kernel
//! allows the calls of a working function by itself, and puts all others to a thread of the agent's, its keeper
//! (`SECCOMP_RET_USER_NOTIF`). The keeper lets pass what a loader needs until the agent [seals](Child::seal) the
//! program; from then on, and for calls that no loader needs at any time, it kills the program and tells which call
//! it was. The program needs to know nothing of this. A call that is put to the keeper is never made unless it
//! says so: also if the agent is gone. Give a program no turns and no priority before it is sealed. Memory
//! that it is to map it needs before; it reaches nobody to whom it could pass that on.
//!
//! # System calls
//!
//! Always: `sched_yield`; `clock_gettime`, `gettimeofday`; `brk`, `mmap` and `mprotect` without `PROT_EXEC`, `munmap`,
//! `mremap`, `madvise`; `futex` to wait and wake; `getrandom`, `getpid`, `gettid`, `rt_sigreturn`, `rt_sigprocmask`,
//! `restart_syscall`, `exit`, `exit_group`, `tgkill` with `SIGABRT`; `close`; `write` and `writev` on 1 and 2; `recvmsg`, `sendmsg`,
//! `recvfrom` and `sendto` without an address, `read` and `write` on [what it was given](Program::descriptors).
//!
//! Until sealed, besides: opening files for reading, reading and asking about them, mapping their code (never
//! memory that is writable and executable), and asking for limits, cores and identities. A filter refuses 32-bit and x32
//! calls by killing.
//!
//! # What it needs
//!
//! Linux 5.12, x86-64, root (or the capabilities that the errors name), `/run`. Control groups of version 1, version 2
//! or both. Containers need `crun` with seccomp. Defences that are missing on a machine are never left out silently: the start fails,
//! says what is missing, and the caller switches them off if that is acceptable.
//!
//! # Nothing is left
//!
//! A program and all that it started end with the agent, however that ends (`PR_SET_PDEATHSIG`, and a process
//! namespace whose first process it is). Namespaces end with their processes. Directories and control groups are removed
//! when it ends; those of an agent that was killed by the next start, or [`sweep`].
//!
//! What is *not* protected is in `docs/confinement.md`: side channels, faults of the kernel's, shared caches.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
compile_error!("the system call filter is for Linux on x86-64");

mod cgroup;
mod child;
mod confinement;
mod container;
mod error;
mod filter;
mod instance;
mod keeper;
mod root;
mod schedule;
mod shared;
mod spawn;
mod stopped;
mod sys;

pub use child::Step;
pub use confinement::{Confinement, DEFAULT_MEMORY, Groups, Limits, Namespaces, Program, Root};
pub use container::ContainerRuntime;
pub use error::Error;
pub use filter::Syscall;
pub use instance::{FIRST_USER, sweep};
pub use spawn::Child;
pub use stopped::{End, Limit, Status, Stopped};
