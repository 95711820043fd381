//! Errors of a start, with advice.

use std::io;
use std::path::PathBuf;

use crate::child::Step;

/// Error with a message of one line, which includes advice where there is any.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program does not exist, or is not a program.
    #[error("{}: {reason}", path.display())]
    Program {
        /// Path of the program.
        path: PathBuf,
        /// Description of the problem.
        reason: String,
    },
    /// A string contains a zero byte.
    #[error("expected {what} without zero bytes")]
    ZeroByte {
        /// Name of the string.
        what: &'static str,
    },
    /// Two settings contradict each other.
    #[error("{0}")]
    Settings(&'static str),
    /// The kernel did not create a child.
    #[error("cannot create a process in new namespaces: {error}{}", clone_advice(error))]
    Clone {
        /// Error of the kernel.
        error: io::Error,
    },
    /// A step of the child failed.
    #[error("confinement failed at {}: {error}{}", step.name(), step.advice(error))]
    Step {
        /// The step that failed.
        step: Step,
        /// Error of the kernel.
        error: io::Error,
    },
    /// A file or directory of the agent could not be read or written.
    #[error("{}: {error}{}", path.display(), root_advice(error))]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// A directory of the agent's belongs to another user, or others can change it.
    #[error("{}: expected a directory of root that nobody else can change, found {found}: remove it", path.display())]
    Directory {
        /// Path of the directory.
        path: PathBuf,
        /// Description of it.
        found: String,
    },
    /// Another program holds a lock.
    #[error("{}: locked by another program for {seconds} s: end that program (fuser shows it)", path.display())]
    Locked {
        /// Path of the file.
        path: PathBuf,
        /// Time waited, in seconds.
        seconds: f32,
    },
    /// The agent's own defences are not available.
    #[error(
        "this process's own system call filter and capabilities cannot be set: {0}; requires seccomp, or leave out the \
         defence `server`"
    )]
    Agent(io::Error),
    /// A control group controller is not mounted.
    #[error(
        "the control group controller `{controller}` is mounted neither in version 1 nor in version 2: mount it, or leave \
         out the defence `groups`"
    )]
    NoController {
        /// Name of the controller.
        controller: &'static str,
    },
    /// All instance slots are in use.
    #[error("this machine already runs {count} confined programs, the maximum: end some first")]
    NoFreeSlot {
        /// Number of slots.
        count: u32,
    },
    /// The core does not exist, or the process may not use it.
    #[error("core {core} is not available: {error}; Cpus_allowed_list in /proc/self/status lists the available cores")]
    Core {
        /// The core.
        core: usize,
        /// Error of the kernel.
        error: io::Error,
    },
    /// The real-time priority could not be granted.
    #[error("real-time priority {priority} cannot be granted: {error}{advice}")]
    Priority {
        /// The priority.
        priority: u8,
        /// Error of the kernel.
        error: io::Error,
        /// Advice.
        advice: String,
    },
    /// The container runtime did not start the program.
    #[error("{runtime}: {reason}")]
    Runtime {
        /// Path of the runtime.
        runtime: PathBuf,
        /// Exit status and last line of its log.
        reason: String,
    },
    /// The child ended before it executed the program.
    #[error("the child ended before it executed the program ({0})")]
    Lost(String),
    /// Communication with the child, or waiting for it, failed.
    #[error("the child cannot be monitored: {0}")]
    Watching(#[from] io::Error),
}

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Error {
        Error::Watching(errno.into())
    }
}

fn denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

fn root_advice(error: &io::Error) -> &'static str {
    match denied(error) {
        true => "; confinement requires root",
        false => "",
    }
}

fn clone_advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => "; requires root (CAP_SYS_ADMIN), or leave out namespaces",
        Some(libc::ENOSPC | libc::EUSERS) => "; too many namespaces: see sysctl user.max_*_namespaces",
        Some(libc::EINVAL) => "; the kernel lacks a namespace, or is older than Linux 5.7",
        Some(libc::EAGAIN) => "; too many processes: see ulimit -u and pids.max",
        _ => "",
    }
}

impl Step {
    fn name(self) -> &'static str {
        match self {
            Step::Report => "its report",
            Step::Descriptors => "its descriptors",
            Step::Scheduling => "its scheduling",
            Step::HostName => "its host name",
            Step::Mounts => "its mounts",
            Step::Root => "its root directory",
            Step::Limits => "its limits",
            Step::User => "its user",
            Step::Capabilities => "its capabilities",
            Step::DieWithParent => "its parent-death signal",
            Step::NoNewPrivileges => "no_new_privs",
            Step::Filter => "its system call filter",
            Step::Execute => "its first instruction",
        }
    }

    fn advice(self, error: &io::Error) -> &'static str {
        let refused = denied(error);
        match self {
            Step::User if refused => "; a separate user requires root (CAP_SETUID, CAP_SETGID)",
            Step::Capabilities if refused => "; dropping them requires root (CAP_SETPCAP)",
            Step::Limits if refused => "; a limit exceeds the agent's: see ulimit -H -a",
            Step::Mounts | Step::Root | Step::HostName if refused => "; requires root (CAP_SYS_ADMIN)",
            Step::Mounts if error.raw_os_error() == Some(libc::ENOSYS) => "; requires Linux 5.12",
            Step::Filter if refused => "; requires no_new_privs or root",
            Step::Filter if error.raw_os_error() == Some(libc::EBUSY) => {
                "; another filter with a listener is already installed"
            }
            Step::Execute if error.raw_os_error() == Some(libc::EAGAIN) => "; the user exceeds its process limit",
            Step::Execute if error.raw_os_error() == Some(libc::ENOENT) => {
                "; the program or its interpreter is not in its root directory"
            }
            _ => "",
        }
    }
}
