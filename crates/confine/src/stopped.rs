//! How a program ended, and what stopped it.

use crate::filter::Syscall;

/// The end of a confined program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// What the kernel tells of it.
    pub status: Status,
    /// The defence that stopped it; none if it ended by itself.
    pub stopped: Option<Stopped>,
}

/// What the kernel tells of a program that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal. Of a program in a container that is what the runtime tells, by codes above 128.
    Signal(i32),
    /// Nobody knows.
    Unknown,
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Status::Exited(code) => write!(f, "exit code {code}"),
            Status::Signal(signal) => write!(f, "signal {signal}"),
            Status::Unknown => f.write_str("nobody knows how"),
        }
    }
}

/// Which defence stopped a program.
///
/// What is refused with an error only, without stopping it, is between the program and the kernel, and not known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The filter: it made a call that a function does not need.
    Seccomp(Syscall),
    /// The filter: it made calls by the numbers of another architecture.
    ForeignCall,
    /// A limit.
    Limit(Limit),
    /// Whoever schedules it: it did not give its core back in time.
    Scheduler,
    /// The agent, for a reason of its own.
    Agent,
    /// It crashed by itself: a signal of its own doing.
    Crash(i32),
}

/// Which limit stopped a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Memory of its control group.
    Memory,
    /// The size of a file.
    FileSize,
}

impl Stopped {
    /// As far as its status tells.
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
            Stopped::Seccomp(call) => write!(f, "it called {call}, which functions may not"),
            Stopped::ForeignCall => f.write_str("it made calls of another architecture"),
            Stopped::Limit(Limit::Memory) => f.write_str("it used more memory than it may"),
            Stopped::Limit(Limit::FileSize) => f.write_str("it wrote to a file"),
            Stopped::Scheduler => f.write_str("it did not give back its core in time"),
            Stopped::Agent => f.write_str("the agent stopped it"),
            Stopped::Crash(signal) => write!(f, "it crashed (signal {signal})"),
        }
    }
}
