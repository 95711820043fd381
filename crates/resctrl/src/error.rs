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
    #[error("resctrl is there, but it does not control {what} on this machine")]
    Unsupported {
        /// The resource.
        what: String,
    },
    /// Permission denied.
    #[error("{}: {error}: resctrl is changed by root only", path.display())]
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
        "out of classes of service (CLOSIDs): the processor has {limit}, and they belong to the default group and {}",
        list(groups)
    )]
    OutOfClosids {
        /// Number of classes, the default group's included.
        limit: u32,
        /// Groups that use them.
        groups: Vec<String>,
    },
    /// All monitoring identifiers (RMIDs) are in use.
    #[error("out of monitoring identities (RMIDs): {said}")]
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
    #[error("{resource} {id} has no {asked} free ways in a row: at most {free}{}", match holders.is_empty() {
        true => String::new(),
        false => format!("; others are held by {}", list(holders)),
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
    #[error("there is no {resource} cache {id}: there are {known:?}")]
    NoCache {
        /// Level of the cache.
        resource: String,
        /// Requested identifier.
        id: u32,
        /// Existing identifiers.
        known: Vec<u32>,
    },
    /// Another program has removed the group.
    #[error("group {group} has vanished: somebody removed it, or unmounted resctrl")]
    Vanished {
        /// Name of the group.
        group: String,
    },
    /// The task does not exist.
    #[error("there is no task {task}")]
    NoTask {
        /// Identifier of the task.
        task: i32,
    },
    /// The task or core belongs to a group that this process does not own.
    #[error("{what} belongs to the group {group}, which is not of this process: nothing is taken from others")]
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
    #[error("{}:{line}: {expected}, not {found:?}", path.display())]
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
    /// An operation failed, and undoing it failed as well.
    #[error("{first}; and it could not be taken back: {then}")]
    NotUndone {
        /// Error of the operation.
        first: Box<Error>,
        /// Error of the undo.
        then: Box<Error>,
    },
}

fn list(names: &[String]) -> String {
    match names.is_empty() {
        true => "nobody else".to_owned(),
        false => names.join(", "),
    }
}
