//! Slot of one confined program on the machine: a number, a user, a directory, and what lets a later agent clean up if
//! this one dies.
//!
//! `/run/tailwater/functions/NUMBER/` holds the file `owner`, which the agent keeps locked (`flock`) while the program
//! exists. A process that finds it unlocked may remove everything with that number.
//!
//! Any user who may open a file may lock it. So only the agent's user may enter the directory of the slots, and no
//! step waits for a lock without a bound.

use std::fs::{self, DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::cgroup::Hierarchies;
use crate::error::Error;

/// Directory of the slots.
pub(crate) const DIRECTORY: &str = "/run/tailwater/functions";

/// Maximum number of programs confined on one machine at a time.
const SLOTS: u32 = 4096;

/// First user and group ID; each slot has its own. The range lies above the IDs of people, services and systemd's
/// dynamic users, and below the usual ranges of containers.
pub const FIRST_USER: u32 = 0x4f00_0000;

/// Time to wait for the lock of a new owner file. Only a sweep of another agent holds it, for microseconds.
const PATIENCE: Duration = Duration::from_secs(2);

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
        Instance::take_in(Path::new(DIRECTORY))
    }

    fn take_in(places: &Path) -> Result<Instance, Error> {
        /// Number that distinguishes slots being taken by this process.
        static NEXT: AtomicU32 = AtomicU32::new(0);
        make_private(places)?;
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
            let file = File::options()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&owner)
                .map_err(at(&owner))?;
            if let Err(error) = lock_within(&file, &owner, PATIENCE) {
                let _ = fs::remove_dir_all(&new);
                return Err(error);
            }
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

/// Creates a directory below `/run`, or another one of root's, that only this process's user may enter. One that is
/// open to others, as earlier versions left it, is closed to them.
fn make_private(directory: &Path) -> Result<(), Error> {
    let create = |path: &Path, mode: u32| match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(at(path)(error)),
        _ => Ok(()),
    };
    let above = directory.parent().unwrap_or(Path::new("/"));
    create(above, 0o755)?;
    const OTHERS_WRITE: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    let mode = mode_of_ours(above)?;
    if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
        return Err(Error::Directory {
            path: above.to_owned(),
            found: format!("one that others may write to (mode {mode:o})"),
        });
    }
    create(directory, 0o700)?;
    if mode_of_ours(directory)? & 0o077 != 0 {
        fs::set_permissions(directory, Permissions::from_mode(0o700)).map_err(at(directory))?;
    }
    Ok(())
}

/// Checks that a path is a directory, not a link to one, of this process's user or root, and returns its mode. The
/// owner of any other one could replace what is in it.
fn mode_of_ours(directory: &Path) -> Result<u32, Error> {
    let data = fs::symlink_metadata(directory).map_err(at(directory))?;
    let ours = [0, rustix::process::geteuid().as_raw()];
    let found = match data.is_dir() {
        false => "something else".to_owned(),
        true if !ours.contains(&data.uid()) => format!("one of user {}", data.uid()),
        true => return Ok(data.mode() & 0o7777),
    };
    Err(Error::Directory {
        path: directory.to_owned(),
        found,
    })
}

/// Takes an exclusive lock within `patience`.
fn lock_within(file: &File, path: &Path, patience: Duration) -> Result<(), Error> {
    let deadline = Instant::now() + patience;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(Duration::from_millis(1)),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Locked {
                    path: path.to_owned(),
                    seconds: patience.as_secs_f32(),
                });
            }
            Err(TryLockError::Error(error)) => return Err(at(path)(error)),
        }
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
        // Neither a link nor a pipe, at which opening would wait, takes the place of the file.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let Ok(file) = File::options().read(true).custom_flags(flags).open(&owner) else {
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

#[cfg(test)]
mod tests;
