//! End of a program: its status, and the defence that stopped it.

use crate::filter::Syscall;

/// End of a confined program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Status the kernel reports.
    pub status: Status,
    /// The defence that stopped it; none if it ended by itself.
    pub stopped: Option<Stopped>,
}

/// Exit status of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Exited by itself, with this code.
    Exited(i32),
    /// Killed by this signal. For a program in a container, the runtime reports signals as codes above 128.
    Signal(i32),
    /// No status is available.
    Unknown,
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Status::Exited(code) => write!(f, "exit code {code}"),
            Status::Signal(signal) => write!(f, "signal {signal}"),
            Status::Unknown => f.write_str("unknown status"),
        }
    }
}

/// Defence that stopped a program.
///
/// A call refused with an error, without stopping the program, stays between program and kernel and is not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The filter: the program made a call that a function does not need.
    Seccomp(Syscall),
    /// The filter: the program made calls by the numbers of another architecture.
    ForeignCall,
    /// A resource limit.
    Limit(Limit),
    /// The scheduler: the program did not yield its core in time.
    Scheduler,
    /// The agent, for a reason of its own.
    Agent,
    /// The program itself: it crashed by this signal.
    Crash(i32),
}

/// Limit that stopped a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Memory of its control group.
    Memory,
    /// The size of a file.
    FileSize,
}

impl Stopped {
    /// Derives the defence from the status, as far as the status shows it.
    pub(crate) fn from_status(status: Status) -> Option<Stopped> {
        match status {
            Status::Signal(libc::SIGSYS) => Some(Stopped::ForeignCall),
            Status::Signal(libc::SIGXFSZ) => Some(Stopped::Limit(Limit::FileSize)),
            Status::Signal(
                signal @ (libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGABRT | libc::SIGTRAP),
            ) => Some(Stopped::Crash(signal)),
            _ => None,
        }
    }
}

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Stopped::Seccomp(call) => write!(f, "forbidden system call {call}"),
            Stopped::ForeignCall => f.write_str("system call of another architecture"),
            Stopped::Limit(Limit::Memory) => f.write_str("memory limit exceeded"),
            Stopped::Limit(Limit::FileSize) => f.write_str("write to a file"),
            Stopped::Scheduler => f.write_str("it did not yield its core in time"),
            Stopped::Agent => f.write_str("stopped by the agent"),
            Stopped::Crash(signal) => write!(f, "it crashed (signal {signal})"),
        }
    }
}
