//! Errors, with the kernel's message where there is one.

use std::io;
use std::path::PathBuf;

/// Failure of an operation. A failed operation leaves no changes behind, except after [`Error::NotUndone`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel or the processor has no `resctrl`, or it is not mounted and mounting is disabled.
    #[error("no resctrl on this machine: {why}")]
    Absent {
        /// The missing part and its remedy.
        why: String,
    },
    /// The machine cannot control or monitor a resource.
    #[error("resctrl does not control {what} on this machine")]
    Unsupported {
        /// The resource.
        what: String,
    },
    /// Permission denied.
    #[error("{}: {error}: changing resctrl requires root", path.display())]
    Denied {
        /// File or directory of the operation.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// The file system is mounted read-only.
    #[error("{}: resctrl is mounted read-only: mount -o remount,rw", path.display())]
    ReadOnly {
        /// File or directory of the operation.
        path: PathBuf,
    },
    /// Another program uses the resource.
    #[error("{what} is busy: {why}")]
    Busy {
        /// The busy resource.
        what: String,
        /// Its user, as far as known.
        why: String,
    },
    /// All classes of service (CLOSIDs) are in use.
    #[error(
        "out of classes of service (CLOSIDs): the processor has {limit}, used by the default group and {}",
        list(groups)
    )]
    OutOfClosids {
        /// Number of classes, the default group's included.
        limit: u32,
        /// Groups that use them.
        groups: Vec<String>,
    },
    /// All monitoring identifiers (RMIDs) are in use.
    #[error("out of monitoring IDs (RMIDs): {said}")]
    OutOfRmids {
        /// The kernel's message.
        said: String,
    },
    /// The mask is invalid on this machine.
    #[error("mask {mask:x} of {resource}: {why}")]
    BadMask {
        /// Resource of the mask.
        resource: String,
        /// The mask.
        mask: u32,
        /// The violated constraint.
        why: String,
    },
    /// Not enough adjacent ways are free.
    #[error("{resource} {id}: expected {asked} contiguous free ways, found at most {free}{}", match holders.is_empty() {
        true => String::new(),
        false => format!("; others are used by {}", list(holders)),
    })]
    NoRoom {
        /// Level of the cache.
        resource: String,
        /// Identifier of the cache.
        id: u32,
        /// Requested number of ways.
        asked: u32,
        /// Largest number of ways available.
        free: u32,
        /// Groups that occupy ways.
        holders: Vec<String>,
    },
    /// The cache does not exist.
    #[error("{resource} cache {id} does not exist: expected one of {known:?}")]
    NoCache {
        /// Level of the cache.
        resource: String,
        /// Requested identifier.
        id: u32,
        /// Existing identifiers.
        known: Vec<u32>,
    },
    /// Another program has removed the group.
    #[error("group {group} no longer exists: it was removed, or resctrl was unmounted")]
    Vanished {
        /// Name of the group.
        group: String,
    },
    /// The task does not exist.
    #[error("task {task} does not exist")]
    NoTask {
        /// Identifier of the task.
        task: i32,
    },
    /// The task or core belongs to a group that this process does not own.
    #[error("{what} belongs to the group {group} of another process")]
    Taken {
        /// The task or the core.
        what: String,
        /// The group it belongs to.
        group: String,
    },
    /// The kernel rejected a command.
    #[error("{}: the kernel refused {wrote:?}: {}", path.display(), match said {
        Some(said) => format!("{said} ({error})"),
        None => error.to_string(),
    })]
    Refused {
        /// The file or directory.
        path: PathBuf,
        /// The written text, or a verb for directories.
        wrote: String,
        /// The kernel's message in `info/last_cmd_status`.
        said: Option<String>,
        /// The kernel's error.
        error: io::Error,
    },
    /// A file cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        error: io::Error,
    },
    /// A file violates the format that the kernel documents.
    #[error("{}:{line}: expected {expected}, found {found:?}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Expected content.
        expected: &'static str,
        /// Found content, shortened.
        found: String,
    },
    /// An operation failed, and undoing the command failed as well.
    #[error("{first}; rollback failed: {then}")]
    NotUndone {
        /// Error of the operation.
        first: Box<Error>,
        /// Error of the undo.
        then: Box<Error>,
    },
}

fn list(names: &[String]) -> String {
    match names.is_empty() {
        true => "no others".to_owned(),
        false => names.join(", "),
    }
}
