//! Why a program did not start, or a right is missing, and what to do.

use std::io;
use std::path::PathBuf;

use crate::child::Step;

/// What went wrong, on one line, with what to do about it where that is known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program is not there, or is none.
    #[error("{}: {reason}", path.display())]
    Program {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A text with a zero byte in it.
    #[error("{what} has a zero byte in it, which no program can be given")]
    ZeroByte {
        /// Which text.
        what: &'static str,
    },
    /// Two settings that do not go together.
    #[error("{0}")]
    Settings(&'static str),
    /// The kernel did not make a child.
    #[error("no process could be made in its own namespaces: {error}{}", clone_advice(error))]
    Clone {
        /// What the kernel says.
        error: io::Error,
    },
    /// A step of the child's failed.
    #[error("confining the program failed at {}: {error}{}", step.name(), step.advice(error))]
    Step {
        /// Which step.
        step: Step,
        /// What the kernel says.
        error: io::Error,
    },
    /// A file or directory of the agent's.
    #[error("{}: {error}{}", path.display(), root_advice(error))]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// No such control group controller.
    #[error(
        "the control group controller `{controller}` is mounted neither in version 1 nor in version 2: mount it, or do \
         without (`groups`)"
    )]
    NoController {
        /// Which.
        controller: &'static str,
    },
    /// All places are taken.
    #[error("{count} programs are confined on this machine already: end some first")]
    NoPlace {
        /// How many.
        count: u32,
    },
    /// The core is not there, or not this process's.
    #[error("core {core} cannot be had: {error}; cores that may be used are in Cpus_allowed_list of /proc/self/status")]
    Core {
        /// Which.
        core: usize,
        /// What the kernel says.
        error: io::Error,
    },
    /// Real-time priority was not lent.
    #[error("real-time priority {priority} cannot be lent: {error}{advice}")]
    Priority {
        /// Which.
        priority: u8,
        /// What the kernel says.
        error: io::Error,
        /// What to do.
        advice: String,
    },
    /// The container runtime did not start the program.
    #[error("{runtime}: {reason}")]
    Runtime {
        /// Its path.
        runtime: PathBuf,
        /// Its last words.
        reason: String,
    },
    /// It ended before it became the program.
    #[error("the child ended before it became the program ({0})")]
    Lost(String),
    /// Talking to the child, or waiting for it.
    #[error("the child cannot be watched: {0}")]
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
        true => "; confining programs needs root",
        false => "",
    }
}

fn clone_advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => "; it needs root (CAP_SYS_ADMIN), or switch namespaces off",
        Some(libc::ENOSPC | libc::EUSERS) => "; there are too many: see sysctl user.max_*_namespaces",
        Some(libc::EINVAL) => "; the kernel lacks a namespace, or is older than Linux 5.7",
        Some(libc::EAGAIN) => "; there are too many processes: see ulimit -u and pids.max",
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
            Step::DieWithParent => "its end with the agent's",
            Step::NoNewPrivileges => "no_new_privs",
            Step::Filter => "its system call filter",
            Step::Execute => "its first instruction",
        }
    }

    fn advice(self, error: &io::Error) -> &'static str {
        let refused = denied(error);
        match self {
            Step::User if refused => "; a user of its own needs root (CAP_SETUID, CAP_SETGID)",
            Step::Capabilities if refused => "; dropping them needs root (CAP_SETPCAP)",
            Step::Limits if refused => "; a limit is above the agent's own: see ulimit -H -a",
            Step::Mounts | Step::Root | Step::HostName if refused => "; it needs root (CAP_SYS_ADMIN)",
            Step::Mounts if error.raw_os_error() == Some(libc::ENOSYS) => "; it needs Linux 5.12",
            Step::Filter if refused => "; it needs no_new_privs or root",
            Step::Filter if error.raw_os_error() == Some(libc::EBUSY) => {
                "; another filter with a listener holds already"
            }
            Step::Execute if error.raw_os_error() == Some(libc::EAGAIN) => {
                "; the user has more processes than its limit"
            }
            Step::Execute if error.raw_os_error() == Some(libc::ENOENT) => {
                "; the program or its interpreter is not in its root directory"
            }
            _ => "",
        }
    }
}
