//! What can go wrong, and what the kernel said of it.

use std::io;
use std::path::PathBuf;

/// Why something was not done. When an operation fails, nothing of it stays, unless it is
/// [`Error::NotUndone`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel or the processor has no `resctrl`, or it is not mounted and was not to be.
    #[error("no resctrl on this machine: {why}")]
    Absent {
        /// What is missing, and what to do about it.
        why: String,
    },
    /// It cannot control what was asked for.
    #[error("resctrl is there, but it does not control {what} on this machine")]
    Unsupported {
        /// The resource.
        what: String,
    },
    /// Not without more rights.
    #[error("{}: {error}: resctrl is changed by root only", path.display())]
    Denied {
        /// What was to be changed.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// It is mounted read-only.
    #[error("{}: resctrl is mounted read-only: mount -o remount,rw", path.display())]
    ReadOnly {
        /// What was to be changed.
        path: PathBuf,
    },
    /// Somebody else has it.
    #[error("{what} is busy: {why}")]
    Busy {
        /// What is busy.
        what: String,
        /// By whom, as far as is known.
        why: String,
    },
    /// The processor has no more classes of service.
    #[error(
        "out of classes of service (CLOSIDs): the processor has {limit}, and they belong to the default group and {}",
        list(groups)
    )]
    OutOfClosids {
        /// How many there are, the default group's included.
        limit: u32,
        /// Who has them.
        groups: Vec<String>,
    },
    /// The processor has no more identities for monitoring.
    #[error("out of monitoring identities (RMIDs): {said}")]
    OutOfRmids {
        /// What the kernel said.
        said: String,
    },
    /// A mask that this machine cannot have.
    #[error("mask {mask:x} of {resource}: {why}")]
    BadMask {
        /// Whose mask.
        resource: String,
        /// The mask.
        mask: u32,
        /// What it must be like.
        why: String,
    },
    /// No ways in a row are free.
    #[error("{resource} {id} has no {asked} free ways in a row: at most {free}{}", match holders.is_empty() {
        true => String::new(),
        false => format!("; others are held by {}", list(holders)),
    })]
    NoRoom {
        /// The cache's level.
        resource: String,
        /// The cache's number.
        id: u32,
        /// So many ways were asked for.
        asked: u32,
        /// So many there are.
        free: u32,
        /// Groups that hold ways.
        holders: Vec<String>,
    },
    /// There is no such cache.
    #[error("there is no {resource} cache {id}: there are {known:?}")]
    NoCache {
        /// The cache's level.
        resource: String,
        /// The number that was asked for.
        id: u32,
        /// The numbers that are there.
        known: Vec<u32>,
    },
    /// A group was removed by somebody else.
    #[error("group {group} has vanished: somebody removed it, or unmounted resctrl")]
    Vanished {
        /// Its name.
        group: String,
    },
    /// There is no such task.
    #[error("there is no task {task}")]
    NoTask {
        /// Its number.
        task: i32,
    },
    /// A task or a core belongs to a group that is not Tailwater's.
    #[error("{what} belongs to the group {group}, which is not of this process: nothing is taken from others")]
    Taken {
        /// The task, or the core.
        what: String,
        /// Whose it is.
        group: String,
    },
    /// The kernel refused, and said why.
    #[error("{}: the kernel refused {wrote:?}: {}", path.display(), match said {
        Some(said) => format!("{said} ({error})"),
        None => error.to_string(),
    })]
    Refused {
        /// The file, or the directory.
        path: PathBuf,
        /// What was written; a verb for directories.
        wrote: String,
        /// What it said in `info/last_cmd_status`.
        said: Option<String>,
        /// The error itself.
        error: io::Error,
    },
    /// A file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file does not say what the kernel documents.
    #[error("{}:{line}: {expected}, not {found:?}", path.display())]
    Syntax {
        /// Which one.
        path: PathBuf,
        /// Its line, from one.
        line: usize,
        /// What should be there.
        expected: &'static str,
        /// What is there, cut short.
        found: String,
    },
    /// An operation failed, and so did taking it back.
    #[error("{first}; and it could not be taken back: {then}")]
    NotUndone {
        /// What failed first.
        first: Box<Error>,
        /// What failed then.
        then: Box<Error>,
    },
}

fn list(names: &[String]) -> String {
    match names.is_empty() {
        true => "nobody else".to_owned(),
        false => names.join(", "),
    }
}
