//! Slot of one confined program on the machine: a number, a user, a directory, and what lets a later agent clean up if
//! this one dies.
//!
//! `/run/tailwater/functions/NUMBER/` holds the file `owner`, which the agent keeps locked (`flock`) while the program
//! exists. A process that finds it unlocked may remove everything with that number.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::cgroup::Hierarchies;
use crate::error::Error;

/// Directory of the slots.
pub(crate) const DIRECTORY: &str = "/run/tailwater/functions";

/// Maximum number of programs confined on one machine at a time.
const SLOTS: u32 = 4096;

/// First user and group ID; each slot has its own. The range lies above the IDs of people, services and systemd's
/// dynamic users, and below the usual ranges of containers.
pub const FIRST_USER: u32 = 0x4f00_0000;

/// Slot owned by this process until dropped.
#[derive(Debug)]
pub(crate) struct Instance {
    pub number: u32,
    pub directory: PathBuf,
    /// Owner file, locked until this is dropped.
    _owner: File,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
    |error| Error::File {
        path: path.to_owned(),
        error,
    }
}

impl Instance {
    /// Takes a free slot, after removing the remains of dead agents.
    pub(crate) fn take() -> Result<Instance, Error> {
        /// Number that distinguishes slots being taken by this process.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let places = Path::new(DIRECTORY);
        fs::create_dir_all(places).map_err(at(places))?;
        sweep_in(places)?;
        let (new, file, turn) = loop {
            let turn = NEXT.fetch_add(1, Ordering::Relaxed);
            let new = places.join(format!("new-{}-{turn}", process::id()));
            match fs::create_dir(&new) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(at(&new)(error)),
            }
            let owner = new.join("owner");
            let file = File::create(&owner).map_err(at(&owner))?;
            file.lock().map_err(at(&owner))?;
            // A sweep may have removed the file between creating and locking it.
            if same_file(&file, &owner) {
                break (new, file, turn);
            }
        };
        // The rename publishes the slot with its lock held, so a sweep never sees a slot without an owner. Numbers are
        // used in turn: the kernel may count a user's processes for a moment after they end.
        let first = process::id().wrapping_add(turn) % SLOTS;
        for step in 0..SLOTS {
            let number = (first + step) % SLOTS;
            let directory = places.join(number.to_string());
            match fs::rename(&new, &directory) {
                Ok(()) => {
                    return Ok(Instance {
                        number,
                        directory,
                        _owner: file,
                    });
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
                    ) => {}
                Err(error) => return Err(at(&directory)(error)),
            }
        }
        let _ = fs::remove_dir_all(&new);
        Err(Error::NoFreeSlot { count: SLOTS })
    }

    /// Returns the user and group ID of this slot.
    pub(crate) fn user(&self) -> u32 {
        FIRST_USER + self.number
    }

    /// Returns the name of its control groups, below Tailwater's.
    pub(crate) fn group(&self) -> String {
        group_name(&self.number.to_string())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // The owner file goes last, with the directory, so a sweep still finds the slot after a crash in between.
        let _ = remove(&self.directory);
    }
}

fn group_name(number: &str) -> String {
    format!("tailwater/{number}")
}

/// Removes the directory, its owner file last.
fn remove(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name() == "owner" {
            continue;
        }
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    fs::remove_dir_all(directory)
}

/// Removes the remains of dead agents: processes, control groups, directories. Returns the number of programs they
/// belonged to.
///
/// Every start does this too.
///
/// # Errors
/// If the slot directory cannot be read, or something in it cannot be removed.
pub fn sweep() -> Result<usize, Error> {
    let places = Path::new(DIRECTORY);
    match places.exists() {
        true => sweep_in(places),
        false => Ok(0),
    }
}

fn sweep_in(places: &Path) -> Result<usize, Error> {
    let mut swept = 0;
    for entry in fs::read_dir(places).map_err(at(places))? {
        let directory = entry.map_err(at(places))?.path();
        let owner = directory.join("owner");
        let Ok(file) = File::open(&owner) else {
            // Its owner has just removed it, or has not created the file yet. Or the agent died in between and the
            // directory is empty.
            if begun_by_the_dead(&directory) {
                let _ = fs::remove_dir(&directory);
            }
            continue;
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(error)) => return Err(at(&owner)(error)),
        }
        // Between opening and locking, the owner may have removed it, and another slot may have taken its path.
        if !same_file(&file, &owner) {
            continue;
        }
        if let Some(number) = directory.file_name().and_then(|name| name.to_str()) {
            Hierarchies::find()?.remove(&group_name(number));
        }
        remove(&directory).map_err(at(&directory))?;
        swept += 1;
    }
    Ok(swept)
}

fn same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |data: fs::Metadata| (data.dev(), data.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => identity(open) == identity(named),
        _ => false,
    }
}

/// Returns `true` if a process that no longer exists created the directory in [`Instance::take`] and got no further.
fn begun_by_the_dead(directory: &Path) -> bool {
    let name = directory.file_name().and_then(|name| name.to_str());
    name.and_then(|name| name.strip_prefix("new-")?.split_once('-'))
        .is_some_and(|(process, _)| !Path::new("/proc").join(process).exists())
}
